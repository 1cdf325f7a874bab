"""Budget shares and costs of solves with QR factors. Pure arithmetic."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._slab_qr.plan import QrTiles, scratch_bytes
from outcore.linalg._tiles.cost import Phase, flop_weight
from outcore.linalg._tiles.grains import pages

PROBES = 8
"""Random vectors solved for along with b, to estimate the condition of R."""


@dataclass(frozen=True)
class Tiles(QrTiles):
    """The tiles of QR factors, m >= n.

    Attributes
    ----------
    m, n
        Shape of the matrix.
    dtype
        Type of the arithmetic.
    rows, columns
        Shape of a tile.
    stored
        Type of the factors, if it differs.
    """

    m: int
    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    stored: np.dtype[Any] | None = None

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile on disk."""
        return pages(self.rows * self.columns * (self.stored or self.dtype).itemsize)

    @property
    def converted_bytes(self) -> int:
        """Memory of as many tiles in the type of the arithmetic, if it differs."""
        if self.stored is None or self.stored == self.dtype:
            return 0
        return dataclasses.replace(self, stored=None).ring_bytes

    def above(self, panel: int) -> range:
        """Tiles of a panel with its part of R, from the bottom."""
        return range(panel * self.columns // self.rows, -1, -1)

    def pass_bytes(self) -> int:
        """Bytes that a solve for one group of columns reads. Exact."""
        both = (len(self.tiles_below(K)) + len(self.above(K)) for K in range(self.panels))
        return sum(both) * self.tile_bytes

    def fixed_bytes(self, probes: int) -> int:
        """Memory of a pass beside its columns."""
        return (
            self.ring_bytes
            + self.converted_bytes
            + TILE_BOUNCE_BYTES
            + scratch_bytes(self.columns, 0, self.dtype)
            + pages(self.n * probes * self.dtype.itemsize)
        )

    def width_bytes(self, columns: int) -> int:
        """Memory that `columns` columns take in a pass, beside themselves."""
        return pages(columns * self.columns * self.dtype.itemsize)

    def group(
        self,
        memory_bytes: int,
        columns: int,
        parts: int,
        column_bytes: int,
        probes: int,
        beside_bytes: int = 0,
    ) -> int:
        """Return how many right-hand sides can be solved for in one pass.

        Parameters
        ----------
        memory_bytes
            Budget.
        columns, parts
            Number of right-hand sides, and of columns to solve for per right-hand side.
        column_bytes
            Memory that each right-hand side itself takes from the budget.
        probes
            Number of random vectors solved for along with them.
        beside_bytes
            Memory needed for other purposes.

        Raises
        ------
        BudgetError
            If not even one fits.
        """

        def bytes_of(count: int) -> int:
            columns_bytes = self.width_bytes(count * parts) + count * column_bytes
            return self.fixed_bytes(probes) + beside_bytes + columns_bytes

        each = column_bytes + parts * self.columns * self.dtype.itemsize
        group = min((memory_bytes - bytes_of(0)) // each, columns)
        while group > 0 and bytes_of(group) > memory_bytes:
            group -= 1
        if group <= 0 and (columns or memory_bytes < bytes_of(0)):
            need = bytes_of(min(columns, 1))
            raise BudgetError(
                f"need {need} bytes ({format_bytes(need)}) to solve with panels of "
                f"{self.m} x {self.columns}, have {memory_bytes} "
                f"({format_bytes(memory_bytes)}); raise memory="
            )
        return group


def solve_flops(shape: tuple[int, int], dtype: np.dtype[Any], columns: int) -> float:
    """Real operations of a solve: 4mn - n² per column, four times that for complex types."""
    m, n = shape
    return flop_weight(dtype) * (4.0 * m * n - n**2) * columns


def solve_phase(tiles: Tiles, columns: int, group: int) -> Phase:
    """Predict a solve for `columns` columns in groups of `group`."""
    passes = max(-(-columns // max(group, 1)), 1)
    return Phase(
        dtype=tiles.dtype,
        bytes_read=passes * tiles.pass_bytes(),
        flops=solve_flops(tiles.shape, tiles.dtype, columns),
    )
