"""Covariance of least-squares coefficients, computed from the triangle R of A.

With W^½ A = Q R of full rank the covariance is σ² (Rᴴ R)⁻¹ (Björck, *Numerical Methods for Least
Squares Problems*, 1996, section 2.8). With rank r it is that of the x of least norm, from the r
largest singular values of R. With damp d, x = C Aᴴ W b for C = (Rᴴ R + d² I)⁻¹. So the covariance
is σ² C Rᴴ R C: with R = U S Vᴴ it is σ² V (S (S² + d²)⁻¹)² Vᴴ.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy.linalg import get_lapack_funcs

from outcore.errors import InvalidError
from outcore.linalg._tiles.matrix import Matrix


def covariance_of(R: Matrix, rank: int, damp: float) -> Matrix:
    """Compute the covariance of the coefficients for unit variance, in double precision.

    Parameters
    ----------
    R
        (n, n) triangle of A, with zeros below the diagonal.
    rank
        Number of its singular values that count.
    damp
        The factor d.

    Raises
    ------
    InvalidError
        If `damp` is so small beside A that rounding errors of R determine the largest variances.
    """
    wide = R.astype(np.result_type(R, np.float64))
    return _damped(wide, rank, damp, R.dtype) if damp else _inverse_product(wide, rank)


def _damped(R: Matrix, rank: int, damp: float, dtype: np.dtype[Any]) -> Matrix:
    """Return V (S (S² + d²)⁻¹)² Vᴴ for an R that was computed in `dtype`; R is overwritten."""
    _, values, Vh = scipy.linalg.svd(R, overwrite_a=True)
    largest = float(values[0])
    values, Vh = values[:rank], Vh[:rank]
    gains = _gains(values, damp)
    # Rounding changes each singular value by about this much, so by how much each variance?
    error = largest * float(np.finfo(dtype).eps) * math.sqrt(len(R))
    others = np.stack([_gains(values + error, damp), _gains(np.maximum(values - error, 0), damp)])
    top = float(gains.max(initial=0))
    change = abs(others**2 - gains**2).max(initial=0)
    if change > 0.01 * top**2:
        better = "a larger damp=" + ("" if dtype.char in "dD" else ', or dtype="f8"')
        raise InvalidError(
            f"need a covariance to 1 % of the largest variance, have damp={damp:g} for a matrix of "
            f"norm {largest:.3g} in {dtype}, which R does not resolve; pass {better}"
        )
    half: Matrix = Vh * gains[:, None]
    covariance: Matrix = half.conj().T @ half
    return covariance


def _gains(values: npt.NDArray[Any], damp: float) -> npt.NDArray[Any]:
    """Return s / (s² + d²) for singular values s."""
    sizes = np.hypot(values, damp)
    gains: npt.NDArray[Any] = values / sizes / sizes
    return gains


def _inverse_product(R: Matrix, rank: int) -> Matrix:
    """Return (Rᴴ R)⁻¹, or with a lower rank its pseudo-inverse; R is overwritten."""
    n = len(R)
    if rank < n:
        _, values, Vh = scipy.linalg.svd(R, overwrite_a=True)
        half: Matrix = Vh[:rank] / values[:rank, None]
        C: Matrix = half.conj().T @ half
        return C
    (potri,) = get_lapack_funcs(("potri",), (R,))
    C, info = potri(R, lower=0, overwrite_c=1)
    if info:
        raise InvalidError("R has a zero on its diagonal, so there is no inverse; lower cond=")
    for j in range(n):
        C[j + 1 :, j] = C[j, j + 1 :].conj()
    return C
