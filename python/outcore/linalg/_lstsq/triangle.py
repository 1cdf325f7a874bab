"""Least squares with the triangle R of A, of any rank, without or with damping d.

The minimum is of ‖c - R x‖₂, with damping of ‖c - R x‖₂² + d² ‖x‖₂². Then the rows d I are appended
to a copy of R, so R keeps the small singular values s of A. With at least as many rows as columns::

    [R; d I] = Q [T; 0],    T x = (Qᴴ [c; 0])[:n]

Otherwise the solution is that of least norm of [A, d I] [x; z] = b, by the semi-normal equations
as in `outcore.linalg._lstsq.least_norm`::

    T Tᴴ = R Rᴴ + d² I,    T Tᴴ y = c,    x = Rᴴ y

Where A x is nearly b, c - R x loses its digits to cancellation. Then the code uses its equals d² y,
or d² R⁻ᴴ x (Björck, *Numerical Methods for Least Squares Problems*, 1996, section 5.3.2).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import column_extremes
from outcore._util.packages import imported
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import InvalidError
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tsqr import ParallelQR
from outcore.linalg._tiles.columns import largest, norms, power_of_two
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
    reciprocal = kernels(R.dtype).trcon(R)
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
    get_lapack_funcs = imported("scipy.linalg").get_lapack_funcs

    gelsd, gelsd_work = get_lapack_funcs(("gelsd", "gelsd_lwork"), (A,))
    sizes = [int(np.real(size)) for size in gelsd_work(*A.shape, b.shape[1], cond)[:-1]]
    x, values, rank, info = gelsd(A, b, *sizes, cond, True, True)
    if info:
        raise InvalidError("the singular values of A did not converge; scale its columns")
    return x, values, int(rank)


class Minimizer(NamedTuple):
    """The solution, and its figures.

    Attributes
    ----------
    x
        (n, k), column-major.
    rank, condition
        Singular values of [A; d I] that count, at most as many as A has; and an estimate of the
        condition number of its triangle in the 1-norm.
    counted
        Number of rows with non-zero weight.
    residual_norms
        ‖c - R x‖₂, or ‖b - A x‖₂, of each right-hand side.
    degrees_of_freedom
        Rows that count, less the degrees of freedom of the fit.
    """

    x: Matrix
    rank: int
    condition: float
    counted: int
    residual_norms: npt.NDArray[np.float64]
    degrees_of_freedom: float


def solve_damped(
    factor: ParallelQR, R: Matrix, counted: int, damp: float, cond: float, call: LongCall
) -> Minimizer:
    """Solve a damped problem.

    Parameters
    ----------
    factor
        The factors of all rows of A, with Qᴴ b, which its residual replaces.
    R
        Its triangle, with zeros below the diagonal.
    counted
        Number of rows with non-zero weight.
    damp
        The factor d, above 0.
    cond
        Singular values of [A; d I] below `cond` times the largest count as zero.
    call
        The call, whose arena supplies a copy of R.
    """
    c, n, condition = factor.c, len(R), condition_of(R)
    copy = allocated(call, R.shape, R.dtype)
    if factor.rows < n:
        found = _solve_wide(factor, R, copy, counted, damp, cond)
        if found is not None:
            return found
    T, x = copy, np.array(c, order="F")
    T[...] = R
    factor.append_damping(T, x, damp)
    damped = condition_of(T)
    K, right = kernels(R.dtype), norms(c)
    if has_full_rank(n, damped, cond):
        K.trsm(T, x, lower=False, unit=False)
        K.gemm(R, x, c, alpha=-1)
        sizes = better_of(norms(c), _residual_by_x(R, x, damp), right, condition)
        freedom = degrees_of_freedom(T, n, counted, damp)
        return Minimizer(x, n, damped, counted, sizes, freedom)
    x, values, rank = solve_by_singular_values(T, x, cond)
    K.gemm(R, x, c, alpha=-1)
    rank = min(rank, factor.rows)
    freedom = _freedom(values, rank, counted, damp)
    return Minimizer(x, rank, damped, counted, norms(c), freedom)


def better_of(
    direct: npt.NDArray[np.float64],
    other: npt.NDArray[np.float64],
    right: npt.NDArray[np.float64],
    condition: float,
) -> npt.NDArray[np.float64]:
    """Return the more accurate of two norms of residuals, for each right-hand side.

    The direct one, ‖c - R x‖₂, has an error of about ε ‖c‖₂. The other has a relative error of
    about ε times the condition number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(condition * other < right, other, direct)


