"""Matrices of very large and very small numbers: a correct answer, or an error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, on_disk, one_thread, random_matrix
from tall import tall

import outcore as oc
from outcore.errors import InvalidError
from outcore.linalg import (
    cg,
    gauss_seidel,
    gmres,
    gram,
    jacobi,
    lstsq,
    lu_factor,
    lu_solve,
    qr,
    qr_factor,
    solve,
    svd,
)
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._slab_qr.solve import solve_and_report

__all__ = ["one_thread"]  # a fixture for every test here

N = 120
HUGE = 1.2e308
QUIET: dict[str, Any] = {"memory": "8MB", "progress": False}


def signs(m: int, n: int) -> Matrix:
    """Return a matrix with elements of nearly the largest magnitude."""
    return np.sign(tall(m, n, "f8")) * HUGE


@pytest.mark.parametrize("mode", ["r", "economic"])
def test_a_triangle_that_overflows(tmp_path: Path, mode: Any) -> None:
    A = on_disk(tmp_path / "Z", signs(300, 20))
    with pytest.raises(InvalidError, match="overflow float64"):
        qr(A, mode=mode, **QUIET)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]
    R = qr(signs(300, 20) / 1e3, **QUIET)[0]
    want = np.linalg.qr(signs(300, 20) / HUGE, mode="r") * (HUGE / 1e3)
    np.testing.assert_allclose(np.abs(R), np.abs(want), rtol=1e-6, atol=1e-10 * HUGE / 1e3)


@pytest.mark.parametrize("where", [None, "G"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_gram_matrix_that_overflows(tmp_path: Path, where: Any, side: Any) -> None:
    out = None if where is None else tmp_path / where
    with pytest.raises(InvalidError, match="overflow float64"):
        gram(tall(50, 20, "f8") * 1e200, side=side, out=out, **QUIET)
    assert list(tmp_path.iterdir()) == []
    # Sums that are not part of the result may overflow.
    G, _ = gram(np.full((2, 2), 5e153), **QUIET)
    np.testing.assert_allclose(G, 5e307)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        ("f4", 1e-22), ("c8", 1e-22), ("f4", 1e-33), ("f4", 1e22), ("f4", 1e33),
        ("f8", 1e-200), ("c16", 1e-200), ("f8", 1e-290), ("f8", 1e200), ("c16", 1e290),
    ],
)  # fmt: skip
@pytest.mark.parametrize("power", [1, 2])
def test_singular_values(tmp_path: Path, dtype: str, scale: float, order: str, power: int) -> None:
    a = tall(300, 50, dtype) * 0.5 ** np.arange(50)
    # The first rows are smaller than the last ones.
    a[:100] *= 1e-3
    given = (a * scale).astype(dtype)
    A = oc.from_array(given, tmp_path / "Z", order=order, chunks=(40, 50))
    u, s, vh, report = svd(A, 5, seed=1, tol=None, power=power, memory="400KB", progress=False)
    wide = given.astype("c16") / scale
    want = np.linalg.svd(wide, compute_uv=False)
    s = s.astype("f8") / scale
    np.testing.assert_allclose(s, want[:5], rtol=1e-5)
    error = np.linalg.norm(wide - (u.astype("c16") * s) @ vh, 2)
    assert error == pytest.approx(want[5], rel=1e-2)
    rest = np.linalg.norm(want[5:])
    accuracy = 1e-2 if dtype in ("f4", "c8") else 1e-4
    assert error < report.error_bound / scale <= rest * (1 + accuracy)
    np.testing.assert_allclose(report.frobenius_error / scale, rest, rtol=accuracy)
    left = np.linalg.norm(wide.conj().T @ u - vh.conj().T * s, axis=0) / s[0]
    np.testing.assert_allclose(report.triplet_residuals, left, rtol=1e-2, atol=1e-6)


def test_singular_values_of_zeros() -> None:
    _, s, _, report = svd(np.zeros((50, 10)), 3, **QUIET)
    assert (s == 0).all()
    assert report.error_bound == 0


@pytest.mark.parametrize("scale", [1e-290, 1e-200, 1e200, 1e290])
@pytest.mark.parametrize("method", [gauss_seidel, jacobi, cg, gmres])
def test_iterations(tmp_path: Path, method: Any, scale: float) -> None:
    a = random_matrix(N, "f8")
    a = (a + a.T) / 2 + 3 * N**0.5 * np.eye(N)
    b = random_matrix(N, "f8", 1)[:, :2]
    A = on_disk(tmp_path / "Z", a * scale)
    x, report = method(A, b, tol=1e-10, **QUIET)
    np.testing.assert_allclose(x * scale, np.linalg.solve(a, b), rtol=1e-7, atol=1e-9)
    # As many steps as in the middle of the range.
    alike = method(on_disk(tmp_path / "Y", a), b, tol=1e-10, **QUIET)[1]
    assert len(report.history) == len(alike.history)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("method", [gauss_seidel, jacobi, cg, gmres])
def test_iterations_that_overflow(tmp_path: Path, method: Any, dtype: str) -> None:
    a = np.full((N, N), np.finfo(dtype).max / 2, dtype)
    with pytest.raises(InvalidError, match=f"overflow {np.dtype(dtype).name}"):
        method(on_disk(tmp_path / "Z", a), np.ones(N), **QUIET)


def test_factors_that_overflow(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", signs(N, N))
    with (
        pytest.warns(oc.errors.GrowthWarning),
        pytest.raises(InvalidError, match="overflow float64"),
    ):
        solve(A, np.ones(N), **QUIET)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]
    with pytest.warns(oc.errors.GrowthWarning):
        lu = lu_factor(A, **QUIET)
    with pytest.raises(InvalidError, match="overflow float64"):
        lu_solve(lu, np.ones(N), **QUIET)


def test_norms_that_overflow_although_nothing_else_does(tmp_path: Path) -> None:
    a = np.diag(np.full(N, 1e307)) + np.full((N, N), 2e306)
    x, report = solve(on_disk(tmp_path / "Z", a), np.full(N, 1e307), **QUIET)
    np.testing.assert_allclose(x, np.linalg.solve(a / 1e307, np.ones(N)), rtol=1e-12)
    assert report.probed_condition is not None
    assert report.probed_condition < 1e4
    assert report.backward_error is not None
    assert report.backward_error < 1e-13


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [("f4", 1e-22), ("f4", 1e36), ("f8", 1e-300), ("f8", 1e-200), ("f8", 1e200), ("c16", 1e300)],
)
@pytest.mark.parametrize("by_slabs", [False, True])
def test_residuals_of_least_squares(
    tmp_path: Path, dtype: str, scale: float, by_slabs: bool
) -> None:
    a, b = tall(200, 20, dtype), tall(200, 3, dtype)[:, 1:]
    if by_slabs:
        qr = qr_factor(on_disk(tmp_path / "Z", (a * scale).astype(dtype)), **QUIET)
        rhs = RightHandSide.read(
            200, qr.dtype, (b * scale).astype(dtype), "N", None, if_exists="error", unknowns=20
        )
        found = solve_and_report(qr, rhs, 1 << 23, None, False, 0)
        x, residuals = found.x, found.residual_norms
    else:
        x, report = lstsq((a * scale).astype(dtype), (b * scale).astype(dtype), **QUIET)
        residuals = report.residual_norms
    want = np.linalg.lstsq(a, b, rcond=None)[0]
    rtol = 1e4 * np.finfo(dtype).eps
    np.testing.assert_allclose(x, want, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(
        np.array(residuals) / scale, np.linalg.norm(b - a @ want, axis=0), rtol=rtol
    )


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_damping(scale: float) -> None:
    a, b = tall(200, 20, "f8"), tall(200, 3, "f8")[:, 2]
    x, report = lstsq(a * scale, b * scale, damp=scale, **QUIET)
    want = np.linalg.solve(a.T @ a + np.eye(20), a.T @ b)
    np.testing.assert_allclose(x, want, rtol=1e-10)
    norm = np.linalg.norm(b - a @ want)
    np.testing.assert_allclose(np.array(report.residual_norms) / scale, norm, rtol=1e-10)


@pytest.mark.parametrize(
    ("dtype", "size"), [("f8", 5e-324), ("f8", 1.6e308), ("f4", 1e-45), ("f4", 3.2e38)]
)
@pytest.mark.parametrize("method", [gauss_seidel, jacobi, cg, gmres])
def test_right_hand_sides_at_the_ends_of_the_range(
    tmp_path: Path, method: Any, dtype: str, size: float
) -> None:
    A = on_disk(tmp_path / "Z", np.diag(np.full(N, 1, dtype)))
    b = np.zeros((N, 3), dtype)
    b[::2, 0] = size
    b[:, 2] = 1
    x, _ = method(A, b, tol=1e-5, **QUIET)
    np.testing.assert_allclose(x, b, rtol=1e-6)
