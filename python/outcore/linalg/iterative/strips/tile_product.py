"""Products of tiles with columns in memory, also for tiles of a narrower type."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore._core import Arena
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.matrix import Matrix

PIECE_BYTES = 1 << 18
"""A tile of a narrower type is widened in pieces that fit in the cache."""


class TileProduct:
    """Products with tiles whose elements are in one order, C or F.

    ``flops`` counts the real operations.

    Parameters
    ----------
    order
        Order of the elements of a tile.
    stored, dtype
        The narrowest type of tiles, and the type of the arithmetic.
    tile_shape, columns
        Largest tile, and number of columns.
    arena
        Supplies the workspace of `scratch_elements`, for widened or conjugated elements.
    """

    def __init__(
        self,
        order: str,
        stored: np.dtype[Any],
        dtype: np.dtype[Any],
        tile_shape: tuple[int, int],
        columns: int,
        arena: Arena,
    ) -> None:
        self._is_f = order == "F"
        self._kernels = kernels(dtype)
        self._dtype = dtype
        self.flops = 0.0
        wide, conjugated = scratch_elements(order, stored, dtype, tile_shape, columns)
        self._wide, self._conjugated = (
            np.ndarray((count,), dtype, memoryview(arena.allocate(count * dtype.itemsize)))
            for count in (wide, conjugated)
        )

    def add(self, T: Matrix, X: Matrix, Y: Matrix, trans: Trans = "N") -> None:
        """Y <- Y + op(T) X, T a box of a tile."""
        self.flops += 2 * flop_weight(self._dtype) * T.size * X.shape[1]
        for rows, cols, piece in self._pieces(T):
            source, target = (cols, rows) if trans == "N" else (rows, cols)
            self._add(piece, X[source], Y[target], trans)

    def _pieces(self, T: Matrix) -> Iterator[tuple[slice, slice, Matrix]]:
        """Cut a tile along its slow dimension, and widen the pieces if necessary."""
        rows, cols = T.shape
        if T.dtype == self._dtype:
            yield slice(0, rows), slice(0, cols), T
            return
        slow, fast = (cols, rows) if self._is_f else (rows, cols)
        step = max(len(self._wide) // fast, 1)
        for first in range(0, slow, step):
            here = slice(first, min(first + step, slow))
            count = here.stop - first
            wide = self._wide[: count * fast].reshape(count, fast)
            if self._is_f:
                np.copyto(wide.T, T[:, here])
                yield slice(0, rows), here, wide.T
            else:
                np.copyto(wide, T[here])
                yield here, slice(0, cols), wide

    def _add(self, T: Matrix, X: Matrix, Y: Matrix, trans: Trans) -> None:
        add = self._kernels.gemm
        if self._is_f:
            add(T, X, Y, trans_a=trans)
        elif trans == "N":
            add(T.T, X, Y, trans_a="T")
        elif trans == "T" or self._dtype.kind == "f":
            add(T.T, X, Y)
        else:
            # The BLAS has no conjugate without a transpose: conj(Y) <- conj(Y) + Tᵀ conj(X).
            bar = self._conjugated[: X.size].reshape(X.shape, order="F")
            np.conjugate(X, out=bar)
            np.conjugate(Y, out=Y)
            add(T.T, bar, Y)
            np.conjugate(Y, out=Y)


def scratch_elements(
    order: str,
    stored: np.dtype[Any],
    dtype: np.dtype[Any],
    tile_shape: tuple[int, int],
    columns: int,
) -> tuple[int, int]:
    """Return the number of elements of workspace, for widened and for conjugated elements."""
    fast = tile_shape[0] if order == "F" else tile_shape[1]
    wide = max(min(PIECE_BYTES // dtype.itemsize, tile_shape[0] * tile_shape[1]), fast)
    needs_bar = order == "C" and dtype.kind == "c"
    return wide if stored != dtype else 1, tile_shape[0] * columns if needs_bar else 1
