"""Systems with the triangle of a QR factorization, of any rank."""

import math

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_lapack_funcs

from outcore._core import column_extremes
from outcore.blas_calls import Trans
from outcore.errors import InvalidError
from outcore.lapack import kernels
from outcore.linalg.columns import norms
from outcore.linalg.matrix import Matrix
from outcore.linalg.rows.stream import allocated
from outcore.longcall import LongCall

_CONDITION_MARGIN = 10
"""Factor by which an estimate of the condition number may be too small."""


def solve_triangle(
    R: Matrix, c: Matrix, cond: float, call: LongCall, trans: Trans = "N", most: int | None = None
) -> tuple[Matrix, int, float, npt.NDArray[np.float64]]:
    """Minimize ‖c - op(R) x‖₂ for a triangular R, with the x of least norm.

    `c` is overwritten if R is close to a matrix of lower rank. For op, see
    `outcore.blas.Blas.gemm`. `most` is an upper bound of the rank of R, such as the rows of a
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
    n = len(R)
    if not np.isfinite(column_extremes(R, True)[0]):
        raise InvalidError(f"numbers as large as those of A overflow {R.dtype}; scale its columns")
    trcon, gelsd, gelsd_work = get_lapack_funcs(("trcon", "gelsd", "gelsd_lwork"), (R,))
    reciprocal = float(trcon(R, norm="1", uplo="U")[0])
    condition = 1 / reciprocal if reciprocal > 0 else math.inf
    x: Matrix = np.array(c, order="F")
    # The 2-norm condition number is at most n times that of the 1-norm.
    if cond * n * condition * _CONDITION_MARGIN < 1:
        kernels(R.dtype).trsm(R, x, lower=False, trans=trans, unit=False)
        return x, n, condition, np.zeros(c.shape[1])
    sizes = [int(np.real(size)) for size in gelsd_work(n, n, c.shape[1], cond)[:-1]]
    factored = allocated(call, (n, n), R.dtype)
    factored[...] = R if trans == "N" else R.T
    if trans == "C":
        np.conjugate(factored, out=factored)
    x, values, rank, info = gelsd(factored, x, *sizes, cond, True, True)
    if info:
        raise InvalidError("the singular values of A did not converge; scale its columns")
    if most is not None and rank == most < n:
        condition = float(values[0] / values[most - 1])
    residual = c
    kernels(R.dtype).gemm(R, x, residual, alpha=-1, trans_a=trans)
    return x, int(rank), condition, norms(residual)
