"""Krylov methods end where more steps gain nothing, and errors report the steps until then."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iterative_cases import kms, on_disk, poisson, random, residual
from linpack import Matrix, one_thread

from outcore.convergence_plot import draw_convergence
from outcore.errors import ConvergenceWarning, DivergenceError, NotPositiveDefiniteError
from outcore.linalg import cg, gauss_seidel, gmres

__all__ = ["one_thread"]  # a fixture for every test here


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::outcore.errors.ConvergenceWarning")
@pytest.mark.parametrize("preconditioner", [None, "jacobi", "ssor"])
@pytest.mark.parametrize("tol", [0, None])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_cg_goes_as_far_as_rounding(
    tmp_path: Path, dtype: str, tol: Any, preconditioner: Any
) -> None:
    """The residual recurrence keeps shrinking; once its squares underflow, no step is left."""
    a = kms(150, 0.3).astype(dtype)
    A = on_disk(tmp_path / "A", a)
    eps = float(np.finfo(dtype).eps)
    for b in (random((150, 2), dtype, 1), np.ones((150, 1), dtype)):
        x, report = cg(A, b, tol=tol, preconditioner=preconditioner, progress=False)
        assert residual(a, x, b) < 20 * eps
        assert len(report.history) == 1000 if tol is None else len(report.history) < 200
    # A right-hand side of 0 with an initial x that is not 0.
    x, _ = cg(A, 0 * b, x0=b, tol=None, preconditioner=preconditioner, progress=False)
    assert np.abs(x).max() < 20 * eps


def test_cg_still_refuses_an_indefinite_matrix_and_says_how_far_it_came(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", poisson(12) - 2 * np.eye(144))
    with pytest.raises(NotPositiveDefiniteError, match="in iteration") as found:
        cg(A, random(144, "f8"), tol=None, progress=False)
    steps = len(found.value.history)
    assert f"in iteration {steps + 1};" in str(found.value)
    assert steps > 0


SINGULAR: list[tuple[Matrix, float]] = [
    (np.zeros((32, 32)), 1.0),
    (np.diag(np.arange(32.0)), 1 / np.sqrt(32)),
    (np.eye(32, k=1), 1 / np.sqrt(32)),
]
"""Matrices, and the least residual for a right-hand side of ones."""


def same(R: Matrix) -> Matrix:
    return R


@pytest.mark.parametrize("preconditioner", [None, same])
@pytest.mark.parametrize(("a", "least"), SINGULAR)
def test_gmres_ends_on_a_singular_matrix(
    tmp_path: Path, a: Matrix, least: float, preconditioner: Any
) -> None:
    A, b = on_disk(tmp_path / "A", a), np.ones(32)
    with pytest.warns(ConvergenceWarning, match="ended after"):
        x, report = gmres(A, b, tol=1e-10, preconditioner=preconditioner, progress=False)
    assert len(report.history) <= 160
    assert report.history[-1] == pytest.approx(least)
    assert np.linalg.norm(b - a @ x) / np.linalg.norm(b) == pytest.approx(least)
    # The call makes all requested steps, and they change nothing.
    x, report = gmres(
        A, b, tol=None, max_iterations=99, preconditioner=preconditioner, progress=False
    )
    assert len(report.history) == 99
    assert np.linalg.norm(b - a @ x) / np.linalg.norm(b) == pytest.approx(least)


def test_gmres_ends_where_each_restart_is_the_same(tmp_path: Path) -> None:
    A, b = on_disk(tmp_path / "A", np.roll(np.eye(64), 1, axis=0)), np.eye(64)[0]
    with pytest.warns(ConvergenceWarning):
        _, report = gmres(A, b, progress=False)
    assert report.history == [1.0] * 30


def test_gmres_of_other_columns_goes_on(tmp_path: Path) -> None:
    """One column stalls while the other converges."""
    a = np.roll(np.eye(64), 1, axis=0)
    a = np.block([[a, np.zeros((64, 64))], [np.zeros((64, 64)), 3 * np.eye(64) + kms(64)]])
    b = np.zeros((128, 2))
    b[0, 0], b[64:, 1] = 1, random(64, "f8")
    with pytest.warns(ConvergenceWarning):
        x, _ = gmres(
            on_disk(tmp_path / "A", a), b, tol=1e-10, restart=5, max_iterations=300, progress=False
        )
    assert residual(a, x[:, 1:], b[:, 1:]) < 1e-10


def test_what_diverges_has_a_history(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", random((150, 150), "f8"))
    with pytest.raises(DivergenceError, match="steps the residual grew") as found:
        gauss_seidel(A, np.ones(150), block=16, direction="forward", progress=False)
    history = found.value.history
    assert f"of {len(history)} steps" in str(found.value)
    for sweeps in range(1, min(len(history), 4)):
        with pytest.warns(ConvergenceWarning):
            _, report = gauss_seidel(
                A, np.ones(150), block=16, direction="forward", max_sweeps=sweeps, progress=False
            )
        assert report.history == history[:sweeps]
    for given in (found.value, {"of a": found.value, "b": report}):
        picture = draw_convergence(given, tmp_path / "a.svg")  # type: ignore[arg-type]
        assert picture.stat().st_size > 1000
