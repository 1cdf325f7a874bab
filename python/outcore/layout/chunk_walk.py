"""Orders in which to visit the chunks of an array."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from outcore._util.streams import Box


def in_disk_order(
    counts: Sequence[int], chunk_order: str, block_chunks: Sequence[int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of chunks, in the order on disk where nested loops can follow it.

    Parameters
    ----------
    counts
        Chunks along each dimension.
    chunk_order
        As in `create_array`. For curves, the order is row-major.
    block_chunks
        Chunks of a block along each dimension, if chunks lie in blocks.
    """
    if block_chunks is not None:
        corners = itertools.product(
            *(range(0, n, b) for n, b in zip(counts, block_chunks, strict=True))
        )
        for corner in corners:
            yield from itertools.product(
                *(
                    range(c, min(c + b, n))
                    for c, b, n in zip(corner, block_chunks, counts, strict=True)
                )
            )
    elif chunk_order == "column-major":
        for at in itertools.product(*map(range, counts[::-1])):
            yield at[::-1]
    else:
        yield from itertools.product(*map(range, counts))


def runs(
    counts: Sequence[int],
    chunk_order: str,
    block_chunks: Sequence[int] | None,
    first: int,
    most: int,
    last: float = math.inf,
) -> Iterator[range]:
    """Join chunks that follow each other in `in_disk_order` into boxes.

    Parameters
    ----------
    counts, chunk_order, block_chunks
        As for `in_disk_order`.
    first
        Number of the first chunk.
    most
        Largest number of chunks in a box.
    last
        Number behind that of the last chunk.

    Yields
    ------
    range
        Numbers of the chunks of the next box, which is as large as the order allows.
    """
    sizes = [counts]
    if block_chunks is not None:
        cuts = [
            [min(b, n - c) for c in range(0, n, b)]
            for b, n in zip(block_chunks, counts, strict=True)
        ]
        sizes = list(itertools.product(*cuts))
    elif chunk_order == "column-major":
        sizes = [counts[::-1]]
    begin = 0
    for extents in sizes:
        end = begin + math.prod(extents)
        while first < min(end, last):
            count = _run(extents, first - begin, int(min(most, last - first)))
            yield range(first, first + count)
            first += count
        begin = end


def _run(extents: Sequence[int], first: int, most: int) -> int:
    """Count the chunks of the largest box that starts at number `first`, in row-major order."""
    count = 1
    for extent in extents[::-1]:
        at = first // count % extent
        found = min(extent - at, most // count) * count
        if found < extent * count:
            return found
        # The box covers this dimension. It can extend along the next one from its first chunk only.
        count = found
    return count


def small_boxes(
    boxes: Iterable[Box], chunk: Sequence[int], order: str, itemsize: int, most_bytes: int
) -> Iterator[Box]:
    """Cut boxes of chunks along their slow dimensions into boxes of at most `most_bytes`.

    Parameters
    ----------
    boxes
        The boxes of the chunks, in the order to visit them.
    chunk, order, itemsize
        Shape of a chunk, order of the elements in it, and bytes of an element.
    most_bytes
        Largest box; one row of a chunk may be larger.
    """
    shape = small_shape(chunk, order, itemsize, most_bytes)
    for box in boxes:
        ranges = [range(s.start, s.stop, c) for s, c in zip(box, shape, strict=True)]
        for at in itertools.product(*ranges):
            yield tuple(
                slice(i, min(i + c, s.stop)) for i, c, s in zip(at, shape, box, strict=True)
            )


def small_shape(
    chunk: Sequence[int], order: str, itemsize: int, most_bytes: int
) -> tuple[int, ...]:
    """Shape of the boxes that `small_boxes` cuts a chunk into, except at the chunk's ends."""
    shape = list(chunk)
    for dim in range(len(shape))[::-1] if order == "F" else range(len(shape)):
        row_bytes = math.prod(shape) // shape[dim] * itemsize
        shape[dim] = max(min(shape[dim], most_bytes // row_bytes), 1)
    return tuple(shape)
