"""The moves of rows by swaps: for each place, the row that was stored there before the swaps."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outcore.linalg._lu.block_columns.row_panel import sources_of

Rows = npt.NDArray[np.int64]


class RowMoves(NamedTuple):
    """Rows that the swaps of a block column touch: their places, and their previous places."""

    touched: Rows
    sources: Rows

    @classmethod
    def of(cls, piv: npt.NDArray[np.int32], origin: int) -> "RowMoves":
        """Return the moves of these swaps: row `origin` + i with row ``piv[i]``."""
        swaps = piv - np.int32(origin)
        touched = np.unique(np.concatenate([np.arange(len(piv)), swaps]))
        return cls(touched + origin, sources_of(swaps, touched) + origin)

    def before(self, rows: Rows) -> Rows:
        """Return the previous places of rows, given their places after the swaps."""
        at = np.minimum(np.searchsorted(self.touched, rows), len(self.touched) - 1)
        return np.where(self.touched[at] == rows, self.sources[at], rows)


class PivotRows(NamedTuple):
    """The moves of pivot rows to the top of a block column, as a sequence of swaps.

    Rows are counted from the block column's first.

    Attributes
    ----------
    piv
        (w,) int32: row i is swapped with row ``piv[i]``.
    order
        All rows in the order after the swaps.
    gathered
        Rows whose L is computed, for each place. For the first w places, these are the rows that
        the swaps finally move away; for other places, the rows that stay there.
    places
        For each panel, the places of the pivot rows after its swaps.
    """

    piv: npt.NDArray[np.int32]
    order: Rows
    gathered: Rows
    places: list[Rows]


def pivot_rows(pivots: Rows, rows: int, columns: int) -> PivotRows:
    """Compute the swaps that bring pivots to the top of `rows` rows, in panels of `columns`."""
    order, at = np.arange(rows), np.arange(rows)
    piv = np.empty(len(pivots), np.int32)
    left = np.empty(len(pivots), np.int64)
    places = []
    for i, row in enumerate(pivots.tolist()):
        place, other = at[row], order[i]
        piv[i], left[i] = place, other
        order[i], order[place] = row, other
        at[row], at[other] = i, place
        if (i + 1) % columns == 0 or i + 1 == len(pivots):
            places.append(at[pivots])
    return PivotRows(piv, order, np.concatenate([left, order[len(pivots) :]]), places)
