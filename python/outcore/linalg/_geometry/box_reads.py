"""Exact numbers of bytes that reads of boxes of a matrix take from the disk, in any layout.

In a pool, where large pieces need no buffer, the reads may be smaller by a few blocks.

A disk reads a short gap instead of leaving it out, and buffered reads begin and end with a block.
So boxes that are narrow across the direction of a layout read far more than their own bytes.

A stream (`StreamReads`) reads a box that is a whole chunk with its padding, unless most of it is
beyond the edge of the matrix (`crates/client/src/array/stream.rs`). It reads any other box as
above, into memory that is packed in the order of the matrix.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore.array.array import Array
from outcore.layout.chunk_walk import in_disk_order, small_boxes, small_shape
from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.grains import pages

# Limits of requests. `crates/core/src/cut.rs`, and `piece.rs` and `file.rs` in
# `crates/client/src/array` have the same constants.
_SHORT_BYTES = 64 << 10
_MOST_PIECE_BYTES = TILE_BYTES
_MOST_EXTENTS = 4096
_MOST_RUNS = 256

_RING_BYTES = 64 << 20
"""Largest memory for read-ahead tiles of a matrix."""


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


def pass_ring_bytes(
    slot_bytes: int, memory_bytes: int, stored: "np.dtype[Any]", dtype: "np.dtype[Any]"
) -> int:
    """Return the memory of a pass over a matrix with the given chunk size, besides its columns."""
    slots = 8 * (1 + _times(stored, dtype))
    return min(_RING_BYTES, memory_bytes // 2, slots * slot_bytes)


def _times(stored: "np.dtype[Any]", dtype: "np.dtype[Any]") -> int:
    """Return the size ratio of a converted box to the stored one; 0 if the types are equal."""
    return 0 if stored == dtype else -(-dtype.itemsize // stored.itemsize)


def pass_box_bytes(ring_bytes: int, stored: "np.dtype[Any]", dtype: "np.dtype[Any]") -> int:
    """Return the bytes of a box in a pass with the given memory and conversion.

    A quarter of the memory is for buffered reads. Three boxes share the rest, with one converted
    box if the types differ.
    """
    times = _times(stored, dtype)
    box = 3 * ring_bytes // (4 * (3 + times))
    return max(box // SLOT_ALIGN_BYTES, 1) * SLOT_ALIGN_BYTES if times else box


class _Range(NamedTuple):
    """Rows, or columns, of a box: the first, relative to its chunk, and their number.

    `is_whole` is true if they are all rows, or columns, of the matrix in the chunk.
    """

    first: int
    size: int
    is_whole: bool


class StreamReads(NamedTuple):
    """Reads of boxes of a matrix in a stream.

    Attributes
    ----------
    shape, dtype, layout
        Shape, type and layout of the matrix.
    bounce_bytes
        Memory for reads that do not go directly to their target.
    disk
        Granularity of the disk's reads.
    """

    shape: tuple[int, int]
    dtype: "np.dtype[Any]"
    layout: Layout
    bounce_bytes: int
    disk: DiskReads

    @classmethod
    def of(cls, A: Array, bounce_bytes: int, granularity: tuple[int, int]) -> "StreamReads":
        """Return the reads of an array; `granularity` is that of its file."""
        shape = (A.shape[0], A.shape[1])
        disk = DiskReads(*granularity)
        return cls(shape, A.dtype, Layout.of(A.metadata), bounce_bytes, disk)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a chunk on disk."""
        return pages(math.prod(self.layout.chunks) * self.dtype.itemsize)

    def bytes_of_pass(self, box_bytes: int | None = None) -> int:
        """Return the bytes read by a pass in boxes of the given size, or `bounce_bytes`."""
        layout, itemsize = self.layout, self.dtype.itemsize
        most = self.bounce_bytes if box_bytes is None else box_bytes
        steps = small_shape(layout.chunks, layout.order, itemsize, most)
        rows, columns = (
            [
                (at, min(at + step, top + chunk, extent))
                for top in range(0, extent, chunk)
                for at in range(top, min(top + chunk, extent), step)
            ]
            for extent, chunk, step in zip(self.shape, layout.chunks, steps, strict=True)
        )
        return self.bytes_of(rows, columns)

    def bytes_of_shares(self, box_bytes: int, processes: int) -> list[int]:
        """Return the bytes that each process reads in such a pass; boxes are dealt in turn."""
        layout, shares = self.layout, [0] * processes
        if processes == 1:
            return [self.bytes_of_pass(box_bytes)]
        counts = [-(-n // c) for n, c in zip(self.shape, layout.chunks, strict=True)]
        order = "column-major" if layout.order == "F" else "row-major"
        chunks = (
            tuple(
                slice(i * c, min((i + 1) * c, n))
                for i, c, n in zip(at, layout.chunks, self.shape, strict=True)
            )
            for at in in_disk_order(counts, order)
        )
        boxes = small_boxes(chunks, layout.chunks, layout.order, self.dtype.itemsize, box_bytes)
        for number, (rows, columns) in enumerate(boxes):
            read = self.bytes_of([(rows.start, rows.stop)], [(columns.start, columns.stop)])
            shares[number % processes] += read
        return shares

    def bytes_of_grid(self, box: tuple[int, int]) -> int:
        """Return the bytes read for all boxes of a grid with the given rows and columns."""
        rows, columns = (
            [(at, min(at + step, extent)) for at in range(0, extent, step)]
            for extent, step in zip(self.shape, box, strict=True)
        )
        return self.bytes_of(rows, columns)

    def bytes_of(self, rows: Iterable[tuple[int, int]], columns: Iterable[tuple[int, int]]) -> int:
        """Return the bytes read for the boxes of all pairs of ranges of rows and columns."""
        down, across = self._kinds(0, rows), self._kinds(1, columns)
        return sum(
            times * other * self._bytes_of_box(i, j)
            for i, times in down.items()
            for j, other in across.items()
        )

    def _kinds(self, dim: int, ranges: Iterable[tuple[int, int]]) -> "Counter[_Range]":
        """Count equal ranges."""
        chunk, extent = self.layout.chunks[dim], self.shape[dim]
        return Counter(
            _Range(first % chunk, end - first, _is_whole(first, end, chunk, extent))
            for first, end in ranges
        )

    def _bytes_of_box(self, rows: _Range, columns: _Range) -> int:
        chunk_bytes = math.prod(self.layout.chunks) * self.dtype.itemsize
        box_bytes = rows.size * columns.size * self.dtype.itemsize
        if rows.is_whole and columns.is_whole and 2 * box_bytes >= chunk_bytes:
            # A slot is whole pages, so whole blocks never exceed it.
            return min(self.disk.whole_blocks(0, chunk_bytes), self.slot_bytes)
        layout = self.layout
        if layout.order == "C":
            layout, rows, columns = layout.transposed(), columns, rows
        reads = BoxReads(layout, self.dtype, self.bounce_bytes, self.disk)
        down, across = (slice(part.first, part.first + part.size) for part in (rows, columns))
        return reads.bytes_of_box(down, across, rows.size)


def _is_whole(first: int, end: int, chunk: int, extent: int) -> bool:
    return first % chunk == 0 and end == min(first + chunk, extent)
