"""Hermitian positive definite matrices, and measures of Cholesky factors in tests."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from linpack import Matrix, random_matrix, unit_roundoff

import outcore as oc
from outcore.linalg import CholeskyFactor


def definite(n: int, dtype: npt.DTypeLike, seed: int = 0) -> Matrix:
    """Return a random matrix times its adjoint, plus a little more; Hermitian to the bit."""
    a = random_matrix(n, np.result_type(dtype, np.float64), seed)
    below = np.tril(a @ a.conj().T / n, -1)
    diagonal = np.sum(np.abs(a) ** 2, axis=1) / n + 0.1
    whole: Matrix = (below + below.conj().T + np.diag(diagonal)).astype(dtype)
    return whole


def lower_only(a: Matrix) -> Matrix:
    """Return a copy with NaN above the diagonal, where no call may read."""
    half = a.copy(order="F")
    half[np.triu_indices(len(a), 1)] = np.nan
    return half


def upper_only(a: Matrix) -> Matrix:
    """Return a copy with NaN below the diagonal."""
    half = a.copy(order="C")
    half[np.tril_indices(len(a), -1)] = np.nan
    return half


def mirrored_lower(a: Matrix, path: Path, order: str, chunks: tuple[int, int]) -> oc.Array:
    """Store the lower triangle as the upper one is stored in this order and these chunks.

    Only then must both factors have the same bits: slabs end where chunks do, and with other slabs
    the BLAS may round differently (OpenBLAS's kernels for AVX2 do).
    """
    mirrored = "F" if order == "C" else "C"
    return oc.from_array(lower_only(a), path, order=mirrored, chunks=chunks[::-1])


def factor_of(factor: CholeskyFactor) -> Matrix:
    """Return the whole array ``l``."""
    with oc.open_array(factor.path / "l") as array:
        whole: Matrix = array[...]
    return whole


def cholesky_ratio(a: Matrix, factor: CholeskyFactor) -> float:
    """‖L Lᴴ - A‖₁ / (n ‖A‖₁ ε), which LAPACK's tests want below 30."""
    L = factor_of(factor).astype(np.result_type(a.dtype, np.float64))
    error = np.linalg.norm(L @ L.conj().T - a, 1)
    return float(error / (len(a) * np.linalg.norm(a, 1) * unit_roundoff(a.dtype)))
