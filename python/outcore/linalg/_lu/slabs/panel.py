"""Steps of LU on column-major blocks in memory."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from outcore.blas.lapack import Kernels
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.triangles import solve_lower

LEAF_COLUMNS = 32


def factor_panel(kernels: Kernels, P: Matrix, piv: npt.NDArray[np.int32]) -> int:
    """Factor a tall panel in place with partial pivoting, P = L U up to row swaps.

    The factorization is recursive in columns (Toledo 1997), so most of the n·k² flops are matrix
    products.

    Parameters
    ----------
    kernels
        Kernels for the type of `P`.
    P
        (m, k) with m >= k, column-major.
    piv
        (k,) int32, overwritten: row i was swapped with row ``piv[i]``.

    Returns
    -------
    int
        LAPACK's info: 0, or the first exactly zero pivot, counted from 1.
    """
    columns = P.shape[1]
    if columns <= LEAF_COLUMNS:
        return kernels.getrf(P, piv)
    half = columns // 2
    left, right = P[:, :half], P[:, half:]
    info = factor_panel(kernels, left, piv[:half])
    kernels.laswp(right, piv[:half], 0, half)
    kernels.trsm(left[:half], right[:half], lower=True, unit=True)
    kernels.gemm(left[half:], right[:half], right[half:], alpha=-1, beta=1)
    info_right = factor_panel(kernels, right[half:], piv[half:])
    kernels.laswp(left[half:], piv[half:], 0, columns - half)
    piv[half:] += half
    return info or (info_right + half if info_right else 0)


def apply_panel(
    kernels: Kernels, piv: npt.NDArray[np.int32], L: Iterable[tuple[int, Matrix]], C: Matrix
) -> None:
    """Update columns with one panel: C <- L⁻¹ P C, where P are the panel's row swaps.

    Parameters
    ----------
    kernels
        Kernels for the type of `C`.
    piv
        (k,) row swaps of the panel.
    L
        The panel's (m, k) unit lower trapezoid in blocks of rows, from the top: (first row, block).
        The first block holds the k x k triangle.
    C
        (m, w) column-major, in place: its first k rows become U.
    """
    kernels.laswp(C, piv, 0, len(piv))
    apply_blocks(kernels, len(piv), L, C)


def apply_blocks(kernels: Kernels, k: int, L: Iterable[tuple[int, Matrix]], C: Matrix) -> None:
    """Do the rest of `apply_panel`, after the row swaps and the blocks above those of `L`.

    Parameters
    ----------
    kernels, L, C
        As for `apply_panel`.
    k
        Columns of the panel.
    """
    U = C[:k]
    for row, block in L:
        if row == 0:
            solve_lower(kernels, block[:k], U, unit=True)
            row, block = k, block[k:]
        kernels.gemm(block, U, C[row : row + block.shape[0]], alpha=-1, beta=1)
