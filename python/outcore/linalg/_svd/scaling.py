"""Powers of 2 that scale products with a matrix, so that they neither overflow nor underflow."""

import math
from typing import Any

import numpy as np

from outcore._core import column_extremes
from outcore.linalg._tiles.matrix import Matrix


def exponent(Y: Matrix) -> int:
    """Return a coarse power of 2 near the largest element; 0 for most matrices."""
    largest, most = column_extremes(Y, False)[1], most_exponent(Y.dtype)
    if not np.isfinite(largest):
        return 0
    step = most // 5
    if not largest:
        return -most
    return min(max(round(math.frexp(largest)[1] / step) * step, -most), most)


def most_exponent(dtype: np.dtype[Any]) -> int:
    """Return the largest exponent for scaling, which may be applied twice."""
    return int(np.finfo(dtype).maxexp) // 8 * 5


def shift(X: Matrix, power: int) -> None:
    """Compute X <- 2^power X, column-major."""
    if power:
        parts = X.T.view(X.real.dtype)
        np.ldexp(parts, power, out=parts)
