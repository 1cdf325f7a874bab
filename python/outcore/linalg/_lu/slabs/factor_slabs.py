"""The loops of algorithm A, by slabs of columns.

They factor a whole matrix, or the first columns of a remaining part (see `LuGeometry`). Rows,
columns and panels are counted from the part's first.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore._util.streams import kept, timed
from outcore.blas.lapack import kernels
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._factors.left_looking import SlabLoop
from outcore.linalg._factors.storage import Source
from outcore.linalg._geometry.factor_plan import (
    RING_BLOCKS,
    LuGeometry,
    Slab,
    panel_flops,
    update_flops,
)
from outcore.linalg._lu.slabs.conveyor import LuConveyor
from outcore.linalg._lu.slabs.panel import apply_blocks, apply_panel, factor_panel
from outcore.linalg._lu.slabs.storage import LuFiles
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


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
        self.conveyor = LuConveyor(g, storage, call, source)

    def parts(self) -> list[Slab]:
        """Return the slabs that are not factored yet."""
        return self.g.slabs(max(self.storage.first_panel - self.before, 0))

    def update_by_earlier(self, slab: Slab, C: Matrix, arrivals: Iterator[int]) -> None:
        """Apply all panels to the left, and write the tiles that this completes."""
        columns = self.g.columns
        for K in range(slab.first):
            if K == 0:
                self.update_as_they_come(arrivals, slab.last - slab.first, C)
            else:
                self.update(K, self.blocks_of(K), C[K * columns :])
            self.conveyor.rows_done((K + 1) * columns)

    def factor(self, K: int, C: Matrix, left: int, extremes: Extremes) -> None:
        """Factor a panel of the slab with partial pivoting; the slab begins at column `left`."""
        g, (o, e) = self.g, self.g.extent(K)
        start_ns = self.call.trace.now_ns()
        piv = np.empty(e - o, np.int32)
        P = C[o:, o - left : e - left]
        extremes.see_info(factor_panel(self.kernels, P, piv), g.origin + o)
        extremes.see_factor(C[:e, o - left : e - left])
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
        early = max(itertools.islice(arrivals, (panels + 1) // 2))
        held: list[tuple[int, Matrix]] = []
        L = kept(itertools.islice(blocks, RING_BLOCKS), held, self.conveyor.poll)
        apply_panel(self.kernels, piv, timed(L, self.call.trace), C[:, :early])
        if early < C.shape[1]:
            max(arrivals)
            apply_panel(self.kernels, piv, timed(held, self.call.trace), C[:, early:])
        # This frees the memory for further blocks.
        held.clear()
        apply_blocks(self.kernels, len(piv), timed(blocks, self.call.trace), C)
        self.call.meter.advance(update_flops(self.g, 0) * C.shape[1])

    def update(self, K: int, L: Iterator[tuple[int, Matrix]], C: Matrix) -> None:
        """C <- L_K⁻¹ P_K C, for columns C from the first row of panel K down."""
        apply_panel(self.kernels, self.piv[K], L, C)
        self.call.meter.advance(update_flops(self.g, K) * C.shape[1])

    def update_in_memory(self, K: int, C: Matrix, left: int, columns: slice) -> None:
        """Apply a panel of the slab to other columns of it; the slab begins at column `left`."""
        o, e = self.g.extent(K)
        start_ns = self.call.trace.now_ns()
        self.update(K, iter([(0, C[o:, o - left : e - left])]), C[o:, columns])
        self.call.trace.record("compute", start_ns)

    def read_ahead(self, panels: range) -> None:
        """Schedule reads of L: all blocks from the diagonal block down, panel by panel."""
        g = self.g
        for K in panels:
            place = self.storage.places[self.before + K]
            columns = slice(place * g.columns, (place + 1) * g.columns)
            self.stream.extend(
                (slice(g.origin + tiles.start * g.rows, g.origin + tiles.stop * g.rows), columns)
                for tiles in g.blocks_below(K)
            )

    def blocks_of(self, K: int) -> Iterator[tuple[int, Matrix]]:
        """Take panel K of L from the stream: (row counted from the panel's first, block)."""
        return timed(self.taken(K), self.call.trace)

    def taken(self, K: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the same blocks as `blocks_of`, without timing them."""
        g = self.g
        o, e = g.extent(K)
        for tiles in g.blocks_below(K):
            block = self.stream.take().data
            first = tiles.start * g.rows
            top = max(o, first)
            yield top - o, block[top - first : g.n - first, : e - o]
