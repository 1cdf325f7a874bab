"""The orthogonal factor of a tall matrix, from the reflections of its rows by `TallQR`.

The reflections are on disk, block by block. With Q_i the reflections of step i,

    Q = Q_1 [I; ...],    built from the last step to the first:  [C; B_i] <- Q_i [C; 0]

where C is n x n, the unit matrix at first, and B_i are the rows of Q that replace the step's
reflections (Demmel, Grigori, Hoemmen & Langou 2012, section 4.2). There is no division by R, so Q
is orthogonal to rounding whatever the condition of A.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import BlockStream, wait
from outcore.blas.lapack import kernels
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tsqr import TallQR
from outcore.linalg._rows.tsqr_plan import Q_COLUMNS, RING_BLOCKS, TallQGeometry
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

Passed: TypeAlias = Callable[[int, Callable[[], None]], None]
"""Called after each block of Q, with the number of blocks and a function that syncs them."""


class TallQ:
    """Q of a matrix whose rows are streamed twice: from the first to the last, and back.

    Parameters
    ----------
    geometry
        Sizes and blocks.
    call
        The call.

    Attributes
    ----------
    factor
        R, and Qᴴ applied to the right-hand sides.
    C
        (n, n): the factor C, upper triangular, with which Q begins. Each of several processes has
        its own (`outcore.linalg._rows.tree_q`).
    state
        Memory of the state that `go_on` resumes, without the number of blocks.
    """

    def __init__(self, geometry: TallQGeometry, call: LongCall) -> None:
        self.geometry = g = geometry
        self._call = call
        self.factor = TallQR(g.n, g.k, g.dtype, call)
        self._memory = allocated(call, (g.n, g.steps), g.dtype)
        self._taus: list[list[npt.NDArray[Any]]] = []
        self._done = 0
        self.C = allocated(call, (g.n, g.n), g.dtype)
        self.C[...] = np.eye(g.n, dtype=g.dtype)
        columns = min(Q_COLUMNS, g.n)
        self._kernels = kernels(g.dtype)
        self._panel = allocated(call, (g.panel_rows, columns), g.dtype)
        self._product = allocated(call, (columns, g.n), g.dtype)
        self._square = allocated(call, (columns, columns), g.dtype)
        self.state = [*self.factor.state, self._memory, self.C]

    def go_on(self, blocks: int) -> None:
        """Resume from a state in which `blocks` blocks have reflections, in either direction."""
        g = self.geometry
        self._taus, self._done = [], 0
        for rows in cut(0, g.m, g.height)[:blocks]:
            count = len(self.factor.steps(rows.start, rows.stop - rows.start))
            taus = range(self._done, self._done + count)
            self._taus.append([self._memory[:, i] for i in taus])
            self._done += count
            self.factor.rows = rows.stop

    def add(self, block: Matrix, b: Matrix | None = None) -> None:
        """Add a block of rows, which its reflections replace."""
        self._taus.append([])
        for tau in self.factor.add(block, b):
            self._memory[:, self._done] = tau
            self._taus[-1].append(self._memory[:, self._done])
            self._done += 1
        self._call.meter.advance(len(block) * self.geometry.row_work)

    def build(self, first: int, block: Matrix) -> None:
        """Replace the reflections of a block by rows of Q; the last block comes first."""
        start_ns = self._call.trace.now_ns()
        n, steps = self.geometry.n, self.factor.steps(first, len(block))
        for step, tau in reversed(list(zip(steps, self._taus.pop(), strict=True))):
            self.apply(block[step], tau)
        if first < n <= first + len(block):
            self.factor.apply_head(self.C)
        head = self.C[first : first + len(block)]
        block[: len(head)] = head
        self._call.trace.record("compute", start_ns)
        self._call.meter.advance(len(block) * self.geometry.row_work)

    def apply(self, V: Matrix, tau: npt.NDArray[Any]) -> None:
        """Compute [C; V] <- Q_i [C; 0], where V holds the reflections of Q_i.

        With a panel P of V's columns, a block reflection is I - [E; P] T [E; P]ᴴ, and T⁻¹ is the
        strictly upper part of PᴴP with 1 / tau on the diagonal (Puglisi 1992).
        """
        k, n, C = self._kernels, V.shape[1], self.C
        for columns in reversed(cut(0, n, len(self._square))):
            a, e = columns.start, columns.stop
            P, W = self._panel[: len(V), : e - a], self._product[: e - a, : n - a]
            P[...] = V[:, a:e]
            V[:, a:e] = 0
            W[...] = C[a:e, a:]
            k.gemm(P, V[:, e:], W[:, e - a :], trans_a="C")
            inverse = self._square[: e - a, : e - a]
            k.gemm(P, P, inverse, beta=0, trans_a="C")
            # A reflection with tau = 0 is the identity: its column of P is zero, and its row of W
            # must not contribute.
            none = tau[a:e] == 0
            np.fill_diagonal(inverse, 1 / np.where(none, 1, tau[a:e]))
            k.trsm(inverse, W, lower=False, unit=False)
            W[none] = 0
            C[a:e, a:] -= W
            k.gemm(P, W, V[:, a:], alpha=-1)


def build_from_disk(
    q: TallQ,
    reflections: ArrayFile,
    target: ArrayFile,
    call: LongCall,
    put: Callable[[int, Matrix, Matrix], Ticket],
    built: int,
    passed: Passed,
) -> None:
    """Form Q from the reflections in a file, from the last block to the first.

    ``put(first, rows, block)`` starts to write the result for the rows from `first`; `block` is
    their memory, with padding below the last row of the matrix. `built` blocks exist already;
    `passed` is called after each block.
    """
    g = q.geometry
    stream = BlockStream(reflections, g.dtype, call.arena, RING_BLOCKS * g.block_bytes, call.trace)
    blocks = cut(0, g.blocks * g.height, g.height)[::-1][built:]
    stream.extend((rows, slice(0, g.n)) for rows in blocks)
    # The memory of a block must not change until it is written.
    writing: deque[tuple[Ticket, Matrix]] = deque()

    def make_durable() -> None:
        for ticket, _ in writing:
            wait(ticket, call.trace)
        # The reflections are needed for resuming, too.
        for file in (reflections, target):
            wait(file.submit_sync(), call.trace)

    for number, rows in enumerate(blocks, built + 1):
        block = stream.take().data
        inside = block[: g.m - rows.start]
        q.build(rows.start, inside)
        writing.append((put(rows.start, inside, block), block))
        del block, inside
        passed(number, make_durable)
        if len(writing) == RING_BLOCKS - 1:
            wait(writing.popleft()[0], call.trace)
    for ticket, _ in writing:
        wait(ticket, call.trace)
