"""Covariance of least-squares coefficients, and the degrees of freedom of a fit, computed from R.

With W^½ A = Q R of full rank the covariance is σ² (Rᴴ R)⁻¹ (Björck, *Numerical Methods for Least
Squares Problems*, 1996, section 2.8). With rank r it is that of the x of least norm, from the r
largest singular values of R. With damp d, R includes the rows d I. Then x = C Aᴴ W b for C = (Rᴴ
R)⁻¹, so the covariance is σ² C (Rᴴ R - d² I) C = σ² (C - d² C²).
"""

from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import get_lapack_funcs

from outcore.errors import InvalidError
from outcore.linalg.matrix import Matrix


def covariance_of(R: Matrix, rank: int, damp: float) -> Matrix:
    """Compute the covariance of the coefficients for unit variance, in double precision.

    Parameters
    ----------
    R
        (n, n), with zeros below the diagonal.
    rank
        Number of its singular values that count.
    damp
        The d of the rows d I that R includes.

    Raises
    ------
    InvalidError
        If `damp` is so small beside A that R has lost the small singular values of A.
    """
    wide = R.astype(np.result_type(R, np.float64))
    return _damped(wide, rank, damp, R.dtype) if damp else _inverse_product(wide, rank)


def _damped(R: Matrix, rank: int, damp: float, dtype: np.dtype[Any]) -> Matrix:
    """Return C - d² C² for an R that was computed in `dtype`; R is overwritten.

    R has singular values t = √(s² + d²), each with an error of about ε max(t). The variance of a
    direction is s²/t⁴, so its error is about ε max(t) / t³.
    """
    _, values, Vh = scipy.linalg.svd(R, overwrite_a=True)
    variances = np.maximum(values**2 - damp**2, 0) / values**4
    error = np.finfo(dtype).eps * values[0] / values[-1] ** 3
    if error > 0.01 * variances.max():
        better = "a larger damp=" + ("" if dtype.char in "dD" else ', or dtype="f8"')
        raise InvalidError(
            f"need a covariance to 1 % of the largest variance, have damp={damp:g} for a matrix of "
            f"norm {values[0]:.3g} in {dtype}, which R does not resolve; pass {better}"
        )
    half: Matrix = Vh[:rank] * np.sqrt(variances[:rank, None])
    covariance: Matrix = half.conj().T @ half
    return covariance


def degrees_lost(R: Matrix, rank: int, damp: float, copy: Matrix) -> float:
    """Return the degrees of freedom of the fit: the trace of the matrix from b to A x.

    Without damp d this is the rank. With d it is ∑ s²/(s² + d²) over the singular values s of A.
    This equals rank - ‖d R⁻¹‖² in the Frobenius norm, since R has the singular values √(s² + d²).

    Parameters
    ----------
    R, rank, damp
        As in `covariance_of`; R of any precision.
    copy
        Scratch memory of the shape and type of R.
    """
    if not damp:
        return float(rank)
    copy[...] = R
    if rank == len(R):
        (trtri,) = get_lapack_funcs(("trtri",), (copy,))
        inverse, _ = trtri(copy, lower=0, overwrite_c=1)
        part = scipy.linalg.norm(inverse * damp) ** 2
    else:
        values = scipy.linalg.svdvals(copy, overwrite_a=True)[:rank]
        part = np.sum((damp / values) ** 2, dtype=np.float64)
    return max(rank - float(part), 0.0)


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
