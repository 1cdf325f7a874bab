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


class ParallelQR:
    """The triangle of the rows so far; rows are added in the context of `at_work`.

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
    R, c, rest
        As in `TallQR`; after `finish`, of all rows.
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
        self._lanes = [TallQR(n, k, dtype, call, most)]
        for _ in range(lanes_of(plan, k) - 1):
            self._lanes.append(TallQR(n, k, dtype, call, has_head=False))
        self._step = lane_step_rows(plan)
        lanes = len(self._lanes)
        self._crew = Crew(call.trace, lanes) if lanes > 1 else None
        self._trace, self.cuts = call.trace, [lanes, self._step]
        self.R, self.c, self.rest = self._lanes[0].R, self._lanes[0].c, self._lanes[0].rest
        self.state = [matrix for lane in self._lanes for matrix in lane.state]

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

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._lanes[0].rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self._lanes[0].rows = rows

    def add(self, A: Matrix, b: Matrix | None = None) -> Pending | None:
        """Add rows, column-major, which are overwritten; return the step that uses them."""
        first = self._lanes[0]
        if self._crew is None:
            first.add(A, b)
            return None
        b = np.zeros((len(A), 0), A.dtype, order="F") if b is None else b
        start, start_ns = first.rows, self._trace.now_ns()
        first.add_head(A, b)
        self._trace.record("compute", start_ns)
        # The lane of a row depends on its number alone, not on the start of a resumed call.
        works = []
        for step in first.steps(start, len(A), self._step):
            number = (start + step.start) // self._step % len(self._lanes)
            work = functools.partial(self._lanes[number].add_below, A[step], b[step])
            works.append((number, work))
        first.rows = start + len(A)
        return self._crew.add(works)

    def settle(self) -> None:
        """Wait until all added rows are in a triangle."""
        if self._crew is not None:
            self._crew.settle(0)

    def finish(self) -> None:
        """Merge the triangles pairwise: one of each pair takes the other."""
        self.settle()
        self._lanes[0].finish()
        apart = 1
        while self._crew is not None and apart < len(self._lanes):
            pairs = range(0, len(self._lanes) - apart, 2 * apart)
            self._crew.add([(number, self._merge(number, number + apart)) for number in pairs])
            self._crew.settle(0)
            apart *= 2

    def _merge(self, number: int, other: int) -> functools.partial[None]:
        return functools.partial(self._lanes[number].take, self._lanes[other])

    def apply_head(self, C: Matrix) -> None:
        """Multiply with the reflections of the first n rows, as `TallQR` does."""
        self._lanes[0].apply_head(C)

    def append_rows(self, R: Matrix, B: Matrix) -> None:
        """Append rows to another triangle, as `TallQR` does."""
        self._lanes[0].append_rows(R, B)

    def append_damping(self, R: Matrix, c: Matrix, damp: float) -> None:
        """Append the rows ``damp * I`` to another triangle, as `TallQR` does."""
        self._lanes[0].append_damping(R, c, damp)

    def triangle(self) -> Matrix:
        """Return R with zeros below the diagonal."""
        return self._lanes[0].triangle()
