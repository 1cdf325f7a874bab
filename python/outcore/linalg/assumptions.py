"""What a caller says of a matrix, `assume_a`, by the names that SciPy has for it."""

import warnings
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from outcore.errors import InvalidError, SymmetryWarning

AssumeA: TypeAlias = Literal[
    "gen", "general", "sym", "symmetric", "her", "hermitian", "pos", "positive definite"
]

_SHORT = {
    "general": "gen", "symmetric": "sym", "hermitian": "her", "positive definite": "pos",
}  # fmt: skip

_INSTEAD = {
    "upper triangular": "solve_triangular reads one triangle only",
    "lower triangular": "solve_triangular(lower=True) reads one triangle only",
    "diagonal": "divide by the diagonal",
    "tridiagonal": "scipy.linalg.solve_banded takes the bands alone",
    "banded": "scipy.linalg.solve_banded takes the bands alone",
}
"""Structures that SciPy has a name for and nothing here makes use of."""


def assumption(given: Any) -> Any:
    """Give the short name of what SciPy (from 1.15 on) calls by a long one.

    Names that nobody knows are returned as they are.

    Raises
    ------
    InvalidError
        If SciPy has such matrices, and there is no solver for them here.
    """
    if isinstance(given, str) and given in _INSTEAD:
        raise InvalidError(
            f"assume_a={given!r} is not there: a matrix on disk is solved with whole; "
            f"{_INSTEAD[given]}"
        )
    return _SHORT.get(given, given) if isinstance(given, str) else given


def largest_backward_error(n: int, dtype: np.dtype[Any]) -> float:
    """Say which backward error Cholesky certainly stays below for a Hermitian matrix.

    It is of the order of n ε at most (Higham, *Accuracy and Stability of Numerical Algorithms*,
    2nd ed., theorem 10.4), and mostly of ε.
    """
    eps = float(np.finfo(dtype).eps)
    return cast(float, min(10 * n * eps, eps**0.5))


def warn_not_hermitian(how: str, fix: str, stacklevel: int = 3) -> None:
    """Warn that a matrix is not what `assume_a` says."""
    warnings.warn(
        f"A is not symmetric or Hermitian, and one triangle of it was read: {how}; {fix}",
        SymmetryWarning,
        stacklevel=stacklevel,
    )
