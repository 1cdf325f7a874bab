"""Copy of a matrix in C order into the space of its factors, in their tiles, for narrow slabs.

Each slab is then loaded from the future place of its factors. The copy is not recorded: a resumed
run copies the rest of the matrix again.

Memory holds blocks of whole tiles and whole rows of chunks, so that no byte is read twice. If
chunks are too wide for that, a block has only some of their columns, and strips of whole rows are
read once for each set of columns.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import Pending, wait
from outcore.errors import OutcoreError
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.relay import Relay
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall

_STRIPS = 2
"""Strips in memory: one is split, the other is being read."""

_STRIPS_SHARE = 16
"""Strips get at least this part of the memory, because a single row may be a short read."""


class CopyBlock(NamedTuple):
    """The blocks of a copy.

    Attributes
    ----------
    rows
        Rows of a block, in whole tiles; 0 if memory does not hold a block, or rows of chunks are
        not whole disk blocks.
    columns
        Columns in whole tiles, and without strips in whole chunks.
    places
        Number of blocks in memory, for blocks without strips.
    strip
        Rows of whole chunks in a strip; 0 if blocks are read directly.
    """

    rows: int
    columns: int
    places: int
    strip: int = 0


class CopyPart(NamedTuple):
    """Columns that are copied together, and the whole chunks that are read for them."""

    left: int
    right: int
    first: int
    end: int


class TileCopy(NamedTuple):
    """Copy of a matrix in C order into tiles.

    Attributes
    ----------
    shape, dtype
        Shape and type of the matrix.
    layout
        Layout on disk.
    tile
        Rows and columns of a tile.
    memory_bytes
        Memory for blocks; see `copy_memory`.
    block_bytes
        Block size of the disk.
    lower
        Whether only the tiles on and below the diagonal are copied.
    """

    shape: tuple[int, int]
    dtype: "np.dtype[Any]"
    layout: Layout
    tile: tuple[int, int]
    memory_bytes: int
    block_bytes: int
    lower: bool = False

    @property
    def block(self) -> CopyBlock:
        """The blocks of the copy."""
        rows, itemsize, wide = self.tile[0], self.dtype.itemsize, self._wide
        line_bytes = self.layout.chunks[1] * self.layout.itemsize(self.dtype)
        if self.layout.order != "C" or line_bytes % self.block_bytes:
            return CopyBlock(0, wide, 1)
        most = self.memory_bytes // (wide * itemsize * rows)
        if not most:
            return self._narrow
        places = 2 if most > 1 else 1
        return CopyBlock(min(most // places * rows, self.height), wide, places)

    @property
    def _wide(self) -> int:
        """Columns in whole tiles and whole chunks; at most those of the matrix."""
        chunk, columns = self.layout.chunks[1], self.tile[1]
        # Rows in memory are whole disk blocks, like rows of chunks.
        unit = math.lcm(columns, max(self.block_bytes // self.dtype.itemsize, 1))
        whole = -(-self.end // unit) * unit
        return min(math.lcm(chunk, columns), whole)

    @property
    def _narrow(self) -> CopyBlock:
        """Blocks of as many of those columns as memory allows, and their strips."""
        rows, columns = self.tile
        itemsize, wide = self.dtype.itemsize, self._wide
        least, tiles, found = self.memory_bytes // _STRIPS_SHARE, -(-wide // columns), 0
        for count in range(2, tiles + 1):
            narrow = -(-tiles // count) * columns
            if narrow == found:
                continue
            found = narrow
            span = max(part.end - part.first for part in self._cut(wide, narrow, 0))
            room, line = self.memory_bytes - rows * narrow * itemsize, _STRIPS * span * itemsize
            strip = min(room // line, rows)
            if strip == rows or (strip > 0 and strip * line >= least):
                return CopyBlock(rows, narrow, 1, strip)
        return CopyBlock(0, wide, 1)

    def parts(self, first_panel: int) -> list[CopyPart]:
        """Return the sets of columns that are copied together, from panel `first_panel`."""
        return self._cut(self._wide, self.block.columns, first_panel * self.tile[1])

    def _span(self, first_panel: int) -> int:
        """Return the columns of the widest strips."""
        return max((part.end - part.first for part in self.parts(first_panel)), default=0)

    def _cut(self, wide: int, narrow: int, begin: int) -> list[CopyPart]:
        """Cut each `wide` columns into parts, and return those that end beyond column `begin`."""
        chunk, found = self.layout.chunks[1], []
        for region in range(begin // wide * wide, self.shape[1], wide):
            last = min(region + wide, self.shape[1])
            for left in range(region, last, narrow):
                right = min(left + narrow, last)
                if right > begin:
                    first, end = left // chunk * chunk, -(-right // chunk) * chunk
                    found.append(CopyPart(left, right, first, end))
        return found

    @property
    def height(self) -> int:
        """Rows of the matrix, rounded up to whole tiles."""
        return -(-self.shape[0] // self.tile[0]) * self.tile[0]

    @property
    def end(self) -> int:
        """Columns of the matrix, rounded up to whole chunks."""
        chunk = self.layout.chunks[1]
        return -(-self.shape[1] // chunk) * chunk

    def top(self, column: int) -> int:
        """Return the first row of a column that is copied: that of a tile."""
        return column // self.tile[0] * self.tile[0] if self.lower else 0

    def bytes_read(self, first_panel: int = 0) -> int:
        """Return the exact bytes read to copy the panels from `first_panel`."""
        words = sum(
            (self.shape[0] - self.top(part.left)) * (part.end - part.first)
            for part in self.parts(first_panel)
        )
        return words * self.layout.itemsize(self.dtype)

    def blocks(self, first_panel: int) -> Iterator[tuple[int, CopyPart]]:
        """Yield the first row and the columns of each block, in order."""
        rows = self.block.rows
        for part in self.parts(first_panel):
            for top in range(self.top(part.left), self.shape[0], rows):
                yield top, part

    def run(
        self,
        matrix: MatrixFile,
        tiles: ArrayFile,
        first_panel: int,
        call: LongCall,
        *,
        is_transposed: bool = False,
    ) -> None:
        """Copy the matrix; `matrix` may be its transpose.

        `matrix` has the columns of `end`: the copy reads whole rows of chunks, including padding.
        """
        if self.block.strip:
            self._run_by_strips(matrix, tiles, first_panel, call, is_transposed=is_transposed)
            return
        m = self.shape[0]
        high, wide, places, _ = self.block
        blocks, begin = list(self.blocks(first_panel)), first_panel * self.tile[1]
        memory = [call.arena.allocate(high * wide * self.dtype.itemsize) for _ in range(places)]
        room: list[Matrix] = [np.ndarray((high, wide), self.dtype, memoryview(p)) for p in memory]

        def arrive(number: int) -> Pending:
            top, part = blocks[number]
            box = room[number % places][: m - top, : part.end - part.first]
            return _read(matrix, top, part.first, box, is_transposed=is_transposed)

        relay = Relay(places, len(blocks), arrive, call.trace)
        try:
            relay.poll()
            for number, (top, part) in enumerate(blocks):
                relay.take(number)
                T = room[number % places][: self.height - top]
                relay.leave(number, self._write(tiles, T, top, part, begin))
            relay.drain()
        except BaseException:
            relay.abandon()
            raise

    def _run_by_strips(
        self,
        matrix: MatrixFile,
        tiles: ArrayFile,
        first_panel: int,
        call: LongCall,
        *,
        is_transposed: bool,
    ) -> None:
        """Copy by strips: a block takes its columns from strips of whole rows."""
        high, wide, _, strip = self.block
        begin, itemsize = first_panel * self.tile[1], self.dtype.itemsize
        span = self._span(first_panel)
        memory = call.arena.allocate(high * wide * itemsize)
        block: Matrix = np.ndarray((high, wide), self.dtype, memoryview(memory), order="F")
        strips = [
            (top, part, first, min(first + strip, top + high, self.shape[0]))
            for top, part in self.blocks(first_panel)
            for first in range(top, min(top + high, self.shape[0]), strip)
        ]
        places = [call.arena.allocate(strip * span * itemsize) for _ in range(_STRIPS)]

        def rows_of(number: int) -> Matrix:
            _, part, first, end = strips[number]
            shape = end - first, part.end - part.first
            return np.ndarray(shape, self.dtype, memoryview(places[number % _STRIPS]))

        def arrive(number: int) -> Pending:
            _, part, first, _ = strips[number]
            return _read(matrix, first, part.first, rows_of(number), is_transposed=is_transposed)

        relay = Relay(_STRIPS, len(strips), arrive, call.trace)
        leaving: list[Ticket] = []
        try:
            relay.poll()
            for number, (top, part, first, end) in enumerate(strips):
                relay.take(number)
                for ticket in leaving:
                    wait(ticket, call.trace)
                leaving = []
                start_ns = call.trace.now_ns()
                own = rows_of(number)[:, part.left - part.first : part.right - part.first]
                block[first - top : end - top, : own.shape[1]] = own
                call.trace.record("compute", start_ns)
                relay.leave(number, [])
                if end == min(top + high, self.shape[0]):
                    T = block[: self.height - top]
                    leaving = self._write(tiles, T, top, part, begin)
            for ticket in leaving:
                wait(ticket, call.trace)
        except BaseException:
            relay.abandon()
            for ticket in leaving:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()
            raise

    def _write(
        self, tiles: ArrayFile, T: Matrix, top: int, part: CopyPart, begin: int
    ) -> list[Ticket]:
        """Write a block's tiles from column `begin`, with zeros beyond the matrix."""
        (m, n), columns, left = self.shape, self.tile[1], part.left
        T[m - top :] = 0
        T[:, n - left :] = 0
        tickets = []
        for at in range(max(begin, left), part.right, columns):
            above = max(self.top(at) - top, 0)
            if above < len(T):
                tile = T[above:, at - left : at - left + columns]
                tickets.append(tiles.submit_write([top + above, at], [1, 1], tile))
        return tickets


def _read(matrix: MatrixFile, top: int, left: int, box: Matrix, *, is_transposed: bool) -> Pending:
    """Read a box of the described matrix; `matrix` may be its transpose."""
    if is_transposed:
        return matrix.submit_read([left, top], [1, 1], box.T)
    return matrix.submit_read([top, left], [1, 1], box)


def copy_memory(budget_bytes: int, bounce_bytes: int) -> int:
    """Return the bytes of a budget for blocks, without the buffers of both files.

    Two `TILE_BOUNCE_BYTES` are left out: one for the buffer of the tiles, the other for rounding up
    to whole pages.
    """
    return budget_bytes - bounce_bytes - 2 * TILE_BOUNCE_BYTES
