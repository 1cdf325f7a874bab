"""QR of a tall matrix whose rows are streamed, by threads that each update their own triangle.

With the rows cut into steps A_1, A_2, ..., step i goes to lane i modulo their number. Each lane
runs sequential TSQR, and parallel TSQR merges the lanes' triangles at the end (Demmel, Grigori,
Hoemmen & Langou 2012, sections 4.1 and 4.2). A step consists of narrow panels with a few matrix
products between them, which several BLAS threads hardly speed up. Here each thread has a step of
its own, while the caller's thread prepares the next rows.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from outcore._util.streams import Pending
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.tsqr import TallQR
from outcore.linalg._rows.tsqr_plan import lane_step_rows, lanes_of
from outcore.linalg._tiles.crew import Crew
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


class ParallelQR(TallQR):
    """The triangle of the rows so far; rows are added in the context of `at_work`.

    It is the first lane, which takes the triangles of the others in `finish`.

    Parameters
    ----------
    plan
        Blocks of the rows.
    k
        Number of right-hand sides.
    call
        The call whose arena supplies the memory.
    most
        As in `TallQR`.

    Attributes
    ----------
    cuts
        Lanes, and rows of a step: a state saved with other numbers has other triangles.
    state
        Memory of the complete state except the number of rows, to save for resuming; valid after
        `settle`.
    """

    def __init__(
        self,
        plan: RowPlan,
        k: int,
        call: LongCall,
        most: int | None = None,
    ) -> None:
        n, dtype = plan.layout.columns, plan.dtype
        super().__init__(n, k, dtype, call, most)
        lanes = lanes_of(plan, k)
        self._others = [TallQR(n, k, dtype, call, has_head=False) for _ in range(lanes - 1)]
        self.cuts = [lanes, lane_step_rows(plan)]
        self.state = [matrix for lane in self._lanes for matrix in lane.state]
        self._crew: Crew | None = None
        if self._others:
            self._step = self.cuts[1]
            self._crew = Crew(call.trace, lanes)

    @property
    def _lanes(self) -> list[TallQR]:
        return [self, *self._others]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the threads: in this context rows are added, and the triangles merged."""
        if self._crew is None:
            yield
            return
        try:
            with self._crew:
                yield
        finally:
            # Ctrl-C may arrive exactly where a `with` block begins or ends.
            self._crew.close()

    def share(self, A: Matrix, b: Matrix | None = None) -> Pending | None:
        """Add rows as `add` does, but by all lanes; return the step that uses them."""
        if self._crew is None:
            self.add(A, b)
            return None
        b = np.zeros((len(A), 0), A.dtype, order="F") if b is None else b
        start, start_ns = self.rows, self._trace.now_ns()
        self.add_head(A, b)
        self._trace.record("compute", start_ns)
        # The lane of a row depends on its number alone, not on the start of a resumed call.
        works = []
        for step in self.steps(start, len(A)):
            number = (start + step.start) // self._step % len(self._lanes)
            work = functools.partial(self._lanes[number].add_below, A[step], b[step])
            works.append((number, work))
        self.rows = start + len(A)
        return self._crew.add(works)

    def settle(self) -> None:
        """Wait until all added rows are in a triangle."""
        if self._crew is not None:
            self._crew.settle(0)

    def finish(self) -> None:
        """Merge the triangles pairwise: one of each pair takes the other."""
        self.settle()
        super().finish()
        apart = 1
        while self._crew is not None and apart < len(self._lanes):
            pairs = range(0, len(self._lanes) - apart, 2 * apart)
            self._crew.add([(number, self._merge(number, number + apart)) for number in pairs])
            self._crew.settle(0)
            apart *= 2

    def _merge(self, number: int, other: int) -> functools.partial[None]:
        return functools.partial(self._lanes[number].take, self._lanes[other])
