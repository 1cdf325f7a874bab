"""Solving with a Cholesky factor on disk: any number of right-hand sides, two passes over L."""

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from definite import definite, lower_only
from linpack import Matrix, hpl_residual, names_below, on_disk, one_thread, random_matrix
from solutions_on_disk import assert_in_groups
from stopping import interrupt

import outcore as oc
from outcore._util import progress
from outcore.errors import (
    BudgetError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
    NotFoundError,
)
from outcore.linalg import CholeskyFactor, cho_factor, cho_solve, lu_factor, open_factor
from outcore.linalg._factors.sweeps import sweep_bytes_of
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._lu.solve import solve_and_report
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.report.report import Report

__all__ = ["one_thread"]  # a fixture for every test here

N, TINY = 333, 300_000


def reported(
    c: CholeskyFactor, b: Any, memory: int = TINY, shown: Any = False
) -> tuple[Any, Report]:
    rhs = RightHandSide.read(c.n, c.dtype, b, "N", None, if_exists="error")
    return solve_and_report(c, rhs, memory, None, shown)


@pytest.fixture(scope="module", params=DTYPES)
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Matrix, CholeskyFactor]:
    """Return a matrix and its factor in each of four types; two overwrite A, out of order."""
    a, overwrite_a = definite(N, request.param), request.param in ("float32", "complex128")
    A = on_disk(tmp_path_factory.mktemp("system") / "Z", lower_only(a), (64, 16))
    c = cho_factor(A, memory=TINY, overwrite_a=overwrite_a, threads=1, progress=False)
    assert (c.places == tuple(range(len(c.places)))) == (not overwrite_a)
    return a, c


@pytest.mark.parametrize("columns", [None, 1, 7])
def test_as_scipy(system: tuple[Matrix, CholeskyFactor], columns: int | None) -> None:
    a, c = system
    b = random_matrix(N, a.dtype, 1)[:, 0 if columns is None else slice(columns)]
    given = b.copy()
    x = cho_solve(c, b, memory=TINY, progress=False)
    assert x.shape == b.shape
    assert x.dtype == a.dtype
    assert hpl_residual(a, x, b) < 16
    expected = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a, lower=True), b)
    tolerance = 1e4 * np.finfo(a.dtype).eps
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(b, given)


def test_complex_right_hand_sides_of_any_matrix(system: tuple[Matrix, CholeskyFactor]) -> None:
    a, c = system
    b = random_matrix(N, np.result_type(a.dtype, np.complex64), 2)[:, :3]
    for given in (b, b[:, 0]):
        x = cho_solve(c, given, memory=TINY, progress=False)
        assert x.shape == given.shape
        assert x.dtype == np.result_type(a.dtype, np.complex64)
        assert hpl_residual(a.astype(x.dtype), x, given.astype(x.dtype)) < 16


def test_no_right_hand_side_at_all(system: tuple[Matrix, CholeskyFactor]) -> None:
    x = cho_solve(system[1], np.empty((N, 0), system[1].dtype), progress=False)
    assert x.shape == (N, 0)


@pytest.mark.parametrize("columns", [1, 5, 100])
def test_two_passes_for_all(system: tuple[Matrix, CholeskyFactor], columns: int) -> None:
    """Each pass reads the tiles on and below the diagonal."""
    a, c = system
    _, report = reported(c, random_matrix(N, a.dtype)[:, :columns])
    rows, width = c.tile
    tiles = [(i, j) for i in range(0, N, rows) for j in range(0, N, width) if i + rows > j]
    expected = 2 * len(tiles) * rows * width * a.dtype.itemsize
    assert report.bytes_read == report.planned_bytes_read == expected
    assert sweep_bytes_of(c) == expected
    assert report.peak_memory_bytes <= TINY
    assert report.flops == 2 * N**2 * columns * (4 if a.dtype.kind == "c" else 1)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("b_type", ["same", "c16"])
def test_on_disk_in_groups(
    system: tuple[Matrix, CholeskyFactor], tmp_path: Path, b_type: str
) -> None:
    a, c = system
    b = random_matrix(N, a.dtype if b_type == "same" else b_type, 4)[:, :320]
    B = oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    x, report = reported(c, B)
    pass_bytes = sweep_bytes_of(c)
    assert_in_groups(x, report, b.nbytes, pass_bytes, TINY)
    assert isinstance(x, oc.Array)
    assert x.path == tmp_path / "b.x"
    assert x.info().state == "whole"
    found = x[...]
    assert hpl_residual(a.astype(found.dtype), found, b.astype(found.dtype)) < 16


