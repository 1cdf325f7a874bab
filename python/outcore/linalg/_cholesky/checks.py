"""Checks of Cholesky: NaN and infinities, the norm of A, and whether A is Hermitian."""

import base64
from typing import Any

import numpy as np

from outcore._core import add_sums
from outcore.linalg._tiles.assumptions import coarsest_eps, mirror_difference
from outcore.linalg._tiles.matrix import Matrix, not_finite


class Sums:
    """Column sums of |A| for a Hermitian A, computed from one triangle, panel by panel.

    The sum of column j has two parts: the column in the lower triangle, and the row j that mirrors
    its upper part. Hence a sum is complete only once all columns to the left have been included. If
    a column arrives in parts, its last part completes the sum.

    Parameters
    ----------
    n, dtype
        Order of A, and type of the arithmetic.
    stored
        Type of A on disk.
    lower
        Whether the triangle is the lower one.

    Attributes
    ----------
    norm1
        The largest complete sum. At the end it is ‖A‖₁; for complex types it is a lower bound
        within √2.
    imaginary
        Largest |imaginary| over |real| part of a diagonal element.
    difference
        Description of two elements of diagonal blocks that differ, for users; empty if there are
        none. These blocks are read whole, so the comparison needs no additional I/O.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], stored: np.dtype[Any], *, lower: bool) -> None:
        self._dtype, self._stored, self._lower = dtype, stored, lower
        self.norm1 = self.imaginary = 0.0
        self.difference = ""
        self._sums = np.zeros(n)

    def see(self, C: Matrix, first: int, top: int) -> None:
        """Include rows of columns of A; the rows from the diagonal down come first.

        Parameters
        ----------
        C
            (m, k): rows from `top` on of columns from `first` on. ``top == first`` if they hold the
            diagonal; otherwise they lie below it.

        Raises
        ------
        NonFiniteError
            If there is a NaN or an infinity.
        """
        m, k = C.shape
        columns = np.zeros(k)
        # |re| + |im|, as in BLAS: at most √2 times the absolute value.
        add_sums(C, self._sums[top : top + m], columns, top == first)
        with np.errstate(over="ignore"):
            self._sums[first : first + k] += columns
        if not np.isfinite(columns).all():
            _find_nonfinite(C, first, top, lower=self._lower)
        if top == first and not self.difference:
            self.difference = _difference(C[:k], first, self._stored)
        if top == first and self._dtype.kind == "c":
            diagonal = np.diagonal(C)
            real, imaginary = np.abs(diagonal.real), np.abs(diagonal.imag)
            ratios = imaginary[real > 0] / real[real > 0]
            self.imaginary = max(self.imaginary, float(ratios.max(initial=0)))
        scale = 2**0.5 if self._dtype.kind == "c" else 1.0
        self.norm1 = max(self.norm1, float(self._sums[first : first + k].max()) / scale)

    def notes(self) -> list[str]:
        """Return notes for the reader of the report."""
        found = []
        if self.imaginary > len(self._sums) * coarsest_eps(self._dtype, self._stored):
            found.append(
                f"A is not Hermitian: its diagonal has imaginary parts of up to "
                f"{self.imaginary:.2g} of the real ones, which were taken as zero"
            )
        if self.difference:
            found.append(f"A is not Hermitian: {self.difference}")
        return found

    def to_json(self, end: int) -> dict[str, Any]:
        """Return the state after columns up to ``end - 1``, from which a run can resume."""
        rest = base64.b64encode(self._sums[end:].astype("<f8").tobytes()).decode()
        found = {"norm1": self.norm1, "imaginary": self.imaginary, "sums": rest}
        return found | ({"difference": self.difference} if self.difference else {})

    def go_on(self, values: dict[str, Any]) -> None:
        """Restore the state that `to_json` returned."""
        rest = np.frombuffer(base64.b64decode(values["sums"]), "<f8")
        self._sums[len(self._sums) - len(rest) :] = rest
        self.norm1, self.imaginary = values["norm1"], values["imaginary"]
        self.difference = values.get("difference", "")


def _difference(square: Matrix, first: int, stored: np.dtype[Any]) -> str:
    """Compare a block on the diagonal with its mirror image.

    If all elements above the diagonal are zero, the caller has left that triangle out.
    """
    if not any(square[:j, j].any() for j in range(1, square.shape[1])):
        return ""
    return mirror_difference(square, first, stored, is_hermitian=True)


def _find_nonfinite(C: Matrix, first: int, top: int, *, lower: bool) -> None:
    """Raise for rows of columns, from the diagonal down, with a NaN or infinity; name the first.

    For an upper triangle, columns here are rows of A.
    """
    for j in range(C.shape[1]):
        above = max(first + j - top, 0)
        bad = np.flatnonzero(~np.isfinite(C[above:, j]))
        if len(bad):
            row, column = top + above + int(bad[0]), first + j
            index = (row, column) if lower else (column, row)
            raise not_finite(*index, C[row - top, j])
