"""Block Jacobi against its definition; progress of all methods; saved factors of complex types."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from iterative_cases import DTYPES, LAYOUTS, dominant, kms, on_disk, random, residual
from linpack import Matrix, one_thread

from outcore.errors import DiskFullError
from outcore.linalg import cg, gauss_seidel, gmres, jacobi, lu_factor, open_factor

__all__ = ["one_thread"]  # a fixture for every test here

N = 150
METHODS = [gauss_seidel, jacobi, cg, gmres]


def defined(
    a: Matrix, b: Matrix, x: Matrix, block: int, omega: float, sweeps: int
) -> tuple[Matrix, list[float]]:
    """Compute x <- x + ω D⁻¹ (b - A x), and the residuals after each step."""
    number, history = np.arange(len(a)) // block, []
    D = np.where(number[:, None] == number, a, 0)
    for _ in range(sweeps):
        x = x + omega * np.linalg.solve(D, b - a @ x)
        norms = np.linalg.norm(b - a @ x, axis=0) / np.linalg.norm(b, axis=0)
        history.append(float(norms.max()))
    return x, history


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_the_iterates_of_jacobi_are_those_of_the_definition(
    tmp_path: Path, order: str, chunks: tuple[int, int], dtype: str
) -> None:
    a, b, x0 = dominant(N, dtype), random((N, 2), dtype, 1), random((N, 2), dtype, 2)
    A = on_disk(tmp_path / "A", a, order, chunks)
    wide = np.result_type(dtype, "f8")
    eps = float(np.finfo(dtype).eps)
    for omega, guess, block in ((1.0, None, 64), (0.7, x0, 64), (1.1, x0, N)):
        start = np.zeros_like(b) if guess is None else guess
        want, history = defined(a.astype(wide), b.astype(wide), start.astype(wide), block, omega, 5)
        x, report = jacobi(
            A, b, x0=guess, omega=omega, block=block, tol=None, max_sweeps=5, progress=False
        )
        np.testing.assert_allclose(x, want, rtol=0, atol=50 * eps * np.abs(want).max())
        np.testing.assert_allclose(report.history, history, rtol=1e-3, atol=50 * eps)


@pytest.mark.parametrize("assume_a", ["sym", "her"])
def test_jacobi_of_one_triangle_makes_the_same_iterates(tmp_path: Path, assume_a: Any) -> None:
    a = kms(N, 0.3 + 0.2j) + 3 * np.eye(N)
    if assume_a == "sym":
        a = np.tril(a) + np.tril(a, -1).T
    b = random((N, 2), "c16", 1)
    want, history = defined(a, b, np.zeros_like(b), 32, 1.0, 5)
    above = np.subtract.outer(np.arange(N) // 32, np.arange(N) // 32) < 0
    A = on_disk(tmp_path / "A", np.where(above, np.nan, a))
    x, report = jacobi(A, b, assume_a=assume_a, block=32, tol=None, max_sweeps=5, progress=False)
    np.testing.assert_allclose(x, want, rtol=0, atol=1e-14 * np.abs(want).max())
    np.testing.assert_allclose(report.history, history, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ends", ["met", "all"])
def test_progress_rises_to_the_end(
    tmp_path: Path, method: Any, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # each reading of the clock is a second later
    monkeypatch.setattr(
        "outcore._util.progress.time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    A, b = on_disk(tmp_path / "A", kms(N, 0.6)), random((N, 2), "f8", 1)
    told: list[tuple[float, float]] = []
    most = "max_sweeps" if method in (gauss_seidel, jacobi) else "max_iterations"
    options = {"tol": 1e-8} if ends == "met" else {"tol": None, most: 7}
    if method in (gauss_seidel, jacobi):
        options["block"] = 16
    if method is jacobi:
        options["omega"] = 0.5
    method(A, b, progress=lambda *now: told.append(now), **options)
    fractions = [fraction for fraction, _ in told]
    assert len(fractions) > 4
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert all(0 <= fraction <= 1 and left >= 0 for fraction, left in told)
    assert told[-1][1] == 0


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_saved_factors_of_complex_types_that_are_opened_again(tmp_path: Path, dtype: str) -> None:
    a = (random((N, N), "c16") / np.sqrt(N) + 1.5 * np.eye(N)).astype(dtype)
    b = random((N, 2), dtype, 1)
    A = on_disk(tmp_path / "A", a)
    near = on_disk(tmp_path / "near", a + (1e-3 * random((N, N), "c16", 5)).astype(dtype), "F")
    lu_factor(near, out=tmp_path / "lu", memory=400_000, progress=False)
    tol = 100 * float(np.finfo(dtype).eps)
    x, report = gmres(
        A, b, preconditioner=open_factor(tmp_path / "lu"), tol=tol, memory=1 << 20, progress=False
    )
    assert residual(a, x, b) < tol
    assert len(report.history) <= 12
    assert report.bytes_read == report.planned_bytes_read
    # Single-precision factors for a double-precision matrix, and real ones for a complex matrix.
    if dtype == "c8":
        wide = on_disk(tmp_path / "wide", a.astype("c16"))
        x, report = gmres(
            wide, b.astype("c16"), preconditioner=open_factor(tmp_path / "lu"), tol=1e-12,
            progress=False,
        )  # fmt: skip
        assert residual(a.astype("c16"), x, b) < 1e-12
    real = lu_factor(on_disk(tmp_path / "real", np.ascontiguousarray(a.real), "F"), progress=False)
    x, _ = gmres(A, b, preconditioner=real, tol=tol, progress=False)
    assert residual(a, x, b) < tol


@pytest.mark.parametrize("method", METHODS)
def test_a_disk_too_full_for_the_solution(small_disk: Path, tmp_path: Path, method: Any) -> None:
    """The error precedes any sweep, and the failed call frees its space."""
    n, columns = 512, 20_000
    A = on_disk(tmp_path / "A", 4 * np.eye(n))
    b = np.broadcast_to(np.ones((n, 1)), (n, columns))
    with pytest.raises(DiskFullError, match=r"need \d+ bytes"):
        method(A, b, out=small_disk / "x", memory="64 MB", progress=False)
    assert [path.name for path in small_disk.iterdir()] == ["lost+found"]
    x, _ = method(A, b[:, :50], out=small_disk / "x", memory="64 MB", progress=False)
    np.testing.assert_allclose(x[...], 0.25)
