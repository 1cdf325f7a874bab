"""Solve with factors on disk: any number of right-hand sides, one read of each triangle."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import (
    Matrix,
    hpl_residual,
    names_below,
    on_disk,
    one_thread,
    random_matrix,
    solve_ratio,
)
from lu_by_method import CHOSEN, assert_chosen, factor_by, row_major, slow_disk
from solutions_on_disk import assert_in_groups

import outcore as oc
from outcore.errors import BudgetError, ConsumedError, ExistsError, SingularMatrixError
from outcore.linalg import LUFactor, lu_factor, lu_solve, open_factor, solve
from outcore.linalg._geometry.factor_plan import DTYPES, solve_bytes_read
from outcore.linalg._lu.solve import solve_and_report
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.report.report import Report

__all__ = ["one_thread", "slow_disk"]  # fixtures

N, TINY = 333, 400_000


def reported(lu: LUFactor, b: Any, trans: Any = "N") -> tuple[Any, Report]:
    rhs = RightHandSide.read(lu.n, lu.dtype, b, trans, None, if_exists="error")
    return solve_and_report(lu, rhs, TINY, None, False)


@pytest.fixture(scope="module", params=DTYPES)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Matrix, LUFactor]:
    """Return a well-conditioned matrix and its factors, in each of four types."""
    a = random_matrix(N, request.param) + (10 * np.eye(N)).astype(request.param)
    A = on_disk(tmp_path_factory.mktemp("system") / "Z", a)
    return a, lu_factor(A, memory=TINY, threads=1, progress=False)


def operated(a: Matrix, trans: Any) -> Matrix:
    return {"N": a, "T": a.T, "C": a.conj().T}[{0: "N", 1: "T", 2: "C"}.get(trans, trans)]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("trans", [0, 1, 2, "N", "T", "C"])
@pytest.mark.parametrize("columns", [None, 1, 7])
def test_as_scipy(system: tuple[Matrix, LUFactor], trans: Any, columns: int | None) -> None:
    a, lu = system
    b = random_matrix(N, a.dtype, 1)[:, 0 if columns is None else slice(columns)]
    given = b.copy()
    x = lu_solve(lu, b, trans=trans, memory=TINY, progress=False)
    assert x.shape == b.shape
    assert x.dtype == a.dtype
    assert hpl_residual(operated(a, trans), x, b) < 16
    assert solve_ratio(operated(a, trans), x, b) < 30
    expected = scipy.linalg.lu_solve(
        scipy.linalg.lu_factor(a), b, trans={"N": 0, "T": 1, "C": 2}.get(trans, trans)
    )
    tolerance = 1e4 * np.finfo(a.dtype).eps
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(b, given)


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_complex_right_hand_sides_of_any_matrix(
    system: tuple[Matrix, LUFactor], trans: int
) -> None:
    a, lu = system
    b = random_matrix(N, np.result_type(a.dtype, np.complex64), 2)[:, :3]
    for given in (b, b[:, 0]):
        x = lu_solve(lu, given, trans=trans, memory=TINY, progress=False)
        assert x.shape == given.shape
        assert x.dtype == np.result_type(a.dtype, np.complex64)
        wide = operated(a, trans).astype(x.dtype)
        assert hpl_residual(wide, x, given.astype(x.dtype)) < 16


@pytest.mark.parametrize("kind", ["list", "int", "bool", "f2", "C order", "strided", "reversed"])
def test_any_numbers_in_any_layout(system: tuple[Matrix, LUFactor], kind: str) -> None:
    a, lu = system
    draw = np.random.default_rng(3)
    b: Any = draw.integers(-9, 9, (N, 4))
    if kind == "list":
        b = b.tolist()
    elif kind in ("bool", "f2"):
        b = b.astype(kind)
    elif kind != "int":
        b = draw.standard_normal((2 * N, 8))
        b = {"C order": b[:N], "strided": b[::2, ::2], "reversed": b[:N][::-1, ::-1]}[kind]
    x = lu_solve(lu, b, memory=TINY, progress=False)
    assert hpl_residual(a, x, np.asarray(b, a.dtype)) < 16


def test_no_right_hand_side_at_all(system: tuple[Matrix, LUFactor]) -> None:
    _, lu = system
    x = lu_solve(lu, np.empty((N, 0), lu.dtype), progress=False)
    assert x.shape == (N, 0)


@pytest.mark.parametrize("columns", [1, 5, 100])
@pytest.mark.parametrize("trans", ["N", "T"])
def test_one_pass_for_all(system: tuple[Matrix, LUFactor], columns: int, trans: Any) -> None:
    """Read the tiles of each panel once, and the diagonal tile twice: for L and for U."""
    a, lu = system
    _, report = reported(lu, random_matrix(N, a.dtype)[:, :columns], trans)
    rows, width = lu.tile
    tiles, panels = -(-N // rows), -(-N // width)
    tile_bytes = -(-rows * width * a.dtype.itemsize // 4096) * 4096
    assert report.bytes_read == report.planned_bytes_read == panels * (tiles + 1) * tile_bytes
    assert solve_bytes_read(N, lu.dtype, lu.tile) == report.bytes_read
    assert report.peak_memory_bytes <= TINY


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("b_type", ["same", "f8", "c16"])
def test_on_disk_in_groups(system: tuple[Matrix, LUFactor], tmp_path: Path, b_type: str) -> None:
    a, lu = system
    b = random_matrix(N, a.dtype if b_type == "same" else b_type, 4)[:, :320]
    B = oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    x, report = reported(lu, B)
    assert_in_groups(x, report, b.nbytes, solve_bytes_read(N, lu.dtype, lu.tile), TINY)
    assert isinstance(x, oc.Array)
    assert x.path == tmp_path / "b.x"
    assert x.info().state == "whole"
    solution = x[...]
    assert solution.dtype == np.result_type(lu.dtype, np.complex64 if b_type == "c16" else lu.dtype)
    exact = b.astype(np.result_type(a.dtype, "c8") if b_type == "c16" else a.dtype)
    assert hpl_residual(a.astype(solution.dtype), solution, exact) < 16
    at_once = lu_solve(lu, b, memory=TINY, progress=False)
    np.testing.assert_allclose(at_once, solution, rtol=0, atol=1e4 * np.finfo(a.dtype).eps)


def test_solutions_go_where_they_are_wanted(
    system: tuple[Matrix, LUFactor], tmp_path: Path
) -> None:
    a, lu = system
    b = random_matrix(N, a.dtype, 5)[:, :6]
    for given in (b, b[:, 2]):
        out = tmp_path / "deep" / f"x{given.ndim}"
        x = lu_solve(lu, given, out=out, memory=TINY, progress=False)
        assert x.path == out
        assert x.shape == given.shape
        assert hpl_residual(a, x[...], given) < 16
    before = names_below(tmp_path)
    with pytest.raises(ExistsError, match="another out="):
        lu_solve(lu, b, out=out, progress=False)
    assert names_below(tmp_path) == before


@pytest.mark.exhaustive(every=3)
def test_every_budget_from_the_least_on_suffices(
    system: tuple[Matrix, LUFactor], tmp_path: Path
) -> None:
    a, lu = system
    b = random_matrix(N, a.dtype, 6)[:, :9]
    for number, out in enumerate([None, tmp_path / "x"]):
        with pytest.raises(BudgetError, match="need") as refused:
            lu_solve(lu, b, memory=1000, out=out, progress=False)
        least = int(str(refused.value).split()[1])
        with pytest.raises(BudgetError, match=f"need {least} "):
            lu_solve(lu, b, memory=least - 1, out=out, progress=False)
        assert not (tmp_path / "x").exists()
        for memory in (least, least + 4096, 2 * least):
            target = None if out is None else tmp_path / f"x{number}{memory}"
            x = lu_solve(lu, b, memory=memory, out=target, progress=False)
            assert hpl_residual(a, x[...], b) < 16


def test_factors_opened_later(system: tuple[Matrix, LUFactor]) -> None:
    a, lu = system
    again = open_factor(lu.path)
    assert again.report is None
    assert (again.n, again.dtype, again.tile, again.places) == (N, a.dtype, lu.tile, lu.places)
    assert (again.norm1, again.growth, again.info) == (lu.norm1, lu.growth, lu.info)
    np.testing.assert_array_equal(again.piv, lu.piv)
    b = random_matrix(N, a.dtype, 7)[:, 0]
    np.testing.assert_array_equal(
        lu_solve(again, b, threads=1, progress=False), lu_solve(lu, b, threads=1, progress=False)
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_solve_in_one_call(tmp_path: Path, dtype: str, order: str) -> None:
    a = random_matrix(300, dtype)
    A = oc.from_array(a, tmp_path / "Z", order=order, chunks=(77, 60))
    b = random_matrix(300, dtype, 1)[:, :4]
    before = names_below(tmp_path)
    x, report = solve(A, b, memory=TINY, progress=False)
    assert names_below(tmp_path) == before, "the factors go"
    assert hpl_residual(a, x, b) < 16
    wide = a.astype(np.result_type(dtype, "f8"))
    scale = np.linalg.norm(a, 1) * np.abs(x).sum(axis=0) + np.abs(b).sum(axis=0)
    errors = np.abs(wide @ x - b).sum(axis=0) / scale
    assert report.backward_error is not None
    assert report.backward_error < 300 * np.finfo(dtype).eps
    if dtype in ("float64", "complex128"):
        assert report.backward_error == pytest.approx(errors.max(), rel=0.5)
    assert report.verb == "solve"
    assert report.growth is not None
    # LU reads A and the factors; the rest of the call reads both again.
    assert report.bytes_read >= 3 * A.nbytes


def test_the_backward_error_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward error exposes a solution with an error of 10⁻⁶."""
    a = random_matrix(200, "f8")
    A = on_disk(tmp_path / "Z", a)
    lu = lu_factor(A, memory=TINY, progress=False)
    piv = oc.open_array(lu.path / "lu", "r+")
    piv[100, 100] = piv[100, 100] * (1 + 1e-6)
    piv.close()
    _, report = solve(A, np.ones(200), memory=TINY, progress=False)
    assert report.backward_error is not None
    assert 1e-12 < report.backward_error < 1e-5


