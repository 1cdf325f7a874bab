"""Factors on disk in tests: rebuilt from LINPACK order, with LAPACK's test ratios."""

import functools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import outcore as oc
from outcore.blas import blas_choice
from outcore.linalg import LUFactor

Matrix = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Use two BLAS threads, however many the machine has."""
    with blas_choice.threads(2):
        if blas_choice.in_use()[1] != 2:
            pytest.skip("the BLAS has no threads")
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one BLAS thread: small matrices on busy processors take ten times as long with two."""
    with blas_choice.threads(1):
        yield


def on_disk(path: Path, a: Matrix, chunks: tuple[int, int] | None = None) -> oc.Array:
    """Write a matrix in the order that suits LU."""
    return oc.from_array(a, path, order="F", chunks=chunks)


def random_matrix(n: int, dtype: npt.DTypeLike, seed: int = 0) -> Matrix:
    return drawn(n, np.dtype(dtype), seed).copy()


@functools.lru_cache(maxsize=4)
def drawn(n: int, dtype: np.dtype[Any], seed: int) -> Matrix:
    """Draw a matrix, which takes several times as long as a copy of it."""
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((n, n))
    if dtype.kind == "c":
        a = a + 1j * draw.standard_normal((n, n))
    return a.astype(dtype)


def row_order(piv: npt.NDArray[np.int32], first: int = 0) -> npt.NDArray[np.intp]:
    """Return the row numbers after the swaps from number `first`."""
    rows = np.arange(len(piv))
    for i in range(first, len(piv)):
        rows[[i, piv[i]]] = rows[[piv[i], i]]
    return rows


def packed(lu: LUFactor) -> Matrix:
    """Return L and U as `scipy.linalg.lu_factor` does: every panel of L gets the later swaps."""
    with oc.open_array(lu.path / "lu") as array:
        whole: Matrix = array[...]
    for first in range(0, lu.n, lu.tile[1]):
        end = min(first + lu.tile[1], lu.n)
        columns = slice(first, end)
        whole[end:, columns] = whole[row_order(lu.piv, end), columns][end:]
    return whole


def triangles(lu: LUFactor) -> tuple[Matrix, Matrix]:
    """Return L and U in double precision."""
    whole = packed(lu).astype(np.result_type(lu.dtype, np.float64))
    return np.tril(whole, -1) + np.eye(lu.n), np.triu(whole)


def unit_roundoff(dtype: Any) -> float:
    """Return LAPACK's ε, its DLAMCH("E"): 2⁻⁵³ (2⁻²⁴), half of NumPy's."""
    return float(np.finfo(dtype).eps) / 2


def lapack_ratio(a: Matrix, lu: LUFactor) -> float:
    """‖LU - PA‖₁ / (n ‖A‖₁ ε), which LAPACK's tests want below 30."""
    L, U = triangles(lu)
    error = np.linalg.norm(L @ U - a[row_order(lu.piv)], 1)
    return float(error / (lu.n * np.linalg.norm(a, 1) * unit_roundoff(lu.dtype)))


def hpl_residual(a: Matrix, x: Matrix, b: Matrix) -> float:
    """‖Ax - b‖∞ / (ε (‖A‖∞ ‖x‖∞ + ‖b‖∞) n) with ε = 2⁻⁵³ (2⁻²⁴), which HPL wants below 16."""
    wide = np.result_type(a.dtype, np.float64)
    error = np.abs(a.astype(wide) @ x.astype(wide) - b).max()
    scale = np.linalg.norm(a, np.inf) * np.abs(x).max() + np.abs(b).max()
    return float(error / (unit_roundoff(a.dtype) * scale * len(a)))


def solve_ratio(a: Matrix, x: Matrix, b: Matrix) -> float:
    """‖b - Ax‖₁ / (‖A‖₁ ‖x‖₁ ε) of the worst column, which LAPACK's tests want below 30."""
    wide = np.result_type(a.dtype, np.float64)
    residual = b.astype(wide) - a.astype(wide) @ x.astype(wide)
    of_residual, of_a, of_x = (np.abs(v).sum(axis=0) for v in (residual, a, x))
    return float((of_residual / (of_a.max() * of_x)).max() / unit_roundoff(a.dtype))


def names_below(directory: Path) -> list[str]:
    """List every file and directory below, so that a test can check for left-overs."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def order_beyond(disk: Path, least: int) -> int:
    """Return an order, at least `least`, whose float64 matrix exceeds twice the free space."""
    free = shutil.disk_usage(disk).free
    return max(least, math.isqrt(free // 4) // 1000 * 1000 + 1000)
