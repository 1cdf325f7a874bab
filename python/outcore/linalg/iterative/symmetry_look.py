"""A check of the diagonal of a matrix for symmetry, if only one triangle is read.

Methods that read one triangle use the diagonal blocks as a whole. The check compares these with
their mirror images, which needs no additional reads. A matrix without the symmetry usually differs
there.
"""

from collections.abc import Callable

import numpy as np

from outcore.linalg.iterative.strips import Tile
from outcore.linalg.matrix import Matrix

_STRIP_BYTES = 256 << 10
"""Bytes of elements that are compared at once."""


class SymmetryLook:
    """Checks tiles of a matrix, each of them once.

    Parameters
    ----------
    look
        Another function to call with each tile.
    is_hermitian
        Whether the mirror image is conjugated.

    Attributes
    ----------
    found
        Two elements that differ by more than rounding errors, for users; empty if there are none.
    """

    def __init__(self, look: Callable[[Tile, Matrix], None], *, is_hermitian: bool) -> None:
        self._look, self._is_hermitian = look, is_hermitian
        self.found = ""

    def __call__(self, tile: Tile, data: Matrix) -> None:
        """Check a tile."""
        self._look(tile, data)
        if tile.inside is None or self.found:
            return
        rows, cols = tile.inside
        here = slice(max(rows.start, cols.start), min(rows.stop, cols.stop))
        if here.start < here.stop:
            with np.errstate(invalid="ignore", over="ignore"):
                self.found = self._differ(tile.part(data, (here, here)), here.start)

    def _differ(self, square: Matrix, first: int) -> str:
        least = float(np.finfo(square.dtype).eps) ** 0.5
        step = max(_STRIP_BYTES // max(square.shape[0] * square.itemsize, 1), 1)
        for at in range(0, len(square), step):
            below, above = square[:, at : at + step], square[at : at + step].T
            above = above.conj() if self._is_hermitian else above
            largest = np.maximum(np.abs(below), np.abs(above))
            for i, j in np.argwhere(np.abs(below - above) > least * largest.max(initial=0))[:1]:
                row, column = first + int(i), first + at + int(j)
                return f"A[{row}, {column}] and A[{column}, {row}] differ"
        return ""
