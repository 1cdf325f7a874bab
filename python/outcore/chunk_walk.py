"""The way through the chunks of an array."""

import itertools
from collections.abc import Iterator, Sequence


def in_disk_order(
    counts: Sequence[int], chunk_order: str, block_chunks: Sequence[int] | None = None
) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of chunks, in the order on disk as far as a loop can follow it.

    Parameters
    ----------
    counts
        Chunks along each dimension.
    chunk_order
        As in `create_array`. Curves are walked in row-major order.
    block_chunks
        For blocks of chunks: how many these have along each dimension.
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
