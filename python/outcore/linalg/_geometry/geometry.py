"""The interface of every factorization's geometry, and quantities that follow from tiles."""

import math
from typing import Any, Protocol

import numpy as np

from outcore.linalg._geometry.deal import ALONE, Deal
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.pitch import pitch


class Geometry(Protocol):
    """Cuts of a matrix into tiles, panels and slabs, which `LuGeometry` defines.

    Attributes
    ----------
    n, dtype
        Order and element type of the matrix.
    shape
        Rows and columns of the matrix.
    rows, columns
        Shape of a tile.
    tiles, tile_bytes, panels
        Tiles in a panel, bytes of each on disk, and panels in the matrix.
    slab_panels
        Panels of the widest slab.
    bounce_bytes, budget_bytes
        Memory for unaligned transfers, and the whole budget.
    deal
        The panels of this process. Bytes are those that it moves.
    """

    @property
    def n(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def tiles(self) -> int: ...
    @property
    def tile_bytes(self) -> int: ...
    @property
    def panels(self) -> int: ...
    @property
    def slab_panels(self) -> int: ...
    @property
    def bounce_bytes(self) -> int: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def deal(self) -> Deal: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def extent(self, panel: int) -> tuple[int, int]:
        """First column of a panel, and the column after its last."""

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of factors that a run from panel `first_panel` on reads back. Exact."""

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes of factors that such a run writes. Exact."""

    def matrix_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of A in the panels from `first_panel` on; `Loads` gives the bytes read."""

    def words_lower_bound(self) -> float:
        """Words that any algorithm must move."""


class Tiled:
    """Quantities that follow from the tiles of a square matrix, factored as a whole.

    Attributes
    ----------
    n, dtype, rows, columns, deal
        As for `Geometry`.
    """

    deal: Deal = ALONE
    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.n, self.n

    @property
    def width(self) -> int:
        """Columns that are factored."""
        return self.n

    @property
    def tiles(self) -> int:
        """Tiles in a panel."""
        return math.ceil(self.shape[0] / self.rows)

    @property
    def panels(self) -> int:
        """Panels that are factored."""
        return math.ceil(self.width / self.columns)

    def extent(self, panel: int) -> tuple[int, int]:
        """First column of a panel, and the column after its last."""
        return panel * self.columns, min((panel + 1) * self.columns, self.n)

    def tiles_below(self, panel: int) -> range:
        """Tiles of a panel from its diagonal block down, which an update needs; at least one."""
        return range(min(panel * self.columns, self.shape[0] - 1) // self.rows, self.tiles)

    @property
    def height(self) -> int:
        """Rows of the matrix, rounded up to whole tiles."""
        return self.tiles * self.rows

    @property
    def pitch(self) -> int:
        """Elements between the starts of adjacent columns of a slab in memory."""
        return pitch(self.height, self.dtype.itemsize)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile on disk, padding to a page included."""
        return pages(self.rows * self.columns * self.dtype.itemsize)

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes of factors that a run from `first_panel` on writes. Exact."""
        return self.deal.number(first_panel, self.panels) * self.tiles * self.tile_bytes

    def matrix_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of A in the panels from `first_panel` on, as `Geometry` says."""
        columns = self.held_columns(first_panel, self.panels)
        return self.shape[0] * columns * self.dtype.itemsize

    def held_columns(self, first: int, last: int) -> int:
        """Columns of panels `first` to ``last - 1`` that this process holds."""
        columns = self.deal.number(first, last) * self.columns
        if last > first and self.deal.owner(last - 1) == self.deal.rank:
            # The last panel of the matrix may be narrow.
            columns -= max(last * self.columns - self.width, 0)
        return columns

    def words_moved(self: Geometry) -> int:
        """Total words read and written."""
        total = self.matrix_bytes_read() + self.factor_bytes_read() + self.factor_bytes_written()
        return total // self.dtype.itemsize
