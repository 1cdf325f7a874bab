"""Steps of LU on row-major blocks in memory, for data by rows.

The BLAS sees their transposes.
"""

import numpy as np
import numpy.typing as npt

from outcore.blas.lapack import Kernels
from outcore.linalg._tiles.matrix import Matrix

LEAF_COLUMNS = 32
"""Columns factored in one LAPACK call, in column-major memory."""

_SWAP_BYTES = 256 << 10


def factor_rows(
    kernels: Kernels, R: Matrix, piv: npt.NDArray[np.int32], room: npt.NDArray[np.generic]
) -> int:
    """Factor a tall block in place with partial pivoting, R = L U up to row swaps.

    The factorization is recursive in columns (Toledo 1997).

    Parameters
    ----------
    kernels
        Kernels for the type of `R`.
    R
        (m, k) with m >= k, row-major.
    piv
        (k,) int32, overwritten: row i was swapped with row ``piv[i]``, in all columns.
    room
        Vector of at least ``m * min(k, LEAF_COLUMNS)`` elements.

    Returns
    -------
    int
        LAPACK's info: 0, or the first exactly zero pivot, counted from 1.
    """
    m, columns = R.shape
    if columns <= LEAF_COLUMNS:
        leaf: Matrix = room[: m * columns].reshape(columns, m).T
        leaf[:] = R
        info = kernels.getrf(leaf, piv)
        R[:] = leaf
        return info
    half = columns // 2
    left, right = R[:, :half], R[:, half:]
    info = factor_rows(kernels, left, piv[:half], room)
    swap_rows(right, piv[:half])
    top = right.T[:, :half]
    kernels.trsm(left[:half].T, top, "R", lower=False, unit=True)
    kernels.gemm(top, left[half:].T, right.T[:, half:], alpha=-1, beta=1)
    info_right = factor_rows(kernels, right[half:], piv[half:], room)
    swap_rows(left[half:], piv[half:])
    piv[half:] += half
    return info or (info_right + half if info_right else 0)


def multiply_back(kernels: Kernels, T: Matrix) -> None:
    """Replace the factors of a square block by their product: T <- L U, both packed in T.

    Parameters
    ----------
    kernels
        Kernels for the type of `T`.
    T
        (k, k), row-major.
    """
    k = len(T)
    if k <= LEAF_COLUMNS:
        lower = np.tril(T, -1)
        np.fill_diagonal(lower, 1)
        T[:] = lower @ np.triu(T)
        return
    half = k // 2
    L, U, D = T[half:, :half].T, T[:half, half:].T, T[half:, half:]
    corner = T[:half, :half]
    multiply_back(kernels, D)
    kernels.gemm(U, L, D.T, alpha=1, beta=1)
    kernels.trmm(corner.T, U, "R", lower=False, unit=True)
    kernels.trmm(corner.T, L, "L", lower=True, unit=False)
    multiply_back(kernels, corner)


def swap_rows(R: Matrix, piv: npt.NDArray[np.int32], *, reverse: bool = False) -> None:
    """Exchange row i with row ``piv[i]``, for i = 0, 1, ... in order; `reverse` undoes that."""
    touched = np.unique(np.concatenate([np.arange(len(piv)), piv]))
    sources = sources_of(piv, touched)
    moved = touched != sources
    new, old = touched[moved], sources[moved]
    if reverse:
        new, old = old, new
    if not len(new):
        return
    step = max(_SWAP_BYTES // (len(new) * R.itemsize), 1)
    for first in range(0, R.shape[1], step):
        part = R[:, first : first + step]
        part[new] = part[old]


def sources_of(piv: npt.NDArray[np.int32], touched: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the previous places of the rows that swaps bring to the places `touched`."""
    where = np.searchsorted(touched, np.concatenate([np.arange(len(piv)), piv]))
    order = list(range(len(touched)))
    for i, j in zip(where[: len(piv)].tolist(), where[len(piv) :].tolist(), strict=True):
        order[i], order[j] = order[j], order[i]
    return touched[np.array(order, np.int64)]


def largest_above(R: Matrix) -> float:
    """Largest |re| + |im| of an element on or above the diagonal of a row-major block."""
    largest = 0.0
    for first in range(0, min(R.shape), LEAF_COLUMNS):
        part = np.triu(R[first : first + LEAF_COLUMNS, first:])
        sizes = np.abs(part.real) + np.abs(part.imag) if part.dtype.kind == "c" else np.abs(part)
        # Python's max() would lose a NaN.
        largest = float(np.maximum(largest, sizes.max(initial=0)))
    return largest
