"""A matrix in C order is copied to the room of its factors, in their tiles, before narrow slabs.

Each slab is then loaded from where its factors will be written. Nothing is noted of the copy: a run
that goes on copies what is left of the matrix again.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore._core import ArrayFile, Ticket
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.segments import Layout
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall


class CopyBlock(NamedTuple):
    """Rows and columns of the blocks in which a matrix is copied, and how many memory holds.

    They are whole tiles, of whole rows of chunks, so that nothing is read twice. Memory holds two
    of them if it can; 0 rows, if not one, or such rows are not whole blocks of the disk.
    """

    rows: int
    columns: int
    places: int


class TileCopy(NamedTuple):
    """How a matrix in C order is copied to tiles.

    Attributes
    ----------
    shape, dtype
        Of the matrix.
    layout
        On disk.
    tile
        Rows and columns of a tile.
    memory_bytes
        For blocks; see `copy_memory`.
    block_bytes
        Of the disk.
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
        """The blocks in which it is copied."""
        rows, columns = self.tile
        wide = math.lcm(self.layout.chunks[1], columns)
        across = self.layout.chunks[1] * self.dtype.itemsize
        if self.layout.order != "C" or across % self.block_bytes:
            return CopyBlock(0, wide, 1)
        most = self.memory_bytes // (wide * self.dtype.itemsize * rows)
        places = 2 if most > 1 else 1
        return CopyBlock(min(most // places * rows, self.height), wide, places)

    @property
    def height(self) -> int:
        """Rows of the matrix, rounded up to whole tiles."""
        return -(-self.shape[0] // self.tile[0]) * self.tile[0]

    @property
    def end(self) -> int:
        """Columns of the matrix, rounded up to whole chunks."""
        chunk = self.layout.chunks[1]
        return -(-self.shape[1] // chunk) * chunk

    def first_column(self, first_panel: int) -> int:
        """First column that is read to copy the panels from `first_panel` on: of a block."""
        wide = self.block.columns
        return first_panel * self.tile[1] // wide * wide

    def top(self, column: int) -> int:
        """First row that is copied of a column: of a tile."""
        return column // self.tile[0] * self.tile[0] if self.lower else 0

    def bytes_read(self, first_panel: int = 0) -> int:
        """Bytes read to copy the panels from `first_panel` on. Exact."""
        wide = self.block.columns
        if first_panel * self.tile[1] >= self.shape[1]:
            return 0
        words = sum(
            (self.shape[0] - self.top(left)) * (min(left + wide, self.end) - left)
            for left in range(self.first_column(first_panel), self.shape[1], wide)
        )
        return words * self.dtype.itemsize

    def blocks(self, first_panel: int) -> Iterator[tuple[int, int]]:
        """First row and column of each block, in their order."""
        rows, wide, _ = self.block
        for left in range(self.first_column(first_panel), self.shape[1], wide):
            for top in range(self.top(left), self.shape[0], rows):
                yield top, left

    def run(
        self,
        matrix: ArrayFile,
        tiles: ArrayFile,
        first_panel: int,
        call: LongCall,
        *,
        is_transposed: bool = False,
    ) -> None:
        """Copy; `matrix` may be opened as the transpose of what this describes.

        Its columns are as many as `end` says: whole rows of chunks are read, padding included.
        """
        (m, n), (_, columns) = self.shape, self.tile
        high, wide, places = self.block
        blocks, begin = list(self.blocks(first_panel)), first_panel * columns
        memory = [call.arena.allocate(high * wide * self.dtype.itemsize) for _ in range(places)]
        room: list[Matrix] = [np.ndarray((high, wide), self.dtype, memoryview(p)) for p in memory]

        def arrive(number: int) -> Ticket:
            top, left = blocks[number]
            part = room[number % places][: m - top, : self.end - left]
            if is_transposed:
                return matrix.submit_read([left, top], [1, 1], part.T)
            return matrix.submit_read([top, left], [1, 1], part)

        relay = Relay(places, len(blocks), arrive, call.trace)
        try:
            relay.poll()
            for number, (top, left) in enumerate(blocks):
                relay.take(number)
                T = room[number % places][: self.height - top]
                # What is beyond the matrix is written with its tiles.
                T[m - top :] = 0
                T[:, n - left :] = 0
                tickets = []
                for at in range(max(begin, left), min(left + wide, n), columns):
                    above = max(self.top(at) - top, 0)
                    if above < len(T):
                        tile = T[above:, at - left : at - left + columns]
                        tickets.append(tiles.submit_write([top + above, at], [1, 1], tile))
                relay.leave(number, tickets)
            relay.drain()
        except BaseException:
            relay.abandon()
            raise


def copy_memory(budget_bytes: int, bounce_bytes: int) -> int:
    """Bytes of a budget that are left for blocks, beside the buffers of both files."""
    return budget_bytes - bounce_bytes - 2 * TILE_BOUNCE_BYTES
