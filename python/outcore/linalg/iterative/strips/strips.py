"""The order in which an iterative method reads a matrix: strips of chunks, one per diagonal block.

A chunk is used whole whenever it is read. If chunks are wider than high, as in C order, a strip is
a row of blocks. If they are higher than wide, as in Fortran order, it is a column of blocks. So the
size of a diagonal block need only be a multiple of the shorter side of a chunk.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from outcore.linalg._tiles.matrix import Matrix

Box: TypeAlias = tuple[slice, slice]
Chunk: TypeAlias = tuple[int, int]


class Tile(NamedTuple):
    """A chunk, and its parts below, in and above the diagonal block of its strip.

    All boxes are (rows, columns) of the matrix; `None` stands for an empty part.
    """

    chunk: Chunk
    rows: slice
    cols: slice
    below: Box | None
    inside: Box | None
    above: Box | None

    def part(self, data: Matrix, box: Box) -> Matrix:
        """Cut a box out of the tile's elements."""
        rows, cols = box
        top, left = self.rows.start, self.cols.start
        return data[rows.start - top : rows.stop - top, cols.start - left : cols.stop - left]


@dataclass(frozen=True)
class Strips:
    """The strips of a matrix of order `n`, or those of one process of several.

    ``by`` says whether a strip is rows or columns; it has ``block`` of them. If there are several
    `processes`, each has a contiguous range of strips, numbered from the first of process `rank`.
    """

    n: int
    chunks: tuple[int, int]
    by: Literal["rows", "columns"]
    block: int
    rank: int = 0
    processes: int = 1

    @property
    def of_all(self) -> int:
        """Number of strips of all processes."""
        return -(-self.n // self.block)

    @property
    def most(self) -> int:
        """Largest number of strips of a process."""
        return -(-self.of_all // self.processes)

    @property
    def count(self) -> int:
        """Number of strips of this process."""
        return self._before(self.rank + 1) - self._before(self.rank)

    @property
    def lines(self) -> slice:
        """Rows of all strips, or columns if strips are columns."""
        first, end = self._before(self.rank), self._before(self.rank + 1)
        return slice(min(first * self.block, self.n), min(end * self.block, self.n))

    def extent(self, strip: int) -> slice:
        """Rows and columns of a strip's diagonal block."""
        first = (self._before(self.rank) + strip) * self.block
        return slice(first, min(first + self.block, self.n))

    def _before(self, rank: int) -> int:
        """Return the number of strips of the processes before `rank`."""
        return self.of_all * rank // self.processes

    @functools.cached_property
    def tiles(self) -> list[list[Tile]]:
        """Tiles of each strip, in the usual order of chunks on disk."""
        along, across = self.chunks if self.by == "rows" else self.chunks[::-1]
        found = []
        for strip in range(self.count):
            here = self.extent(strip)
            lines = range(here.start // along, -(-here.stop // along))
            found.append(
                [
                    self._tile(here, line, at)
                    for line, at in itertools.product(lines, range(-(-self.n // across)))
                ]
            )
        return found

    @functools.cached_property
    def all_tiles(self) -> list[Tile]:
        """Tiles of all strips."""
        return [tile for strip in self.tiles for tile in strip]

    def _tile(self, here: slice, line: int, at: int) -> Tile:
        along, across = self.chunks if self.by == "rows" else self.chunks[::-1]
        lines = slice(line * along, min((line + 1) * along, self.n))
        first, end = at * across, min((at + 1) * across, self.n)
        before = _span(first, min(end, here.start))
        inside = _span(max(first, here.start), min(end, here.stop))
        after = _span(max(first, here.stop), end)
        if self.by == "rows":
            boxes = [part and (lines, part) for part in (before, inside, after)]
            return Tile((line, at), lines, slice(first, end), *boxes)
        boxes = [part and (part, lines) for part in (after, inside, before)]
        return Tile((at, line), slice(first, end), lines, *boxes)


def _span(first: int, end: int) -> slice | None:
    return slice(first, end) if first < end else None


def way_through(chunks: tuple[int, int], order: str) -> tuple[Literal["rows", "columns"], int]:
    """Choose strips of rows or of columns, and the least size of a diagonal block."""
    rows, cols = chunks
    if rows < cols or (rows == cols and order == "C"):
        return "rows", rows
    return "columns", cols
