"""LU in two levels, for budgets that hold few columns: right-looking by super-slabs.

The rows of a super-slab's update are gathered in their new order, so that no swap is carried out on
disk; the pivots are those of partial pivoting::

    for each super-slab [o, e) of the trailing matrix T:
        factor T[:, :e - o] by slabs                         # algorithm A; P is all its row swaps
        write L once more, each panel with the swaps of later ones
        for each block of columns right of e:                # U stays in memory
            U <- L⁻¹ (P T)[:e - o];  write U
            for each row tile:       C <- (P T)[tile] - L[tile] U;  write C to the next T

Right-looking blocks as in Toledo (1997), slabs as in Womble et al. (1993). Words moved are about
2n³/(3W) for T, n³/(3c) for L with blocks of c columns, and those of the slabs
(`docs/numerics-lu.md`).
"""

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore.lapack import kernels
from outcore.linalg.lu.checks import Extremes
from outcore.linalg.lu.conveyor import Source
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.row_copy import copy_to_segments
from outcore.linalg.lu.slabs import SlabFactorization
from outcore.linalg.lu.trailing import Update, UpdateFiles
from outcore.linalg.lu.two_level_storage import SWAPPED, TwoLevelStorage
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall
from outcore.streams import wait

MOST_PANELS = 8
"""Panels that get their later swaps at a time: enough to read and write meanwhile."""


