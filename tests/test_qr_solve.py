"""Least squares with QR factors on disk: any number of right-hand sides, two passes.

For an A with more columns than rows, `lstsq` keeps factors of Aᵀ, which give the solutions of least
norm.
"""

import itertools
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, hpl_residual, names_below, on_disk, one_thread
from solutions_on_disk import assert_in_groups
from stopping import interrupt
from tall import DTYPES, RATES, tall

import outcore as oc
from outcore._util import progress
from outcore.errors import (
    BudgetError,
    ExistsError,
    Interrupted,
    InvalidError,
    SingularMatrixError,
)
from outcore.linalg import (
    QRFactor,
    TransposedQRFactor,
    lstsq,
    lu_factor,
    open_factor,
    qr_factor,
    qr_solve,
)
from outcore.linalg._rhs.groups import MOST_FLOPS, Groups
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._slab_qr.plan import Tiles, solve_flops
from outcore.linalg._slab_qr.solve import Solved, solve_and_report

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 400_000
SHAPES = {"tall": (333, 200), "wide": (200, 333)}


class Problem(NamedTuple):
    """A matrix, and its QR factors or those of its transpose."""

    a: Matrix
    qr: QRFactor

    @property
    def is_wide(self) -> bool:
        return isinstance(self.qr, TransposedQRFactor)


def reported(qr: QRFactor, b: Any, memory: int = TINY, probes: int = 0) -> Solved:
    m, n = qr.kind.shape_of(qr.shape)
    rhs = RightHandSide.read(m, qr.dtype, b, "N", None, if_exists="error", unknowns=n)
    return solve_and_report(qr, rhs, memory, None, False, probes)


