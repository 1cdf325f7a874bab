"""A check of the diagonal of a matrix for symmetry, if only one triangle is read.

Methods that read one triangle use the diagonal blocks as a whole. The check compares these with
their mirror images, which needs no additional reads. A matrix without the symmetry usually differs
there.
"""

from collections.abc import Callable

from outcore.linalg._tiles.assumptions import mirror_difference
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.strips.strips import Tile


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
            square = tile.part(data, (here, here))
            # Tiles have the type of the matrix on disk.
            self.found = mirror_difference(
                square, here.start, square.dtype, is_hermitian=self._is_hermitian
            )
