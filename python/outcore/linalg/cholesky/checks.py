"""What Cholesky looks out for: NaN and infinities, the norm of A, imaginary diagonals."""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.errors import NonFiniteError
from outcore.linalg.matrix import Matrix

_COLUMNS = 4


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

    def __init__(
        self, n: int, arena: Arena, scratch_bytes: int, dtype: np.dtype[Any], *, lower: bool
    ) -> None:
        self._lower = lower
        self.norm1 = self.imaginary = 0.0
        self._sums = np.zeros(n)
        real = np.empty(0, dtype).real.dtype
        self._scratch = np.frombuffer(memoryview(arena.allocate(scratch_bytes)), real)
        self._parts = dtype.itemsize // real.itemsize

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
        with np.errstate(over="ignore"):
            below = 0
            if top == first:
                self._add(C[:k], first, columns, is_diagonal=True)
                below = k
            # Long runs of a few columns are read fastest.
            rows = max(len(self._scratch) // (self._parts * _COLUMNS), 1)
            for at in range(below, m, rows):
                self._add(C[at : at + rows], top + at, columns, is_diagonal=False)
            self._sums[first : first + k] += columns
        if not np.isfinite(columns).all():
            _find_nonfinite(C, first, top, lower=self._lower)
        if top == first and self._parts == 2:
            diagonal = np.diagonal(C)
            real, imaginary = np.abs(diagonal.real), np.abs(diagonal.imag)
            ratios = imaginary[real > 0] / real[real > 0]
            self.imaginary = max(self.imaginary, float(ratios.max(initial=0)))
        largest = float(self._sums[first : first + k].max())
        self.norm1 = max(self.norm1, largest / self._parts**0.5)

    def _add(
        self, C: Matrix, top: int, columns: npt.NDArray[np.float64], *, is_diagonal: bool
    ) -> None:
        """Add a block to the sums of its columns, and to those of its rows as columns."""
        # |re| + |im|, as BLAS has it: at most √2 times the absolute value.
        real = C.T.view(self._scratch.dtype)
        k, length = real.shape
        step = max(len(self._scratch) // length, 1)
        sums = np.zeros(length)
        for left in range(0, k, step):
            part = real[left : left + step]
            absolute = self._scratch[: part.size].reshape(part.shape)
            np.abs(part, out=absolute)
            if is_diagonal:
                for j, column in enumerate(absolute, left):
                    column[: j * self._parts] = 0
            columns[left : left + step] += absolute.sum(axis=1)
            if is_diagonal:
                # The diagonal is in the column's sum already.
                for j, column in enumerate(absolute, left):
                    column[j * self._parts : (j + 1) * self._parts] = 0
            sums += absolute.sum(axis=0)
        self._sums[top : top + C.shape[0]] += sums.reshape(-1, self._parts).sum(axis=1)

    def notes(self) -> list[str]:
        """Tell what the reader of a report should know."""
        if self.imaginary <= len(self._sums) * np.finfo(self._scratch.dtype).eps:
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
