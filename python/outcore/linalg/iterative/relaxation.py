"""Sweeps of block Gauss-Seidel and SOR over a matrix on disk.

Let A = L + D + U, where D are its diagonal blocks. A sweep goes through the blocks i in one
direction and replaces

    x_i <- x_i + ω (A_ii⁻¹ (b_i - (L x)_i - (U x)_i) - x_i).

L x and U x are kept beside x. In a forward sweep, (L x)_i consists of new elements of x only, and
must be recomputed; (U x)_i consists of old ones only. So a backward sweep after a forward one finds
L x valid, and reads only the triangle U; likewise in the other order (Conrad & Wallach 1979). If
all sweeps are forward, each reads both triangles.

Several processes sweep side by side, each through its own blocks (Cettei, Ligon & Ross 1997). After
each block, all processes exchange their new elements of x. So a block uses the newest values of its
own process, and the values of the others from the last exchange.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore.linalg._tiles.columns import squares
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.iteration import Iteration
from outcore.linalg.iterative.strips.strips import Tile
from outcore.processes.sharing import seconds_for

Triangle: TypeAlias = Literal["L", "U"]


class Relaxation:
    """Sweeps, and the products L x, D x and U x that they leave.

    They belong to a group of right-hand sides, and start from 0. They take three vectors from the
    budget, beside two with the rows of a block.

    Parameters
    ----------
    it
        The matrix and the memory of the group. With its `mirror`, U is Lᵀ or Lᴴ and never read. If
        there are other processes, strips are rows, and sweeps read both triangles.
    omega
        Over-relaxation.
    """

    def __init__(self, it: Iteration, omega: float) -> None:
        self._geometry, self._strips = it.geometry, it.geometry.strips
        self._tiles, self._product, self._mirror = it.tiles, it.product, it.mirror
        self._blocks, self._omega, self._sharing = it.blocks, omega, it.sharing
        L, self._of_diagonal, U = it.vectors(3)
        self._of: dict[Triangle, Matrix] = {"L": L, "U": U}
        self._step = it.step_vectors()
        layout = it.geometry.layout
        # Time for one block row, which the other processes may have to read before an exchange.
        self._patience_s = seconds_for(it.geometry.step_rows * layout.n * layout.stored.itemsize)
        self.clear()

    def clear(self) -> None:
        """Reset the products to x = 0."""
        for sums in (*self._of.values(), self._of_diagonal):
            sums[:] = 0

    def refresh_diagonal(self, X: Matrix) -> None:
        """Recompute D x for this x."""
        self._of_diagonal[:] = 0
        for tile, data in self._tiles.go(self._geometry.tiles_of("setup")):
            if tile.inside is not None:
                rows, cols = tile.inside
                part = tile.part(data, tile.inside)
                self._product.add(part, X[cols], self._of_diagonal[rows])

    def refresh(self, triangle: Triangle, X: Matrix) -> None:
        """Recompute L x or U x for this x."""
        self._of[triangle][:] = 0
        kind: Literal["lower", "upper"] = "lower" if triangle == "L" else "upper"
        for tile, data in self._tiles.go(self._geometry.tiles_of(kind)):
            self._add(triangle, tile, data, X)

    def product_into(self, Y: Matrix) -> None:
        """Y <- A x, if L x, D x and U x belong to the same x."""
        np.add(self._of["L"], self._of["U"], out=Y)
        Y += self._of_diagonal

    def sweep(
        self, X: Matrix, B: Matrix, *, is_forward: bool, triangles: Iterable[Triangle]
    ) -> npt.NDArray[np.float64]:
        """Go through the blocks once.

        Parameters
        ----------
        X, B
            x, in place, and the right-hand sides.
        is_forward
            The direction.
        triangles
            Triangles whose products are recomputed: that of new elements of x, or both.

        Returns
        -------
        ndarray
            Norms, for each column, of the residuals b_i - (A x)_i at the time when the sweep
            reached block i.
        """
        triangles = list(triangles)
        is_mirrored = self._mirror is not None and "U" in triangles
        # A strip of rows yields the sums of its own block. A strip of columns adds the products
        # with its block to the sums of the other blocks.
        is_before = (self._strips.by == "rows") != is_mirrored
        order = range(self._strips.count)[:: 1 if is_forward else -1]
        strips = [[t for t in self._strips.tiles[i] if self._has(t, triangles)] for i in order]
        arriving = self._tiles.go(tile for strip in strips for tile in strip)
        self._blocks.begin(order)
        new: Triangle = "L" if is_forward else "U"
        if not is_before:
            self._of[new][:] = 0
        met = np.zeros(X.shape[1])
        for i, strip in zip(order, strips, strict=True):
            here = self._strips.extent(i)
            if is_before:
                for triangle in triangles:
                    self._of[triangle][here] = 0
                self._add_all(triangles, islice(arriving, len(strip)), X)
            met += self._solve(i, X, B)
            self._sharing.exchange_rows(X, here, self._patience_s)
            if not is_before:
                for triangle in triangles:
                    if triangle != new:
                        self._of[triangle][here] = 0
                self._add_all(triangles, islice(arriving, len(strip)), X)
        # The generator records the time of a tile when the next one is requested.
        next(arriving, None)
        for _ in range(self._strips.count, self._strips.most):
            self._sharing.exchange_rows(X, None, self._patience_s)
        found: npt.NDArray[np.float64] = np.sqrt(self._sharing.added(met))
        return found

    def _has(self, tile: Tile, triangles: list[Triangle]) -> bool:
        return ("L" in triangles and tile.below is not None) or (
            "U" in triangles and (tile.below if self._mirror else tile.above) is not None
        )

    def _add_all(
        self, triangles: list[Triangle], arriving: Iterable[tuple[Tile, Matrix]], X: Matrix
    ) -> None:
        for tile, data in arriving:
            for triangle in triangles:
                self._add(triangle, tile, data, X)

    def _add(self, triangle: Triangle, tile: Tile, data: Matrix, X: Matrix) -> None:
        """Add the product with a tile's part of a triangle."""
        mirror = self._mirror if triangle == "U" else None
        box = tile.below if triangle == "L" or mirror else tile.above
        if box is None:
            return
        rows, cols = box
        part, sums = tile.part(data, box), self._of[triangle]
        if mirror:
            self._product.add(part, X[rows], sums[cols], mirror)
        else:
            self._product.add(part, X[cols], sums[rows])

    def _solve(self, i: int, X: Matrix, B: Matrix) -> npt.NDArray[np.float64]:
        """Replace x_i; return the squared norms of the residuals before that."""
        here = self._strips.extent(i)
        Z, R = (part[: here.stop - here.start] for part in self._step)
        np.subtract(B[here], self._of["L"][here], out=Z)
        Z -= self._of["U"][here]
        np.subtract(Z, self._of_diagonal[here], out=R)
        met = squares(R)
        R *= self._omega
        self._of_diagonal[here] += R
        self._blocks.solve(i, Z)
        if self._omega == 1:
            X[here] = Z
        else:
            Z -= X[here]
            Z *= self._omega
            X[here] += Z
        return met
