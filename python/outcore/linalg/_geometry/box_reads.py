"""Exact numbers of bytes that reads of boxes of a matrix take from the disk, in any layout.

In a pool, where large pieces need no buffer, the reads may be smaller by a few blocks.

A disk reads a short gap instead of leaving it out, and buffered reads begin and end with a block.
So boxes that are narrow across the direction of a layout read far more than their own bytes.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.grains import pages

# Limits of requests. `crates/core/src/cut.rs`, and `piece.rs` and `array_file.rs` in
# `crates/client/src` have the same constants.
_SHORT_BYTES = 64 << 10
_MOST_PIECE_BYTES = TILE_BYTES
_MOST_EXTENTS = 4096
_MOST_RUNS = 256


class Part(NamedTuple):
    """First row, or column, of the part of a chunk that is read, and their number."""

    first: int
    size: int


class BoxReads(NamedTuple):
    """Reads of boxes of a matrix into column-major memory.

    Attributes
    ----------
    layout, dtype
        Layout of the matrix, and type of the memory.
    bounce_bytes
        Memory for reads that do not go directly to their target.
    disk
        Granularity of the disk's reads.
    """

    layout: Layout
    dtype: "np.dtype[Any]"
    bounce_bytes: int
    disk: DiskReads

    def bytes_of(self, rows: "Counter[Part]", columns: "Counter[Part]", height: int) -> int:
        """Return the bytes read for all pairs of rows and columns, into memory of this height."""
        high, wide = self.layout.chunks
        stored = self.layout.stored or self.dtype
        chunk_bytes = high * wide * stored.itemsize
        most = _bounce_piece_bytes(chunk_bytes, self.bounce_bytes, self.disk.block_bytes)
        if self.layout.stored is not None:
            # Each column is read into the end of its memory, apart from the others.
            height = 0
        return sum(
            times * other * _read_bytes(self.layout, stored, i, j, height, most, self.disk)
            for i, times in rows.items()
            for j, other in columns.items()
        )

    def bytes_of_box(self, rows: slice, columns: slice, height: int) -> int:
        """Return the bytes read for one box."""
        high, wide = self.layout.chunks
        return self.bytes_of(
            parts([(rows.start, rows.stop)], high),
            parts([(columns.start, columns.stop)], wide),
            height,
        )


def parts(ranges: Iterable[tuple[int, int]], chunk: int) -> "Counter[Part]":
    """Cut ranges at chunk edges, and count equal parts."""
    found: Counter[Part] = Counter()
    for first, end in ranges:
        inside = first % chunk
        if first < end and (inside or end - first < chunk):
            size = min(chunk - inside, end - first)
            found[Part(inside, size)] += 1
            first += size
        if first < end:
            whole, rest = divmod(end - first, chunk)
            if whole:
                found[Part(0, chunk)] += whole
            if rest:
                found[Part(0, rest)] += 1
    return found


def _bounce_piece_bytes(chunk_bytes: int, bounce_bytes: int, block_bytes: int) -> int:
    around = 2 * block_bytes
    wanted = min(_MOST_PIECE_BYTES, pages(chunk_bytes)) + around
    return pages(min(wanted, max(bounce_bytes, 2 * around))) - around


@functools.lru_cache(1 << 14)
def _read_bytes(
    layout: Layout,
    dtype: "np.dtype[Any]",
    rows: Part,
    columns: Part,
    height: int,
    piece_bytes: int,
    disk: DiskReads,
) -> int:
    """Return the bytes read for a box in one chunk, into column-major memory of `height` rows."""
    is_row_major = layout.order == "C"
    fast, slow = (columns, rows) if is_row_major else (rows, columns)
    length, itemsize = layout.chunks[1 if is_row_major else 0], dtype.itemsize
    line = length * itemsize
    start, extent = (slow.first * length + fast.first) * itemsize, fast.size * itemsize
    gap = line - extent if slow.size > 1 else 0
    if gap > min(disk.gap_bytes, piece_bytes // 4):
        return sum(
            _apart_bytes(start + first * line, extent, count, piece_bytes, disk)
            for first, count in _groups(slow.size, _most_extents(extent, piece_bytes))
        )
    # In a row-major chunk, neighbours on disk are a column apart in memory.
    runs, count = fast.size * slow.size, slow.size
    if not is_row_major:
        runs = count
        if fast.size == length == height:
            # The box is contiguous on disk and in memory: one run.
            extent, runs, count = extent * count, 1, 1
    total = 0
    for at, nbytes, lines in _lines(start, extent, count, line, _MOST_PIECE_BYTES):
        if gap == 0 and nbytes < _SHORT_BYTES and runs * lines // count <= _MOST_RUNS:
            total += nbytes
            continue
        run = nbytes if lines == 1 else extent
        for first, part, _ in _lines(at, run, lines, line, piece_bytes):
            total += disk.whole_blocks(first, part)
    return total


def _lines(
    start: int, extent: int, count: int, line: int, most: int
) -> Iterator[tuple[int, int, int]]:
    """Cut lines of a chunk into pieces of at most `most` bytes: first byte, bytes, lines."""
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
    """Return the bytes of lines that are too far apart to be read together."""
    if count > 1 or extent < _SHORT_BYTES:
        return count * extent
    parts = _lines(start, extent, 1, extent, piece_bytes)
    return sum(disk.whole_blocks(at, nbytes) for at, nbytes, _ in parts)


def _groups(count: int, most: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, most):
        yield first, min(most, count - first)
