"""A look at rows of A that come in blocks of columns: norms, extremes, and what is not finite."""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, column_extremes
from outcore.errors import NonFiniteError
from outcore.linalg.lu.checks import Extremes
from outcore.linalg.lu.segments import SegmentedGeometry
from outcore.linalg.matrix import Matrix


class RowSums:
    """Sums over the rows of |A|, one block of columns after the other.

    Parameters
    ----------
    geometry
        Says how many rows are summed at once.
    columns
        Most columns of a block.
    arena
        For ``geometry.norm_bytes(columns)``.
    extremes
        What is found goes there.
    """

    def __init__(
        self, geometry: SegmentedGeometry, columns: int, arena: Arena, extremes: Extremes
    ) -> None:
        real = np.empty(0, geometry.dtype).real.dtype
        self._parts = geometry.dtype.itemsize // real.itemsize
        self._rows, self._extremes = geometry.norm_rows(columns), extremes
        values = columns * self._parts
        self._sums: npt.NDArray[np.float64] = np.ndarray(
            (values,), np.float64, memoryview(arena.allocate(8 * values))
        )
        room = arena.allocate(values * real.itemsize * self._rows)
        self._sizes: npt.NDArray[Any] = np.ndarray((values * self._rows,), real, memoryview(room))

    def begin(self) -> None:
        """Begin a block of columns."""
        self._sums[:] = 0

    def look(self, T: Matrix, rows: npt.NDArray[np.int64], first_column: int) -> None:
        """Add rows of the block, row-major.

        Raises
        ------
        NonFiniteError
            If one has a NaN or an infinity, with its index in A.
        """
        values = T.view(self._sizes.dtype)
        width = values.shape[1]
        for first in range(0, len(T), self._rows):
            part = values[first : first + self._rows]
            sizes = np.abs(part, out=self._sizes[: part.size].reshape(part.shape))
            sums = np.add.reduce(sizes, axis=0, dtype=np.float64)
            if not np.isfinite(sums).all():
                _refuse(T[first : first + self._rows], rows[first:], first_column)
            self._sums[:width] += sums
        self._extremes.max_a = max(self._extremes.max_a, column_extremes(T.T, False)[1])

    def end(self, columns: int) -> None:
        """Note the norm of a block of so many columns."""
        sums = self._sums[: columns * self._parts].reshape(-1, self._parts).sum(axis=1)
        # |re| + |im| is at most √2 times the absolute value.
        norm1 = float(sums.max()) / (2**0.5 if self._parts == 2 else 1)
        self._extremes.norm1 = max(self._extremes.norm1, norm1)


def _refuse(T: Matrix, rows: npt.NDArray[np.int64], first_column: int) -> None:
    for i, row in enumerate(T):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            where = int(rows[i]), first_column + int(bad[0])
            raise NonFiniteError(
                f"A[{where[0]}, {where[1]}] is {row[bad[0]]}; every element must be finite: "
                "correct it, or look for an error in the assembly",
                where,
            )
