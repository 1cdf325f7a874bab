"""Matrices in memory that products change: how far apart their columns lie."""

from typing import Any

import numpy as np

from outcore._core import Arena
from outcore.linalg.grains import pages
from outcore.linalg.matrix import Matrix

_WAY_BYTES = 4096
"""Addresses that are a multiple of this apart share a set of a processor's first cache."""

_PAD_BYTES = 512
"""Between two columns. The disk still uses the memory as it is."""

_LEAST_BYTES = 32 << 10
"""Shorter columns stay next to each other: pads would take more than a 64th."""


def pitch(rows: int, itemsize: int) -> int:
    """Elements from one column to the next.

    If columns were a multiple of 4 KiB apart, what a product adds to at a time would share a set
    of the cache: that takes 2 to 3 % longer (complex128; 1 to 2 % float64; OpenBLAS 0.3.30,
    AVX-512).

    Parameters
    ----------
    rows
        Elements of a column.
    itemsize
        Bytes of one.
    """
    nbytes = rows * itemsize
    is_padded = nbytes >= _LEAST_BYTES and nbytes % _WAY_BYTES == 0
    return rows + _PAD_BYTES // itemsize if is_padded else rows


def matrix_bytes(rows: int, columns: int, itemsize: int) -> int:
    """Memory of a matrix, in whole pages."""
    return pages(pitch(rows, itemsize) * columns * itemsize)


def allocate_matrix(arena: Arena, rows: int, columns: int, dtype: np.dtype[Any]) -> Matrix:
    """Take memory for a matrix, (rows, columns), column-major."""
    high = pitch(rows, dtype.itemsize)
    memory = memoryview(arena.allocate(high * columns * dtype.itemsize))
    whole: Matrix = np.ndarray((high, columns), dtype, buffer=memory, order="F")
    return whole[:rows]
