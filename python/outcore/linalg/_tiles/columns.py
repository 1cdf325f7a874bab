"""Norms, inner products and sums of tall columns, one number for each column.

Sums are in double precision, over pieces of rows, so that no temporary is as tall as the columns.
"""

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.packages import imported
from outcore.linalg._tiles.matrix import Matrix

Numbers: TypeAlias = npt.NDArray[Any]

_ROWS = 8192

_LEAST = 1e-140
"""Norms below this bound have squares that underflow."""


def _pieces(X: Matrix) -> Iterator[tuple[int, slice]]:
    """Cut columns: the number of a column, and some of its rows."""
    for j in range(X.shape[1]):
        for first in range(0, len(X), _ROWS):
            yield j, slice(first, first + _ROWS)


def dots(X: Matrix, Y: Matrix) -> Numbers:
    """Return the inner products xᴴ y of the columns."""
    wide = np.result_type(X.dtype, np.float64)
    found = np.zeros(X.shape[1], wide)
    for j, rows in _pieces(X):
        x, y = X[rows, j].astype(wide, copy=False), Y[rows, j].astype(wide, copy=False)
        found[j] += np.vdot(x, y)
    return found


def squares(X: Matrix, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """Return the squared 2-norms of the columns, multiplied by `scale` before squaring."""
    found = np.zeros(X.shape[1])
    for first in range(0, len(X), _ROWS):
        parts = X[first : first + _ROWS].T.view(X.real.dtype)
        if scale != 1.0:
            parts = parts * parts.dtype.type(scale)
        found += np.einsum("ij,ij->i", parts, parts, dtype=np.float64)
    return found


def norms(X: Matrix) -> npt.NDArray[np.float64]:
    """Return the 2-norms of the columns; infinite or NaN if an element is."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = np.sqrt(squares(X))
        for j in np.flatnonzero(~((found > _LEAST) & (found < np.inf))):
            # Their squares may overflow or underflow.
            scale = power_of_two(float(largest(X[:, j : j + 1])[0]))
            found[j] = scale * math.sqrt(squares(X[:, j : j + 1], 1 / scale)[0])
    return found


def draw_normal(X: Matrix, seed: int) -> None:
    """Fill columns with independent real normal numbers, the same for the same seed."""
    normal = imported("numpy.random").default_rng(seed)
    for j in range(X.shape[1]):
        X[:, j] = normal.standard_normal(len(X))


def power_of_two(x: float) -> float:
    """Return a power of two near a number, with a finite inverse; 1 for zero or infinity."""
    return math.ldexp(1.0, min(max(math.frexp(x)[1], -1000), 1000)) if 0 < x < math.inf else 1.0


def largest(X: Matrix) -> npt.NDArray[np.float64]:
    """Return the largest absolute value of each column; for complex numbers, of their parts."""
    found = np.zeros(X.shape[1])
    for j, rows in _pieces(X):
        x = X[rows, j]
        found[j] = max(found[j], np.abs(x.real).max(), np.abs(x.imag).max())
    return found


def add_scaled(Y: Matrix, factors: Numbers, X: Matrix) -> None:
    """Compute Y <- Y + X diag(factors)."""
    for j, rows in _pieces(X):
        Y[rows, j] += Y.dtype.type(factors[j]) * X[rows, j]


def scale_and_add(Y: Matrix, factors: Numbers, X: Matrix) -> None:
    """Compute Y <- Y diag(factors) + X."""
    for j, rows in _pieces(X):
        Y[rows, j] = Y.dtype.type(factors[j]) * Y[rows, j] + X[rows, j]


def scales_exactly(X: Matrix, factors: Numbers) -> bool:
    """Whether X diag(factors), with powers of 2, is finite and exactly reversible."""
    for j, rows in _pieces(X):
        x, factor, inverse = X[rows, j], X.dtype.type(factors[j]), X.dtype.type(1 / factors[j])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if not (np.isfinite(x).all() and np.array_equal(x * factor * inverse, x)):
                return False
    return True


def scale(X: Matrix, factors: Numbers) -> None:
    """Compute X <- X diag(factors)."""
    for j in range(X.shape[1]):
        X[:, j] *= X.dtype.type(factors[j])
