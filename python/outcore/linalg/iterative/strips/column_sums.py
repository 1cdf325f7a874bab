"""Column sums of |A| from the tiles of a matrix: its norm, and a test for finiteness."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.errors import InvalidError, NonFiniteError
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.strips.strips import Box, Tile

PIECE_BYTES = 1 << 17

Sums: TypeAlias = npt.NDArray[np.float64]


class ColumnSums:
    """Column sums of |A|, from tiles that are each added once.

    Parameters
    ----------
    n, dtype, order
        Order, type and element order of the matrix.
    is_half
        Whether only the blocks on and below the diagonal are added, which also count for those
        above.
    arena
        Memory of `scratch_bytes`.
    """

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        order: str,
        tile_shape: tuple[int, int],
        arena: Arena,
        *,
        is_half: bool,
    ) -> None:
        self._is_f, self._is_half = order == "F", is_half
        self._parts = 2 if dtype.kind == "c" else 1
        sums, piece = scratch_bytes(n, dtype, order, tile_shape)
        self._sums: Sums = np.ndarray((n,), np.float64, memoryview(arena.allocate(sums)))
        self._sums[:] = 0
        # With larger numbers, products with the matrix may overflow.
        self._most = float(np.finfo(dtype).max)
        self._piece = np.ndarray(
            (piece * self._parts // dtype.itemsize,),
            np.empty(0, dtype).real.dtype,
            memoryview(arena.allocate(piece)),
        )

    def norm1(self, added: Callable[[Sums], Sums] | None = None, most: int = 1) -> float:
        """Return the largest column sum of |A|; for complex types a lower bound within √2.

        Parameters
        ----------
        added
            Adds the sums of the other rows, which other processes have, to some of the sums.
        most
            Largest number of sums in one call of `added`.

        Raises
        ------
        InvalidError
            If a sum of all rows overflows.
        """
        largest = float(self._sums.max())
        if added is not None:
            pieces = (self._sums[i : i + most] for i in range(0, len(self._sums), most))
            largest = max(float(added(piece).max()) for piece in pieces)
            if largest > self._most:
                raise InvalidError("sums of the numbers of A overflow; scale it")
        # |re| + |im| is at most √2 times the absolute value.
        return largest / (2**0.5 if self._parts == 2 else 1)

    def look(self, tile: Tile, data: Matrix) -> None:
        """Add a tile to the sums.

        Raises
        ------
        NonFiniteError
            If the tile has a NaN or an infinity, with its index.
        InvalidError
            If a sum overflows.
        """
        if not self._is_half:
            self._add(data, (tile.rows, tile.cols), is_mirrored=False)
            return
        for box in (tile.below, tile.inside):
            if box is not None:
                self._add(tile.part(data, box), box, is_mirrored=box is tile.below)

    def _add(self, T: Matrix, box: Box, *, is_mirrored: bool) -> None:
        rows, cols = box
        lines = (T.T if self._is_f else T).view(self._piece.dtype)
        of_lines, across = (cols, rows) if self._is_f else (rows, cols)
        step = max(self._piece.size // lines.shape[1], 1)
        for first in range(0, len(lines), step):
            part = lines[first : first + step]
            sizes = np.abs(part, out=self._piece[: part.size].reshape(part.shape))
            here = slice(of_lines.start + first, of_lines.start + first + len(part))
            # The matrix's columns are the lines of a tile in F order.
            is_good = True
            with np.errstate(over="ignore"):
                if self._is_f or is_mirrored:
                    self._sums[here] += np.add.reduce(sizes, axis=1, dtype=np.float64)
                    is_good &= bool((self._sums[here] <= self._most).all())
                if not self._is_f or is_mirrored:
                    sums = np.add.reduce(sizes, axis=0, dtype=np.float64)
                    self._sums[across] += sums.reshape(-1, self._parts).sum(axis=1)
                    is_good &= bool((self._sums[across] <= self._most).all())
            if not is_good:
                self._refuse(T, rows.start, cols.start)

    def _refuse(self, T: Matrix, top: int, left: int) -> None:
        for j in range(T.shape[1]):
            bad = np.flatnonzero(~np.isfinite(T[:, j]))
            if len(bad):
                row, column = top + int(bad[0]), left + j
                raise NonFiniteError(
                    f"A[{row}, {column}] is {T[bad[0], j]}; every element must be finite: correct "
                    "it, or look for an error in the assembly",
                    (row, column),
                )
        raise InvalidError(f"numbers as large as those of A overflow {T.dtype}; scale it")


def scratch_bytes(
    n: int, dtype: np.dtype[Any], order: str, tile_shape: tuple[int, int]
) -> tuple[int, int]:
    """Return the bytes of the sums, and of the piece of a tile that is added at a time."""
    fast_bytes = (tile_shape[0] if order == "F" else tile_shape[1]) * dtype.itemsize
    tile_bytes = tile_shape[0] * tile_shape[1] * dtype.itemsize
    return 8 * n, max(min(PIECE_BYTES, tile_bytes), fast_bytes)
