"""Solutions of least norm with the QR factors of Aᵀ that `lstsq` keeps: any number of columns."""

import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, one_thread
from solutions_on_disk import assert_in_groups
from stopping import interrupt
from tall import DTYPES, RATES, tall

import outcore as oc
from outcore import progress
from outcore.errors import BudgetError, Interrupted, InvalidError, SingularMatrixError
from outcore.linalg import TransposedQRFactor, lstsq, open_factor, qr_factor, qr_solve
from outcore.linalg.slab_qr.solve_plan import Tiles, solve_flops
from outcore.linalg.systems.groups import MOST_FLOPS, Groups
from outcore.linalg.systems.right_hand_side import RightHandSide

__all__ = ["one_thread"]  # a fixture for every test here

M, N, TINY = 200, 333, 400_000
Problem = tuple[Matrix, TransposedQRFactor]


@pytest.fixture(scope="module", params=DTYPES)
def problem(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """A matrix, and the factors of its transpose that are kept, in the four types."""
    a, home = tall(M, N, request.param), tmp_path_factory.mktemp("problem")
    A = oc.from_array(a, home / "Z", order="C", chunks=(16, 64), progress=False)
    lstsq(A, np.ones(M), memory=200_000 * a.itemsize // 4, keep_factors=True, progress=False)
    qr = open_factor(home / "Z.qr")
    assert isinstance(qr, TransposedQRFactor)
    return a, qr


def assert_least_norm(a: Matrix, x: Any, b: Matrix) -> None:
    expected = scipy.linalg.lstsq(a, b)[0]
    tolerance = 1e3 * np.finfo(a.dtype).eps
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("columns", [None, 1, 7])
def test_as_scipy_in_two_passes(problem: Problem, columns: int | None) -> None:
    a, qr = problem
    b = tall(M, columns or 1, a.dtype, 1)
    b = b[:, 0] if columns is None else b
    given = b.copy()
    x = qr_solve(qr, b, memory=TINY, progress=False)
    assert x.shape == (N, *b.shape[1:])
    assert x.dtype == a.dtype
    assert_least_norm(a, x, b)
    np.testing.assert_array_equal(b, given)
    report = oc.last_report()
    assert report is not None
    planned = oc.plan(
        "qr_solve", m=M, n=N, rhs=columns or 1, dtype=a.dtype, memory=TINY, tile=qr.tile,
        rates=RATES,
    )  # fmt: skip
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.flops == planned.flops
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= TINY
    assert (report.m, report.n) == (M, N)


def test_complex_right_hand_sides_of_any_matrix(problem: Problem) -> None:
    a, qr = problem
    b = tall(M, 3, "c16", 2)
    for given in (b, b[:, 0]):
        x = qr_solve(qr, given, memory=TINY, progress=False)
        assert x.dtype == np.result_type(a.dtype, np.complex64)
        assert_least_norm(a.astype(x.dtype), x, given.astype(x.dtype))


@pytest.mark.parametrize("b_type", ["same", "c16"])
def test_on_disk_in_groups(problem: Problem, tmp_path: Path, b_type: str) -> None:
    a, qr = problem
    b = tall(M, 320, a.dtype if b_type == "same" else b_type, 4)
    B = oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    x = qr_solve(qr, B, memory=TINY, progress=False)
    pass_bytes = Tiles(qr.shape, qr.dtype, qr.tile).pass_bytes()
    assert_in_groups(x, x.report, b.nbytes, pass_bytes, TINY)
    assert x.path == tmp_path / "b.x"
    assert x.info().state == "whole"
    found = x[...]
    assert_least_norm(a.astype(found.dtype), found, b.astype(found.dtype))


def test_every_budget_from_the_least_on_suffices(problem: Problem, tmp_path: Path) -> None:
    a, qr = problem
    b = tall(M, 9, a.dtype, 6)
    for number, out in enumerate([None, tmp_path / "x"]):
        with pytest.raises(BudgetError, match="need") as refused:
            qr_solve(qr, b, memory=1000, out=out, progress=False)
        least = int(str(refused.value).split()[1])
        for memory in (least, least + 4096, 2 * least):
            target = None if out is None else tmp_path / f"x{number}{memory}"
            x = qr_solve(qr, b, memory=memory, out=target, progress=False)
            report = oc.last_report()
            assert report is not None
            assert report.peak_memory_bytes <= memory
            assert_least_norm(a, x[...], b)


def test_what_does_not_fit_is_refused(problem: Problem, tmp_path: Path) -> None:
    qr = problem[1]
    for b, message in [
        (np.ones(N), r"need a right-hand side of shape \(200,\) or \(200, k\), have \(333,\)"),
        (np.where(np.arange(M) == 77, np.nan, 1), "in row 77"),
    ]:
        for out in (None, tmp_path / "x"):
            with pytest.raises(InvalidError, match=message):
                qr_solve(qr, b, out=out, progress=False)
    assert qr_solve(qr, np.empty((M, 0), qr.dtype), progress=False).shape == (N, 0)
    assert names_below(tmp_path) == []


def test_a_zero_row_is_refused(tmp_path: Path) -> None:
    """The diagonal of R has an exact zero then."""
    a = tall(M, N, "f8")
    a[7] = 0
    A = oc.from_array(a, tmp_path / "Z", progress=False)
    with pytest.raises(SingularMatrixError, match="leave out rows") as told:
        lstsq(A, np.ones(M), memory=TINY, keep_factors=True, progress=False)
    assert told.value.info == 8
    with pytest.raises(SingularMatrixError, match="the rows of A depend on each other"):
        qr_solve(open_factor(tmp_path / "Z.qr"), np.ones(M))  # type: ignore[arg-type]
    others = qr_factor(A, out=tmp_path / "F", memory=TINY, progress=False)
    with pytest.raises(InvalidError, match="at least as many rows as columns"):
        qr_solve(others, np.ones(M))


def test_groups_on_disk_are_minutes_of_work(tmp_path: Path) -> None:
    """What is noted is counted by both sides of the matrix."""
    b = np.broadcast_to(0.0, (20_000, 10**6))
    rhs = RightHandSide.read(
        len(b), b.dtype, b, "N", tmp_path / "x", overwrite=False, unknowns=10**6
    )  # fmt: skip
    size = Groups.of(rhs, 10**6).size
    assert solve_flops((10**6, 20_000), b.dtype, size) <= 2 * MOST_FLOPS


def test_after_ctrl_c_it_goes_on(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    _, qr = problem
    b = oc.from_array(tall(M, 160, qr.dtype, 8), tmp_path / "b")

    def watch(done: float, left: float) -> None:
        if done > 0.5:
            interrupt()

    with pytest.raises(Interrupted, match="stopped; the factors are as they were, call again"):
        qr_solve(qr, b, memory=TINY, progress=watch)
    is_begun = (tmp_path / "b.x").exists()
    x = qr_solve(qr, b, memory=TINY, progress=False)
    assert x.info().state == "whole"
    assert any("gone on at column" in note for note in x.report.notes) is is_begun
    for columns in (slice(0, 40), slice(120, 160)):
        again = qr_solve(qr, b[:, columns], memory=TINY, progress=False)
        np.testing.assert_allclose(x[:, columns], again, rtol=1e-3, atol=1e-3)
