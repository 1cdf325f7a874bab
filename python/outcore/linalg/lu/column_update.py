"""The update of a block column by all columns left of it: C <- L⁻¹ (P A), block by block of rows.

A block of rows of C stays in memory. U of the block column comes in pieces of half a segment's
rows, and L in pieces of a tile's rows by a segment, gathered by lists. C and L are row-major, that
is column-major transposed: C' <- C' - U' L'.
"""

import contextlib
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from outcore._core import ArrayFile, Ticket, column_extremes
from outcore.errors import OutcoreError
from outcore.lapack import kernels
from outcore.linalg.cost import flop_weight
from outcore.linalg.lu.block_columns_geometry import L_PIECES, BlockColumnGeometry
from outcore.linalg.lu.checks import Extremes
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.row_moves import RowMoves, Rows
from outcore.linalg.lu.row_sums import RowSums
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall


class ColumnFiles(NamedTuple):
    """What an update reads and writes.

    Attributes
    ----------
    source
        A, or its copy.
    lower
        L by rows; `None` before there is any.
    factors
        For U.
    spill
        For the rows from the diagonal down; `None` if they stay in memory.
    """

    source: ArrayFile
    lower: ArrayFile | None
    factors: ArrayFile
    spill: ArrayFile | None


class ColumnUpdate:
    """The update of block column `k`.

    Parameters
    ----------
    geometry, k
        What is updated.
    moves
        Of the rows, by each block column left of it.
    files
        See there.
    call
        For memory and progress.
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
        # A copy was looked at when it was made.
        self.sums = None if g.is_copied else RowSums(g, wide, call.arena, self.extremes)
        self.C = self._allocate(rows, wide)
        self.U: list[Matrix] = []
        self.L: list[Matrix] = []
        if self.s.origin:
            self.U = [self._allocate(wide, g.depth).T for _ in range(g.u_pieces)]
            self.L = [self._allocate(g.rows, g.segment) for _ in range(L_PIECES)]
        # All blocks but the first begin in the first place.
        self.places = rows // g.rows
        self.shift = -self.edges[-2] % self.places
        self.lists: dict[int, list[Rows]] = {}
        # What is still to be read, in the order in which the relays ask for it.
        self.pieces = (piece for block in range(self.blocks) for piece in self._pieces(block))
        self.streamed = (
            first
            for block in range(self.blocks)
            for first in range(0, min(self._first(block), self.s.origin), g.depth)
        )
        trace, shift = call.trace, self.shift
        count = shift + self.edges[-1]
        self.rows_relay = Relay(self.places, count, self._arrive_rows, trace, shift)
        count = sum(
            self.edges[block + 1] - max(self.edges[block], first // g.rows)
            for block in range(self.blocks)
            for first in range(0, self._end(block), g.segment)
        )
        self.lower_relay = Relay(L_PIECES, count, self._arrive_lower, trace)
        # U of the block column may be read once it is being written.
        self.readable = 0
        self.upper_relay = Relay(g.u_pieces, 0, self._arrive_upper, trace)

    def _allocate(self, rows: int, columns: int) -> Matrix:
        memory = self.call.arena.allocate(rows * columns * self.g.dtype.itemsize)
        room: Matrix = np.ndarray((rows, columns), self.g.dtype, memoryview(memory))
        return room

    @property
    def blocks(self) -> int:
        """Blocks of rows."""
        return len(self.edges) - 1

    def run(self) -> Matrix:
        """Update all blocks; U leaves, and the rows below it leave or stay in memory.

        Returns
        -------
        ndarray
            The block column from the diagonal down, row-major, in whole tiles; of no rows if they
            have left.
        """
        g = self.g
        try:
            self.rows_relay.poll()
            if self.sums:
                self.sums.begin()
            numbers = itertools.count()
            streamed = itertools.count()
            for block in range(self.blocks):
                self._update(block, numbers, streamed)
            if self.sums:
                self.sums.end(self.s.width)
            self.rows_relay.drain()
        except BaseException:
            for relay in (self.rows_relay, self.lower_relay, self.upper_relay):
                with contextlib.suppress(OutcoreError):
                    relay.abandon()
            raise
        finally:
            # They know this object: without the circles, memory goes back at once.
            del self.rows_relay, self.lower_relay, self.upper_relay, self.pieces, self.streamed
        if self.files.spill is not None:
            return self.C[:0]
        top = self.s.origin - self._first(self.blocks - 1)
        return self.C[top : top + g.whole_rows(self.s.order)]

    def _first(self, block: int) -> int:
        """First row of a block."""
        return self.edges[block] * self.g.rows

    def _end(self, block: int) -> int:
        """Row after the last of a block that is a row of U, or has an L left of it."""
        return min(self.edges[block + 1] * self.g.rows, self.s.origin)

    def _pieces(self, block: int) -> Iterator[tuple[int, int, int]]:
        """Pieces of L for a block, in order: block, first column, row in tiles."""
        g = self.g
        for first in range(0, self._end(block), g.segment):
            for i in range(max(self.edges[block], first // g.rows), self.edges[block + 1]):
                yield block, first, i

    def _rows(self, block: int) -> list[Rows]:
        """Places of a block's rows after the swaps of each block column, and rows of A at last."""
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

    def _room(self, i: int) -> Matrix:
        """Memory of a row of tiles of C."""
        place = (i + self.shift) % self.places
        return self.C[place * self.g.rows : (place + 1) * self.g.rows]

    def _arrive_rows(self, number: int) -> Ticket:
        i = number - self.shift
        block = self._block_of(i)
        rows = self._tile(i, self._rows(block)[-1], block)
        room = self._room(i)[: len(rows), : self.g.source_columns(self.k)]
        first = self.s.origin - (self.g.copied_from if self.g.is_copied else 0)
        return self.files.source.submit_read_rows(rows, first, room)

    def _arrive_lower(self, number: int) -> Ticket:
        block, first, i = next(self.pieces)
        column = bisect_right(self.origins, first) - 1
        rows = self._tile(i, self._rows(block)[self.k - 1 - column], block)
        assert self.files.lower is not None
        return self.files.lower.submit_read_rows(
            rows, first, self.L[number % L_PIECES][: len(rows)]
        )

    def _arrive_upper(self, number: int) -> Ticket:
        room = self.U[number % self.g.u_pieces][:, : self.g.tile_columns(self.s)]
        start = [next(self.streamed), self.s.origin]
        return self.files.factors.submit_read(start, [1, 1], room)

    def _update(
        self, block: int, numbers: "itertools.count[int]", streamed: "itertools.count[int]"
    ) -> None:
        """Update a block of rows, and let it leave."""
        g = self.g
        tiles = range(self.edges[block], self.edges[block + 1])
        segments = range(0, self._end(block), g.segment)
        # Rows of U are used for those below them until the block is done.
        leaves_early = self._first(block) >= self.s.origin and self.files.spill is not None
        if not segments:
            for i in tiles:
                self._take_rows(block, i)
        for first in segments:
            end = min(first + g.segment, self._first(block))
            pieces = [next(streamed) for _ in range(first, end, g.depth)]
            for i in range(max(tiles.start, first // g.rows), tiles.stop):
                if first == 0:
                    self._take_rows(block, i)
                number = next(numbers)
                self.lower_relay.take(number)
                self._apply(
                    first, i, self.L[number % L_PIECES], pieces, is_last=i + 1 == tiles.stop
                )
                self.lower_relay.leave(number, [])
                if leaves_early and first == segments[-1]:
                    self._leave(i)
                self.upper_relay.poll()
                self.rows_relay.poll()
        if not (leaves_early and segments):
            for i in tiles:
                self._leave(i)
        if block + 1 < self.blocks:
            self.readable += min(self._first(block + 1), self.s.origin) // g.depth
            self.upper_relay.allow(self.readable)

    def _apply(
        self, first: int, i: int, L: Matrix, pieces: Sequence[int], *, is_last: bool
    ) -> None:
        """Apply a segment of L to a row of tiles, piece by piece of U.

        Those that do not stream by are in the block itself.
        """
        g, w, top = self.g, self.s.width, i * self.g.rows
        rows = min(g.rows, g.n - top)
        L, C = L[:rows].T, self._room(i)[:rows, :w].T
        done = 0
        for number, at in enumerate(range(first, first + g.segment, g.depth)):
            inner = min(top - at, g.depth)
            streams = number < len(pieces)
            if streams:
                self.upper_relay.take(pieces[number])
            start_ns = self.call.trace.now_ns()
            if streams:
                U = self.U[pieces[number] % g.u_pieces][:, :w]
                self.kernels.gemm(U, L[at - first :][:inner], C, alpha=-1, beta=1, trans_a="T")
            elif inner > 0:
                # Rows of a block are next to each other in memory.
                place = (at // g.rows + self.shift) % self.places * g.rows
                U = self.C[place : place + inner, :w].T
                self.kernels.gemm(U, L[at - first :][:inner], C, alpha=-1, beta=1)
            if 0 <= top - at < g.depth:
                self.kernels.trsm(L[top - first :][:rows], C, "R", lower=False, unit=True)
                done += rows
            self.call.trace.record("compute", start_ns)
            done += 2 * max(inner, 0)
            if streams and is_last:
                self.upper_relay.leave(pieces[number], [])
        self.call.meter.advance(self.weight * float(done) * rows * w)

    def _take_rows(self, block: int, i: int) -> None:
        """Wait for rows of A, and look at them."""
        self.rows_relay.take(i + self.shift)
        rows, room = self._tile(i, self._rows(block)[-1], block), self._room(i)
        room[len(rows) :] = 0
        room[:, self.s.width :] = 0
        if self.sums:
            start_ns = self.call.trace.now_ns()
            self.sums.look(room[: len(rows), : self.s.width], rows, self.s.origin)
            self.call.trace.record("compute", start_ns)

    def _leave(self, i: int) -> None:
        """Let a row of tiles leave: to the factors, or to the spilled rows; or it stays."""
        g, room, tickets = self.g, self._room(i), []
        if i * g.rows < self.s.origin:
            C = room[:, : g.tile_columns(self.s)]
            self.extremes.max_u = max(
                self.extremes.max_u, column_extremes(C[:, : self.s.width].T, False)[1]
            )
            start = [i * g.rows, self.s.origin]
            tickets.append(self.files.factors.submit_write(start, [1, 1], C))
        elif self.files.spill is not None:
            start = [i * g.rows - self.s.origin, 0]
            tickets.append(self.files.spill.submit_write(start, [1, 1], room))
        self.rows_relay.leave(i + self.shift, tickets)
