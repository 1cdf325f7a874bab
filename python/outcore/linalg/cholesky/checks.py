"""What Cholesky looks out for: NaN and infinities, the norm of A, imaginary diagonals."""

import base64
from typing import Any

import numpy as np

from outcore._core import add_sums
from outcore.errors import NonFiniteError
from outcore.linalg.matrix import Matrix


class Sums:
    """Column sums of |A| for a Hermitian A of which one triangle is read, panel by panel.

    Column j is summed over its part in the lower triangle, and over its part in the upper one as
    row j. So sums are complete only when all columns to the left were seen; of a column that comes
    in parts, when the last one was.

    Attributes
    ----------
    norm1
        The largest of the sums that are complete: ‖A‖₁ in the end, for complex types a lower bound
        within √2.
    imaginary
        Largest |imaginary| over |real| part of a diagonal element.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], *, lower: bool) -> None:
        self._dtype, self._lower = dtype, lower
        self.norm1 = self.imaginary = 0.0
        self._sums = np.zeros(n)

    def see(self, C: Matrix, first: int, top: int) -> None:
        """Note rows of columns of A, those from their diagonal down first.

        Parameters
        ----------
        C
            (m, k): rows from number `top` on of columns from number `first` on, ``top == first``
            if they hold the diagonal, else they lie below it.

        Raises
        ------
        NonFiniteError
            If there is a NaN or an infinity.
        """
        m, k = C.shape
        columns = np.zeros(k)
        # |re| + |im|, as BLAS has it: at most √2 times the absolute value.
        add_sums(C, self._sums[top : top + m], columns, top == first)
        with np.errstate(over="ignore"):
            self._sums[first : first + k] += columns
        if not np.isfinite(columns).all():
            _find_nonfinite(C, first, top, lower=self._lower)
        if top == first and self._dtype.kind == "c":
            diagonal = np.diagonal(C)
            real, imaginary = np.abs(diagonal.real), np.abs(diagonal.imag)
            ratios = imaginary[real > 0] / real[real > 0]
            self.imaginary = max(self.imaginary, float(ratios.max(initial=0)))
        scale = 2**0.5 if self._dtype.kind == "c" else 1.0
        self.norm1 = max(self.norm1, float(self._sums[first : first + k].max()) / scale)

    def notes(self) -> list[str]:
        """Tell what the reader of a report should know."""
        if self.imaginary <= len(self._sums) * np.finfo(self._dtype).eps:
            return []
        return [
            f"A is not Hermitian: its diagonal has imaginary parts of up to {self.imaginary:.2g} "
            "of the real ones, which were taken as zero"
        ]

    def to_json(self, end: int) -> dict[str, Any]:
        """Give what is to be known of columns up to ``end - 1`` when a run goes on after them."""
        rest = base64.b64encode(self._sums[end:].astype("<f8").tobytes()).decode()
        return {"norm1": self.norm1, "imaginary": self.imaginary, "sums": rest}

    def go_on(self, values: dict[str, Any]) -> None:
        """Take up what `to_json` gave."""
        rest = np.frombuffer(base64.b64decode(values["sums"]), "<f8")
        self._sums[len(self._sums) - len(rest) :] = rest
        self.norm1, self.imaginary = values["norm1"], values["imaginary"]


def _find_nonfinite(C: Matrix, first: int, top: int, *, lower: bool) -> None:
    """Refuse rows of columns, from the diagonal down, with a NaN or an infinity: name the first.

    Those of an upper triangle were rows.
    """
    for j in range(C.shape[1]):
        above = max(first + j - top, 0)
        bad = np.flatnonzero(~np.isfinite(C[above:, j]))
        if len(bad):
            row, column = top + above + int(bad[0]), first + j
            index = (row, column) if lower else (column, row)
            raise NonFiniteError(
                f"A[{index[0]}, {index[1]}] is {C[row - top, j]}; every element must be finite: "
                "correct it, or look for an error in the assembly",
                index,
            )