def test_ready_factors_are_used_and_kept(tmp_path: Path) -> None:
    a, b = random_matrix(250, "f8"), np.ones(250)
    A = on_disk(tmp_path / "Z", a)
    x, report = solve(A, b, memory=TINY, keep_factors=True, progress=False)
    assert report.bytes_written > 0
    assert hpl_residual(a, x, b) < 16
    again, report = solve(A, b, memory=TINY, progress=False)
    assert report.bytes_written == 0
    assert any("used the factors" in note for note in report.notes)
    np.testing.assert_array_equal(again, x)
    assert open_factor(tmp_path / "Z.lu").n == 250
    # After a change of the matrix, the factors belong to another matrix.
    with oc.open_array(A.path, "r+") as array:
        array[0, 0] = 7
    with pytest.raises(ExistsError):
        solve(A, b, memory=TINY, progress=False)
    a[0, 0] = 7
    elsewhere, _ = solve(A, b, memory=TINY, factors=tmp_path / "F", progress=False)
    assert hpl_residual(a, elsewhere, b) < 16
    assert not (tmp_path / "F").exists()


def test_factors_of_a_matrix_made_anew_are_not_used(tmp_path: Path) -> None:
    """The new matrix has the same generation as the old one, but other contents."""
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "Z", ignore_errors=True)
        A = on_disk(tmp_path / "Z", random_matrix(100, "f8", seed))
        if seed == 0:
            solve(A, np.ones(100), keep_factors=True, progress=False)
    with pytest.raises(ExistsError, match="as it was before"):
        solve(A, np.ones(100), progress=False)
    x, _ = solve(A, np.ones(100), if_exists="overwrite", progress=False)
    assert hpl_residual(random_matrix(100, "f8", 1), x, np.ones(100)) < 16


