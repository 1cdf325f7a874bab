"""Checks of rows of A in blocks of columns: norms, extremes, and elements that are not finite."""

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, add_sums, column_extremes
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.segments import SegmentedGeometry
from outcore.linalg._tiles.matrix import Matrix, not_finite, room_in


class RowSums:
    """Sums over the rows of |A|, one block of columns after the other.

    Parameters
    ----------
    geometry
        Its tile height is the number of rows summed at once.
    columns
        Most columns of a block.
    arena
        Supplies ``geometry.norm_bytes(columns)``.
    extremes
        Updated with the norms and extremes.
    """

    def __init__(
        self, geometry: SegmentedGeometry, columns: int, arena: Arena, extremes: Extremes
    ) -> None:
        self._rows, self._extremes = geometry.rows, extremes
        self._sums, self._of_rows = (
            room_in(arena, (count,), np.float64) for count in (columns, self._rows)
        )
        self._parts = 2 if geometry.dtype.kind == "c" else 1

    def begin(self) -> None:
        """Begin a block of columns."""
        self._sums[:] = 0

    def look(self, T: Matrix, rows: npt.NDArray[np.int64], first_column: int) -> None:
        """Add rows of the block, row-major.

        Raises
        ------
        NonFiniteError
            If an element is a NaN or an infinity. The error gives its index in A.
        """
        for first in range(0, len(T), self._rows):
            part = T[first : first + self._rows]
            of_rows = self._of_rows[: len(part)]
            of_rows[:] = 0
            add_sums(part.T, self._sums[: T.shape[1]], of_rows, False)
            if not np.isfinite(of_rows).all():
                _refuse(part, rows[first:], first_column)
            self._extremes.max_a = max(self._extremes.max_a, column_extremes(part.T, False)[1])

    def end(self, columns: int) -> None:
        """Record the norm of a block of `columns` columns."""
        # |re| + |im| is at most √2 times the absolute value.
        norm1 = float(self._sums[:columns].max()) / self._parts**0.5
        self._extremes.norm1 = max(self._extremes.norm1, norm1)


def _refuse(T: Matrix, rows: npt.NDArray[np.int64], first_column: int) -> None:
    for i, row in enumerate(T):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            raise not_finite(int(rows[i]), first_column + int(bad[0]), row[bad[0]])
