"""The chunks of an array that has a disk schema.

No chunk has elements of two blocks. The chunks of a block follow each other in the file in the
row-major order of the block's elements.
"""

import dataclasses
import math
from typing import NamedTuple

from outcore.errors import InvalidError
from outcore.layout.disk_schema import DiskSchema
from outcore.layout.distribution import Distribution
from outcore.layout.zarr_format import MAX_TILE_BYTES, TILE_BYTES, Metadata

AIM_BYTES = 16 << 20
"""Largest chunk, unless this makes too many or very small chunks."""

MAX_CHUNKS = 65_536
"""Largest number of chunks in a shard file; blocks of chunks all lie in one file."""


def with_disk_schema(
    metadata: Metadata, schema: DiskSchema, distribution: Distribution, slot_align_bytes: int
) -> Metadata:
    """Lay an array out by a disk schema, and return its new metadata.

    Parameters
    ----------
    metadata
        Shape and type of the array; chunks and their order are replaced.
    schema, distribution
        Division of the array, or of each step if it is growing.
    slot_align_bytes
        Best alignment of chunks on the array's volume.

    Raises
    ------
    InvalidError
        If the array needs more chunks than a file can have.
    """
    cut = _cut(distribution, metadata.dtype.itemsize, slot_align_bytes)
    counts = [math.ceil(n / c) for n, c in zip(distribution.shape, cut.chunk, strict=True)]
    per_block = [b // c for b, c in zip(cut.block, cut.chunk, strict=True)]
    chunk_bytes = math.prod(cut.chunk) * metadata.dtype.itemsize
    # A flat array has no padding between its chunks.
    is_padded = not _is_flat(distribution) or chunk_bytes % slot_align_bytes == 0
    return dataclasses.replace(
        metadata,
        chunks=(1, *cut.chunk) if metadata.growing else cut.chunk,
        chunk_order="blocks",
        block_chunks=tuple(min(b, n) for b, n in zip(per_block, counts, strict=True)),
        disk_schema=schema,
        slot_align_bytes=slot_align_bytes if is_padded else 1,
    )


class _Cut(NamedTuple):
    """A chunk, and a block of whole chunks, in elements along each dimension."""

    chunk: tuple[int, ...]
    block: tuple[int, ...]


def _is_flat(distribution: Distribution) -> bool:
    """Whether the blocks, one after another, form the array in row-major order."""
    first, *others = distribution.rules
    return first == "block" and set(others) <= {"*"}


def _cut(distribution: Distribution, itemsize: int, align: int) -> _Cut:
    """Cut blocks into chunks; into larger ones if there would be too many."""
    shape, aim_bytes = distribution.shape, AIM_BYTES
    most_bytes = MAX_CHUNKS * MAX_TILE_BYTES
    if math.prod(shape) * itemsize > most_bytes:
        raise InvalidError(
            f"need an array of at most {most_bytes} bytes for a disk_schema, which is one file, "
            f"have {math.prod(shape) * itemsize}; use chunks= and chunk_order= instead"
        )
    while True:
        cut = _cut_to(distribution, itemsize, align, aim_bytes)
        chunks = math.prod(math.ceil(n / c) for n, c in zip(shape, cut.chunk, strict=True))
        if chunks <= MAX_CHUNKS:
            return cut
        if aim_bytes == MAX_TILE_BYTES:
            raise InvalidError(
                f"{str(distribution)!r} over {distribution.mesh} cuts an array of shape {shape} "
                f"into {chunks} chunks of {cut.chunk}, a file has {MAX_CHUNKS} at most; choose "
                "larger blocks, or chunks= and chunk_order= instead of a disk_schema"
            )
        aim_bytes *= 2


def _cut_to(distribution: Distribution, itemsize: int, align: int, aim_bytes: int) -> _Cut:
    """Cut blocks into chunks: whole along fast dimensions, one element along slow ones."""
    shape, is_flat = distribution.shape, _is_flat(distribution)
    block = [min(b, n) for b, n in zip(distribution.block, shape, strict=True)]
    chunk, line_bytes = list(block), itemsize
    for dim in range(len(block))[::-1]:
        if line_bytes * block[dim] > aim_bytes:
            chunk[:dim] = [1] * dim
            lines = _Lines(block[dim], line_bytes, align, aim_bytes)
            # In a flat file, padding of an edge chunk may lie only at the end of the file.
            if block[dim] == shape[dim] and (dim == 0 or not is_flat):
                chunk[dim] = lines.evenly()
            elif distribution.rules[dim] == "block":
                chunk[dim] = lines.divisor() or lines.grown()
            else:
                chunk[dim] = lines.divisor() or lines.largest_divisor()
            block[dim] = -(-block[dim] // chunk[dim]) * chunk[dim]
            break
        line_bytes *= block[dim]
    return _Cut(tuple(chunk), tuple(block))


class _Lines(NamedTuple):
    """Lines of elements along one dimension of a block, to be grouped into chunks.

    There are `total` lines of `nbytes` each. Chunks are preferably multiples of `align`, of about
    `aim_bytes`.
    """

    total: int
    nbytes: int
    align: int
    aim_bytes: int

    def evenly(self) -> int:
        """Lines of a chunk, if the last chunk may have fewer."""
        return self._spread(self.aim_bytes)

    def grown(self) -> int:
        """Lines of a chunk if no divisor fits; the block then gets some more lines."""
        return self._spread(max(TILE_BYTES, self.aim_bytes // 4))

    def divisor(self) -> int | None:
        """Lines of a chunk that divide `total`, in chunks that are not small; else `None`."""
        fitting = [n for n in _divisors(self.total) if n * self.nbytes <= MAX_TILE_BYTES]
        good = [n for n in fitting if TILE_BYTES <= n * self.nbytes <= self.aim_bytes]
        aligned = [n for n in good if n * self.nbytes % self.align == 0]
        larger = [n for n in fitting if n * self.nbytes > self.aim_bytes]
        small = [n for n in fitting if TILE_BYTES // 4 <= n * self.nbytes < TILE_BYTES]
        best = aligned or good or larger[:1] or small
        return best[-1] if best else None

    def largest_divisor(self) -> int:
        """Lines of a chunk that divide `total`, however small the chunk."""
        return next(n for n in _divisors(self.total)[::-1] if n * self.nbytes <= MAX_TILE_BYTES)

    def _spread(self, aim_bytes: int) -> int:
        most = max(aim_bytes // self.nbytes, 1)
        unit = self.align // math.gcd(self.nbytes, self.align)
        unit = unit if unit <= most else 1
        chunks = -(-self.total // (most // unit * unit))
        return -(-self.total // (chunks * unit)) * unit


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, in increasing order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in small[::-1]]
    return small + large[small[-1] == large[0] :]
