"""A look at the diagonal of a matrix of which one triangle is read: whether it has the symmetry.

Methods that read one triangle use the blocks on the diagonal whole. Comparing these with their
mirror images costs no reading, and a matrix without the symmetry mostly shows it there.
"""

from collections.abc import Callable

import numpy as np

from outcore.linalg.iterative.strips import Tile
from outcore.linalg.matrix import Matrix

_STRIP_BYTES = 256 << 10
"""Elements that are compared at once."""


class SymmetryLook:
    """Looks at tiles of a matrix, each once.

    Parameters
    ----------
    look
        Is called with each tile, too.
    is_hermitian
        Whether the mirror image is conjugated.

    Attributes
    ----------
    found
        Two elements that differ by more than rounding explains, for people; empty if none do.
    """

    def __init__(self, look: Callable[[Tile, Matrix], None], *, is_hermitian: bool) -> None:
        self._look, self._is_hermitian = look, is_hermitian
        self.found = ""

    def __call__(self, tile: Tile, data: Matrix) -> None:
        """Look at a tile."""
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
