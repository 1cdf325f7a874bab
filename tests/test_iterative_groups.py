"""Iterative methods with more right-hand sides than the budget holds, in groups of columns."""

import inspect
import signal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from communicators import ThreadJob
from iterative_cases import dominant, kms, least_budget, on_disk, random, residual, swept
from linpack import Matrix, one_thread
from test_plan import RATES

import outcore as oc
from outcore.errors import BudgetError, ConvergenceWarning, Interrupted, InvalidError
from outcore.linalg import cg, gauss_seidel, gmres, jacobi

__all__ = ["one_thread"]  # a fixture for every test here

N, COLUMNS = 200, 11
METHODS = {
    "gauss_seidel": (gauss_seidel, {"assume_a": "her"}, "sweeps"),
    "jacobi": (jacobi, {"omega": 0.7}, "sweeps"),
    "cg": (cg, {"preconditioner": "ssor"}, "iterations"),
    "gmres": (gmres, {"preconditioner": "sweep", "restart": 7}, "iterations"),
}
VERBS = list(METHODS)


def system(dtype: npt.DTypeLike = "f8", b_dtype: npt.DTypeLike | None = None) -> tuple[Any, Any]:
    """Return a positive definite matrix, and right-hand sides with different numbers of steps."""
    a = kms(N, 0.4 if np.dtype(dtype).kind == "f" else 0.3 + 0.2j) + np.eye(N)
    a = a.astype(dtype)
    b = random((N, COLUMNS), b_dtype or dtype, 1)
    b[:, 3] = a @ np.eye(N)[:, 3]
    b[:, 7] = 0
    return a, b


def for_groups(method: Any, A: oc.Array, b: Any, more: int, **options: Any) -> int:
    """Return the budget of one column, plus some bytes."""
    return least_budget(method, A, b, **options) + more


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("dtype", "b_dtype", "is_stored"),
    [("f8", "f8", False), ("c16", "c16", True), ("f4", "f8", True), ("f8", "c16", True),
     ("f8", "c16", False)],
)  # fmt: skip
def test_groups_solve_all_columns_as_planned(
    tmp_path: Path, verb: str, dtype: str, b_dtype: str, is_stored: bool
) -> None:
    method, options, steps = METHODS[verb]
    options = {**options, "block": 128}
    a, b = system(dtype, b_dtype)
    A = on_disk(tmp_path / "A", a, "C", (64, 128))
    B: Any = oc.from_array(b, tmp_path / "b", chunks=(N, 1), order="F") if is_stored else b
    where = {"out": tmp_path / "x", "if_exists": "overwrite"} if is_stored else {}
    plans = {"n": N, "dtype": dtype, "rhs": COLUMNS, "path": tmp_path, "rates": RATES,
             "chunks": (64, 128), "b": B, "out": where.get("out")} | options  # fmt: skip
    if dtype == "f4":
        plans["compute_dtype"] = b_dtype
    least = least_budget(method, A, B, **options, **where)
    alone = []
    for memory in (least, least + 40_000, 16 << 20):
        tol = 1e-4 if np.dtype(dtype).itemsize == 4 else 1e-6
        x, report = method(A, B, memory=memory, tol=tol, progress=False, **options, **where)
        assert (x.shape, x.dtype) == (b.shape, np.result_type(dtype, b_dtype))
        assert isinstance(x, oc.Array) == is_stored
        found = x[...]
        assert not found[:, 7].any()
        is_full = [j for j in range(COLUMNS) if j != 7]
        assert residual(a, found[:, is_full], b[:, is_full]) <= 1.1 * tol
        assert len(report.residuals) == COLUMNS
        for j in is_full:
            expected = residual(a, found[:, j : j + 1], b[:, j : j + 1])
            assert report.residuals[j] == pytest.approx(expected, rel=1e-2, abs=tol / 100)
        assert report.residuals[7] == 0
        # Where columns do not begin on pages, the call also transfers the rest of those pages.
        assert 0 <= report.bytes_written - report.planned_bytes_written < 4096 * COLUMNS
        assert 0 <= report.bytes_read - report.planned_bytes_read < B.nbytes + 4096 * COLUMNS
        assert report.peak_memory_bytes <= memory
        alone.append("groups" not in report.method)
        # The plan assumes the same number of steps for all groups.
        count = {f"max_{steps}": 4}
        _, report = method(A, B, memory=memory, tol=None, progress=False, **count, **options,
                           **where)  # fmt: skip
        plan = oc.plan(verb, memory=memory, **{steps: 4}, **plans)
        assert report.method == plan.method
        assert report.planned_bytes_read == plan.bytes_read
        assert report.planned_bytes_written == plan.bytes_written
        assert report.peak_memory_bytes <= plan.peak_memory_bytes <= memory
        assert report.flops == pytest.approx(plan.flops, rel=0.05)
        assert len(report.history) == 4
    assert (alone[0], alone[2]) == (False, True)
    assert {path.name for path in tmp_path.iterdir()} <= {"A", "b", "x"}


