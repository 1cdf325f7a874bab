"""The update of a block column by all columns left of it: C <- L⁻¹ (P A), block by block of rows.

A block of rows of C stays in memory. U of the block column arrives in pieces of half a segment's
rows. L arrives in pieces of a tile's rows by a segment, gathered by lists of rows. C and L are
row-major, that is, column-major transposed: C' <- C' - U' L'. Threads apply pieces of L to
different columns, two rows of tiles at a time. With fewer rows, a BLAS spends more of its time
packing U.
"""

import contextlib
import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from outcore._core import ArrayFile, Ticket, column_extremes
from outcore._util.streams import Pending
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import OutcoreError
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._lu.block_columns.geometry import L_PIECES, BlockColumnGeometry
from outcore.linalg._lu.block_columns.row_moves import RowMoves, Rows
from outcore.linalg._lu.block_columns.row_sums import RowSums
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.crew import Crew, Work
from outcore.linalg._tiles.matrix import Matrix, room_in
from outcore.linalg._tiles.relay import Relay
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall

_TOGETHER = 2
"""Rows of tiles to which pieces of L are applied at once."""

_PART_COLUMNS = 64
"""Parts of columns are multiples of this width."""


class ColumnFiles(NamedTuple):
    """The files that an update reads and writes.

    Attributes
    ----------
    source
        A, or its copy.
    lower
        L by rows; `None` before the first block column is factored.
    factors
        The factors, for U.
    spill
        File of the rows from the diagonal down; `None` if they stay in memory.
    """

    source: MatrixFile
    lower: ArrayFile | None
    factors: ArrayFile
    spill: ArrayFile | None


