"""Checks of LU: NaN and infinities, exact singularity, and pivot growth."""

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outcore._core import column_extremes
from outcore._util.packages import imported
from outcore.errors import GrowthWarning
from outcore.linalg._tiles.matrix import Matrix, not_finite

if TYPE_CHECKING:
    from outcore.linalg._output.factor import LUFactor


@dataclass
class Extremes:
    """Norms and extremes of some columns of A and of their factors.

    ``norm1`` is the largest column sum of |A|; for complex types it is a lower bound within √2.
    ``max_a`` and ``max_u`` are the largest |element| of A and U (for complex types |re| + |im|, as
    in BLAS). ``info`` is that of LAPACK. ``max_l`` is the largest element of L, if the pivot choice
    does not limit it to one.
    """

    norm1: float = 0.0
    max_a: float = 0.0
    max_u: float = 0.0
    info: int = 0
    max_l: float = 0.0

    def see_matrix(self, C: Matrix) -> None:
        """Include columns of A."""
        norm1, largest = column_extremes(C, False)
        # |re| + |im| is at most √2 times the absolute value. Python's max() would lose a NaN.
        scale = 2**0.5 if C.dtype.kind == "c" else 1.0
        self.norm1 = float(np.maximum(self.norm1, norm1 / scale))
        self.max_a = max(self.max_a, largest)

    def see_factor(self, U: Matrix) -> None:
        """Include the U of a panel: its rows down to the last row of the diagonal block."""
        self.max_u = max(self.max_u, column_extremes(U, True)[1])

    def see_info(self, info: int, first_column: int) -> None:
        """Include LAPACK's info of a panel."""
        if info and not self.info:
            self.info = info + first_column

    def see(self, other: "Extremes") -> None:
        """Include the extremes of other columns."""
        self.norm1 = max(self.norm1, other.norm1)
        self.max_a = max(self.max_a, other.max_a)
        self.max_u = max(self.max_u, other.max_u)
        self.info = self.info or other.info
        self.max_l = max(self.max_l, other.max_l)

    def to_json(self) -> dict[str, Any]:
        """Return the entry for the journal."""
        return {name: value for name, value in asdict(self).items() if name != "max_l" or value}

    @property
    def growth(self) -> float:
        """Pivot growth: largest element of U over the largest of A, times that of L if above 1."""
        return self.max_u / self.max_a * max(self.max_l, 1.0) if self.max_a else 1.0


def check_finite(
    extremes: Extremes, C: Matrix, first_column: int, *, transposed: bool = False
) -> None:
    """Raise if columns of A, or of its transpose, have a NaN or an infinity; name the first."""
    if np.isfinite(extremes.norm1):
        return
    for j in range(C.shape[1]):
        bad = np.flatnonzero(~np.isfinite(C[:, j]))
        if len(bad):
            i = int(bad[0])
            row, column = (first_column + j, i) if transposed else (i, first_column + j)
            raise not_finite(row, column, C[i, j])


def wild_growth(growth: float, dtype: np.dtype[Any]) -> str | None:
    """Describe the possible loss of digits if the pivots grew wildly; else `None`."""
    # The comparison is false for a NaN, which overflowed numbers cause and which is not growth.
    if not growth > np.finfo(dtype).eps ** -0.5:
        return None
    return (
        f"pivots grew by a factor of {growth:.3g}: half of the digits or more may be lost; check "
        "the backward error of each solution, and scale the rows of A if it is large"
    )


def warn_of(factor: "LUFactor") -> None:
    """Warn of exact singularity, in SciPy's words, and of wild pivot growth."""
    if factor.info:
        warnings.warn(
            f"Diagonal number {factor.info} is exactly zero. Singular matrix.",
            imported("scipy.linalg").LinAlgWarning,
            stacklevel=3,
        )
    warn_of_growth(factor, stacklevel=4)


def warn_of_growth(factor: "LUFactor", stacklevel: int = 3) -> None:
    """Warn of wild pivot growth."""
    if text := wild_growth(factor.growth, factor.dtype):
        warnings.warn(text, GrowthWarning, stacklevel=stacklevel)