def test_solutions_go_where_they_are_wanted(
    system: tuple[Matrix, CholeskyFactor], tmp_path: Path
) -> None:
    a, c = system
    b = random_matrix(N, a.dtype, 5)[:, :6]
    for given in (b, b[:, 2]):
        out = tmp_path / "deep" / f"x{given.ndim}"
        x = cho_solve(c, given, out=out, memory=TINY, progress=False)
        assert x.path == out
        assert hpl_residual(a, x[...], given) < 16
    before = names_below(tmp_path)
    with pytest.raises(ExistsError, match="another out="):
        cho_solve(c, b, out=out, progress=False)
    assert names_below(tmp_path) == before


@pytest.mark.exhaustive(every=3)
def test_every_budget_from_the_least_on_suffices(
    system: tuple[Matrix, CholeskyFactor], tmp_path: Path
) -> None:
    a, c = system
    b = random_matrix(N, a.dtype, 6)[:, :9]
    for number, out in enumerate([None, tmp_path / "x"]):
        with pytest.raises(BudgetError, match="need") as refused:
            cho_solve(c, b, memory=1000, out=out, progress=False)
        least = int(str(refused.value).split()[1])
        with pytest.raises(BudgetError, match=f"need {least} "):
            cho_solve(c, b, memory=least - 1, out=out, progress=False)
        assert not (tmp_path / "x").exists()
        for memory in (least, least + 4096, 2 * least):
            target = None if out is None else tmp_path / f"x{number}{memory}"
            x = cho_solve(c, b, memory=memory, out=target, progress=False)
            assert hpl_residual(a, x[...], b) < 16


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (np.ones(N - 1), r"need a right-hand side of shape \(333,\) or \(333, k\), have \(332,\)"),
        (1.0, r"have \(\)"),
        (np.array(["1"] * N), "is numbers, have <U1"),
        (np.where(np.arange(N) == 77, np.nan, 1), "in row 77"),
    ],
)
def test_right_hand_sides_that_do_not_fit(
    system: tuple[Matrix, CholeskyFactor], tmp_path: Path, b: Any, message: str
) -> None:
    for out in (None, tmp_path / "x"):
        with pytest.raises(InvalidError, match=message):
            cho_solve(system[1], b, out=out, progress=False)
    assert names_below(tmp_path) == []


def test_other_factors_are_refused(tmp_path: Path) -> None:
    a = definite(50, "f8")
    lu = lu_factor(on_disk(tmp_path / "Z", a), progress=False)
    for other in (lu, (np.linalg.cholesky(a), True), str(tmp_path / "Z.lu")):
        with pytest.raises(InvalidError, match="need Cholesky factors"):
            cho_solve(other, np.ones(50))  # type: ignore[arg-type]


def test_factors_opened_later(system: tuple[Matrix, CholeskyFactor]) -> None:
    _, c = system
    again = open_factor(c.path)
    assert isinstance(again, CholeskyFactor)
    b = random_matrix(N, c.dtype, 7)[:, 0]
    np.testing.assert_array_equal(
        cho_solve(again, b, threads=1, progress=False), cho_solve(c, b, threads=1, progress=False)
    )


def test_min_of_i_and_j_has_a_second_difference_as_its_inverse(tmp_path: Path) -> None:
    n = 900
    i = np.arange(n)
    a = np.minimum(i[:, None], i) + 1.0
    c = cho_factor(on_disk(tmp_path / "Z", lower_only(a)), memory="600 kB", progress=False)
    b = np.random.default_rng(1).integers(-9, 9, (n, 3)).astype(float)
    before, after = np.vstack([np.zeros((1, 3)), b[:-1]]), np.vstack([b[1:], b[-1:]])
    x = cho_solve(c, b, memory="200 kB", progress=False)
    np.testing.assert_array_equal(x, 2 * b - before - after)


def test_ctrl_c_leaves_no_whole_solution(
    system: tuple[Matrix, CholeskyFactor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    _, c = system
    b = oc.from_array(random_matrix(N, c.dtype, 8)[:, :40], tmp_path / "b")

    def watch(done: float, left: float) -> None:
        if done > 0.5:
            interrupt()

    with pytest.raises(Interrupted, match="stopped; the factors are as they were, call again"):
        cho_solve(c, b, memory=TINY, progress=watch)
    with pytest.raises((NotFoundError, IncompleteError)):
        oc.open_array(tmp_path / "b.x")
    assert cho_solve(c, b, memory=TINY, progress=False).info().state == "whole"