class ColumnUpdate:
    """The update of block column `k`.

    Parameters
    ----------
    geometry, k
        The block column to update.
    moves
        Row moves of each block column to the left.
    files
        See `ColumnFiles`.
    call
        Memory and progress.
    """

    def __init__(
        self,
        geometry: BlockColumnGeometry,
        k: int,
        moves: Sequence[RowMoves],
        files: ColumnFiles,
        call: LongCall,
    ) -> None:
        g = geometry
        self.g, self.k, self.moves, self.files, self.call = g, k, moves, files, call
        self.s = g.block_columns[k]
        self.kernels, self.weight = kernels(g.dtype), flop_weight(g.dtype)
        self.origins = [s.origin for s in g.block_columns]
        self.edges = g.edges(self.s)
        self.extremes = Extremes()
        wide, rows = g.wide(self.s), g.block_rows(self.s)
        # A copied matrix was checked during the copy.
        self.sums = None if g.is_copied else RowSums(g, wide, call.arena, self.extremes)
        self.C = room_in(call.arena, (rows, wide), g.dtype)
        self.U: list[Matrix] = []
        self.L = self.C[:0]
        if self.s.origin:
            pieces = range(g.u_pieces)
            self.U = [room_in(call.arena, (wide, g.depth), g.dtype).T for _ in pieces]
            self.L = room_in(call.arena, (L_PIECES * g.rows, g.segment), g.dtype)
        # All blocks but the first begin at the first place.
        self.places = rows // g.rows
        self.shift = -self.edges[-2] % self.places
        self.lists: dict[int, list[Rows]] = {}
        # The pending reads, in the order in which the relays request them.
        self.pieces = self._pieces()
        self.streamed = (
            first
            for block in range(self.blocks)
            for first in range(0, min(self._first(block), self.s.origin), g.depth)
        )
        trace, shift = call.trace, self.shift
        count = shift + self.edges[-1]
        self.rows_relay = Relay(self.places, count, self._arrive_rows, trace, shift)
        count = sum(1 for _ in self._pieces())
        self.lower_relay = Relay(L_PIECES, count, self._arrive_lower, trace)
        # U of the block column may be read as soon as its write has started.
        self.readable = 0
        self.upper_relay = Relay(g.u_pieces, 0, self._arrive_upper, trace)

    @property
    def blocks(self) -> int:
        """Blocks of rows."""
        return len(self.edges) - 1

    def run(self) -> Matrix:
        """Update all blocks. U is written; the rows below it are spilled or stay in memory.

        Returns
        -------
        ndarray
            The block column from the diagonal down, row-major, in whole tiles. It has no rows if
            they were spilled.
        """
        g = self.g
        try:
            # The first pieces of L must not queue behind all the rows that fit in memory.
            self.lower_relay.poll()
            self.rows_relay.poll()
            if self.sums:
                self.sums.begin()
            numbers = itertools.count()
            streamed = itertools.count()
            crew = Crew(self.call.trace)
            try:
                with crew:
                    for block in range(self.blocks):
                        self._update(crew, block, numbers, streamed)
            finally:
                # Ctrl-C may arrive just as a `with` block begins or ends.
                crew.close()
            if self.sums:
                self.sums.end(self.s.width)
            self.rows_relay.drain()
        except BaseException:
            for relay in (self.rows_relay, self.lower_relay, self.upper_relay):
                with contextlib.suppress(OutcoreError):
                    relay.abandon()
            raise
        finally:
            # These refer to this object. Without the reference cycles, memory is freed at once.
            del self.rows_relay, self.lower_relay, self.upper_relay, self.pieces, self.streamed
        if self.files.spill is not None:
            return self.C[:0]
        top = self.s.origin - self._first(self.blocks - 1)
        return self.C[top : top + g.whole_rows(self.s.order)]

    def _first(self, block: int) -> int:
        """First row of a block."""
        return self.edges[block] * self.g.rows

    def _end(self, block: int) -> int:
        """Row after the last row of a block that is a row of U or has L to its left."""
        return min(self.edges[block + 1] * self.g.rows, self.s.origin)

    def _segments(self, block: int) -> range:
        """First columns of the segments of L that a block needs."""
        return range(0, self._end(block), self.g.segment)

    def _groups(self, block: int, first: int) -> Iterator[range]:
        """Rows of tiles of a block to which a segment of L is applied at once."""
        last = self.edges[block + 1]
        for start in range(max(self.edges[block], first // self.g.rows), last, _TOGETHER):
            yield range(start, min(start + _TOGETHER, last))

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Pieces of L, in order: block, first column, row of tiles."""
        for block in range(self.blocks):
            for first in self._segments(block):
                for i in itertools.chain.from_iterable(self._groups(block, first)):
                    yield block, first, i

    def _rows(self, block: int) -> list[Rows]:
        """Places of a block's rows after the swaps of each block column; last, the rows of A."""
        if block not in self.lists:
            last = min(self.edges[block + 1] * self.g.rows, self.g.n)
            rows = np.arange(self._first(block), last)
            found = [rows]
            for moves in reversed(self.moves):
                rows = moves.before(rows)
                found.append(rows)
            self.lists = {b: self.lists[b] for b in self.lists if b >= block - 2}
            self.lists[block] = found
        return self.lists[block]

    def _tile(self, i: int, rows: Rows, block: int) -> Rows:
        first = (i - self.edges[block]) * self.g.rows
        return rows[first : first + self.g.rows]

    def _block_of(self, i: int) -> int:
        return bisect_right(self.edges, i) - 1

    def _room(self, tiles: range) -> Matrix:
        """Memory of rows of tiles of C, which are contiguous within a block."""
        place = (tiles.start + self.shift) % self.places
        return self.C[place * self.g.rows : (place + len(tiles)) * self.g.rows]

    def _lower(self, numbers: range) -> Matrix:
        """Memory of pieces of L."""
        place = numbers.start % L_PIECES
        return self.L[place * self.g.rows : (place + len(numbers)) * self.g.rows]

    def _arrive_rows(self, number: int) -> Pending:
        i = number - self.shift
        block = self._block_of(i)
        rows = self._tile(i, self._rows(block)[-1], block)
        room = self._room(range(i, i + 1))[: len(rows), : self.g.source_columns(self.k)]
        first = self.s.origin - (self.g.copied_from if self.g.is_copied else 0)
        return self.files.source.submit_read_rows(rows, first, room)

    def _arrive_lower(self, number: int) -> Ticket:
        block, first, i = next(self.pieces)
        column = bisect_right(self.origins, first) - 1
        rows = self._tile(i, self._rows(block)[self.k - 1 - column], block)
        assert self.files.lower is not None
        room = self._lower(range(number, number + 1))[: len(rows)]
        return self.files.lower.submit_read_rows(rows, first, room)

    def _arrive_upper(self, number: int) -> Ticket:
        room = self.U[number % self.g.u_pieces][:, : self.g.tile_columns(self.s)]
        start = [next(self.streamed), self.s.origin]
        return self.files.factors.submit_read(start, [1, 1], room)

    def _update(
        self,
        crew: Crew,
        block: int,
        numbers: "itertools.count[int]",
        streamed: "itertools.count[int]",
    ) -> None:
        """Update a block of rows, and write it."""
        g = self.g
        tiles = range(self.edges[block], self.edges[block + 1])
        left = tiles.start
        if block + 1 < self.blocks:
            # The next block needs the U above this block, whose writes have all started.
            above = min(self._first(block), self.s.origin)
            self.upper_relay.allow(self.readable + above // g.depth)
        segments = self._segments(block)
        if not segments:
            self._take_rows(crew, block, tiles)
        was_streamed = True
        for first in segments:
            end = min(first + g.segment, self._first(block))
            pieces = [next(streamed) for _ in range(first, end, g.depth)]
            is_streamed = end == first + g.segment
            if was_streamed and not is_streamed:
                # From this column on, rows of the block are U for the rows below them.
                crew.settle(0)
            was_streamed = is_streamed
            for group in self._groups(block, first):
                if first == 0:
                    self._take_rows(crew, block, group)
                leaving = range(left, self._leaving(block, first, group, left))
                left = leaving.stop
                number, *_ = [next(numbers) for _ in group]
                self._apply(crew, first, group, number, pieces, leaving)
        # The next block reads rows of U as soon as their writes have started.
        if left < tiles.stop or self._first(block) < self.s.origin:
            crew.settle(0)
        for i in range(left, tiles.stop):
            self._leave(i)
        if block + 1 < self.blocks:
            self.readable += min(self._first(block + 1), self.s.origin) // g.depth
            self.upper_relay.allow(self.readable)

    def _leaving(self, block: int, first: int, group: range, left: int) -> int:
        """Return the end of the tile rows that may be written after this group, from `left` on.

        Rows of U are needed for the rows below them until their segment is complete. Rows that stay
        in memory are released at the end.
        """
        g = self.g
        if self._first(block) >= self.s.origin and self.files.spill is not None:
            is_last = first + g.segment >= self._end(block)
            return group.stop if is_last else left
        if group.stop < self.edges[block + 1]:
            return left
        used = min(first + g.segment, self._end(block)) // g.rows
        return max(left, used)

    def _take(self, crew: Crew, relay: Relay, number: int) -> None:
        """Wait until a block has arrived, and work meanwhile."""
        while relay.must_leave_before(number) and crew.unsettled:
            crew.settle(crew.unsettled - 1)
        while not relay.is_there(number) and crew.help():
            pass
        relay.take(number)

    def _apply(
        self,
        crew: Crew,
        first: int,
        group: range,
        number: int,
        pieces: Sequence[int],
        leaving: range,
    ) -> None:
        """Apply pieces of L to rows of tiles, piece by piece of U; then write some of the rows.

        Pieces of U that do not stream by are in the block itself.
        """
        g = self.g
        ats = range(first, first + g.segment, g.depth)
        is_streamed = len(pieces) == len(ats)
        for tiles in self._units(first, group, number):
            numbers = range(number, number + len(tiles))
            number = numbers.stop
            for i in numbers:
                self._take(crew, self.lower_relay, i)
            for k, at in enumerate(ats):
                piece = pieces[k] if k < len(pieces) else None
                if piece is not None:
                    self._take(crew, self.upper_relay, piece)
                is_last = k == len(ats) - 1
                done = functools.partial(
                    self._note,
                    numbers if is_last else range(0),
                    piece if tiles.stop in self.edges else None,
                    leaving if is_last and tiles.stop == group.stop else range(0),
                    self._flops(tiles, at),
                )
                works = self._works(first, tiles, numbers, at, piece, crew.size)
                # Each streamed piece of U is applied to each group separately. A piece of U in the
                # block is itself a group, which must be complete first: all its steps share one
                # place.
                place = group.start if is_streamed else None
                crew.add([((place, part), work) for part, work in enumerate(works)], done)
                self.upper_relay.poll()
                self.rows_relay.poll()

    def _units(self, first: int, group: range, number: int) -> list[range]:
        """Parts of a group, one for each product.

        Rows beside the segment's own diagonal depend on the rows above them. Pieces of L may wrap
        around the end of their memory.
        """
        is_below = group.start * self.g.rows >= first + self.g.segment
        if is_below and number % L_PIECES + len(group) <= L_PIECES:
            return [group]
        return [range(i, i + 1) for i in group]

    def _works(
        self,
        first: int,
        tiles: range,
        numbers: range,
        at: int,
        piece: int | None,
        parts: int,
    ) -> list[Work]:
        """Return the tasks that apply a piece of U to rows of tiles, one per part of columns."""
        g, top = self.g, tiles.start * self.g.rows
        rows, inner = min(len(tiles) * g.rows, g.n - top), min(top - at, g.depth)
        L = self._lower(numbers)[:rows].T
        wide = -(-self.s.width // (parts * _PART_COLUMNS)) * _PART_COLUMNS
        works: list[Work] = []
        for begin in range(0, self.s.width, wide):
            part = slice(begin, min(begin + wide, self.s.width))
            C = self._room(tiles)[:rows, part].T
            calls: list[Work] = []
            if piece is not None:
                U = self.U[piece % g.u_pieces][:, part]
                calls.append(self._product(U, L[at - first :][:inner], C, "T"))
            elif inner > 0:
                # Rows of a block are contiguous in memory.
                place = (at // g.rows + self.shift) % self.places * g.rows
                U = self.C[place : place + inner, part].T
                calls.append(self._product(U, L[at - first :][:inner], C, "N"))
            if 0 <= top - at < g.depth:
                T = L[top - first :][:rows]
                calls.append(
                    functools.partial(self.kernels.trsm, T, C, "R", lower=False, unit=True)
                )
            works.append(functools.partial(_call_all, calls))
        return works

    def _product(self, U: Matrix, L: Matrix, C: Matrix, trans: Trans) -> Work:
        return functools.partial(self.kernels.gemm, U, L, C, alpha=-1, beta=1, trans_a=trans)

    def _flops(self, tiles: range, at: int) -> float:
        """Operations of applying a piece of U to rows of tiles."""
        g, above = self.g, tiles.start * self.g.rows - at
        rows = min(len(tiles) * g.rows, g.n - tiles.start * g.rows)
        done = 2 * max(min(above, g.depth), 0) + (rows if 0 <= above < g.depth else 0)
        return self.weight * float(done) * rows * self.s.width

    def _note(self, numbers: range, piece: int | None, leaving: range, flops: float) -> None:
        """Complete a step: free its pieces of L or U, and write the rows that are ready."""
        if piece is not None:
            self.upper_relay.leave(piece, [])
        for number in numbers:
            self.lower_relay.leave(number, [])
        for i in leaving:
            self._leave(i)
        self.call.meter.advance(flops)

    def _take_rows(self, crew: Crew, block: int, tiles: range) -> None:
        """Wait for rows of A, and check them."""
        for i in tiles:
            self._take(crew, self.rows_relay, i + self.shift)
            rows = self._tile(i, self._rows(block)[-1], block)
            room = self._room(range(i, i + 1))
            room[len(rows) :] = 0
            room[:, self.s.width :] = 0
            if self.sums:
                start_ns = self.call.trace.now_ns()
                self.sums.look(room[: len(rows), : self.s.width], rows, self.s.origin)
                self.call.trace.record("compute", start_ns)

    def _leave(self, i: int) -> None:
        """Write a row of tiles to the factors or to the spilled rows, or keep it in memory."""
        g, room, tickets = self.g, self._room(range(i, i + 1)), []
        if i * g.rows < self.s.origin:
            C = room[:, : g.tile_columns(self.s)]
            self.extremes.max_u = max(
                self.extremes.max_u, column_extremes(C[:, : self.s.width].T, False)[1]
            )
            start = [i * g.rows, self.s.origin]
            tickets.append(self.files.factors.submit_write(start, [1, 1], C))
        elif self.files.spill is not None:
            start = [i * g.rows - self.s.origin, 0]
            C = room[:, : g.spill_columns(self.s)]
            tickets.append(self.files.spill.submit_write(start, [1, 1], C))
        self.rows_relay.leave(i + self.shift, tickets)


def _call_all(calls: Sequence[Work]) -> None:
    for call in calls:
        call()
