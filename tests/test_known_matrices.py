"""All solvers on matrices with known properties; LU by slabs has its own tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from known_matrices import SYSTEMS, System, fourier, hadamard, kahan
from linpack import Matrix, hpl_residual, lapack_ratio, on_disk, one_thread
from lu_by_method import factor_by
from qr_factors import assert_factors, q_and_r

import outcore as oc
from outcore.linalg import lu_solve, qr, qr_factor, qr_solve, solve, solve_triangular, svd

__all__ = ["one_thread"]  # a fixture for every test here

MEMORY = 500_000

METHODS = pytest.mark.parametrize("method", ["block-columns", "tournament"])


@pytest.mark.exhaustive(each=True)
@METHODS
@pytest.mark.parametrize(("system", "n"), SYSTEMS)
def test_solutions_from_a_formula(tmp_path: Path, method: str, system: System, n: int) -> None:
    a, b, expected = system(n)
    lu = factor_by(method, tmp_path / "Z", a, MEMORY)
    x = lu_solve(lu, b, progress=False)
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)
    assert hpl_residual(a, x, b) < 16


@pytest.mark.exhaustive(each=True)
@METHODS
@pytest.mark.parametrize("make", [kahan, scipy.linalg.hilbert, lambda n: kahan(n).T])
def test_ill_conditioned(tmp_path: Path, method: str, make: Callable[[int], Matrix]) -> None:
    a = make(300)
    lu = factor_by(method, tmp_path / "Z", a, 200_000)
    assert lapack_ratio(np.asfortranarray(a), lu) < 30
    x = lu_solve(lu, a @ np.ones(300), progress=False)
    assert hpl_residual(a, x, a @ np.ones(300)) < 16


@pytest.mark.parametrize(("system", "n"), SYSTEMS)
def test_in_lower_precision_and_refined(tmp_path: Path, system: System, n: int) -> None:
    a, b, expected = system(n)
    low = "c8" if a.dtype.kind == "c" else "f4"
    x, report = solve(
        on_disk(tmp_path / "Z", a), b, factor_dtype=low, memory="2 MB", progress=False
    )
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)
    assert "refinement" in report.method


@pytest.mark.parametrize(("system", "n"), SYSTEMS)
def test_by_qr(tmp_path: Path, system: System, n: int) -> None:
    a, b, expected = system(n)
    factors = qr_factor(on_disk(tmp_path / "Z", a), memory="2 MB", progress=False)
    assert_factors(a, factors)
    x = qr_solve(factors, b, memory="2 MB", progress=False)
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("system", [hadamard, fourier])
def test_r_of_a_unitary_matrix_is_a_diagonal(tmp_path: Path, system: System) -> None:
    """Factor by slabs with reflections, and stream rows of the first columns."""
    n = 512
    a = system(n)[0]
    size = np.linalg.norm(a[:, 0])
    A = on_disk(tmp_path / "Z", a)
    _, R = q_and_r(qr_factor(A, memory="3 MB", progress=False))
    np.testing.assert_allclose(np.abs(R), size * np.eye(n), atol=1e-11 * size)
    tall = oc.from_array(a[:, :40], tmp_path / "tall")
    R = qr(tall, mode="r", memory="1 MB", progress=False)[0]
    np.testing.assert_allclose(np.abs(R), size * np.eye(40), atol=1e-11 * size)


@pytest.mark.parametrize("system", [hadamard, fourier])
def test_all_singular_values_of_a_unitary_matrix_are_equal(tmp_path: Path, system: System) -> None:
    """The worst case for a random sample: any singular vectors are as good as others."""
    a = system(256)[0]
    size = np.linalg.norm(a[:, 0])
    U, s, Vh, _ = svd(on_disk(tmp_path / "Z", a), 10, memory="3 MB", progress=False)
    np.testing.assert_allclose(s, size, rtol=1e-12)
    some = np.asarray(U[...])
    np.testing.assert_allclose(some.conj().T @ some, np.eye(10), atol=1e-12)
    np.testing.assert_allclose(some.conj().T @ a, s[:, None] * Vh, atol=1e-9 * size)


def test_triangles_of_closed_form(tmp_path: Path) -> None:
    """The triangles of Kac, Murdock & Szegő and of ones have inverses with two diagonals."""
    n, rho = 700, 0.7
    i, j = np.ogrid[:n, :n]
    b = np.random.default_rng(0).standard_normal((n, 5))
    for name, factor, values in (
        ("kms", rho, np.where(i >= j, rho ** np.abs(i - j).astype(float), 0)),
        ("ones", 1.0, np.tri(n)),
    ):
        T = on_disk(tmp_path / name, np.asfortranarray(values))
        x = solve_triangular(T, b, lower=True, memory="1 MB", progress=False)
        expected = b.copy()
        expected[1:] -= factor * b[:-1]
        np.testing.assert_allclose(x, expected, atol=1e-11)
