"""QR of a tall matrix whose rows go by, by threads of which each makes a triangle of its own.

With the rows cut into steps A_1, A_2, ..., step i goes to lane i modulo their number: sequential
TSQR in each lane, and parallel TSQR of the lanes' triangles at the end (Demmel, Grigori, Hoemmen &
Langou 2012, sections 4.1 and 4.2). A step is a few matrix products between narrow panels, of which
a BLAS with several threads makes little; here each thread has a step to itself, while that of the
caller gets the next rows ready.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from outcore.linalg.crew import Crew
from outcore.linalg.matrix import Matrix
from outcore.linalg.rows.plan import RowPlan
from outcore.linalg.rows.tsqr import TallQR
from outcore.linalg.rows.tsqr_plan import lane_step_rows, lanes_of
from outcore.longcall import LongCall
from outcore.streams import Pending


class ParallelQR:
    """The triangle of the rows so far, which are added in the context of `at_work`.

    Parameters
    ----------
    plan
        In which blocks the rows come.
    k
        Right-hand sides.
    call
        From whose arena the memory comes.
    damp, most
        As for `TallQR`.

    Attributes
    ----------
    R, c, rest
        As `TallQR` has them; of all rows after `finish`.
    cuts
        Lanes, and rows of a step: with others, what is kept is of other triangles.
    state
        Memory of all of that but the number of rows, for who keeps it to go on later; not before
        `settle`.
    """

    def __init__(
        self,
        plan: RowPlan,
        k: int,
        call: LongCall,
        damp: float = 0.0,
        most: int | None = None,
    ) -> None:
        n, dtype = plan.layout.columns, plan.dtype
        self._lanes = [TallQR(n, k, dtype, call, damp, most)]
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
        """Have threads: in this context rows are added, and the triangles put together."""
        if self._crew is None:
            yield
            return
        try:
            with self._crew:
                yield
        finally:
            # Ctrl-C may come just where a block of `with` begins or ends.
            self._crew.close()

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._lanes[0].rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self._lanes[0].rows = rows

    def add(self, A: Matrix, b: Matrix | None = None) -> Pending | None:
        """Add rows, column-major, which are overwritten; return what uses them from now on."""
        first = self._lanes[0]
        if self._crew is None:
            first.add(A, b)
            return None
        b = np.zeros((len(A), 0), A.dtype, order="F") if b is None else b
        start, start_ns = first.rows, self._trace.now_ns()
        first.add_head(A, b)
        self._trace.record("compute", start_ns)
        # Which lane takes rows depends on their number alone, not on where a call begins.
        works = []
        for step in first.steps(start, len(A), self._step):
            number = (start + step.start) // self._step % len(self._lanes)
            work = functools.partial(self._lanes[number].add_below, A[step], b[step])
            works.append((number, work))
        first.rows = start + len(A)
        return self._crew.add(works)

    def settle(self) -> None:
        """Wait until all rows that were added are in a triangle."""
        if self._crew is not None:
            self._crew.settle(0)

    def finish(self) -> None:
        """Put the triangles together: of a pair one takes the other's, and so on."""
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

    def triangle(self) -> Matrix:
        """Return R with zeros below the diagonal."""
        return self._lanes[0].triangle()
