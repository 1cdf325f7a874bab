"""The cuts of factors for `export_lapack`. Pure arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._tiles.grains import pages

_STRIPS = 3
"""Strips in memory: one is read, one has its rows swapped, one is written."""

_MOST_BOUNCE_BYTES = 4 << 20


@dataclass(frozen=True)
class ExportGeometry:
    """The cuts of LU factors of order `n`, in tiles, into strips of columns.

    Attributes
    ----------
    strip
        Columns of a strip, at most those of a panel.
    bounce_bytes
        Bounce memory of the array that is written.
    """

    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]
    strip: int
    bounce_bytes: int

    @classmethod
    def of(
        cls, n: int, dtype: np.dtype[Any], tile: tuple[int, int], memory_bytes: int
    ) -> "ExportGeometry":
        """Return the cuts for a budget.

        Raises
        ------
        BudgetError
            If three columns do not fit.
        """
        bounce = min(_MOST_BOUNCE_BYTES, memory_bytes // 16)
        room = memory_bytes - bounce - TILE_BOUNCE_BYTES
        column = -(-n // tile[0]) * tile[0] * dtype.itemsize
        fit = (room // _STRIPS - SLOT_ALIGN_BYTES) // column
        if fit >= 1:
            return cls(n, dtype, tile, min(fit, tile[1]), bounce)
        need = (_STRIPS * (column + SLOT_ALIGN_BYTES) + TILE_BOUNCE_BYTES) * 16 // 15 + 16
        raise BudgetError(
            f"need {need} bytes ({format_bytes(need)}) for {_STRIPS} columns of an LU of order "
            f"{n}, have {memory_bytes}; raise memory="
        )

    @property
    def height(self) -> int:
        """Rows of a panel on disk, in whole tiles."""
        return -(-self.n // self.tile[0]) * self.tile[0]

    @property
    def strip_bytes(self) -> int:
        """Memory of a strip."""
        return pages(self.height * self.strip * self.dtype.itemsize)

    @property
    def ring_bytes(self) -> int:
        """Memory of the strips."""
        return _STRIPS * self.strip_bytes

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the call."""
        return self.ring_bytes + self.bounce_bytes + TILE_BOUNCE_BYTES

    @property
    def bytes_read(self) -> int:
        """Bytes of the factors and of the padding of their tiles."""
        return self.height * self.n * self.dtype.itemsize

    @property
    def bytes_written(self) -> int:
        """Bytes of one array without padding."""
        return self.n * self.n * self.dtype.itemsize

    @property
    def words_lower_bound(self) -> float:
        """Words that any export must move: it reads and writes all of them."""
        return 2.0 * self.n**2

    def strips(self) -> list[slice]:
        """Return the columns of each strip. No strip crosses a panel boundary."""
        n, width = self.n, self.tile[1]
        return [
            slice(first, min(first + self.strip, end))
            for left in range(0, n, width)
            for end in [min(left + width, n)]
            for first in range(left, end, self.strip)
        ]