def test_solve_on_disk(tmp_path: Path) -> None:
    a, b = random_matrix(250, "c16"), random_matrix(250, "c16", 1)[:, :40]
    A, B = on_disk(tmp_path / "Z", a), oc.from_array(b, tmp_path / "b")
    x, report = solve(A, B, memory=TINY, out=tmp_path / "x", progress=False)
    assert hpl_residual(a, x[...], b) < 16
    assert report.backward_error is not None
    assert report.backward_error < 1e-13
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "b", "x"]


def test_solve_may_use_up_the_matrix(tmp_path: Path) -> None:
    a, b = random_matrix(250, "f8"), np.ones(250)
    A = on_disk(tmp_path / "Z", a, chunks=(64, 32))
    with pytest.raises(oc.OutcoreError, match="right-hand side"):
        solve(A, b[1:], memory="1 MB", overwrite_a=True, progress=False)
    np.testing.assert_array_equal(A[...], a)
    x, report = solve(A, b, memory="1 MB", overwrite_a=True, keep_factors=True, progress=False)
    assert hpl_residual(a, x, b) < 16
    assert report.backward_error is None
    assert any("gave its space" in note for note in report.notes)
    with pytest.raises(ConsumedError):
        oc.open_array(tmp_path / "Z")
    # As for a call that was stopped after the factorization.
    again, _ = solve(tmp_path / "Z", b, memory="1 MB", progress=False)
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("keep", [False, True])
def test_a_singular_matrix_is_an_error_not_a_warning(tmp_path: Path, keep: bool) -> None:
    a = random_matrix(120, "f8")
    a[:, 60] = 0
    with pytest.raises(SingularMatrixError, match="diagonal number 61") as caught:
        solve(on_disk(tmp_path / "Z", a), np.ones(120), keep_factors=keep, progress=False)
    assert caught.value.info == 61
    assert (tmp_path / "Z.lu").exists() is keep


