"""Matrices for which refinement of low-precision factors fails: GMRES, or full precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, hpl_residual, names_below, on_disk, one_thread, random_matrix
from mixed_precision import EPS, LOW, TINY, N, backward_error, mixed

from outcore.errors import NonFiniteError, SingularMatrixError
from outcore.linalg import lu_solve, open_factor

__all__ = ["one_thread"]  # a fixture for every test here


SMALL = 8
"""Small singular values: more than deflation has vectors."""


def conditioned(n: int, condition: float, dtype: Any = "f8", small: int = 1) -> Matrix:
    """Return a matrix of this 2-norm condition: `small` singular values up to 10⁻³, the rest 1."""
    q, r = (np.linalg.qr(random_matrix(n, dtype, seed))[0] for seed in (1, 2))
    values = np.ones(n)
    values[n - small :] = np.geomspace(1e-3, 1 / condition, small) if small > 1 else 1 / condition
    return (q * values) @ r


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("columns", [None, 3])
def test_gmres_where_refinement_stalls(tmp_path: Path, dtype: str, columns: int | None) -> None:
    a = conditioned(N, 1e10, dtype, small=SMALL)
    b = random_matrix(N, dtype, 3)[:, 0 if columns is None else slice(columns)]
    x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert backward_error(a, x, b) < N * EPS
    assert "steps of GMRES" in report.method
    assert report.method.startswith(f"LU in {np.dtype(LOW[dtype])}")
    assert report.bytes_read > 0
    # The error is as small as the condition allows; plain refinement does not reach it.
    exact = scipy.linalg.solve(a, b)
    assert np.linalg.norm(x - exact) < 1e-3 * np.linalg.norm(exact)


def test_some_columns_need_gmres_and_others_do_not(tmp_path: Path) -> None:
    """A right-hand side without the last left singular vectors is easy, the others are hard."""
    a = conditioned(N, 1e10, small=SMALL)
    b = random_matrix(N, "f8", 3)[:, :3]
    worst = scipy.linalg.svd(a)[0][:, -SMALL:]
    b[:, 1] = a @ np.ones(N)
    b[:, 1] -= worst @ (worst.T @ b[:, 1])
    x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert backward_error(a, x, b) < N * EPS
    assert "GMRES" in report.method


@pytest.mark.parametrize("dtype", LOW)
def test_full_precision_where_gmres_stalls(tmp_path: Path, dtype: str) -> None:
    q, r = (np.linalg.qr(random_matrix(N, dtype, seed))[0] for seed in (1, 2))
    a, b = (q * np.geomspace(1, 1e-12, N)) @ r, random_matrix(N, dtype, 3)[:, :2]
    before = names_below(tmp_path)
    A = on_disk(tmp_path / "Z", a)
    x, report = mixed(A, b)
    assert backward_error(a, x, b) < N * EPS
    assert report.method == f"LU in {dtype}, after one in {np.dtype(LOW[dtype])}"
    assert any("refinement stalled at a backward error of" in note for note in report.notes)
    assert any("GMRES at" in note for note in report.notes)
    assert report.backward_error is not None
    assert report.backward_error < N * EPS < report.history[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z"]
    assert before == []
    assert str(report).count("did not suffice") == 1


def test_too_little_memory_for_gmres(tmp_path: Path) -> None:
    """The Krylov spaces of so many columns do not fit in memory."""
    a, b = conditioned(N, 1e10, small=SMALL), random_matrix(N, "f8", 3)[:, :40]
    x, report = mixed(on_disk(tmp_path / "Z", a), b, memory=TINY)
    assert backward_error(a, x, b) < N * EPS
    assert any("memory does not hold what GMRES needs" in note for note in report.notes)


def test_hilbert(tmp_path: Path) -> None:
    a = scipy.linalg.hilbert(N)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="singular to the precision of float64"):
        x, report = mixed(on_disk(tmp_path / "Z", a), a.sum(axis=1))
    assert backward_error(a, x[:, None], a.sum(axis=1)[:, None]) < N * EPS
    assert "refinement" in report.method or "after one in float32" in report.method


def test_singular_in_single_precision_only(tmp_path: Path) -> None:
    a = np.triu(random_matrix(N, "f8") / N) + np.eye(N)
    a[60, 60] = 1e-50
    b = random_matrix(N, "f8", 1)[:, 0]
    with pytest.warns(scipy.linalg.LinAlgWarning, match="in the Frobenius norm is about .*e[+]5"):
        x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert backward_error(a, x, b) < N * EPS
    assert any("A is singular in float32: diagonal number 61" in note for note in report.notes)


def test_singular(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    a[:, 60] = 0
    with pytest.raises(SingularMatrixError, match="diagonal number 61"):
        mixed(on_disk(tmp_path / "Z", a), np.ones(N))
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("large", [1e39, 1e300, -1e300])
def test_too_large_for_single_precision(tmp_path: Path, large: float) -> None:
    a, b = random_matrix(N, "f8"), random_matrix(N, "f8", 1)[:, :2]
    a[201, 17] = large
    with pytest.warns(scipy.linalg.LinAlgWarning, match="badly scaled"):
        x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert hpl_residual(a, x, b) < 16
    assert report.method == "LU in float64, after one in float32"
    assert (
        f"float32 did not suffice: A[201, 17] = {large:.3g} is too large for float32"
        in report.notes
    )
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("what", ["row", "column"])
def test_too_small_for_single_precision(tmp_path: Path, dtype: str, what: str) -> None:
    a, b = random_matrix(N, dtype), random_matrix(N, dtype, 1)[:, :2]
    (a if what == "row" else a.T)[123] *= 1e-60
    with pytest.warns(scipy.linalg.LinAlgWarning, match="badly scaled"):
        x, report = mixed(on_disk(tmp_path / "Z", a), b)
    exact = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b)
    assert np.linalg.norm(x - exact) < 1e-6 * np.linalg.norm(exact)
    assert any(f"{what} 123 of A has no element large enough" in note for note in report.notes)


def test_single_elements_may_vanish(tmp_path: Path) -> None:
    a, b = random_matrix(N, "f8"), np.ones(N)
    a[5:100, 7:150] *= 1e-60
    x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert hpl_residual(a, x, b) < 16
    assert "refinement" in report.method


def test_negative_elements_are_as_large_as_positive_ones(tmp_path: Path) -> None:
    a = -np.abs(random_matrix(N, "f8"))
    x, report = mixed(on_disk(tmp_path / "Z", a), np.ones(N))
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert "refinement" in report.method


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_elements_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    a = random_matrix(N, "f8")
    a[201, 17] = bad
    A = on_disk(tmp_path / "Z", a)
    before = names_below(tmp_path)
    with pytest.raises(NonFiniteError, match=r"A\[201, 17\]") as caught:
        mixed(A, np.ones(N))
    assert caught.value.index == (201, 17)
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("is_singular", [False, True])
def test_full_precision_where_factors_are_kept(tmp_path: Path, is_singular: bool) -> None:
    """Factors in double precision replace the useless ones in single precision."""
    q, r = (np.linalg.qr(random_matrix(N, "f8", seed))[0] for seed in (1, 2))
    a = np.eye(N) if is_singular else (q * np.geomspace(1, 1e-12, N)) @ r
    if is_singular:
        a[:2, :2] = [[1, 1], [1, 1 + 1e-12]]
    b = random_matrix(N, "f8", 3)[:, :2]
    A = on_disk(tmp_path / "Z", a)
    x, report = mixed(A, b, factors=tmp_path / "F", keep_factors=True)
    assert backward_error(a, x, b) < N * EPS
    assert report.method == "LU in float64, after one in float32"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["F", "Z"]
    kept = open_factor(tmp_path / "F")
    assert kept.dtype == np.float64
    np.testing.assert_array_equal(lu_solve(kept, b, memory=TINY, progress=False), x)  # type: ignore[arg-type]


def test_full_precision_beside_low_factors_of_the_users(tmp_path: Path) -> None:
    q, r = (np.linalg.qr(random_matrix(N, "f8", seed))[0] for seed in (1, 2))
    hard = (q * np.geomspace(1, 1e-12, N)) @ r
    b = random_matrix(N, "f8", 3)[:, :2]
    A = on_disk(tmp_path / "Z", hard)
    # The low factors suffice for a zero right-hand side.
    mixed(A, np.zeros((N, 1)), factors=tmp_path / "F", keep_factors=True)
    assert open_factor(tmp_path / "F").dtype == np.float32
    x, report = mixed(A, b, factors=tmp_path / "F", keep_factors=True)
    assert backward_error(hard, x, b) < N * EPS
    assert any(f"the factors in float64 are in {tmp_path / 'Z.lu'}" in n for n in report.notes)
    assert open_factor(tmp_path / "F").dtype == np.float32, "they are the user's"
    assert open_factor(tmp_path / "Z.lu").dtype == np.float64
