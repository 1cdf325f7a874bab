"""What loading the columns of a matrix slab by slab reads from the disk: exact, for any layout.

A disk reads a short gap rather than leaving it out, so that narrow slabs read far more of a matrix
in C order than they need. Where a copy in tiles costs less, the matrix is
copied first (`slab_copy.py`), into the room of the factors.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from outcore.disk_reads import DiskReads
from outcore.linalg.grains import pages
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES, LuGeometry, Slab
from outcore.linalg.lu.segments import Layout
from outcore.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES

# How requests are cut: these mean the same in `crates/core/src/cut.rs` and
# `crates/client/src/piece.rs`.
_SHORT_BYTES = 64 << 10
_MOST_PIECE_BYTES = TILE_BYTES
_MOST_EXTENTS = 4096
_MOST_RUNS = 256


class _Part(NamedTuple):
    """First and number of rows, or columns, that are read of a chunk."""

    first: int
    size: int


class SlabLoads(NamedTuple):
    """How the slabs of a matrix are loaded.

    Attributes
    ----------
    geometry
        How it is cut; not a part of a larger matrix.
    layout
        Of the matrix.
    disk
        How reads of it grow.
    """

    geometry: LuGeometry
    layout: Layout
    disk: DiskReads

    @property
    def is_copied(self) -> bool:
        """Whether a copy in tiles moves fewer bytes than slabs that come from the matrix itself."""
        return self.copy_block()[0] > 0 and sum(self._copied(0)) < self._direct(0)

    def bytes_moved(self, first_panel: int = 0) -> tuple[int, int]:
        """Bytes read and written by a run that begins with a panel, but for L and U. Exact."""
        return self._copied(first_panel) if self.is_copied else (self._direct(first_panel), 0)

    def copy_bytes(self) -> tuple[int, int]:
        """Bytes of these that are moved before the first slab is begun."""
        return self._copying(0) if self.is_copied else (0, 0)

    def copied_from(self, first_panel: int) -> int:
        """First column that is read to copy the panels from `first_panel` on: of a block."""
        wide = self.copy_block()[1]
        return first_panel * self.geometry.columns // wide * wide

    def copy_block(self) -> tuple[int, int, int]:
        """Rows and columns of the blocks in which a matrix in C order is copied, and their number.

        They are whole tiles, of whole rows of chunks, so that nothing is read twice. Memory holds
        two of them if it can; 0 rows, if not one, or such rows are not whole blocks of the disk.
        """
        g = self.geometry
        wide = math.lcm(self.layout.chunks[1], g.columns)
        across = self.layout.chunks[1] * g.dtype.itemsize
        if self.layout.order != "C" or across % self.disk.block_bytes:
            return 0, wide, 1
        left = g.budget_bytes - g.bounce_bytes - 2 * TILE_BOUNCE_BYTES
        most = left // (wide * g.dtype.itemsize * g.rows)
        places = 2 if most > 1 else 1
        return min(most // places * g.rows, g.height), wide, places

    def _copying(self, first_panel: int) -> tuple[int, int]:
        g, chunk = self.geometry, self.layout.chunks[1]
        if first_panel == g.panels:
            return 0, 0
        columns = math.ceil(g.n / chunk) * chunk - self.copied_from(first_panel)
        return g.n * columns * g.dtype.itemsize, g.factor_bytes_written(first_panel)

    def _copied(self, first_panel: int) -> tuple[int, int]:
        g = self.geometry
        read, written = self._copying(first_panel)
        tiles = Layout("F", (g.rows, g.columns))
        return read + _load_bytes(
            g, tiles, g.height, TILE_BOUNCE_BYTES, self.disk, first_panel
        ), written

    def _direct(self, first_panel: int) -> int:
        g = self.geometry
        return _load_bytes(g, self.layout, g.n, g.bounce_bytes, self.disk, first_panel)


def load_group(chunk: int, tile: int, most: int) -> int:
    """How many tiles to load at once so that a chunk of the matrix is not read twice."""
    if tile % chunk == 0:
        return 1
    return min(chunk // tile, most) if chunk % tile == 0 else most


@functools.lru_cache(1 << 10)
def _load_bytes(
    g: LuGeometry, layout: Layout, rows: int, bounce_bytes: int, disk: DiskReads, first_panel: int
) -> int:
    """Bytes that the conveyor reads of so many rows."""
    high, wide = layout.chunks
    tiles, panels = load_group(high, g.rows, g.tiles), load_group(wide, g.columns, g.slab_panels)
    tops = range(0, g.tiles * g.rows, tiles * g.rows)
    across = Counter(_parts(_column_boxes(g, g.slabs(first_panel), panels), wide))
    down = Counter(_parts(((top, min(top + tops.step, rows)) for top in tops), high))
    most = _bounce_piece_bytes(high * wide * g.dtype.itemsize, bounce_bytes, disk.block_bytes)
    return sum(
        times * other * _read_bytes(layout, g.dtype, i, j, g.height, most, disk)
        for i, times in down.items()
        for j, other in across.items()
    )


def _column_boxes(g: LuGeometry, slabs: Iterable[Slab], panels: int) -> Iterator[tuple[int, int]]:
    for slab in slabs:
        end = min(slab.last * g.columns, g.n)
        step = panels * g.columns
        for left in range(slab.first * g.columns, end, step):
            yield left, min(left + step, end)


def _parts(ranges: Iterable[tuple[int, int]], chunk: int) -> Iterator[_Part]:
    """Cut ranges where chunks end."""
    for first, end in ranges:
        while first < end:
            inside = first % chunk
            count = min(chunk - inside, end - first)
            yield _Part(inside, count)
            first += count


def _bounce_piece_bytes(chunk_bytes: int, bounce_bytes: int, block_bytes: int) -> int:
    around = 2 * block_bytes
    wanted = min(_MOST_PIECE_BYTES, pages(chunk_bytes)) + around
    return pages(min(wanted, max(bounce_bytes, 2 * around))) - around


@functools.lru_cache(1 << 14)
def _read_bytes(
    layout: Layout,
    dtype: "np.dtype[np.generic]",
    rows: _Part,
    columns: _Part,
    height: int,
    piece_bytes: int,
    disk: DiskReads,
) -> int:
    """Bytes read for a box in one chunk, into column-major memory of so many rows."""
    is_row_major = layout.order == "C"
    fast, slow = (columns, rows) if is_row_major else (rows, columns)
    length, itemsize = layout.chunks[1 if is_row_major else 0], dtype.itemsize
    line = length * itemsize
    start, extent = (slow.first * length + fast.first) * itemsize, fast.size * itemsize
    gap = line - extent if slow.size > 1 else 0
    if gap > disk.gap_bytes:
        return sum(
            _apart_bytes(start + first * line, extent, count, piece_bytes, disk)
            for first, count in _groups(slow.size, _most_extents(extent, piece_bytes))
        )
    # Elements next to each other on disk lie a column apart in memory, if the chunk is row-major.
    runs = fast.size * slow.size
    if not is_row_major:
        runs = 1 if fast.size == length == height else slow.size
    total = 0
    for at, nbytes, lines in _lines(start, extent, slow.size, line, _MOST_PIECE_BYTES):
        if gap == 0 and nbytes < _SHORT_BYTES and runs * lines // slow.size <= _MOST_RUNS:
            total += nbytes
            continue
        run = nbytes if lines == 1 else extent
        for first, part, _ in _lines(at, run, lines, line, piece_bytes):
            total += disk.whole_blocks(first, part)
    return total


def _lines(
    start: int, extent: int, count: int, line: int, most: int
) -> Iterator[tuple[int, int, int]]:
    """Cut lines of a chunk into pieces of so many bytes: first byte, bytes, lines."""
    if extent > most:
        step = max(most // SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES, 1)
        for i in range(count):
            for done in range(0, extent, step):
                yield start + i * line + done, min(step, extent - done), 1
        return
    for first, lines in _groups(count, 1 + (most - extent) // line):
        yield start + first * line, (lines - 1) * line + extent, lines


def _most_extents(extent: int, piece_bytes: int) -> int:
    if extent > _SHORT_BYTES:
        return 1
    return max(min(min(_MOST_PIECE_BYTES, piece_bytes) // extent, _MOST_EXTENTS), 1)


def _apart_bytes(start: int, extent: int, count: int, piece_bytes: int, disk: DiskReads) -> int:
    """Bytes of lines that are too far apart to be read as one."""
    if count > 1 or extent < _SHORT_BYTES:
        return count * extent
    parts = _lines(start, extent, 1, extent, piece_bytes)
    return sum(disk.whole_blocks(at, nbytes) for at, nbytes, _ in parts)


def _groups(count: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, most):
        yield first, min(most, count - first)