def degrees_of_freedom(T: Matrix, rank: int, counted: int, damp: float) -> float:
    """Return the rows that count, less the degrees of freedom of the fit; T is overwritten.

    The latter are the trace of the matrix from b to A x, ∑ s²/(s² + d²). T has the singular values
    √(s² + d²). So this is ∑ d²/(s² + d²) for the directions in which A has any rows, and 1 for each
    further row. With all of T, the sum is ‖d T⁻¹‖² in the Frobenius norm.

    Parameters
    ----------
    T
        (n, n) triangle of [A; d I] or [Aᴴ; d I], with zeros below the diagonal.
    rank
        Number of its singular values that count.
    counted
        Number of rows that count.
    damp
        The factor d.
    """
    if min(rank, counted) < len(T):
        svdvals = imported("scipy.linalg").svdvals
        return _freedom(svdvals(T, overwrite_a=True), rank, counted, damp)
    scale = power_of_two(float(largest(T).max()))
    T /= T.dtype.type(scale)
    kernels(T.dtype).trtri(T, lower=False, unit=False)
    return counted - rank + float(np.sum((norms(T) * (damp / scale)) ** 2))


def _freedom(values: npt.NDArray[Any], rank: int, counted: int, damp: float) -> float:
    kept = min(rank, counted)
    return counted - kept + float(np.sum((damp / values[:kept].astype(np.float64)) ** 2))


def _solve_wide(
    factor: ParallelQR, R: Matrix, copy: Matrix, counted: int, damp: float, cond: float
) -> Minimizer | None:
    """Solve a problem with fewer rows than columns; `None` if T may have a lower rank at `cond`."""
    m, K = factor.rows, kernels(R.dtype)
    R, c = R[:m], factor.c[:m]
    scale, top = (power_of_two(float(largest(each).max(initial=0))) for each in (R, c))
    # With the rows in reverse order, the first columns of R are the conjugate of an upper triangle.
    T, B = copy[:m, :m], copy[m:, :m]
    np.conjugate(R[::-1, m - 1 :: -1].T, out=T)
    np.conjugate(R[::-1, m:].T, out=B)
    T /= T.dtype.type(scale)
    B /= B.dtype.type(scale)
    factor.append_rows(T, B)
    factor.append_damping(T, np.zeros((m, 0), T.dtype, order="F"), damp / scale)
    condition = condition_of(T)
    if not has_full_rank(m, condition, cond):
        return None
    y: Matrix = np.array(c[::-1], order="F")
    y /= y.dtype.type(top)
    for trans in ("C", "N"):
        K.trsm(T, y, lower=False, trans=trans, unit=False)
    residual = norms(y) * (damp / scale) ** 2 * top
    # As in `least_norm`, no product leaves the range of the type.
    half = power_of_two(math.sqrt(scale))
    y = np.array(y[::-1], order="F")
    y /= y.dtype.type(half)
    x: Matrix = np.zeros((R.shape[1], c.shape[1]), R.dtype, order="F")
    K.gemm(R, y, x, alpha=half / scale, beta=0, trans_a="C")
    x *= x.dtype.type(top / scale)
    right = norms(c)
    K.gemm(R, x, c, alpha=-1)
    sizes = better_of(norms(c), residual, right, condition)
    freedom = degrees_of_freedom(T, m, counted, damp / scale)
    return Minimizer(x, m, condition, counted, sizes, freedom)


def _residual_by_x(R: Matrix, x: Matrix, damp: float) -> npt.NDArray[np.float64]:
    """Return ‖d² R⁻ᴴ x‖₂ of each column, which is not finite if R is singular."""
    scale = power_of_two(float(largest(R).max()))
    tops = np.array([power_of_two(float(top)) for top in largest(x)])
    y: Matrix = np.array(x, order="F")
    y /= tops.astype(x.real.dtype)
    y *= x.dtype.type(scale)
    with np.errstate(invalid="ignore", over="ignore"):
        kernels(R.dtype).trsm(R, y, lower=False, trans="C", unit=False)
        sizes: npt.NDArray[np.float64] = norms(y) * (damp / scale) * damp * tops
    return sizes
