"""QR of a tall matrix whose rows are streamed once: only the triangle is kept.

With the rows cut into blocks A_1, A_2, ..., the first of which has n rows::

    A_1 = Q_1 R_1,    [R_(i-1); A_i] = Q_i [R_i; 0]

so that R is the last R_i, in sequential TSQR (Demmel, Grigori, Hoemmen & Langou 2012, section 4.2).
Each step exploits the triangle's zeros (LAPACK's tpqrt): 2 h n² operations for h rows, as in an
ordinary QR. Right-hand sides are updated in each step: c <- Q_iᴴ [c; b_i], and the rest of b_i is a
part of the residual. Damping appends the rows d I to a copy of the last R.

With several threads, each updates its own triangle. With the rows cut into steps A_1, A_2, ...,
step i goes to lane i modulo their number. Each lane runs sequential TSQR, and parallel TSQR merges
the lanes' triangles at the end (Demmel, Grigori, Hoemmen & Langou 2012, sections 4.1 and 4.2). A
step consists of narrow panels with a few matrix products between them, which several BLAS threads
hardly speed up. Here each thread has a step of its own, while the caller's thread prepares the next
rows.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.streams import Pending
from outcore.blas.lapack import kernels
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tsqr_plan import (
    WORK_COLUMNS,
    factor_rows,
    lane_step_rows,
    lanes_of,
    reflector_columns,
    triangle_rows,
)
from outcore.linalg._tiles.columns import norms
from outcore.linalg._tiles.crew import Crew
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


class TallQR:
    """The triangle of the rows so far.

    Parameters
    ----------
    n, k, dtype
        Columns, right-hand sides, element type.
    call
        The call whose arena supplies the memory.
    most
        Upper bound of the number of rows, if known; with fewer than n, R has this many rows.
    has_head
        Whether to begin with the first n rows; otherwise with a triangle of zeros.

    Attributes
    ----------
    R
        (n, n), or fewer rows, column-major: R on and above the diagonal. Below it are the
        reflections of the first n rows, until `triangle` clears them.
    c
        (n, k): Qᴴ b.
    rest
        (k,) float64: 2-norms of the part of Qᴴ b below `c`.
    rows
        Number of rows so far.
    state
        Memory of the complete state except the number of rows, to save for resuming.
    """

    def __init__(
        self,
        n: int,
        k: int,
        dtype: np.dtype[Any],
        call: LongCall,
        most: int | None = None,
        *,
        has_head: bool = True,
    ) -> None:
        self._kernels, self._trace = kernels(dtype), call.trace
        self.R = allocated(call, (triangle_rows(n, most), n), dtype)
        self.c = allocated(call, (n, k), dtype)
        self.R[...] = 0
        self.c[...] = 0
        self._head = n if has_head else 0
        rest, tau = allocated(call, (k, 1), np.dtype(np.float64)), allocated(call, (n, 1), dtype)
        rest[...] = 0
        self.rest, self.tau = rest[:, 0], tau[:, 0]
        self.rows = 0
        self.state = [self.R, self.c, rest, tau]
        self._t = allocated(call, (reflector_columns(n, dtype), n), dtype)
        self._work = allocated(call, (WORK_COLUMNS * max(n, k), 1), dtype)[:, 0]
        self._step = factor_rows(n, dtype)

    def add(self, A: Matrix, b: Matrix | None = None) -> list[npt.NDArray[Any]]:
        """Add rows, column-major, which are overwritten; return the factors tau of each step.

        The vectors of the reflections replace the rows, and a part of Qᴴ b replaces `b`.
        """
        start_ns = self._trace.now_ns()
        b = np.zeros((len(A), 0), A.dtype, order="F") if b is None else b
        steps = self.steps(self.rows, len(A))
        self.add_head(A, b)
        taus = [self.add_below(A[step], b[step]) for step in steps]
        self.rows += sum(step.stop - step.start for step in steps)
        self._trace.record("compute", start_ns)
        return taus

    def steps(self, first: int, rows: int) -> list[slice]:
        """Cut a block of rows, starting at row `first`, into steps.

        The first n rows of the matrix belong to no step.
        """
        head = min(max(self._head - first, 0), rows)
        return cut(head, rows, self._step)

    def finish(self) -> None:
        """Factor the first rows at the end, if there were fewer than n."""
        if 0 < self.rows < self._head:
            self._factor_head(self.rows)

    def take(self, other: "TallQR") -> None:
        """Add the triangle of another one, which is overwritten; the caller counts the rows."""
        self.add_below(other.triangle(), other.c)
        np.hypot(self.rest, other.rest, out=self.rest)

    def append_strip(self, first: int, A: Matrix, b: Matrix) -> None:
        """Add rows of another triangle, from its row `first`, without the zeros before them.

        They, and the right-hand sides, are overwritten; the caller counts the rows.
        """
        width = A.shape[1]
        t = self._t[:width, :width]
        self._kernels.tpqrt(self.R[first:, first:], A, t, self._work)
        if b.size:
            self._kernels.tpmqrt(A, t, self.c[first:], b, self._work, trans="C")
            np.hypot(self.rest, norms(b), out=self.rest)

    def append_rows(self, R: Matrix, B: Matrix) -> None:
        """Append rows to another triangle of at most n columns: R <- that of [R; B].

        The rows are overwritten.
        """
        t = self._t[: len(R), : len(R)]
        self._kernels.tpqrt(R, B, t, self._work)

    def append_damping(self, R: Matrix, c: Matrix, damp: float) -> None:
        """Append the rows ``damp * I`` to another triangle of n' <= n columns: R, c <- of [R; d I].

        The right-hand sides (n', k) of these rows are zeros. All of this takes 2/3 n'³ operations.
        """
        (n, k), step = c.shape, WORK_COLUMNS // 4
        # One half of the workspace suffices for the widest reflectors and their products.
        work, spare = np.split(self._work, 2)
        for first in range(0, n, step):
            height, width = min(step, n - first), n - first
            B = spare[: height * width].reshape((height, width), order="F")
            below = spare[step * n :][: height * k].reshape((height, k), order="F")
            B[...] = 0
            np.fill_diagonal(B, damp)
            below[...] = 0
            t = self._t[:width, :width]
            self._kernels.tpqrt(R[first:, first:], B, t, work)
            if k:
                self._kernels.tpmqrt(B, t, c[first:], below, work, trans="C")

    def apply_head(self, C: Matrix) -> None:
        """Multiply with the reflections of the first n rows: C <- Q_1 C, with the rows of R."""
        rows = len(self.R)
        self._kernels.unmqr(self.R[:, :rows], self.tau[:rows], C, self._work)

    def triangle(self) -> Matrix:
        """Return R, of `self.R`'s shape, with zeros below the diagonal."""
        for j in range(self.R.shape[1]):
            self.R[j + 1 :, j] = 0
        return self.R

    def add_head(self, A: Matrix, b: Matrix) -> None:
        """Store those of the first n rows, and factor them when all have arrived."""
        count = min(self._head - self.rows, len(A))
        if count <= 0:
            return
        self.R[self.rows : self.rows + count] = A[:count]
        self.c[self.rows : self.rows + count] = b[:count]
        self.rows += count
        if self.rows == self._head:
            self._factor_head(self.rows)

    def _factor_head(self, rows: int) -> None:
        k = min(rows, len(self.R))
        self._kernels.geqrf(self.R[:rows], self.tau, self._work)
        if self.c.size:
            reflections = self.R[:rows, :k]
            self._kernels.unmqr(reflections, self.tau, self.c[:rows], self._work, trans="C")

    def add_below(self, A: Matrix, b: Matrix) -> npt.NDArray[Any]:
        """Add rows of one step after the first n, which the caller counts; return their tau."""
        self._kernels.tpqrt(self.R, A, self._t, self._work)
        if b.size:
            self._kernels.tpmqrt(A, self._t, self.c, b, self._work, trans="C")
            np.hypot(self.rest, norms(b), out=self.rest)
        block, n = self._t.shape
        taus: npt.NDArray[Any] = self._t[np.arange(n) % block, np.arange(n)]
        return taus


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
