"""LU with tournament pivoting, for the smallest budgets: no whole column fits in memory.

A tournament chooses the pivots of a block column (CALU: Grigori, Demmel & Xiang 2011). The order of
all its rows is thus known before its L is computed::

    for each stack of spilled rows:                            # the tournament
        the winners so far, and these rows: partial pivoting; the first e - o rows win
    P <- swaps of the winners;  L U = winners
    for each row tile:       L <- (P C)[rows] U⁻¹;  write L, as tiles and by rows

If all rows from the diagonal down are in memory at once, they are factored there, with partial
pivoting.
"""

import numpy as np

from outcore._core import ArrayFile, Ticket, column_extremes
from outcore._util.streams import wait
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._lu.block_columns.factor_columns import BlockColumnFactorization
from outcore.linalg._lu.block_columns.geometry import LOWER_BLOCKS, BlockColumn
from outcore.linalg._lu.block_columns.row_moves import PivotRows, Rows, pivot_rows
from outcore.linalg._lu.block_columns.row_panel import (
    factor_rows,
    largest_above,
    multiply_back,
    swap_rows,
)
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._tiles.matrix import Matrix, room_in
from outcore.linalg._tiles.relay import Relay


class TournamentFactorization(BlockColumnFactorization[TournamentGeometry]):
    """The phases of an LU with tournament pivoting. Each has the whole memory budget."""

    def is_done(self, k: int) -> bool:
        """Whether block column `k` is complete."""
        return self.g.block_columns[k].origin < self.storage.journal.panels_done * self.g.columns

    def make(self, k: int) -> None:
        """Run the pending phases of block column `k`."""
        storage, s = self.storage, self.g.block_columns[k]
        is_spilled = self.is_noted(k)
        if not is_spilled:
            with storage.phase():
                self.update(k)
        # An earlier run with less memory may have spilled a block column that is whole today.
        if is_spilled or not self.g.is_whole(s):
            with storage.phase():
                pivots = self.play(s)
            with storage.phase():
                self.make_lower(s, pivots)

    def play(self, s: BlockColumn) -> Rows:
        """Choose pivots among the spilled rows of a block column, the first pivot first.

        The next round sees the winners as the product of their factors. Its rounding may sway a
        choice between equally good rows. L and U are computed from the spilled rows.
        """
        g, w = self.g, s.width
        spill = self.storage.open_spill(s)
        stack = room_in(self.call.arena, (g.stack_rows(s), g.wide(s)), g.dtype)
        leaf = self._leaf(len(stack))
        piv = np.empty(w, np.int32)
        rows = np.empty(0, np.int64)
        at = 0
        while at < s.order:
            kept = len(rows)
            new = np.arange(at, min(at + len(stack) - kept, s.order))
            room = stack[kept : kept + g.whole_rows(len(new))]
            wait(spill.submit_read([at, 0], [1, 1], room), self.call.trace)
            at += len(new)
            start_ns = self.call.trace.now_ns()
            rows = np.concatenate([rows, new])
            factor_rows(self.kernels, stack[: len(rows), :w], piv, leaf)
            swap_rows(rows[:, None], piv)
            rows = rows[:w]
            if at < s.order:
                multiply_back(self.kernels, stack[:w, :w])
            self.call.trace.record("compute", start_ns)
        return rows

    def make_lower(self, s: BlockColumn, pivots: Rows) -> None:
        """Factor the pivot rows, and compute L of all other rows."""
        g, storage, trace, w = self.g, self.storage, self.call.trace, s.width
        spill = storage.open_spill(s)
        factors = storage.open_factors(g.transpose_bytes)
        lower = storage.open_lower(TILE_BOUNCE_BYTES)
        extremes = Extremes()
        W = room_in(self.call.arena, (w, g.wide(s)), g.dtype)
        wait(spill.submit_read_rows(pivots, 0, W), trace)
        start_ns = trace.now_ns()
        piv = np.empty(w, np.int32)
        extremes.see_info(factor_rows(self.kernels, W[:, :w], piv, self._leaf(w)), s.origin)
        extremes.max_u = largest_above(W[:, :w])
        swap_rows(pivots[:, None], piv)
        way = pivot_rows(pivots, s.order, g.columns)
        trace.record("compute", start_ns)
        wait(lower.submit_write([s.origin, s.origin], [1, 1], W), trace)
        self._stream_lower(s, W, way, spill, factors, lower, extremes)
        storage.commit_column(s, way.piv, extremes)

    def _stream_lower(
        self,
        s: BlockColumn,
        W: Matrix,
        way: PivotRows,
        spill: ArrayFile,
        factors: ArrayFile,
        lower: ArrayFile,
        extremes: Extremes,
    ) -> None:
        """L <- C U⁻¹, one row tile after another; a panel is stored in its own order of rows."""
        g, trace, w = self.g, self.call.trace, s.width
        U, zeros = W[:, :w], np.flatnonzero(W.diagonal() == 0)
        blocks = [
            room_in(self.call.arena, (g.rows, g.wide(s)), g.dtype) for _ in range(LOWER_BLOCKS)
        ]

        def rows_of(i: int) -> Rows:
            return way.gathered[i * g.rows : (i + 1) * g.rows]

        def arrive(i: int) -> Ticket:
            rows = rows_of(i)
            return spill.submit_read_rows(rows, 0, blocks[i % LOWER_BLOCKS][: len(rows)])

        count = -(-s.order // g.rows)
        relay = Relay(LOWER_BLOCKS, count, arrive, trace)
        try:
            relay.poll()
            for i in range(count):
                relay.take(i)
                B, rows, top = blocks[i % LOWER_BLOCKS], len(rows_of(i)), i * g.rows
                start_ns = trace.now_ns()
                # Below an exact zero all elements are zero, up to rounding errors, which stay as in
                # LAPACK.
                U[zeros, zeros] = 1
                self.kernels.trsm(U.T, B[:rows, :w].T, "L", lower=True, unit=False)
                U[zeros, zeros] = 0
                B[rows:] = 0
                trace.record("compute", start_ns)
                if top >= w:
                    # Rows that only leave the top are included at their final place.
                    largest = column_extremes(B[:rows, :w].T, False)[1]
                    extremes.max_l = max(extremes.max_l, largest)
                    start = [s.origin + top, s.origin]
                    wait(lower.submit_write(start, [1, 1], B), trace)
                for K, places in enumerate(way.places):
                    here = np.flatnonzero((places >= top) & (places < top + rows))
                    columns = slice(K * g.columns, min((K + 1) * g.columns, w))
                    B[places[here] - top, columns] = W[here, columns]
                tiles = B[:, : g.tile_columns(s)]
                start = [s.origin + top, s.origin]
                relay.leave(i, [factors.submit_write(start, [1, 1], tiles)])
                self.call.meter.advance(g.lower_flops(s) * rows / s.order)
            relay.drain()
        except BaseException:
            relay.abandon()
            raise
