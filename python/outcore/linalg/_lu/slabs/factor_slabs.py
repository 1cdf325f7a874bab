"""The loops of algorithm A, by slabs of columns.

They factor a whole matrix, or the first columns of a remaining part (see `LuGeometry`). Rows,
columns and panels are counted from the part's first.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.streams import Pending, kept, timed
from outcore.blas.lapack import Kernels, kernels
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._factors.conveyor import SlabConveyor
from outcore.linalg._factors.left_looking import SlabLoop
from outcore.linalg._factors.storage import FactorStorage, Source
from outcore.linalg._geometry.factor_plan import (
    RING_BLOCKS,
    LuGeometry,
    Slab,
    panel_flops,
    update_flops,
)
from outcore.linalg._lu.slabs.storage import LuFiles
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.triangles import solve_lower
from outcore.processes.blocks import Blocks, Expected, Sent
from outcore.processes.broadcasts import blocks_of
from outcore.processes.sharing import seconds_for
from outcore.report.longcall import LongCall


class LuConveyor(SlabConveyor):
    """Memory for one slab."""

    def __init__(
        self, g: LuGeometry, storage: FactorStorage[Any], call: LongCall, source: Source
    ) -> None:
        super().__init__(g, storage, call, source, g.origin)
        self._tiles_below = g.tiles_below

    def rows_done(self, end: int) -> None:
        """Write the tiles whose last row is ``end - 1``: rows above `end` are final."""
        rows = self._g.rows
        tile = end // rows - 1
        if end % rows == 0 and tile < self._tiles_below(self.part.first).start:
            for panel in range(len(self.panels_of(self.part))):
                self._write(range(tile, tile + 1), panel)
        self._storage.commit_if_durable()
        self.poll()

    def panel_done(self, panel: int) -> None:
        """Write the rest of a panel of the slab, which is final."""
        self._write(self._tiles_below(self.part.first), self.place_in_slab(panel))

    def held(self) -> tuple[Slab, Matrix]:
        """Return the last slab and its memory, after `drain`: whole tiles, no slab behind it."""
        return self.part, self._memory


class SlabFactorization(SlabLoop):
    """One run of algorithm A.

    Parameters
    ----------
    storage
        The files.
    geometry
        The cuts of the part.
    source
        The source of its elements.
    is_original
        Whether these are elements of A. If so, the run checks that they are finite.
    """

    g: LuGeometry
    conveyor: LuConveyor

    def __init__(
        self,
        storage: LuFiles[Any],
        call: LongCall,
        geometry: LuGeometry,
        source: Source,
        *,
        is_original: bool = True,
    ) -> None:
        g = geometry
        super().__init__(storage, call, g.ring_bytes, g.block_tiles * g.tile_bytes)
        self.g, self.before, self.is_original = g, g.origin // g.columns, is_original
        self.kernels = kernels(g.dtype)
        self.piv = storage.panel_pivots()[self.before :]
        self.blocks = self._blocks()
        self.conveyor = LuConveyor(g, storage, call, source)

    def _blocks(self) -> Blocks:
        """Return the source of panels: the disk, and the other processes."""
        g, call, team = self.g, self.call, self.storage.team
        # The owner of a block may first have to update and factor a panel.
        panels = max(g.deal.counts) if team.size > 1 else 0
        most_flops = update_flops(g, 0) * panels * g.columns + panel_flops(g, 0)
        more_s = seconds_for(RING_BLOCKS * g.slot_bytes, most_flops)
        return blocks_of(self.stream, team, call, RING_BLOCKS, g.ring_blocks, g.slot_bytes, more_s)

    def run(self) -> None:
        """Factor all parts that are not factored yet."""
        with self.blocks:
            super().run()
        self.storage.sent = self.blocks.sent

    def parts(self) -> list[Slab]:
        """Return the slabs that are not factored yet."""
        return self.g.slabs(max(self.storage.first_panel - self.before, 0))

    def update_by_earlier(self, slab: Slab, C: Matrix, arrivals: Iterator[int]) -> None:
        """Apply all panels to the left, and write the tiles that this completes."""
        columns = self.g.columns
        for K in range(slab.first):
            if K == 0:
                self.update_as_they_come(arrivals, len(self.g.deal.held(*slab)), C)
            else:
                self.update(K, self.blocks_of(K), C[K * columns :])
            self.conveyor.rows_done((K + 1) * columns)

    def factor(self, K: int, C: Matrix, extremes: Extremes) -> None:
        """Factor a panel of the slab with partial pivoting."""
        g, (o, e) = self.g, self.g.extent(K)
        start_ns = self.call.trace.now_ns()
        piv = np.empty(e - o, np.int32)
        columns = self.columns_of(K)
        extremes.see_info(factor_panel(self.kernels, C[o:, columns], piv), g.origin + o)
        extremes.see_factor(C[:e, columns])
        self.piv.append(piv)
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(panel_flops(g, K))

    def record(self, slab: Slab, extremes: Extremes) -> Record:
        """Return the journal's record of a slab."""
        g = self.g
        pivots = np.concatenate(
            [self.piv[K] + np.int32(g.origin + K * g.columns) for K in range(slab.first, slab.last)]
        )
        panels = Slab(slab.first + self.before, slab.last + self.before)
        places = self.storage.places_of(panels)
        return Record(panels.first, panels.last, pivots, places, extremes.to_json())

    def update_as_they_come(self, arrivals: Iterator[int], panels: int, C: Matrix) -> None:
        """C <- L_0⁻¹ P_0 C, for the first half of C's panels, while the others are still loading.

        The memory of the others still holds the last panels of the previous slab. Blocks of L_0 are
        kept for them, as many as fit in memory.
        """
        piv, blocks = self.piv[0], self.taken(0)
        early = max(itertools.islice(arrivals, (panels + 1) // 2), default=0)
        held: list[tuple[int, Matrix]] = []
        L = kept(itertools.islice(blocks, RING_BLOCKS), held, self.conveyor.poll)
        apply_panel(self.kernels, piv, timed(L, self.call.trace), C[:, :early])
        if early < C.shape[1] or not panels:
            max(arrivals, default=0)
            apply_panel(self.kernels, piv, timed(held, self.call.trace), C[:, early:])
        # This frees the memory for further blocks.
        held.clear()
        apply_blocks(self.kernels, len(piv), timed(blocks, self.call.trace), C)
        self.call.meter.advance(update_flops(self.g, 0) * C.shape[1])

    def update(self, K: int, L: Iterator[tuple[int, Matrix]], C: Matrix) -> None:
        """C <- L_K⁻¹ P_K C, for columns C from the first row of panel K down."""
        apply_panel(self.kernels, self.piv[K], L, C)
        self.call.meter.advance(update_flops(self.g, K) * C.shape[1])

    def share(self, K: int) -> Pending:
        """Send the row swaps and the L of a panel of the slab, or wait for the row swaps."""
        g = self.g
        if g.deal.owner(K) != g.deal.rank:
            self.piv.append(self.blocks.take().copy())
            return Sent()
        blocks: list[npt.NDArray[Any]] = [self.piv[K]]
        if self.part.last - 1 != K:
            panel = self.conveyor.whole_panel(K)
            blocks += [
                panel[tiles.start * g.rows : tiles.stop * g.rows] for tiles in g.blocks_below(K)
            ]
        return self.blocks.offer(blocks)

    def update_in_memory(self, K: int, C: Matrix, columns: slice) -> None:
        """Apply a panel of the slab to other columns of it."""
        g, (o, _) = self.g, self.g.extent(K)
        if g.deal.owner(K) == g.deal.rank:
            start_ns = self.call.trace.now_ns()
            self.update(K, iter([(0, C[o:, self.columns_of(K)])]), C[o:, columns])
            self.call.trace.record("compute", start_ns)
        elif self.part.last - 1 != K:
            self.update(K, self.blocks_of(K), C[o:, columns])

    def expect_own(self, slab: Slab) -> None:
        """Name the blocks of a slab's own panels that processes send to each other."""
        for K in range(*slab) if self.g.deal.size > 1 else ():
            o, e = self.g.extent(K)
            piv = Expected(self.g.deal.owner(K), (e - o,), np.dtype(np.int32), False)
            self.blocks.expect([piv])
            if slab.last - 1 != K:
                self._expect(K, is_on_disk=False)

    def expect_earlier(self, slab: Slab) -> None:
        """Name the blocks of panels to the left of a slab, if processes send them to each other."""
        for K in range(slab.first) if self.g.deal.size > 1 else ():
            self._expect(K, is_on_disk=True)

    def _expect(self, K: int, *, is_on_disk: bool) -> None:
        g, owner = self.g, self.g.deal.owner(K)
        self.blocks.expect(
            Expected(owner, (len(tiles) * g.rows, g.columns), g.dtype, is_on_disk)
            for tiles in g.blocks_below(K)
        )

    def read_ahead(self, panels: range) -> None:
        """Schedule reads of L: all blocks from the diagonal block down, panel by panel."""
        g = self.g
        for K in g.deal.held(panels.start, panels.stop):
            place = self.storage.places[self.before + K]
            columns = slice(place * g.columns, (place + 1) * g.columns)
            rows = [
                slice(g.origin + tiles.start * g.rows, g.origin + tiles.stop * g.rows)
                for tiles in g.blocks_below(K)
            ]
            self.blocks.read([(each, columns) for each in rows])
            self.storage.remote_read += self.storage.remote_bytes(self.before + K, g.tiles_below(K))

    def blocks_of(self, K: int) -> Iterator[tuple[int, Matrix]]:
        """Take panel K of L from the stream: (row counted from the panel's first, block)."""
        return timed(self.taken(K), self.call.trace)

    def taken(self, K: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the same blocks as `blocks_of`, without timing them."""
        g = self.g
        o, e = g.extent(K)
        for tiles in g.blocks_below(K):
            first = tiles.start * g.rows
            top = max(o, first)
            yield top - o, self.blocks.take()[top - first : g.n - first, : e - o]


LEAF_COLUMNS = 32


def factor_panel(kernels: Kernels, P: Matrix, piv: npt.NDArray[np.int32]) -> int:
    """Factor a tall panel in place with partial pivoting, P = L U up to row swaps.

    The factorization is recursive in columns (Toledo 1997), so most of the n·k² flops are matrix
    products.

    Parameters
    ----------
    kernels
        Kernels for the type of `P`.
    P
        (m, k) with m >= k, column-major.
    piv
        (k,) int32, overwritten: row i was swapped with row ``piv[i]``.

    Returns
    -------
    int
        LAPACK's info: 0, or the first exactly zero pivot, counted from 1.
    """
    columns = P.shape[1]
    if columns <= LEAF_COLUMNS:
        return kernels.getrf(P, piv)
    half = columns // 2
    left, right = P[:, :half], P[:, half:]
    info = factor_panel(kernels, left, piv[:half])
    kernels.laswp(right, piv[:half], 0, half)
    kernels.trsm(left[:half], right[:half], lower=True, unit=True)
    kernels.gemm(left[half:], right[:half], right[half:], alpha=-1, beta=1)
    info_right = factor_panel(kernels, right[half:], piv[half:])
    kernels.laswp(left[half:], piv[half:], 0, columns - half)
    piv[half:] += half
    return info or (info_right + half if info_right else 0)


def apply_panel(
    kernels: Kernels, piv: npt.NDArray[np.int32], L: Iterable[tuple[int, Matrix]], C: Matrix
) -> None:
    """Update columns with one panel: C <- L⁻¹ P C, where P are the panel's row swaps.

    Parameters
    ----------
    kernels
        Kernels for the type of `C`.
    piv
        (k,) row swaps of the panel.
    L
        The panel's (m, k) unit lower trapezoid in blocks of rows, from the top: (first row, block).
        The first block holds the k x k triangle.
    C
        (m, w) column-major, in place: its first k rows become U.
    """
    if C.shape[1]:
        kernels.laswp(C, piv, 0, len(piv))
    apply_blocks(kernels, len(piv), L, C)


def apply_blocks(kernels: Kernels, k: int, L: Iterable[tuple[int, Matrix]], C: Matrix) -> None:
    """Do the rest of `apply_panel`, after the row swaps and the blocks above those of `L`.

    Parameters
    ----------
    kernels, L, C
        As for `apply_panel`.
    k
        Columns of the panel.
    """
    U = C[:k]
    for row, block in L:
        if C.shape[1]:
            if row == 0:
                solve_lower(kernels, block[:k], U, unit=True)
                row, block = k, block[k:]
            kernels.gemm(block, U, C[row : row + block.shape[0]], alpha=-1, beta=1)
        # Its memory is free while the next block arrives.
        del block
