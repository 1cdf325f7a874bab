"""Systems with the triangle of a QR factorization, of any rank."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_lapack_funcs

from outcore._core import column_extremes
from outcore.blas.blas_calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import InvalidError
from outcore.linalg._rows.stream import allocated
from outcore.linalg._tiles.columns import norms
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

_CONDITION_MARGIN = 10
"""Factor by which an estimate of the condition number may be too small."""


def solve_triangle(
    R: Matrix, c: Matrix, cond: float, call: LongCall, trans: Trans = "N", most: int | None = None
) -> tuple[Matrix, int, float, npt.NDArray[np.float64]]:
    """Minimize ‖c - op(R) x‖₂ for a triangular R, with the x of least norm.

    `c` is overwritten if R is close to a matrix of lower rank. For op, see
    `outcore.blas.blas.Blas.gemm`. `most` is an upper bound of the rank of R, such as the rows of a
    matrix with fewer rows than columns.

    Returns
    -------
    x : numpy.ndarray
        (n, k).
    rank : int
        Number of singular values above `cond` times the largest.
    condition : float
        Estimate of R's condition number in the 1-norm. If the rank is `most` and below n, it is the
        ratio of the largest to the smallest non-zero singular value.
    sizes : numpy.ndarray
        ‖c - op(R) x‖₂ of each column.
    """
    n, condition = len(R), condition_of(R)
    x: Matrix = np.array(c, order="F")
    if has_full_rank(n, condition, cond):
        kernels(R.dtype).trsm(R, x, lower=False, trans=trans, unit=False)
        return x, n, condition, np.zeros(c.shape[1])
    factored = allocated(call, (n, n), R.dtype)
    factored[...] = R if trans == "N" else R.T
    if trans == "C":
        np.conjugate(factored, out=factored)
    x, values, rank = solve_by_singular_values(factored, x, cond)
    if most is not None and rank == most < n:
        condition = float(values[0] / values[most - 1])
    residual = c
    kernels(R.dtype).gemm(R, x, residual, alpha=-1, trans_a=trans)
    return x, rank, condition, norms(residual)


def condition_of(R: Matrix) -> float:
    """Return an estimate of the condition number of a triangle in the 1-norm.

    Raises
    ------
    InvalidError
        If an element is not finite.
    """
    if not np.isfinite(column_extremes(R, True)[0]):
        raise InvalidError(f"numbers as large as those of A overflow {R.dtype}; scale its columns")
    (trcon,) = get_lapack_funcs(("trcon",), (R,))
    reciprocal = float(trcon(R, norm="1", uplo="U")[0])
    return 1 / reciprocal if reciprocal > 0 else math.inf


def has_full_rank(n: int, condition: float, cond: float) -> bool:
    """Whether a triangle of order n certainly has full rank at `cond`."""
    # The 2-norm condition number is at most n times that of the 1-norm.
    return cond * n * condition * _CONDITION_MARGIN < 1


def solve_by_singular_values(
    A: Matrix, b: Matrix, cond: float
) -> tuple[Matrix, npt.NDArray[Any], int]:
    """Minimize ‖b - A x‖₂ for a square A with the x of least norm; both are overwritten.

    Returns x, the singular values of A, and the number of them above `cond` times the largest.

    Raises
    ------
    InvalidError
        If the iteration for the singular values does not converge.
    """
    gelsd, gelsd_work = get_lapack_funcs(("gelsd", "gelsd_lwork"), (A,))
    sizes = [int(np.real(size)) for size in gelsd_work(*A.shape, b.shape[1], cond)[:-1]]
    x, values, rank, info = gelsd(A, b, *sizes, cond, True, True)
    if info:
        raise InvalidError("the singular values of A did not converge; scale its columns")
    return x, values, int(rank)
