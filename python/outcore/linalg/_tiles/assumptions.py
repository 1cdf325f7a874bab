"""Assumptions of the caller about a matrix, `assume_a`, with SciPy's names."""

import warnings
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError, SymmetryWarning

AssumeA: TypeAlias = Literal[
    "gen", "general", "sym", "symmetric", "her", "hermitian", "pos", "positive definite"
]

_SHORT = {
    "general": "gen", "symmetric": "sym", "hermitian": "her", "positive definite": "pos",
}  # fmt: skip

_STRIP_BYTES = 256 << 10
"""Bytes of elements that are compared at once."""

_INSTEAD = {
    "upper triangular": "solve_triangular reads one triangle only",
    "lower triangular": "solve_triangular(lower=True) reads one triangle only",
    "diagonal": "divide by the diagonal",
    "tridiagonal": "scipy.linalg.solve_banded takes the bands alone",
    "banded": "scipy.linalg.solve_banded takes the bands alone",
}
"""Structures that SciPy has a name for and outcore does not exploit."""


def assumption(given: Any) -> Any:
    """Return the short name for a long one of SciPy (since 1.15).

    Unknown names are returned unchanged.

    Raises
    ------
    InvalidError
        If SciPy has a solver for such matrices, and outcore has none.
    """
    if isinstance(given, str) and given in _INSTEAD:
        raise InvalidError(
            f"assume_a={given!r} does not exist: solvers use the whole matrix on disk; "
            f"{_INSTEAD[given]}"
        )
    return _SHORT.get(given, given) if isinstance(given, str) else given


def coarsest_eps(*dtypes: np.dtype[Any]) -> float:
    """Return the largest machine epsilon of some types; integers, which are exact, have none.

    Converted to a wider type, the elements of a matrix keep the rounding errors of their own.
    """
    return max((float(np.finfo(each).eps) for each in dtypes if each.kind in "fc"), default=0.0)


def largest_backward_error(n: int, *dtypes: np.dtype[Any]) -> float:
    """Return a bound on the backward error of Cholesky for a Hermitian matrix.

    `dtypes` are the types in which the matrix is stored and factored.

    The error is of the order of n ε at most (Higham, *Accuracy and Stability of Numerical
    Algorithms*, 2nd ed., theorem 10.4), and usually of ε.
    """
    eps = coarsest_eps(*dtypes)
    return cast(float, min(10 * n * eps, eps**0.5))


def mirror_difference(
    square: npt.NDArray[Any], first: int, stored: np.dtype[Any], *, is_hermitian: bool
) -> str:
    """Describe two mirrored elements of a diagonal block that differ by more than rounding.

    Parameters
    ----------
    square
        The block.
    first
        Number of its first row and column.
    stored
        Type of the matrix on disk, whose rounding errors the elements have.
    is_hermitian
        Whether the mirror image is conjugated.

    Returns
    -------
    str
        Both elements, as text; empty if no pair differs.
    """
    least = coarsest_eps(square.dtype, stored) ** 0.5
    step = max(_STRIP_BYTES // max(square.shape[0] * square.itemsize, 1), 1)
    with np.errstate(invalid="ignore", over="ignore"):
        for at in range(0, len(square), step):
            below, above = square[:, at : at + step], square[at : at + step].T
            above = above.conj() if is_hermitian else above
            largest = np.maximum(np.abs(below), np.abs(above))
            for i, j in np.argwhere(np.abs(below - above) > least * largest.max(initial=0))[:1]:
                row, column = first + int(i), first + at + int(j)
                return f"A[{row}, {column}] and A[{column}, {row}] differ"
    return ""


def warn_not_hermitian(how: str, fix: str, stacklevel: int = 3) -> None:
    """Warn that a matrix does not have the property of `assume_a`."""
    warnings.warn(
        f"A is not symmetric or Hermitian, and one triangle of it was read: {how}; {fix}",
        SymmetryWarning,
        stacklevel=stacklevel,
    )
