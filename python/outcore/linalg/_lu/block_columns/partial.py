"""LU by block columns with partial pivoting, for budgets that hold few columns.

An updated block column is factored by slabs of its columns, like a whole matrix. Its L is copied by
rows once all its pivots are known::

    for each slab of the spilled rows:  algorithm A                      # slabs.py
    for each row tile:  L <- tiles;  swaps of later panels;  write L     # LowerCopy

If rows of A cannot be gathered, A itself supplies the slabs of the first block column. The columns
of the last slab are written by rows from memory.
"""

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import wait
from outcore.linalg._factors.storage import Source
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._lu.block_columns.factor_columns import BlockColumnFactorization
from outcore.linalg._lu.block_columns.geometry import LOWER_BLOCKS, BlockColumn
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.row_moves import RowMoves
from outcore.linalg._lu.slabs.factor_slabs import SlabFactorization
from outcore.linalg._lu.slabs.loads import load_groups
from outcore.linalg._tiles.matrix import room_in
from outcore.linalg._tiles.relay import Relay
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall


class LowerCopy:
    """A copy of L by rows: of those segments of a block column that lie before column `end`.

    L is in tiles in LINPACK order, the copy in the order after all swaps. Each later swap exchanges
    a row that becomes one of U, at the top of the block column, with a row below it or another at
    the top. A row that comes to the top stays there. So a row below either stays, or is replaced by
    a row that was at the top when its panel was written. With the top rows of a segment in memory,
    one pass over the other rows suffices.

    Parameters
    ----------
    geometry, s, end
        The columns to copy, counted from the block column's first.
    piv
        Row swaps of the block column, counted from its first row.
    factors, lower
        The source and the target of L.
    call
        Memory and the trace.
    """

    def __init__(
        self,
        geometry: PartialGeometry,
        s: BlockColumn,
        end: int,
        piv: npt.NDArray[np.int32],
        factors: ArrayFile,
        lower: ArrayFile,
        call: LongCall,
    ) -> None:
        g = geometry
        self.g, self.s, self.piv, self.call = g, s, piv, call
        self.factors, self.lower = factors, lower
        self.segments = range(0, end, g.segment)
        self.below = range(s.width, g.whole_rows(s.order), g.rows)
        heights = s.width, s.width, *[g.rows] * LOWER_BLOCKS
        self.before, self.after, *self.blocks = (
            room_in(call.arena, (rows, g.segment), g.dtype) for rows in heights
        )
        count = len(self.segments) * len(self.below)
        self.relay = Relay(LOWER_BLOCKS, count, self._arrive, call.trace)
        self.leaving: list[Ticket] = []

    def run(self) -> None:
        """Run the copy."""
        try:
            self.relay.poll()
            for number, first in enumerate(self.segments):
                self._copy(number, first)
            self.relay.drain()
            self._wait_for_top()
        except BaseException:
            self.relay.abandon()
            raise
        finally:
            # It refers to this object. Without the reference cycle, memory is freed at once.
            del self.relay

    def _arrive(self, number: int) -> Ticket:
        segment, tile = divmod(number, len(self.below))
        start = self._place(self.below[tile], self.segments[segment])
        return self.factors.submit_read(start, [1, 1], self.blocks[number % LOWER_BLOCKS])

    def _place(self, row: int, column: int) -> list[int]:
        return [self.s.origin + row, self.s.origin + column]

    def _copy(self, number: int, first: int) -> None:
        """Copy a segment: first the rows below the top, tile by tile, then the top."""
        g, w, trace = self.g, self.s.width, self.call.trace
        wait(
            self.factors.submit_read(self._place(first, first), [1, 1], self.before[first:]), trace
        )
        self._wait_for_top()
        panels = [
            (slice(at - first, at - first + g.columns), self._moves(at + g.columns))
            for at in range(first, first + g.segment, g.columns)
        ]
        start_ns = trace.now_ns()
        self.after[first:] = self.before[first:]
        for columns, (to, source) in panels:
            inside = source < w
            inside &= to < w
            self.after[to[inside], columns] = self.before[source[inside], columns]
        trace.record("compute", start_ns)
        for tile, top in enumerate(self.below):
            at = number * len(self.below) + tile
            self.relay.take(at)
            block = self.blocks[at % LOWER_BLOCKS]
            start_ns = trace.now_ns()
            for columns, (to, source) in panels:
                rises = (source >= top) & (source < top + g.rows)
                self.after[to[rises], columns] = block[source[rises] - top, columns]
                sinks = (to >= top) & (to < top + g.rows)
                block[to[sinks] - top, columns] = self.before[source[sinks], columns]
            trace.record("compute", start_ns)
            self.relay.leave(at, [self.lower.submit_write(self._place(top, first), [1, 1], block)])
        top_rows = self.after[first:]
        self.leaving = [self.lower.submit_write(self._place(first, first), [1, 1], top_rows)]

    def _moves(self, first: int) -> RowMoves:
        """Return the row moves of the swaps from `first` on, without rows that stay in place."""
        to, source = RowMoves.of(self.piv[first:], first)
        return RowMoves(to[to != source], source[to != source])

    def _wait_for_top(self) -> None:
        """Wait until the top rows of the previous segment are written."""
        for ticket in self.leaving:
            wait(ticket, self.call.trace)
        self.leaving = []