class TwoLevelFactorization:
    """The phases of a two-level LU, each with all of the memory."""

    def __init__(self, storage: TwoLevelStorage, call: LongCall) -> None:
        self.storage, self.call, self.g = storage, call, storage.geometry
        self.kernels = kernels(self.g.dtype)

    def run(self) -> None:
        """Factor what is not factored yet."""
        g, storage = self.g, self.storage
        begin = storage.journal.trailing
        if storage.journal.panels_done == g.panels:
            storage.keep_only(None)
            return
        storage.keep_only(begin)
        if begin is None and g.is_copied and g.widths:
            with storage.phase():
                storage.commit_trailing(0, copy_to_segments(storage, self.call))
        for k in range(begin or 0, len(g.super_slabs)):
            with storage.phase():
                kept = self.factor(k)
            if k < len(g.widths):
                with storage.phase():
                    self.swap(k, kept)
                with storage.phase():
                    storage.commit_trailing(k + 1, self.update(k))
                storage.keep_only(k + 1)
        storage.keep_only(None)

    def factor(self, k: int) -> range:
        """Factor a super-slab by slabs; return its panels whose L has all swaps on disk then."""
        g, storage = self.g, self.storage
        slabs = g.slabs_of(k)
        storage.open_factors()
        if k:
            file = storage.open_workspace(
                "next", k, g.next_grid(k), bounce_bytes=slabs.bounce_bytes
            )
            source = Source(file, slabs.height, (g.rows, g.columns))
        else:
            file = storage.open_matrix(whole_chunks=False, bounce_bytes=slabs.bounce_bytes)
            source = Source(file, g.n, g.layout.chunks)
        run = SlabFactorization(storage, self.call, slabs, source, is_original=k == 0)
        run.run()
        if k == len(g.widths):
            return range(0)
        swapped = storage.open_workspace(
            SWAPPED, k, g.next_grid(k), bounce_bytes=TILE_BOUNCE_BYTES, anew=True
        )
        piv = self.swaps(k)
        slab, memory = run.conveyor.held()
        tickets = []
        for K in range(slab.first, slab.last):
            columns = slice((K - slab.first) * g.columns, (K - slab.first + 1) * g.columns)
            self.kernels.laswp(memory[: slabs.n, columns], piv, (K + 1) * g.columns, len(piv))
            tickets.append(self._write_swapped(swapped, k, K, memory[:, columns]))
        for ticket in tickets:
            wait(ticket, self.call.trace)
        return range(slab.first, slab.last)

    def swap(self, k: int, kept: range) -> None:
        """Write L of the other panels with all swaps of the super-slab."""
        g, storage, call = self.g, self.storage, self.call
        slabs, piv = g.slabs_of(k), self.swaps(k)
        count = kept.start if kept else slabs.panels
        if not count:
            return
        factors = storage.open_factors()
        swapped = storage.open_workspace(
            SWAPPED, k, g.next_grid(k), bounce_bytes=TILE_BOUNCE_BYTES, anew=not kept
        )
        panel_bytes = slabs.height * g.columns * g.dtype.itemsize
        places = min(slabs.slab_panels, count, MOST_PANELS)
        memory = call.arena.allocate(places * panel_bytes)
        room: Matrix = np.ndarray(
            (slabs.height, places * g.columns), g.dtype, memoryview(memory), order="F"
        )

        def place(K: int) -> Matrix:
            first = K % places * g.columns
            return room[:, first : first + g.columns]

        def arrive(K: int) -> Ticket:
            top = slabs.tiles_below(K).start * g.rows
            column = slabs.origin + K * g.columns
            return factors.submit_read([slabs.origin + top, column], [1, 1], place(K)[top:])

        relay = Relay(places, count, arrive, call.trace)
        try:
            relay.poll()
            for K in range(count):
                relay.take(K)
                start_ns = call.trace.now_ns()
                self.kernels.laswp(place(K)[: slabs.n], piv, (K + 1) * g.columns, len(piv))
                call.trace.record("compute", start_ns)
                relay.leave(K, [self._write_swapped(swapped, k, K, place(K))])
            relay.drain()
        except BaseException:
            relay.abandon()
            raise

    def _write_swapped(self, swapped: ArrayFile, k: int, K: int, P: Matrix) -> Ticket:
        top = self.g.slabs_of(k).tiles_below(K).start * self.g.rows
        return swapped.submit_write([top, K * self.g.columns], [1, 1], P[top:])

    def swaps(self, k: int) -> npt.NDArray[np.int32]:
        """Row swaps of a super-slab, counted from its first row."""
        g, s = self.g, self.g.super_slabs[k]
        first, last = s.origin // g.columns, (s.origin + s.width) // g.columns
        panels = self.storage.panel_pivots()[first:last]
        return np.concatenate([piv + np.int32(K * g.columns) for K, piv in enumerate(panels)])

    def update(self, k: int) -> Extremes:
        """Make the next trailing matrix."""
        g, storage, s = self.g, self.storage, self.g.super_slabs[k]
        is_original = k == 0 and not g.is_copied
        if is_original:
            source = storage.open_matrix(whole_chunks=True, bounce_bytes=TILE_BOUNCE_BYTES)
        else:
            source = storage.open_workspace(
                "rest", k, g.rest_grid(k), bounce_bytes=TILE_BOUNCE_BYTES
            )
        ahead, rest = g.super_slabs[k + 1], None
        if ahead.rest:
            rest = storage.open_workspace(
                "rest", k + 1, g.rest_grid(k + 1), bounce_bytes=TILE_BOUNCE_BYTES, anew=True
            )
        files = UpdateFiles(
            source,
            s.width if is_original else 0,
            storage.open_workspace(SWAPPED, k, g.next_grid(k), bounce_bytes=TILE_BOUNCE_BYTES),
            storage.open_factors(g.transpose_bytes),
            storage.open_workspace(
                "next", k + 1, g.next_grid(k + 1), bounce_bytes=g.transpose_bytes, anew=True
            ),
            rest,
        )
        order = row_order(self.swaps(k), s.order)
        return Update(g, k, order, files, self.call, is_original=is_original).run()


def row_order(piv: npt.NDArray[np.int32], rows: int) -> npt.NDArray[np.int64]:
    """Rows in the order that swaps bring them to."""
    order = np.arange(rows)
    for i, j in enumerate(piv.tolist()):
        order[i], order[j] = order[j], order[i]
    return order