@pytest.mark.exhaustive(keep=2)
@CHOSEN
def test_solve_chooses_how_it_factors(
    tmp_path: Path, slow_disk: None, method: str, dtype: str, n: int, memory: int
) -> None:
    a, b = random_matrix(n, dtype), random_matrix(n, dtype, 1)[:, :3]
    expected = scipy.linalg.solve(a, b)
    A = row_major(tmp_path / "Z", a)
    x, report = solve(A, b, memory=memory, progress=False)
    assert_chosen(method, report, memory)
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)
    assert hpl_residual(a, x, b) < 16
    assert report.backward_error is not None
    assert report.backward_error < 1e-14
    assert report.probed_condition is not None
    exact = float(np.linalg.norm(a, 1) * np.linalg.norm(np.linalg.inv(a)))
    assert exact / 20 < report.probed_condition < 5 * exact
    assert [p.name for p in tmp_path.iterdir()] == ["Z"], "the factors go"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_solve_uses_factors_by_any_method(tmp_path: Path, method: str, dtype: str) -> None:
    """A budget too small to make the factors suffices to use them."""
    n = 400
    a, b = random_matrix(n, dtype), random_matrix(n, dtype, 1)[:, :3]
    lu = factor_by(method, tmp_path / "Z", a, 300_000)
    assert lu.report is not None
    assert lu.report.method.startswith(method.replace("tournament", "tournament pivoting of"))
    x, report = solve(lu.source, b, memory=150_000, progress=False)
    np.testing.assert_allclose(x, scipy.linalg.solve(a, b), rtol=1e-9, atol=1e-10)
    assert report.bytes_written == 0
    assert report.peak_memory_bytes <= 150_000
    assert any("used the factors" in note for note in report.notes)
    for trans in ("T", "C"):
        x = lu_solve(lu, b, trans=trans, memory=150_000, progress=False)
        expected = scipy.linalg.solve(operated(a, trans), b)
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)
    a[:, 300] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 301 is exactly zero"):
        lu = factor_by(method, tmp_path / "Y", a, 300_000)
    with pytest.raises(SingularMatrixError, match="diagonal number 301"):
        solve(lu.source, b, memory=150_000, progress=False)
