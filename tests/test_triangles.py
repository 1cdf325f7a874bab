"""Triangular solves with inverted blocks, against SciPy and the ``trsm`` of the BLAS."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import lu_factor, solve_triangular

from outcore.blas.blas import Blas
from outcore.blas.lapack import kernels
from outcore.linalg._tiles.triangles import BLOCK, solve_lower

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def random(shape: tuple[int, int], dtype: type, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return np.asfortranarray((parts if np.dtype(dtype).kind == "c" else parts.real).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 64, 100])
@pytest.mark.parametrize(("side", "trans"), [("L", "N"), ("R", "T"), ("R", "C")])
@pytest.mark.parametrize("unit", [True, False])
def test_against_scipy(dtype: type, k: int, side: Any, trans: Any, unit: bool) -> None:
    # A packed result of LU: the solver must not read above the diagonal.
    L, _ = lu_factor(random((k, k), dtype))
    L = np.asfortranarray(L)
    np.fill_diagonal(L, np.diagonal(L) + np.sign(np.diagonal(L).real) * 2)
    m = 300
    B = random((k, m) if side == "L" else (m, k), dtype, seed=1)
    X = np.array(B, order="F")
    solve_lower(kernels(dtype), L, X, side=side, trans=trans, unit=unit)

    wide = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    T = np.tril(L).astype(wide)
    if unit:
        np.fill_diagonal(T, 1)
    if side == "L":
        expected = solve_triangular(T, B.astype(wide), lower=True)
    else:
        # X op(L) = B equals conj(L) X' = B' or L X' = B' for the transposes.
        t = T.conj() if trans == "C" else T
        expected = solve_triangular(t, B.astype(wide).T, lower=True).T
    eps = float(np.finfo(dtype).eps)
    scale = np.abs(expected).max() * np.abs(T).sum(axis=1).max()
    assert np.abs(X - expected).max() <= 30 * k * eps * scale


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_triangle_with_a_large_inverse_is_solved_with(dtype: type) -> None:
    # Wilkinson's matrix: its inverse has elements up to 2**(BLOCK - 2).
    L = np.asfortranarray(np.eye(BLOCK) - np.tril(np.ones((BLOCK, BLOCK)), -1)).astype(dtype)
    B = random((BLOCK, 4 * BLOCK), dtype)
    X, expected = np.array(B, order="F"), np.array(B, order="F")
    solve_lower(kernels(dtype), L, X, unit=True)
    kernels(dtype).trsm(L, expected, lower=True, unit=True)
    np.testing.assert_array_equal(X, expected)


def test_columns_of_different_scales_are_no_reason_not_to_invert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scales = 2.0 ** np.linspace(-200, 200, BLOCK).round()
    L = np.asfortranarray(np.tril(random((BLOCK, BLOCK), np.float64) / 8, -1) + np.eye(BLOCK))
    L = np.asfortranarray(L * scales)
    X = random((4 * BLOCK, BLOCK), np.float64)
    expected = solve_triangular(L, X.T, lower=True).T
    monkeypatch.delattr(Blas, "trsm")
    solve_lower(kernels(np.float64), L, X, side="R", trans="C", unit=False)
    np.testing.assert_allclose(
        X * scales, expected * scales, rtol=0, atol=1e-10 * np.abs(expected * scales).max()
    )


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_bad_diagonal_does_as_trsm_does(bad: float) -> None:
    L = np.asfortranarray(np.tril(random((BLOCK, BLOCK), np.float64)) + 10 * np.eye(BLOCK))
    L[5, 5] = bad
    B = random((BLOCK, 4 * BLOCK), np.float64)
    X, expected = np.array(B, order="F"), np.array(B, order="F")
    solve_lower(kernels(np.float64), L, X, unit=False)
    kernels(np.float64).trsm(L, expected, lower=True, unit=False)
    np.testing.assert_array_equal(X, expected)


def test_other_sides_are_refused() -> None:
    L = random((4, 4), np.float64)
    with pytest.raises(ValueError, match="side L with trans T"):
        solve_lower(kernels(np.float64), L, random((4, 4), np.float64), trans="T", unit=True)
