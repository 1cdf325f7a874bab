"""The loops of algorithm A, by slabs of columns.

They factor a whole matrix, or the first columns of a remaining part (see `LuGeometry`). Rows,
columns and panels are counted from the part's first.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore.lapack import kernels
from outcore.linalg.factors.journal import Record
from outcore.linalg.lu.checks import Extremes, check_finite
from outcore.linalg.lu.conveyor import Conveyor, Source
from outcore.linalg.lu.panel import apply_blocks, apply_panel, factor_panel
from outcore.linalg.lu.plan import RING_BLOCKS, LuGeometry, Slab, panel_flops, update_flops
from outcore.linalg.lu.storage import LuFiles
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall
from outcore.streams import BlockStream, kept, timed


class SlabFactorization:
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
        self.storage, self.call, self.g = storage, call, g
        self.is_original, self.before = is_original, g.origin // g.columns
        self.kernels = kernels(g.dtype)
        self.piv = storage.panel_pivots()[self.before :]
        self.stream = BlockStream(
            storage.factors, g.dtype, call.arena, g.ring_bytes, call.trace,
            least_bytes=g.block_tiles * g.tile_bytes,
        )  # fmt: skip
        self.conveyor = Conveyor(g, storage, call, source)

    def run(self) -> None:
        """Factor the slabs that are not factored yet."""
        slabs = self.g.slabs(max(self.storage.first_panel - self.before, 0))
        try:
            self.conveyor.load(slabs[0] if slabs else None)
            self.read_ahead(range(slabs[0].first if slabs else 0))
            for slab, following in itertools.zip_longest(slabs, slabs[1:]):
                self.factor_slab(slab, following)
            self.conveyor.drain()
            self.storage.commit()
        except BaseException as error:
            well = self.conveyor.abandon()
            if well and isinstance(error, KeyboardInterrupt):
                self.storage.commit()
            raise

    def factor_slab(self, slab: Slab, following: Slab | None) -> None:
        """Factor the columns of one slab, given all panels to their left."""
        g, conveyor = self.g, self.conveyor
        C = conveyor.begin(slab, following)
        left = slab.first * g.columns
        extremes = Extremes()
        arrivals = self.looked_at(C, left, extremes)
        here = 0
        for K in range(slab.first):
            o = K * g.columns
            if K == 0:
                self.update_as_they_come(arrivals, slab.last - slab.first, C)
                here = C.shape[1]
            else:
                self.update(K, self.blocks_of(K), C[o:])
            conveyor.rows_done(o + g.columns)

        self.read_ahead(range(slab.first) if following else range(0))
        for K in range(slab.first, slab.last):
            o, e = K * g.columns, min((K + 1) * g.columns, g.n)
            if here < e - left:
                # Only in the first slab: its panels are factored while later ones are still
                # loading.
                before, here = here, max(itertools.islice(arrivals, max(K, 1)))
                for J in range(slab.first, K):
                    j, end = J * g.columns - left, (J + 1) * g.columns - left
                    self.update_in_memory(J, C[j + left :, j:end], C[j + left :, before:here])
            P = C[o:, o - left : e - left]
            start_ns = self.call.trace.now_ns()
            piv = np.empty(e - o, np.int32)
            extremes.see_info(factor_panel(self.kernels, P, piv), g.origin + o)
            extremes.see_factor(C[:e, o - left : e - left])
            self.piv.append(piv)
            self.call.trace.record("compute", start_ns)
            self.call.meter.advance(panel_flops(g, K))
            conveyor.panel_done(K)
            if following:
                self.read_ahead(range(K, K + 1))
            self.update_in_memory(K, P, C[o:, e - left : here])
            if here == C.shape[1]:
                conveyor.poll()
        pivots = np.concatenate(
            [self.piv[K] + np.int32(g.origin + K * g.columns) for K in range(slab.first, slab.last)]
        )
        panels = Slab(slab.first + self.before, slab.last + self.before)
        places = self.storage.places_of(panels)
        self.storage.commit_later(
            Record(panels.first, panels.last, pivots, places, extremes.to_json())
        )

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

    def update_in_memory(self, K: int, P: Matrix, C: Matrix) -> None:
        """Update as `update` does, with a panel that is wholly in memory."""
        start_ns = self.call.trace.now_ns()
        self.update(K, iter([(0, P)]), C)
        self.call.trace.record("compute", start_ns)

    def looked_at(self, C: Matrix, left: int, extremes: Extremes) -> Iterator[int]:
        """Check the columns of A as they arrive; yield how many have arrived."""
        for columns in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            if self.is_original:
                extremes.see_matrix(C[:, columns])
                check_finite(extremes, C[:, columns], left + columns.start)
            self.call.trace.record("compute", start_ns)
            yield columns.stop

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
        o, e = K * g.columns, min((K + 1) * g.columns, g.n)
        for tiles in g.blocks_below(K):
            block = self.stream.take().data
            first = tiles.start * g.rows
            top = max(o, first)
            yield top - o, block[top - first : g.n - first, : e - o]
