"""Factors and results that a call with ``if_exists="open"`` finds, and scripts that run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

import outcore as oc
from outcore.array_files import blocks_done
from outcore.errors import ConvergenceWarning, ExistsError, InvalidError
from outcore.linalg import (
    cg,
    cho_factor,
    cho_solve,
    form_q,
    gauss_seidel,
    gmres,
    gram,
    jacobi,
    lstsq,
    lu_factor,
    lu_solve,
    matmul,
    qr,
    qr_factor,
    qr_solve,
    solve,
    solve_triangular,
    svd,
)
from outcore.linalg._lu.export import export_lapack

N = 60
rng = np.random.default_rng(23)
G = rng.normal(size=(N, N))
SPD = G @ G.T / N + 4 * np.eye(N)
B = rng.normal(size=(N, 3))
OPEN: dict[str, Any] = {"if_exists": "open", "progress": False}
Matrix = npt.NDArray[np.float64]


@pytest.fixture
def A(tmp_path: Path) -> oc.Array:  # noqa: N802  # as the matrix is called
    return oc.from_array(SPD, tmp_path / "A", order="F", progress=False)


def change(array: oc.Array) -> None:
    with oc.open_array(array.path, "r+") as again:
        again[0, 0] = again[0, 0] + 1


FACTOR: dict[str, Callable[..., Any]] = {
    "lu": lu_factor, "cho": cho_factor, "qr": qr_factor
}  # fmt: skip
SOLVE: dict[str, Callable[..., Any]] = {"lu": lu_solve, "cho": cho_solve, "qr": qr_solve}


@pytest.mark.parametrize("kind", FACTOR)
def test_factors_of_the_same_matrix_are_opened(
    A: oc.Array, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = FACTOR[kind]
    first = factor(A, **OPEN)
    monkeypatch.setattr("outcore.linalg._factors.begin._begin", None)
    again = factor(A.path, **OPEN)
    assert again.path == first.path
    assert again.report.flops == first.report.flops
    np.testing.assert_allclose(SOLVE[kind](again, B), scipy.linalg.solve(SPD, B))
    change(A)
    with pytest.raises(ExistsError, match=r"as it was before.*if_exists='overwrite'"):
        factor(A, **OPEN)


def test_factors_of_another_kind_or_matrix_are_not_opened(tmp_path: Path, A: oc.Array) -> None:
    other = oc.from_array(SPD, tmp_path / "other", order="F", progress=False)
    lu_factor(A, out=tmp_path / "F", **OPEN)
    with pytest.raises(ExistsError, match=r"holds LU factors .* or another out="):
        cho_factor(A, out=tmp_path / "F", **OPEN)
    with pytest.raises(ExistsError, match="another out="):
        lu_factor(other, out=tmp_path / "F", **OPEN)
    cho_factor(A, lower=False, **OPEN)
    with pytest.raises(ExistsError, match="lower=False, this call has lower=True"):
        cho_factor(A, **OPEN)
    assert cho_factor(A, lower=False, **OPEN).n == N


def test_a_matrix_that_gave_its_space_to_its_factors(A: oc.Array) -> None:
    path = A.path
    for _ in range(2):
        lu = lu_factor(path, overwrite_a=True, **OPEN)
        np.testing.assert_allclose(lu_solve(lu, B), scipy.linalg.solve(SPD, B))


@pytest.mark.parametrize("wrong", [True, None, "replace"])
def test_other_words_are_refused(A: oc.Array, tmp_path: Path, wrong: Any) -> None:
    for call in (lu_factor, cho_factor, qr_factor):
        with pytest.raises(InvalidError, match="if_exists must be"):
            call(A, if_exists=wrong, progress=False)
    for result in (matmul, solve):
        with pytest.raises(InvalidError, match="if_exists must be"):
            result(A, B, out=tmp_path / "x", if_exists=wrong, progress=False)


def _case(function: Callable[..., Any], make: Callable[..., Any]) -> Any:
    return pytest.param(make, id=function.__name__)


TALL = rng.normal(size=(200, 12))
RESULTS = [
    _case(matmul, lambda A, out: matmul(A, B, out=out, **OPEN)),
    _case(solve_triangular, lambda A, out: solve_triangular(A, B, lower=True, out=out, **OPEN)),
    _case(solve, lambda A, out: solve(A, B, out=out, **OPEN)),
    _case(jacobi, lambda A, out: jacobi(A, B, tol=1e-8, out=out, **OPEN)),
    _case(gauss_seidel, lambda A, out: gauss_seidel(A, B, tol=1e-8, out=out, **OPEN)),
    _case(cg, lambda A, out: cg(A, B, out=out, **OPEN)),
    _case(gmres, lambda A, out: gmres(A, B, preconditioner="jacobi", out=out, **OPEN)),
    _case(gram, lambda A, out: gram(A, out=out, **OPEN)),
    _case(lstsq, lambda A, out: lstsq(A, B, out=out, **OPEN)),
    _case(qr, lambda A, out: qr(A, mode="economic", out=out, **OPEN)),
    _case(svd, lambda A, out: svd(A, 3, tol=None, out=out, **OPEN)),
]  # fmt: skip


def values(returned: Any) -> list[Matrix]:
    parts = returned if isinstance(returned, tuple) else (returned,)
    return [np.asarray(part) for part in parts if isinstance(part, oc.Array | np.ndarray)]


@pytest.mark.parametrize("make", RESULTS)
def test_a_result_of_the_same_call_is_opened(
    A: oc.Array, tmp_path: Path, make: Callable[..., Any]
) -> None:
    out = tmp_path / "result"
    first = make(A, out)
    before = (out / "zarr.json").stat().st_ino, oc.open_array(out).info().generation
    again = make(A.path, out)
    assert ((out / "zarr.json").stat().st_ino, oc.open_array(out).info().generation) == before
    assert len(values(first)) == len(values(again))
    for one, two in zip(values(first), values(again), strict=True):
        np.testing.assert_array_equal(one, two)
    report = again[-1] if isinstance(again, tuple) else again.report
    assert "which an earlier call made" in str(report)
    change(A)
    with pytest.raises(ExistsError, match=r"was made with [AT] .*if_exists='overwrite'"):
        make(A, out)


@pytest.mark.parametrize("kind", SOLVE)
def test_a_solution_with_factors_is_opened(A: oc.Array, tmp_path: Path, kind: str) -> None:
    factor = FACTOR[kind](A, **OPEN)
    x = scipy.linalg.solve(SPD, B)
    for _ in range(2):
        found = SOLVE[kind](factor, B, out=tmp_path / "x", **OPEN)
        np.testing.assert_allclose(found, x)
        assert oc.last_report().n == N
    with pytest.raises(ExistsError, match="was made with b"):
        SOLVE[kind](factor, B + 1, out=tmp_path / "x", **OPEN)
    b = oc.from_array(B, tmp_path / "b", progress=False)
    for _ in range(2):
        np.testing.assert_allclose(SOLVE[kind](factor, b, **OPEN), x)


def test_what_factors_are_made_into_is_opened(A: oc.Array, tmp_path: Path) -> None:
    lu, q = lu_factor(A, **OPEN), qr_factor(A, **OPEN)
    packed = [export_lapack(lu, **OPEN) for _ in range(2)]
    for array, piv, _ in packed:
        np.testing.assert_allclose(
            scipy.linalg.lu_solve((array[...], piv), B), scipy.linalg.solve(SPD, B)
        )
    for _ in range(2):
        Q, _ = form_q(q, **OPEN)
        np.testing.assert_allclose(np.asarray(Q).T @ np.asarray(Q), np.eye(N), atol=1e-12)


def test_other_results_are_not_opened(A: oc.Array, tmp_path: Path) -> None:
    out = tmp_path / "C"
    matmul(A, B, out=out, progress=False)
    with pytest.raises(ExistsError, match="no call with if_exists='open' made it"):
        matmul(A, B, out=out, **OPEN)
    matmul(A, B, out=out, if_exists="overwrite", progress=False)
    with pytest.raises(ExistsError, match="pass if_exists='open'"):
        matmul(A, B, out=out, progress=False)
    out = tmp_path / "D"
    C = matmul(A, B, out=out, **OPEN)
    with pytest.raises(ExistsError, match="alpha"):
        matmul(A, B, alpha=2.0, out=out, **OPEN)
    with pytest.raises(ExistsError, match="function"):
        solve(A, B, out=out, **OPEN)
    C.close()
    change(C)
    with pytest.raises(ExistsError, match="was written to since"):
        matmul(A, B, out=out, **OPEN)
    with pytest.raises(InvalidError, match="needs A= that it can compare"):
        gram(iter([TALL]), out=tmp_path / "G", **OPEN)
    with pytest.raises(InvalidError, match="needs transform= that it can compare"):
        gram(A, transform=lambda rows: rows, out=tmp_path / "G", **OPEN)


def test_warnings_name_the_line_of_the_caller(A: oc.Array, tmp_path: Path) -> None:
    singular = oc.from_array(SPD - np.outer(SPD[:, 0], SPD[0]) / SPD[0, 0] + 1e-15 * np.eye(N),
                             tmp_path / "T", order="F", progress=False)  # fmt: skip
    for call in (
        lambda: cg(A, B, max_iterations=1, progress=False),
        lambda: svd(A, 3, tol=1e-18, progress=False),  # below rounding
        lambda: solve(singular, B, progress=False),
    ):
        with pytest.warns((ConvergenceWarning, scipy.linalg.LinAlgWarning)) as caught:
            call()
        assert {each.filename for each in caught} == {__file__}


class StoppedError(Exception):
    """Stops a script."""


def script(where: Path, stop_at: int) -> tuple[Matrix, Matrix, float]:
    """Run the script of the how-to, stopped before one of its steps or within `fill`."""
    steps = iter(range(100))

    def step() -> None:
        if next(steps) == stop_at:
            raise StoppedError

    def fill(rows: slice, columns: slice) -> Matrix:
        step()
        return SPD[rows, columns]

    A = oc.create_array(
        where / "Z", (N, N), order="F", chunks=(16, N), fill=fill, fill_id="SPD", memory=60_000,
        **OPEN,
    )  # fmt: skip
    step()
    b = oc.from_array(B, where / "b", **OPEN)
    step()
    lu = lu_factor(A, **OPEN)
    step()
    x = lu_solve(lu, b, **OPEN)
    step()
    C = matmul(A, x, out=where / "C", **OPEN)
    step()
    y, report = solve(A, b, out=where / "y", assume_a="pos", **OPEN)
    step()
    np.testing.assert_allclose(y, x)
    return np.asarray(x), np.asarray(C), report.backward_error


@pytest.mark.parametrize("stop_at", range(11))
def test_a_script_can_be_stopped_anywhere_and_run_again(
    tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_done, "SYNC_BYTES", 0)
    if stop_at < 10:
        with pytest.raises(StoppedError):
            script(tmp_path, stop_at)
    for _ in range(3):
        x, C, backward_error = script(tmp_path, 99)
        np.testing.assert_allclose(x, scipy.linalg.solve(SPD, B))
        np.testing.assert_allclose(C, B, atol=1e-12)
        assert backward_error < 1e-14
