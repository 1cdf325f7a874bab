"""LU with tournament pivoting, for the smallest budgets: left-looking by block columns.

The pivots of a block column are chosen by a tournament (CALU: Grigori, Demmel & Xiang 2011), so
that no column of a panel has to be in memory as a whole, and all its rows' order is known before
its L is made::

    for each block column [o, e):
        for each block of rows:  C <- L⁻¹ (P A)[rows, o:e]     # C stays, L and U stream by
            write the rows of U;  spill the rows below
        for each stack of spilled rows:                        # the tournament
            the winners so far, and these rows: partial pivoting; the first e - o rows win
        P <- swaps of the winners;  L U = winners
        for each row tile:       L <- (P C)[rows] U⁻¹;  write L, as tiles and by rows

Where all rows from the diagonal down are in memory at once, they are factored there, with partial
pivoting. L is gathered by lists of rows: no swap is ever carried out on disk. Words moved are about
n³/3 (1/r + 1/w) for blocks of r rows and w columns, + 4.5 n² (`docs/numerics-lu.md`).
"""

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket, column_extremes
from outcore.lapack import kernels
from outcore.linalg.lu.checks import Extremes
from outcore.linalg.lu.phases import COPY
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.row_copy import copy_to_segments
from outcore.linalg.lu.row_moves import PivotRows, RowMoves, Rows, pivot_rows
from outcore.linalg.lu.row_panel import factor_rows, largest_above, multiply_back, swap_rows
from outcore.linalg.lu.tournament_geometry import LOWER_BLOCKS, BlockColumn
from outcore.linalg.lu.tournament_storage import TournamentStorage
from outcore.linalg.lu.tournament_update import ColumnFiles, ColumnUpdate
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall
from outcore.streams import wait


class TournamentFactorization:
    """The phases of an LU with tournament pivoting, each with all of the memory."""

    def __init__(self, storage: TournamentStorage, call: LongCall) -> None:
        self.storage, self.call, self.g = storage, call, storage.geometry
        self.kernels = kernels(self.g.dtype)
        self.moves: list[RowMoves] = []

    def run(self) -> None:
        """Factor what is not factored yet."""
        g, storage = self.g, self.storage
        begin = storage.journal.trailing
        storage.keep_only(begin)
        if begin is None and g.is_copied:
            with storage.phase():
                storage.commit_trailing(0, copy_to_segments(storage, self.call))
        done = storage.journal.panels_done * g.columns
        for k, s in enumerate(g.block_columns):
            if s.origin < done:
                self.moves.append(RowMoves.of(storage.swaps_of(s), s.origin))
                continue
            is_spilled = begin == k + 1
            if not is_spilled:
                with storage.phase():
                    self.update(k)
            # With more memory than before, what was spilled might not have been.
            if is_spilled or not g.is_whole(s):
                with storage.phase():
                    pivots = self.play(s)
                with storage.phase():
                    self.make_lower(s, pivots)
            self.moves.append(RowMoves.of(storage.swaps_of(s), s.origin))
        storage.keep_only(None)

    def update(self, k: int) -> None:
        """Update block column `k`; factor it if it is in memory whole, else spill it."""
        g, storage, s = self.g, self.storage, self.g.block_columns[k]
        is_whole = g.is_whole(s)
        if g.is_copied:
            source = storage.open_beside(COPY, "rest", g.copy_grid())
        else:
            source = storage.open_matrix(whole_chunks=True, bounce_bytes=TILE_BOUNCE_BYTES)
        lower = storage.open_lower(g.lower_grid()) if g.widths else None
        factors = storage.open_factors(g.transpose_bytes)
        spill = None if is_whole else storage.open_spill(s, anew=True)
        files = ColumnFiles(source, lower, factors, spill)
        column = ColumnUpdate(g, k, self.moves, files, self.call)
        R = column.run()
        if is_whole:
            self.factor(s, R, factors, lower, column.extremes)
        else:
            storage.commit_trailing(k + 1, column.extremes)

    def factor(
        self,
        s: BlockColumn,
        R: Matrix,
        factors: ArrayFile,
        lower: ArrayFile | None,
        extremes: Extremes,
    ) -> None:
        """Factor all rows of a block column in memory, in whole tiles, with partial pivoting."""
        g = self.g
        piv = np.empty(s.width, np.int32)
        start_ns = self.call.trace.now_ns()
        whole, R = R, R[: s.order, : s.width]
        info = factor_rows(self.kernels, R, piv, self._leaf(s.order))
        extremes.see_info(info, s.origin)
        extremes.max_u = max(extremes.max_u, largest_above(R[: s.width]))
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(g.lower_flops(s))
        if lower is not None and not g.is_last(s):
            wait(lower.submit_write([s.origin, s.origin], [1, 1], whole), self.call.trace)
        # Of a panel's L in the factors, later panels swap no rows.
        for first in range(0, s.width, g.columns):
            end = min(first + g.columns, s.width)
            later = piv[end:] - np.int32(end)
            swap_rows(R[end:, first:end], later, reverse=True)
        tiles = whole[:, : g.tile_columns(s)]
        wait(factors.submit_write([s.origin, s.origin], [1, 1], tiles), self.call.trace)
        self.storage.commit_column(s, piv, extremes)

    def _leaf(self, rows: int) -> npt.NDArray[np.generic]:
        nbytes = self.g.leaf_bytes(rows)
        memory = self.call.arena.allocate(nbytes)
        room: npt.NDArray[np.generic] = np.ndarray(
            (nbytes // self.g.dtype.itemsize,), self.g.dtype, memoryview(memory)
        )
        return room

    def _allocate(self, rows: int, columns: int) -> Matrix:
        memory = self.call.arena.allocate(rows * columns * self.g.dtype.itemsize)
        room: Matrix = np.ndarray((rows, columns), self.g.dtype, memoryview(memory))
        return room

    def play(self, s: BlockColumn) -> Rows:
        """Choose pivots among the spilled rows of a block column, the first one first.

        Of the winners of a round, the next one sees the product of their factors: rounding, which
        may sway a choice between rows that are as good. L and U are made of the spilled rows.
        """
        g, w = self.g, s.width
        spill = self.storage.open_spill(s)
        stack = self._allocate(g.stack_rows(s), g.wide(s))
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
        """Factor the pivot rows, and make L of all others."""
        g, storage, trace, w = self.g, self.storage, self.call.trace, s.width
        spill = storage.open_spill(s)
        factors = storage.open_factors(g.transpose_bytes)
        lower = storage.open_lower(g.lower_grid())
        extremes = Extremes()
        W = self._allocate(w, g.wide(s))
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
        """L <- C U⁻¹, row tile by row tile; to the factors panel by panel, as swaps had it then."""
        g, trace, w = self.g, self.call.trace, s.width
        U, zeros = W[:, :w], np.flatnonzero(W.diagonal() == 0)
        blocks = [self._allocate(g.rows, g.wide(s)) for _ in range(LOWER_BLOCKS)]

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
                # Below an exact zero all is zero, but for rounding: that stays, as in LAPACK.
                U[zeros, zeros] = 1
                self.kernels.trsm(U.T, B[:rows, :w].T, "L", lower=True, unit=False)
                U[zeros, zeros] = 0
                B[rows:] = 0
                trace.record("compute", start_ns)
                if top >= w:
                    # Rows that only leave the top are seen where they stay.
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
