"""Checks of Cholesky: NaN and infinities, the norm of A, and whether A is Hermitian."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import add_sums
from outcore.linalg._tiles.assumptions import coarsest_eps, mirror_difference
from outcore.linalg._tiles.matrix import Matrix, not_finite


class Sums:
    """Column sums of |A| for a Hermitian A, computed from one triangle, panel by panel.

    The sum of column j has two parts: the column in the lower triangle, and the row j that mirrors
    its upper part. Hence a sum is complete only once all columns to the left have been included, on
    all processes (`joined`).

    Parameters
    ----------
    n, dtype
        Order of A, and type of the arithmetic.
    stored
        Type of A on disk.
    lower
        Whether the triangle is the lower one.

    """

    def __init__(self, n: int, dtype: np.dtype[Any], stored: np.dtype[Any], *, lower: bool) -> None:
        self._dtype, self._stored, self._lower = dtype, stored, lower
        self._sums = np.zeros(n)
        self._forget()

    def _forget(self) -> None:
        self._sums[:] = 0
        self._imaginary, self._difference = 0.0, ""

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
        if top == first and not self._difference:
            # The block on the diagonal is read whole, so this needs no additional I/O.
            self._difference = _difference(C[:k], first, self._stored)
        if top == first and self._dtype.kind == "c":
            diagonal = np.diagonal(C)
            real, imaginary = np.abs(diagonal.real), np.abs(diagonal.imag)
            ratios = imaginary[real > 0] / real[real > 0]
            self._imaginary = max(self._imaginary, float(ratios.max(initial=0)))

    def take(self, first: int) -> dict[str, Any]:
        """Return the values since the last call, from column `first` on, for `joined`."""
        found = _values(self._sums[first:], self._imaginary, self._difference)
        self._forget()
        return found


def joined(
    before: dict[str, Any] | None, own: Sequence[dict[str, Any]], columns: int, dtype: np.dtype[Any]
) -> dict[str, Any]:
    """Return the state after a slab, from which a run can resume.

    Parameters
    ----------
    before
        The state before it; `None` before the first.
    own
        The values of `Sums.take` of each process, for the slab.
    columns
        Columns of the slab, whose sums are now complete.
    dtype
        Type of the arithmetic.

    Returns
    -------
    dict
        ``norm1`` is the largest complete sum. At the end it is ‖A‖₁; for complex types it is a
        lower bound within √2. ``imaginary`` is the largest |imaginary| over |real| part of a
        diagonal element, ``sums`` the incomplete sums. ``difference`` describes two elements of
        diagonal blocks that differ, for users, if there are any.
    """
    states = [*([before] if before else []), *own]
    with np.errstate(over="ignore"):
        sums = np.sum([_sums_of(state) for state in states], axis=0)
    complete = float(sums[:columns].max()) / (2**0.5 if dtype.kind == "c" else 1.0)
    imaginary = max(state["imaginary"] for state in states)
    difference = next((state["difference"] for state in states if "difference" in state), "")
    norm1 = max(before["norm1"] if before else 0.0, complete)
    return {"norm1": norm1} | _values(sums[columns:], imaginary, difference)


def notes_on(
    state: dict[str, Any], n: int, dtype: np.dtype[Any], stored: np.dtype[Any]
) -> list[str]:
    """Return notes for the reader of the report, from the state of `joined` at the end."""
    found = []
    if state["imaginary"] > n * coarsest_eps(dtype, stored):
        found.append(
            f"A is not Hermitian: its diagonal has imaginary parts of up to "
            f"{state['imaginary']:.2g} of the real ones, which were taken as zero"
        )
    if "difference" in state:
        found.append(f"A is not Hermitian: {state['difference']}")
    return found


def _values(sums: npt.NDArray[Any], imaginary: float, difference: str) -> dict[str, Any]:
    text = base64.b64encode(sums.astype("<f8").tobytes()).decode()
    found = {"imaginary": imaginary, "sums": text}
    return found | ({"difference": difference} if difference else {})


def _sums_of(values: dict[str, Any]) -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(values["sums"]), "<f8")


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
