"""Numbers of pieces and messages of a product, by process. Pure arithmetic."""

from collections.abc import Iterator, Sequence

import numpy as np

from outcore.linalg._tiles.grains import cut

RING_PIECES = 3
"""Pieces of an operand in memory: one in use, two being read."""

SLOTS = 2
"""Pieces of other processes in memory."""

_COLUMNS_BYTES, _COPY_BYTES = 64 << 20, 1 << 20
"""Largest message of whole columns of a result, and of a copy of parts of columns, unless a single
column is larger."""


def pieces_in_memory(size: int) -> int:
    """Return the number of pieces in the memory of each of `size` processes.

    If they share pieces, one more is in the type of the arithmetic.
    """
    return RING_PIECES if size == 1 else RING_PIECES + SLOTS + 1


def dealt_bytes(pieces: Sequence[int], times: int, size: int, rank: int) -> tuple[int, int]:
    """Return the bytes and number of the pieces that a process reads.

    Parameters
    ----------
    pieces, times
        Bytes of each piece of a pass, and the number of passes.
    size, rank
        Number of processes, and the one that reads every size-th piece from number `rank` on.
    """
    own = np.tile(np.array(pieces, np.int64), times)[rank::size]
    return int(own.sum()), len(own)


def shared_bytes(extent: tuple[slice, slice], m: int, itemsize: int) -> tuple[int, int]:
    """Bytes and messages by which a process sends its part of a result in memory, of `m` rows."""
    sizes = [
        (rows.stop - rows.start) * (columns.stop - columns.start) * itemsize
        for rows, columns in result_messages(extent, m, itemsize)
    ]
    return sum(sizes), len(sizes)


def result_messages(
    extent: tuple[slice, slice], m: int, itemsize: int
) -> Iterator[tuple[slice, slice]]:
    """Cut the rows and columns that a process has of a result into those of each message."""
    rows, columns = extent
    height = rows.stop - rows.start
    if height:
        most = _COLUMNS_BYTES if height == m else _COPY_BYTES
        for some in cut(columns.start, columns.stop, max(most // (height * itemsize), 1)):
            yield rows, some