@pytest.fixture(scope="module", params=itertools.product(SHAPES, DTYPES), ids="-".join)
def problem(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """Return tall and wide problems of four types; two tall ones overwrite A, out of order."""
    shape, dtype = request.param
    a, where = tall(*SHAPES[shape], dtype), tmp_path_factory.mktemp("problem") / "Z"
    if shape == "wide":
        A = oc.from_array(a, where, order="C", chunks=(16, 64), progress=False)
        memory = 200_000 * a.itemsize // 4
        lstsq(A, np.ones(len(a), dtype), memory=memory, keep_factors=True, progress=False)
        made = Problem(a, open_factor(where.parent / "Z.qr"))  # type: ignore[arg-type]
        assert made.is_wide
        return made
    overwrite_a = dtype in ("f4", "c16")
    A = on_disk(where, a, (64, 16))
    qr = qr_factor(A, memory=TINY, overwrite_a=overwrite_a, threads=1, progress=False)
    assert (qr.places == tuple(range(len(qr.places)))) == (not overwrite_a)
    return Problem(a, qr)


def assert_minimizes(a: Matrix, x: Matrix, b: Matrix) -> None:
    """Compare with SciPy's solution, which also has the least norm."""
    expected = scipy.linalg.lstsq(a, b)[0]
    tolerance = 1e3 * np.finfo(a.dtype).eps
    np.testing.assert_allclose(x, expected, rtol=tolerance, atol=tolerance)


def assert_residuals(solved: Solved, a: Matrix, b: Matrix, rtol: float | None = None) -> None:
    """Check the residual norms; those of wide matrices are zero without rounding."""
    tolerance = rtol or 1e3 * float(np.finfo(a.dtype).eps)
    norms = np.linalg.norm((b - a @ solved.x[...]).reshape(len(a), -1), axis=0)
    if a.shape[0] < a.shape[1]:
        assert not solved.residual_norms.any()
        assert norms.max() < tolerance * np.linalg.norm(b)
        return
    np.testing.assert_allclose(solved.residual_norms, norms, rtol=tolerance)


@pytest.mark.parametrize("columns", [None, 1, 7])
def test_as_scipy(problem: Problem, columns: int | None) -> None:
    a, qr = problem
    m, n = a.shape
    b = tall(m, columns or 1, a.dtype, 1)
    b = b[:, 0] if columns is None else b
    given = b.copy()
    x = qr_solve(qr, b, memory=TINY, progress=False)
    assert x.shape == (n, *b.shape[1:])
    assert x.dtype == a.dtype
    assert_minimizes(a, x, b)
    np.testing.assert_array_equal(b, given)
    planned = oc.plan(
        "qr_solve", m=m, n=n, rhs=columns or 1, dtype=a.dtype, memory=TINY, tile=qr.tile,
        rates=RATES,
    )  # fmt: skip
    report = oc.last_report()
    assert report is not None
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.flops == planned.flops
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= TINY
    assert (report.m, report.n) == (m, n)
    solved = reported(qr, b)
    assert_residuals(solved, a, b)
    assert solved.report.probed_condition is None


def test_complex_right_hand_sides_of_any_matrix(problem: Problem) -> None:
    a, qr = problem
    b = tall(len(a), 3, np.result_type(a.dtype, np.complex64), 2)
    for given in (b, b[:, 0]):
        solved = reported(qr, given)
        assert solved.x.shape == (a.shape[1], *given.shape[1:])
        assert solved.x.dtype == np.result_type(a.dtype, np.complex64)
        assert_minimizes(a.astype(solved.x.dtype), solved.x, given.astype(solved.x.dtype))
        assert_residuals(solved, a, given, 1e-4)


def test_no_right_hand_side_at_all(problem: Problem) -> None:
    a, qr = problem
    x = qr_solve(qr, np.empty((len(a), 0), qr.dtype), progress=False)
    assert x.shape == (a.shape[1], 0)


@pytest.mark.parametrize("columns", [1, 5, 60])
def test_two_passes_for_all(problem: Problem, columns: int) -> None:
    """Read the tiles on and below the diagonal, then those on and above it."""
    a, qr = problem
    report = reported(qr, tall(len(a), columns, a.dtype)).report
    (high, wide), (rows, width) = qr.shape, qr.tile
    places = [(i, j) for i in range(0, high, rows) for j in range(0, wide, width)]
    tiles = sum((i + rows > j) + (i <= j) for i, j in places)
    expected = tiles * rows * width * a.dtype.itemsize
    assert report.bytes_read == report.planned_bytes_read == expected
    assert report.bytes_written == report.planned_bytes_written == 0
    assert report.peak_memory_bytes <= TINY
    weight = 4 if a.dtype.kind == "c" else 1
    assert report.flops == (4 * high * wide - wide**2) * columns * weight
    assert (report.m, report.n) == a.shape


def test_many_in_memory_are_solved_for_in_groups(tmp_path: Path) -> None:
    a, b = tall(150, 100, "f8"), tall(150, 900, "f8", 1)
    qr = qr_factor(on_disk(tmp_path / "Z", a), memory=250_000, progress=False)
    tiles = Tiles(*qr.shape, qr.dtype, *qr.tile)
    memory = tiles.fixed_bytes(8) + tiles.width_bytes(200)
    solved = reported(qr, b, memory, probes=8)
    assert solved.report.probed_condition is not None
    assert solved.report.probed_condition == pytest.approx(
        reported(qr, b[:, 0], probes=8).report.probed_condition
    )
    assert solved.report.bytes_read == solved.report.planned_bytes_read == 5 * tiles.pass_bytes()
    assert solved.report.peak_memory_bytes <= memory
    assert_minimizes(a, solved.x, b)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("b_type", ["same", "c16"])
def test_on_disk_in_groups(problem: Problem, tmp_path: Path, b_type: str) -> None:
    a, qr = problem
    b = tall(len(a), 320, a.dtype if b_type == "same" else b_type, 4)
    B = oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    solved = reported(qr, B)
    pass_bytes = Tiles(*qr.shape, qr.dtype, *qr.tile).pass_bytes()
    assert_in_groups(solved.x, solved.report, b.nbytes, pass_bytes, TINY)
    assert isinstance(solved.x, oc.Array)
    assert solved.x.path == tmp_path / "b.x"
    assert solved.x.info().state == "whole"
    found = solved.x[...]
    assert_minimizes(a.astype(found.dtype), found, b.astype(found.dtype))
    assert_residuals(solved, a, b, 1e-4)


def test_solutions_go_where_they_are_wanted(problem: Problem, tmp_path: Path) -> None:
    a, qr = problem
    b = tall(len(a), 6, a.dtype, 5)
    for given in (b, b[:, 2]):
        out = tmp_path / "deep" / f"x{given.ndim}"
        x = qr_solve(qr, given, out=out, memory=TINY, progress=False)
        assert x.path == out
        assert_minimizes(a, x[...], given)
    before = names_below(tmp_path)
    with pytest.raises(ExistsError, match="another out="):
        qr_solve(qr, b, out=out, progress=False)
    assert names_below(tmp_path) == before


def test_every_budget_from_the_least_on_suffices(problem: Problem, tmp_path: Path) -> None:
    a, qr = problem
    b = tall(len(a), 9, a.dtype, 6)
    for number, out in enumerate([None, tmp_path / "x"]):
        with pytest.raises(BudgetError, match="need") as refused:
            qr_solve(qr, b, memory=1000, out=out, progress=False)
        least = int(str(refused.value).split()[1])
        with pytest.raises(BudgetError, match=f"need {least} "):
            qr_solve(qr, b, memory=least - 1, out=out, progress=False)
        assert not (tmp_path / "x").exists()
        for memory in (least, least + 4096, 2 * least):
            target = None if out is None else tmp_path / f"x{number}{memory}"
            x = qr_solve(qr, b, memory=memory, out=target, progress=False)
            report = oc.last_report()
            assert report is not None
            assert report.peak_memory_bytes <= memory
            assert_minimizes(a, x[...], b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_condition_is_estimated(tmp_path: Path, dtype: str) -> None:
    """Estimate ‖R‖ ‖R⁻¹‖ in the Frobenius norm from 8 random vectors, to a small factor."""
    draw = np.random.default_rng(3)
    most = 1e4 if dtype in ("f4", "c8") else 1e11
    for number, spread in enumerate([1.0, most**0.5, most]):
        U, V = (np.linalg.qr(tall(size, 100, dtype, size))[0] for size in (160, 100))
        a = (U * np.geomspace(1, 1 / spread, 100)[draw.permutation(100)]) @ V
        qr = qr_factor(on_disk(tmp_path / f"Z{number}", a), memory=400_000, progress=False)
        solved = reported(qr, np.ones(160, dtype), probes=8)
        values = np.linalg.svd(a.astype("c16"), compute_uv=False)
        expected = np.linalg.norm(values) * np.linalg.norm(1 / values)
        assert solved.report.probed_condition is not None
        assert expected / 3 < solved.report.probed_condition < expected * 3


def test_right_hand_sides_that_do_not_fit(problem: Problem, tmp_path: Path) -> None:
    m, n = problem.a.shape
    for b, message in [
        (np.ones(n), rf"of shape \({m},\) or \({m}, k\), have \({n},\)"),
        (1.0, r"have \(\)"),
        (np.array(["1"] * m), "is numbers, have <U1"),
        (np.where(np.arange(m) == 77, np.nan, 1), "in row 77"),
    ]:
        for out in (None, tmp_path / "x"):
            with pytest.raises(InvalidError, match=message):
                qr_solve(problem.qr, b, out=out, progress=False)
    assert names_below(tmp_path) == []


def test_other_factors_and_wide_and_singular_ones_are_refused(tmp_path: Path) -> None:
    a = tall(50, 50, "f8")
    lu = lu_factor(on_disk(tmp_path / "Z", a), progress=False)
    for other in (lu, np.linalg.qr(a), str(tmp_path / "Z.lu")):
        with pytest.raises(InvalidError, match="need QR factors"):
            qr_solve(other, np.ones(50))  # type: ignore[arg-type]
    wide = qr_factor(on_disk(tmp_path / "W", a[:40]), progress=False)
    with pytest.raises(InvalidError, match="at least as many rows as columns"):
        qr_solve(wide, np.ones(40))
    a[:, 7] = 0
    singular = qr_factor(on_disk(tmp_path / "S", a), progress=False)
    with pytest.raises(SingularMatrixError, match="diagonal number 8 of R is exactly zero") as told:
        qr_solve(singular, np.ones(50))
    assert told.value.info == 8


def test_factors_opened_later(problem: Problem) -> None:
    a, qr = problem
    again = open_factor(qr.path)
    assert type(again) is type(qr)
    b = tall(len(a), 1, qr.dtype, 7)[:, 0]
    np.testing.assert_array_equal(
        qr_solve(again, b, threads=1, progress=False), qr_solve(qr, b, threads=1, progress=False)
    )


def test_square_systems_are_solved(tmp_path: Path) -> None:
    a = tall(300, 300, "c16")
    qr = qr_factor(on_disk(tmp_path / "Z", a), memory=500_000, progress=False)
    b = tall(300, 4, "c16", 1)
    solved = reported(qr, b)
    assert hpl_residual(a, solved.x, b) < 16
    assert not solved.residual_norms.any()


def test_a_zero_row_is_refused(tmp_path: Path) -> None:
    """With a zero row, the diagonal of R has an exact zero."""
    a = tall(200, 333, "f8")
    a[7] = 0
    A = oc.from_array(a, tmp_path / "Z", progress=False)
    with pytest.raises(SingularMatrixError, match="leave out rows") as told:
        lstsq(A, np.ones(200), memory=TINY, keep_factors=True, progress=False)
    assert told.value.info == 8
    with pytest.raises(SingularMatrixError, match="the rows of A depend on each other"):
        qr_solve(open_factor(tmp_path / "Z.qr"), np.ones(200))  # type: ignore[arg-type]
    others = qr_factor(A, out=tmp_path / "F", memory=TINY, progress=False)
    with pytest.raises(InvalidError, match="at least as many rows as columns"):
        qr_solve(others, np.ones(200))


def test_groups_on_disk_are_minutes_of_work(tmp_path: Path) -> None:
    """The size of a group depends on both dimensions of the matrix."""
    b = np.broadcast_to(0.0, (20_000, 10**6))
    rhs = RightHandSide.read(
        len(b), b.dtype, b, "N", tmp_path / "x", if_exists="error", unknowns=10**6
    )  # fmt: skip
    size = Groups.of(rhs, 10**6).size
    assert solve_flops((10**6, 20_000), b.dtype, size) <= 2 * MOST_FLOPS


def test_after_ctrl_c_it_goes_on(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    a, qr = problem
    b = oc.from_array(tall(len(a), 160 if problem.is_wide else 40, qr.dtype, 8), tmp_path / "b")

    def watch(done: float, left: float) -> None:
        if done > 0.5:
            interrupt()

    with pytest.raises(Interrupted, match="stopped; the factors are as they were, call again"):
        qr_solve(qr, b, memory=TINY, progress=watch)
    is_begun = (tmp_path / "b.x").exists()
    x = qr_solve(qr, b, memory=TINY, progress=False)
    assert x.info().state == "whole"
    assert any("resumed at column" in note for note in x.report.notes) is is_begun
    assert_minimizes(a, x[...], b[...])
    undisturbed = qr_solve(qr, b, out=tmp_path / "y", memory=TINY, progress=False)
    np.testing.assert_array_equal(x[...], undisturbed[...])