@pytest.mark.parametrize("direction", ["forward", "alternating", "symmetric"])
def test_every_group_makes_the_sweeps_of_the_definition(tmp_path: Path, direction: Any) -> None:
    a, b, x0 = dominant(N, "f8"), random((N, 7), "f8", 1), random((N, 7), "f8", 2)
    for order, chunks in (("C", (16, 64)), ("F", (64, 16))):
        A = on_disk(tmp_path / "A", a, order, chunks)
        X0 = oc.from_array(x0, tmp_path / "x0", chunks=(N, 2), if_exists="overwrite")
        for guess in (None, x0, X0, X0.path):
            options: dict[str, Any] = {
                "x0": guess,
                "direction": direction,
                "block": 64,
                "omega": 1.1,
            }
            memory = least_budget(gauss_seidel, A, b, **options) + 3 * 7 * N * 8
            x, report = gauss_seidel(
                A, b, memory=memory, tol=None, max_sweeps=3, progress=False, **options
            )
            start = np.zeros_like(b) if guess is None else x0
            expected, history = swept(a, b, start, 64, 1.1, direction, 3)
            assert "groups of" in report.method
            np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(report.history, history, rtol=1e-6)
            assert report.planned_bytes_read is not None
            assert (
                0 <= report.bytes_read - report.planned_bytes_read <= 7 * 4096 * (guess is not x0)
            )


