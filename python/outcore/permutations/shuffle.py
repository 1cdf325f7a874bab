"""Permutations of a load in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.permutations.factors import Loads, gamma_rank
from outcore.permutations.gf2 import Matrix, inverse, times, times_each

PAGE_BYTES = 4096
TILE_BITS = 14
"""Logarithm of the elements of a tile: with its indices, it fits into the second-level cache."""

_LEAST_TILES_BITS = 3


class Shuffle:
    """Moves the element at position p of a load to position A p + c.

    It moves tiles, which consist of whole rows of adjacent elements before and after the move, as a
    pass moves loads of whole blocks. So it reads and writes whole cache lines.

    Parameters
    ----------
    matrix
        A, over GF(2).
    dtype
        Type of the elements.
    arena
        The budget, which `scratch_bytes` come from.
    """

    def __init__(self, matrix: Matrix, dtype: np.dtype[Any], arena: Arena) -> None:
        bits = len(matrix)
        tile_bits = _tile_bits(bits)
        row_bits = tile_bits
        while row_bits + gamma_rank(matrix, row_bits) > tile_bits:
            row_bits -= 1
        loads = Loads.of(matrix, 0, row_bits, tile_bits)
        self._loads, self._row = loads, 1 << row_bits
        base, rest, shift = loads.places()
        self._base, self._rest, self._shift = base >> row_bits, rest >> row_bits, shift
        rows = np.arange(1 << tile_bits - row_bits, dtype=np.int64) << row_bits
        self._rows_read = times_each(loads.source, rows) >> row_bits
        self._rows_written = times_each(loads.target, rows) >> row_bits
        # The position before the move, for each position in a tile after it.
        self._back = inverse(loads.inner)
        index = memoryview(arena.allocate(2 * 8 << tile_bits)).cast("B")
        self._taken, self._index = np.frombuffer(index, np.int64, 2 << tile_bits).reshape(2, -1)
        self._taken[:] = times_each(self._back, np.arange(1 << tile_bits, dtype=np.int64))
        tiles = memoryview(arena.allocate(2 * dtype.itemsize << tile_bits)).cast("B")
        self._tile, self._moved = np.frombuffer(tiles, dtype, 2 << tile_bits).reshape(2, -1)

    def move(
        self,
        data: npt.NDArray[Any],
        out: npt.NDArray[Any],
        complement: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Move a load from `data` to `out`, both of one dimension.

        Call `meanwhile` after each tile.
        """
        data, out = data.reshape(-1, self._row), out.reshape(-1, self._row)
        tile, moved = self._tile.reshape(-1, self._row), self._moved.reshape(-1, self._row)
        target = self._loads.target
        turn = sum(
            (complement >> vector.bit_length() - 1 & 1) << i for i, vector in enumerate(target)
        )
        left = (complement ^ times(target, turn)) // self._row
        places = zip(self._base, self._rest ^ left, self._shift ^ turn, strict=True)
        for base, rest, shift in places:
            np.take(data, self._rows_read ^ base, axis=0, out=tile, mode="clip")
            index = self._taken
            if shift:
                index = np.bitwise_xor(index, times(self._back, int(shift)), out=self._index)
            np.take(self._tile, index, out=self._moved, mode="clip")
            out[self._rows_written ^ rest] = moved
            meanwhile()


def _tile_bits(load_bits: int) -> int:
    return max(min(load_bits - _LEAST_TILES_BITS, TILE_BITS), 0)


def scratch_bytes(load_bits: int, itemsize: int) -> int:
    """Return the bytes that the moves of a load take beside the load itself, in whole pages."""
    tiles = (2 * size << _tile_bits(load_bits) for size in (np.int64().itemsize, itemsize))
    return sum(-(-nbytes // PAGE_BYTES) * PAGE_BYTES for nbytes in tiles)
