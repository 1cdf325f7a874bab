"""Numbers of the pieces of an operand that streams past the others, by process. Pure arithmetic."""

from collections.abc import Sequence

import numpy as np

RING_PIECES = 3
"""Pieces of an operand in memory: one in use, two being read."""

SLOTS = 2
"""Pieces of other processes in memory."""


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
