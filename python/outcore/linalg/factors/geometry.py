"""What every factorization's geometry tells the code that they share."""

from typing import Any, Protocol

import numpy as np


class Geometry(Protocol):
    """How a matrix is cut into tiles, panels and slabs; `LuGeometry` says what these are.

    Attributes
    ----------
    n, dtype
        Order and element type of the matrix.
    rows, columns
        Of a tile.
    tiles, panels
        In a panel, and in the matrix.
    slab_panels
        Panels of the widest slab.
    bounce_bytes, budget_bytes
        Memory for transfers that are not aligned, and in all.
    """

    @property
    def n(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102
    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def columns(self) -> int: ...  # noqa: D102
    @property
    def tiles(self) -> int: ...  # noqa: D102
    @property
    def panels(self) -> int: ...  # noqa: D102
    @property
    def slab_panels(self) -> int: ...  # noqa: D102
    @property
    def bounce_bytes(self) -> int: ...  # noqa: D102
    @property
    def budget_bytes(self) -> int: ...  # noqa: D102

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of factors read back in a run that begins with a panel. Exact."""

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes of factors written by such a run. Exact."""

    def words_lower_bound(self) -> float:
        """Words that any algorithm must move."""
