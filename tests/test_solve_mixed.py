"""Factors in lower precision, and solutions refined with them."""

import contextlib
import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_matrices import kahan
from linpack import Matrix, hpl_residual, names_below, on_disk, one_thread, random_matrix
from mixed_precision import EPS, LOW, TINY, N, backward_error, mixed
from scipy.linalg import LinAlgWarning

import outcore as oc
from outcore.errors import BudgetError, InvalidError
from outcore.linalg import lu_factor, lu_solve, open_factor, solve
from outcore.linalg._output.journal import Journal
from outcore.linalg._systems import plan as solve_plan
from outcore.linalg._systems.refine import Refinement
from outcore.linalg._systems.refine_plan import refine_geometry
from outcore.linalg._tiles.cost import Cost, Problem
from outcore.machine import rates as machine_rates

__all__ = ["one_thread"]  # a fixture for every test here


@pytest.mark.parametrize("columns", [None, 5])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", LOW)
def test_as_good_as_full_precision(
    tmp_path: Path, dtype: str, order: str, columns: int | None
) -> None:
    a = random_matrix(N, dtype)
    A = oc.from_array(a, tmp_path / "Z", order=order, chunks=(77, 60))
    b = random_matrix(N, dtype, 1)[:, 0 if columns is None else slice(columns)]
    before = names_below(tmp_path)
    x, report = mixed(A, b)
    assert names_below(tmp_path) == before, "copy and factors go"
    assert (x.shape, x.dtype) == (b.shape, a.dtype)
    assert hpl_residual(a, x, b) < 16
    assert backward_error(a, x, b) < 16 * EPS
    low = np.dtype(LOW[dtype])
    assert re.fullmatch(rf"LU in {low}, [23] steps of refinement", report.method)
    assert report.backward_error == report.history[-1] < N * EPS
    assert len(report.history) in (3, 4)
    assert 1e-9 < report.history[0] < 1e-5, "the first solution is in single precision"
    assert report.history == sorted(report.history, reverse=True)
    assert report.verb == "solve"
    assert report.dtype == dtype
    assert report.peak_memory_bytes <= TINY
    assert f"{report.backward_error:.2e}, the last of {len(report.history)}" in str(report)


@pytest.mark.parametrize("name", ["leading block of zeros", "Kahan", "Wilkinson"])
def test_matrices_that_are_hard(tmp_path: Path, name: str) -> None:
    """Hard matrices get the accuracy of full precision; the report mentions pivot growth."""
    a = random_matrix(N, "f8")
    if name == "leading block of zeros":
        a[: N // 2, : N // 2] = 0
    elif name == "Kahan":
        a = kahan(N)
    else:
        a = np.tril(-np.ones((60, 60)), -1) + np.eye(60)
        a[:, -1] = 1
    b = random_matrix(N, "f8", 3)[: len(a), 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)
        x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert hpl_residual(a, x, b) < 16
    assert re.fullmatch(r"LU in float32, \d steps? of refinement", report.method)
    if name == "Wilkinson":
        assert report.growth == 2.0**59
        assert any("pivots grew" in note for note in report.notes)


def test_a_complex_right_hand_side_of_a_real_matrix(tmp_path: Path) -> None:
    a, b = random_matrix(N, "f8"), random_matrix(N, "c16", 1)[:, :3]
    x, report = mixed(on_disk(tmp_path / "Z", a), b)
    assert x.dtype == np.complex128
    assert backward_error(a, x, b) < 16 * EPS
    assert report.history[-1] < N * EPS


@pytest.mark.parametrize("dtype", LOW)
def test_many_right_hand_sides_on_disk(tmp_path: Path, dtype: str) -> None:
    """Refine right-hand sides on disk in groups, each with its own passes."""
    a, b = random_matrix(N, dtype), random_matrix(N, dtype, 1)[:, :90]
    b[:, 40:] *= 1e-200
    A, B = on_disk(tmp_path / "Z", a), oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    x, report = mixed(A, B)
    assert isinstance(x, oc.Array)
    assert x.path == tmp_path / "b.x"
    for part in (slice(40), slice(40, 90)):
        assert backward_error(a, x[:, part], b[:, part]) < 16 * EPS
    assert report.bytes_read > 3 * 3 * A.nbytes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "b", "b.x"]


