"""Exact numbers of bytes that a stream of boxes of a matrix reads from the disk, in any layout.

A box that is a whole chunk is read with its padding, unless most of the chunk is beyond the edge of
the matrix (`crates/client/src/stream.rs`). Any other box is read as in `BoxReads`, into memory that
is packed in the order of the matrix.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from outcore.array.array import Array
from outcore.layout.chunk_walk import small_shape
from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.box_reads import BoxReads
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.grains import pages

_RING_BYTES = 64 << 20
"""Largest memory for read-ahead tiles of a matrix."""


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
