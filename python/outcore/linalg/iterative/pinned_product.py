"""One pass over a matrix on disk: its product with columns in memory."""

from typing import Literal

from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.plan import IterativeGeometry
from outcore.linalg.iterative.strips.pinned import PinnedTiles
from outcore.linalg.iterative.strips.tile_product import TileProduct

Mirror = Literal["T", "C"] | None
"""Relation of blocks above the diagonal to those below, if only the latter are read."""


class PinnedProduct:
    """Products with a matrix whose tiles come from the disk or stay in memory.

    With `mirror`, only the blocks on and below the diagonal are read. They also represent those
    above.
    """

    def __init__(
        self, geometry: IterativeGeometry, tiles: PinnedTiles, product: TileProduct, mirror: Mirror
    ) -> None:
        self._geometry, self._tiles, self._product = geometry, tiles, product
        self._mirror = mirror
        self.made = 0

    def multiply(self, X: Matrix, Y: Matrix) -> None:
        """Y <- A X."""
        Y[:] = 0
        add, mirror = self._product.add, self._mirror
        for tile, data in self._tiles.go(self._geometry.tiles_of("all")):
            if mirror is None:
                add(data, X[tile.cols], Y[tile.rows])
                continue
            for box in (tile.below, tile.inside):
                if box is None:
                    continue
                rows, cols = box
                part = tile.part(data, box)
                add(part, X[cols], Y[rows])
                if box is tile.below:
                    add(part, X[rows], Y[cols], mirror)
        self.made += 1