def test_nothing_to_solve_for(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    x, report = mixed(A, np.zeros(N))
    assert not x.any()
    assert report.backward_error == 0
    x, _ = mixed(A, np.empty((N, 0)))
    assert x.shape == (N, 0)


def test_scales_beyond_single_precision(tmp_path: Path) -> None:
    """Right-hand sides and solutions may exceed the range of float32; the matrix may not."""
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    b = random_matrix(N, "f8", 1)[:, :4] * np.array([1e-300, 1e250, 1e-100, 1])
    x, report = mixed(A, b)
    assert backward_error(a, x, b) < 16 * EPS
    assert re.fullmatch(r"LU in float32, [23] steps of refinement", report.method)


@pytest.mark.parametrize(("dtype", "columns"), [("f8", 1), ("f8", 90), ("c16", 3)])
def test_the_plan_is_what_the_run_does(
    tmp_path: Path, dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan equals the run if the run takes the planned number of steps."""
    n, memory = 1024, 3 << 20
    a = random_matrix(n, dtype)
    # All columns are equal, since other columns may need a step more or less.
    A, b = on_disk(tmp_path / "Z", a), np.tile(random_matrix(n, dtype, 1)[:, :1], columns)
    _, report = mixed(A, b, memory=memory)
    assert solve_plan.PLANNED_STEPS - 2 <= len(report.history) - 1 <= solve_plan.PLANNED_STEPS
    monkeypatch.setattr(solve_plan, "PLANNED_STEPS", len(report.history) - 1)
    planned = oc.plan(
        "solve", n=n, dtype=dtype, memory=memory, path=tmp_path, rhs=columns,
        factor_dtype=LOW[np.dtype(dtype).name],
    )  # fmt: skip
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.bytes_written == report.planned_bytes_written == planned.bytes_written
    assert report.flops == pytest.approx(planned.flops, rel=1e-2)
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory


def test_the_disk_space_is_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n, memory = 1024, 3 << 20
    A = on_disk(tmp_path / "Z", random_matrix(n, "f8"))
    taken = []
    append = Journal.append

    def looking(journal: Any, record: Any) -> None:
        append(journal, record)
        taken.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))

    monkeypatch.setattr(Journal, "append", looking)
    before = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    mixed(A, np.ones(n), memory=memory)
    planned = oc.plan("solve", n=n, memory=memory, path=tmp_path, factor_dtype="f4")
    assert planned.disk_bytes <= max(taken) - before < planned.disk_bytes + 70_000
    assert planned.disk_bytes < 8 * n * n


@pytest.mark.parametrize(("first", "steps"), [(1e-6, 6), (1e-7, 6), (1e-5, 6)])
def test_steps_go_on_while_they_gain_a_digit(first: float, steps: int) -> None:
    """Refine until the error equals that of LU in the type of A, or 2 eps.

    The first solution has the error of single precision, and each step leaves 0.03 of it. At n eps
    two more steps still gain a digit.
    """
    n, leaves = 4000, iter([2 * first, *[0.03] * 9])
    b = np.linspace(1, 2, n)[:, None]
    X, R = (np.zeros((n, 1), order="F") for _ in range(2))

    def load(R: Matrix) -> None:
        R[...] = b

    def subtract(X: Matrix, R: Matrix) -> None:
        R -= X

    def solve(D: Matrix) -> None:
        D *= 1 - next(leaves)

    low = np.dtype("f4")
    refinement = Refinement(X, R, load, subtract, solve, 1.0, low, tolerance=n * EPS)
    assert len(refinement.refine()) == 0
    assert refinement.steps == steps
    assert refinement.history[0] == pytest.approx(first, rel=1e-3)
    goal = max(refinement.history[0] * 2**-29, 2 * EPS)
    assert refinement.errors.max() < goal < refinement.history[-2] < n * EPS
    np.testing.assert_allclose(X, b, rtol=2 * goal)


# Arguments.


@pytest.mark.parametrize(
    ("dtype", "low"),
    [("f8", "f2"), ("f8", "c8"), ("c16", "f4"), ("f4", "f8"), ("f4", "f2"), ("c16", "f8")],
)
def test_types_that_do_not_go_together(tmp_path: Path, dtype: str, low: str) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, dtype))
    with pytest.raises(InvalidError, match=r"cannot refine .*factor_dtype"):
        solve(A, np.ones(N, dtype), factor_dtype=low, progress=False)
    with pytest.raises(InvalidError, match="factor_dtype"):
        solve(A, np.ones(N, dtype), factor_dtype="nonsense", progress=False)
    with pytest.raises(InvalidError, match=r"cannot refine .*factor_dtype"):
        oc.plan("solve", n=N, dtype=dtype, memory=TINY, path=tmp_path, factor_dtype=low)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("dtype", ["f4", "c8", "f8"])
def test_the_type_of_the_matrix_is_no_refinement(tmp_path: Path, dtype: str) -> None:
    a = random_matrix(N, dtype)
    x, report = solve(
        on_disk(tmp_path / "Z", a), np.ones(N, dtype), factor_dtype=dtype, progress=False
    )
    assert hpl_residual(a, x, np.ones(N, dtype)) < 16
    assert report.method == "LU"
    assert any("there is nothing to refine" in note for note in report.notes)


def test_what_refinement_cannot_do_without(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    with pytest.raises(InvalidError, match="overwrite_a=True consumes A, which refinement needs"):
        mixed(A, np.ones(N), overwrite_a=True)
    assert A[0, 0] == random_matrix(N, "f8")[0, 0]


def test_a_bad_right_hand_side_is_refused_before_any_work(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    b = np.ones(N)
    b[7] = np.nan
    with pytest.raises(InvalidError, match="row 7"):
        mixed(A, b)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]
    B = oc.from_array(b, tmp_path / "b")
    with pytest.raises(InvalidError, match="row 7"):
        mixed(A, B)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "b"]
    b[7] = 1
    with oc.open_array(B.path, "r+") as array:
        array[7] = 1
    x, report = mixed(A, B)
    assert not any("used the factors" in note for note in report.notes)
    assert hpl_residual(A[...], x[...], b) < 16
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "b", "b.x"]


def test_too_small_a_budget_is_refused_before_any_work(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    for memory in range(20_000, 400_000, 20_000):
        if memory < 102_400:
            with pytest.raises(BudgetError, match="raise memory="):
                mixed(A, np.ones(N), memory=memory)
        else:
            x, report = mixed(A, np.ones(N), memory=memory)
            assert report.peak_memory_bytes <= memory
            assert hpl_residual(A[...], x, np.ones(N)) < 16
        assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("n", [10, 300, 5000])
@pytest.mark.parametrize("columns", [1, 7, 1000])
def test_memory_of_refinement_is_kept(n: int, columns: int) -> None:
    types = np.dtype("f8"), np.dtype("f4")
    with pytest.raises(BudgetError) as refused:
        refine_geometry(n, *types, (128, 64), 1000, columns)
    least = int(str(refused.value).split()[1])
    with pytest.raises(BudgetError):
        refine_geometry(n, *types, (128, 64), least * 9 // 10, columns)
    for memory in (least, least + 5000, 3 * least, 100 * least):
        g = refine_geometry(n, *types, (128, 64), memory, columns)
        assert g.memory_bytes <= memory
        for stalled in range(1, 4):
            vectors = (g.krylov(stalled) + 2) * stalled * g.vector_bytes
            assert not g.krylov(stalled) or g.ring_bytes + g.group_bytes + vectors <= memory


# Factors that the call keeps.


def test_kept_factors_are_of_single_precision_and_are_used_again(tmp_path: Path) -> None:
    a, b = random_matrix(N, "f8"), random_matrix(N, "f8", 1)
    A = on_disk(tmp_path / "Z", a)
    x, report = mixed(A, b[:, 0], keep_factors=True)
    assert report.bytes_written > 0
    lu = open_factor(tmp_path / "Z.f4.lu")
    assert (lu.dtype, lu.source) == (np.float32, str(A.path))
    assert np.linalg.norm(lu_solve(lu, b[:, 0], progress=False) - x) < 1e-2 * np.linalg.norm(x)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "Z.f4.lu"]
    again, report = mixed(A, b[:, 0])
    assert report.bytes_written == 0
    assert any("used the factors" in note for note in report.notes)
    np.testing.assert_array_equal(again, x)
    assert (tmp_path / "Z.f4.lu").exists(), "they are the user's"
    # Without `factor_dtype` the call needs other factors.
    _, report = solve(A, b[:, 0], memory=TINY, progress=False)
    assert report.method == "LU"
    with pytest.raises(oc.OutcoreError, match=r"holds factors of .* in float32"):
        solve(A, b[:, 0], memory=TINY, progress=False, factors=tmp_path / "Z.f4.lu")


def test_factors_in_the_type_of_the_matrix_are_better(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    lu_factor(A, memory=TINY, progress=False)
    x, report = mixed(A, np.ones(N))
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert report.method == "LU"
    assert any("factors in float64 existed, or were begun" in note for note in report.notes)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "Z.lu"]


def test_of_a_matrix_that_changed_neither_is_used(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    lu_factor(A, memory=TINY, progress=False)
    with oc.open_array(A.path, "r+") as changed:
        changed[0, 0] = 50
    a[0, 0] = 50
    x, report = mixed(A.path, np.ones(N))
    assert "refinement" in report.method
    assert hpl_residual(a, x, np.ones(N)) < 16


def test_plans_say_from_where_it_pays(tmp_path: Path) -> None:
    rates = machine_rates.Rates(
        read_bytes_s=1e9, write_bytes_s=1e9, cores=1, threads=1, kernels="", measured_at="",
        gemm_flops_s={"float32": 2e11, "float64": 1e11, "complex64": 2e11, "complex128": 1e11},
        directory="/",
    )  # fmt: skip

    def of(n: int, **more: Any) -> oc.Plan:
        return oc.plan("solve", n=n, memory="64 MiB", path=tmp_path, rates=rates, **more)

    (note,) = of(8192, factor_dtype="f4").notes
    assert "in float64; float32 pays from n = " in note
    least = int(note.split("n = ")[1].split()[0])
    assert least % 256 == 0
    for n, pays in ((least - 256, False), (least, True), (2 * least, True)):
        assert (of(n, factor_dtype="f4").seconds < of(n).seconds) is pays
    assert note in str(of(8192, factor_dtype="f4"))
    assert of(8192).notes == []


def test_it_does_not_pay_where_it_does_not_fit() -> None:
    """Never advise lower precision if it is slower at every order that fits in memory."""
    problem = Problem(512, np.dtype("f8"), 4 << 20, options={"factor_dtype": np.dtype("f4")})

    def fits(n: int) -> bool:
        with contextlib.suppress(BudgetError):
            return solve_plan.solve_cost(dataclasses.replace(problem, n=n)).bytes_read > 0
        return False

    def is_low(cost: Cost) -> bool:
        return any(phase.dtype == np.float32 for phase in cost.phases)

    assert solve_plan.pays_from(problem, lambda cost: 2.0 - is_low(cost)) == 256
    least = solve_plan.pays_from(problem, lambda cost: 1.0 + is_low(cost))
    # Lower precision pays at orders where only it fits.
    assert least is not None
    assert fits(least)
    problem = dataclasses.replace(problem, memory_bytes=1000)
    assert solve_plan.pays_from(problem, lambda cost: 1.0) is None