class PartialFactorization(BlockColumnFactorization[PartialGeometry]):
    """The phases of an LU by block columns with partial pivoting, each with the whole budget."""

    def is_done(self, k: int) -> bool:
        """Whether block column `k` is complete."""
        journal = self.storage.journal
        return self.g.is_done(k, journal.panels_done, journal.trailing)

    def make(self, k: int) -> None:
        """Run the pending phases of block column `k`."""
        storage, s = self.storage, self.g.block_columns[k]
        is_factored = storage.journal.panels_done == storage.panels_of(s).last
        if not (is_factored or self.g.is_loaded(s) or self.is_noted(k)):
            with storage.phase():
                self.update(k)
            if self.g.is_whole(s):
                return
        kept = s.width
        if not is_factored:
            with storage.phase():
                kept = self.factor_slabs(s)
        if kept and not self.g.is_last(s):
            with storage.phase():
                self.copy_lower(s, kept)

    def factor_slabs(self, s: BlockColumn) -> int:
        """Factor a block column by slabs; return its first column whose L is stored by rows."""
        g, storage = self.g, self.storage
        slabs = g.slabs_of(s)
        storage.open_factors()
        is_loaded = g.is_loaded(s)
        if not is_loaded:
            file: MatrixFile = storage.open_spill(s, bounce_bytes=slabs.bounce_bytes)
            source = Source(file, slabs.height, load_groups(slabs, (g.rows, g.columns)))
        else:
            file = storage.open_matrix(whole_chunks=False, bounce_bytes=slabs.bounce_bytes)
            source = Source(file, g.n, load_groups(slabs, g.layout.chunks))
        run = SlabFactorization(self.storage, self.call, slabs, source, is_original=is_loaded)
        run.run()
        if g.is_last(s):
            return s.width
        slab, memory = run.conveyor.held()
        kept = g.whole_segments(slab.first * g.columns)
        if kept == s.width:
            return kept
        piv = self._swaps(s)
        left = slab.first * g.columns
        start_ns = self.call.trace.now_ns()
        for first in range(kept, s.width, g.columns):
            panel = memory[: s.order, first - left : first - left + g.columns]
            self.kernels.laswp(panel, piv, first + g.columns, len(piv))
        self.call.trace.record("compute", start_ns)
        lower = storage.open_lower(g.transpose_bytes)
        for first in range(kept, s.width, g.segment):
            part = memory[first:, first - left : first - left + g.segment]
            start = [s.origin + first, s.origin + first]
            wait(lower.submit_write(start, [1, 1], part), self.call.trace)
        storage.sync()
        return kept

    def _swaps(self, s: BlockColumn) -> npt.NDArray[np.int32]:
        """Row swaps of a block column, counted from its first row."""
        return self.storage.swaps_of(s) - np.int32(s.origin)

    def copy_lower(self, s: BlockColumn, end: int) -> None:
        """Copy L of the columns before `end`, by rows, with all swaps of the block column."""
        g, storage = self.g, self.storage
        factors = storage.open_factors(g.transpose_bytes)
        lower = storage.open_lower(TILE_BOUNCE_BYTES)
        LowerCopy(g, s, end, self._swaps(s), factors, lower, self.call).run()
        storage.sync()
