"""Which rows swaps bring where: lists of rows of what was stored before the swaps."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outcore.linalg.lu.row_panel import sources_of

Rows = npt.NDArray[np.int64]


class RowMoves(NamedTuple):
    """Rows that the swaps of a block column touch: their places, and the places they come from."""

    touched: Rows
    sources: Rows

    @classmethod
    def of(cls, piv: npt.NDArray[np.int32], origin: int) -> "RowMoves":
        """Take them from swaps, row `origin` + i with row ``piv[i]``."""
        swaps = piv - np.int32(origin)
        touched = np.unique(np.concatenate([np.arange(len(piv)), swaps]))
        return cls(touched + origin, sources_of(swaps, touched) + origin)

    def before(self, rows: Rows) -> Rows:
        """Where rows, given by their places after the swaps, were before."""
        at = np.minimum(np.searchsorted(self.touched, rows), len(self.touched) - 1)
        return np.where(self.touched[at] == rows, self.sources[at], rows)


class PivotRows(NamedTuple):
    """The way of pivot rows to the top of a block column, as swaps in turn.

    Rows are counted from the block column's first.

    Attributes
    ----------
    piv
        (w,) int32: row i is swapped with row ``piv[i]``.
    order
        All rows in the order after the swaps.
    gathered
        Rows whose L is made, for each place: of the first w the rows that leave them in the end,
        of the others those that stay there.
    places
        For each panel, where the pivot rows are after its swaps.
    """

    piv: npt.NDArray[np.int32]
    order: Rows
    gathered: Rows
    places: list[Rows]


def pivot_rows(pivots: Rows, rows: int, columns: int) -> PivotRows:
    """Follow swaps that bring pivots to the top of so many rows, panel by panel of `columns`."""
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