def test_a_group_reads_the_matrix_once_a_sweep(tmp_path: Path) -> None:
    """Pinned tiles and diagonal blocks serve all groups."""
    a, b = dominant(256, "f8"), random((256, 12), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    options: dict[str, Any] = {"direction": "forward", "block": 32, "tol": None, "progress": False}
    for pin in (0.0, 0.5):
        least = least_budget(gauss_seidel, A, b, pin=pin, direction="forward", block=32)
        words = []
        for sweeps in (3, 5):
            _, report = gauss_seidel(A, b, pin=pin, memory=least, max_sweeps=sweeps, **options)
            words.append(report.words_moved() / 256**2)
        groups = int(report.method.split("in ")[-1].split(" groups")[0])
        assert groups > 1
        blocks = 32 / 256 * ("in a file" in report.method)
        assert words[1] - words[0] == groups * 2 * (1 - pin + blocks)
        # The call reads the diagonal once, and the pinned tiles once.
        rest = words[0] - groups * (4 * (1 - pin) + 3 * blocks) - pin - blocks
        assert 0 <= rest <= 64 / 256


def test_gmres_works_on_fewer_columns_rather_than_with_few_directions(tmp_path: Path) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(gmres, A, b[:, 0]) + 14 * 2 * N * 8
    _, report = gmres(A, b, memory=memory, tol=1e-9, progress=False)
    assert "groups of" in report.method
    # Each column gets steps as if it had the whole budget; restarts after one direction crawl.
    _, alone = gmres(A, b[:, 0], memory=memory, tol=1e-9, progress=False)
    assert len(report.history) <= len(alone.history) + 3


def test_what_is_reached_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    x0 = random(b.shape, "f8", 5)
    options: dict[str, Any] = {"x0": x0, "tol": 1e-10, "progress": False}
    memory = least_budget(cg, A, b, x0=x0) + 15_000
    advanced = []

    def advance(self: Any, work: float) -> None:
        advanced.append(work)
        if len(advanced) == 40:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("outcore._util.progress.Meter.advance", advance)
    with pytest.raises(
        Interrupted, match=r"after \d+ steps of group [23] of \d; .*with x0="
    ) as found:
        cg(A, b, memory=memory, **options)
    monkeypatch.undo()
    x: Any = found.value.x
    assert residual(a, x[:, :2], b[:, :2]) < 1e-9, "of the first group"
    assert (x[:, -1] == x0[:, -1]).all(), "of the last group"
    x, _ = cg(A, b, memory=memory, **options | {"x0": x})
    assert residual(a, x[:, :7], b[:, :7]) < 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", VERBS)
def test_a_stopped_call_goes_on_behind_whole_groups(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, options, _ = METHODS[verb]
    a, b = system()
    A, B = on_disk(tmp_path / "A", a), oc.from_array(b, tmp_path / "b", chunks=(N, 1))
    where: dict[str, Any] = {"out": tmp_path / "x", "tol": 1e-6, "progress": False, **options}
    memory = least_budget(method, A, B, out=tmp_path / "x", **options)
    calls = []
    real = inspect.unwrap(method).__globals__["open_iteration"].__wrapped__.__globals__["Iteration"]
    kept = real._keep

    def keep(self: Any) -> None:
        calls.append(self)
        if len(calls) == 3:
            raise KeyboardInterrupt
        kept(self)

    monkeypatch.setattr(real, "_keep", keep)
    with pytest.raises(
        Interrupted, match=r"of group 3 of \d+; .* to resume at column (\d+)"
    ) as found:
        method(A, B, memory=memory, **where)
    monkeypatch.undo()
    assert found.value.x is None
    done = int(str(found.value).split()[-1])
    with pytest.raises(oc.errors.OutcoreError, match="was stopped"):
        oc.open_array(tmp_path / "x")
    # The next call resumes at that column, with the same tolerance.
    x, report = method(A, B, memory=memory, **where)
    assert f"resumed at column {done} of {COLUMNS}" in "\n".join(report.notes)
    assert len(report.residuals) == COLUMNS - done
    full = [j for j in range(COLUMNS) if j != 7]
    assert residual(a, x[...][:, full], b[:, full]) < 1.1e-6
    assert {path.name for path in tmp_path.iterdir()} == {"A", "b", "x"}
    _, report = method(A, B, memory=memory, if_exists="overwrite", **where)
    assert len(report.residuals) == COLUMNS


def test_a_stopped_call_of_another_tolerance_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(cg, A, b, out=tmp_path / "x")
    options: dict[str, Any] = {"out": tmp_path / "x", "memory": memory, "progress": False}
    steps = []

    def advance(self: Any, work: float) -> None:
        steps.append(work)
        if len(steps) == 30:
            signal.raise_signal(signal.SIGINT)

    for change in ({"tol": 1e-8}, {"tol": 1e-4, "resume": False}):
        steps.clear()
        monkeypatch.setattr("outcore._util.progress.Meter.advance", advance)
        with pytest.raises(Interrupted, match="to resume at column"):
            cg(A, b, tol=1e-4, **options)
        monkeypatch.undo()
        x, report = cg(A, b, **options | change)
        assert len(report.residuals) == COLUMNS
        assert residual(a, x[...][:, :7], b[:, :7]) < 1.1 * change["tol"]
        options["if_exists"] = "overwrite"


def test_columns_that_do_not_converge_are_counted(tmp_path: Path) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(cg, A, b)
    with pytest.warns(ConvergenceWarning, match=r"after 3 steps .*, and 10 of 11 too large; tol="):
        _, report = cg(A, b, tol=1e-12, max_iterations=3, memory=memory, progress=False)
    assert sum(r > 1e-12 for r in report.residuals) == 10
    assert max(report.residuals) == pytest.approx(report.history[-1], rel=1e-6)


def test_the_groups_of_processes_are_the_same(tmp_path: Path) -> None:
    """Their budgets may differ, and the solution may be on disk."""
    a, b = dominant(N, "f8"), random((N, 9), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    least = least_budget(gauss_seidel, A, b, block=64) + 300_000
    for out in (None, tmp_path / "x"):
        found = ThreadJob(3).run(
            lambda comm, out=out: gauss_seidel(  # type: ignore[misc]
                A, b, block=64, tol=1e-10, comm=comm, memory=least + 60_000 * comm.rank, out=out,
                progress=False,
            )
        )  # fmt: skip
        for each in found:
            assert not isinstance(each, BaseException), each
            x, report = each
            assert residual(a, x[...], b) < 1e-10
            assert report.residuals == found[0][1].residuals
            assert report.method.split(", right")[1:] == found[0][1].method.split(", right")[1:]


def test_paths_of_right_hand_sides(tmp_path: Path) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    oc.from_array(b, tmp_path / "b")
    x, _ = cg(A, tmp_path / "b", x0=str(tmp_path / "b"), tol=1e-10, progress=False)
    assert residual(a, x[:, :7], b[:, :7]) < 1e-9
    with pytest.raises(InvalidError, match="which the call needs"):
        cg(A, b, x0=tmp_path / "b", out=tmp_path / "b", if_exists="overwrite", progress=False)
    with pytest.raises(InvalidError, match="x0 has a NaN"):
        cg(A, b, x0=np.where(np.arange(COLUMNS) == 10, np.nan, b), progress=False)


def test_plans_of_right_hand_sides(tmp_path: Path) -> None:
    known: dict[str, Any] = {"path": tmp_path, "rates": RATES, "memory": "64 MiB"}
    few = oc.plan("cg", n=20_000, rhs=10, **known)
    many = oc.plan("cg", n=20_000, rhs=1000, **known)
    assert "groups" not in few.method
    groups = int(many.method.split("in ")[-1].split(" groups")[0])
    assert groups > 10
    assert many.bytes_read > 0.9 * groups * few.bytes_read
    assert many.peak_memory_bytes <= 64 << 20
    with pytest.raises(InvalidError, match=r"b= has shape \(5, 2\), need \(20000, 3\)"):
        oc.plan("cg", n=20_000, rhs=3, b=np.ones((5, 2)), **known)
    with pytest.raises(BudgetError, match="with 1 column"):
        oc.plan("cg", n=20_000, rhs=3, **known | {"memory": "1 MiB"})


def test_one_group_as_long_as_it_fits(tmp_path: Path) -> None:
    a, b = system()
    A = on_disk(tmp_path / "A", a)
    seen: list[Matrix] = []

    def function(R: Matrix) -> Matrix:
        seen.append(R.shape)
        return R

    gmres(A, b, preconditioner=function, progress=False)
    assert set(seen) == {(N, COLUMNS)}
