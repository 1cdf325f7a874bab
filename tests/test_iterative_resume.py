"""Iterative methods resume inside a group of columns, from the iterate of a stopped call."""

import contextlib
import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadJob
from iterative_cases import dominant, least_budget, on_disk, poisson, random, residual
from linpack import Matrix, one_thread
from stopping import in_a_fork

import outcore as oc
from outcore.errors import (
    DivergenceError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
)
from outcore.linalg import cg, gauss_seidel, gmres, jacobi, lu_factor, lu_solve
from outcore.linalg._rhs.solutions import NOTE

__all__ = ["one_thread"]  # a fixture for every test here

SIDE = 12
OPTIONS: dict[str, Any] = {"tol": 1e-9, "progress": False, "memory": 1 << 20}
METHODS: list[tuple[Any, dict[str, Any], int]] = [
    (gauss_seidel, {"block": 16}, 40),
    (gauss_seidel, {"block": 16, "direction": "forward"}, 40),
    (jacobi, {"block": 16}, 60),
    (cg, {}, 15),
    (gmres, {"restart": 5}, 23),
]


@pytest.fixture
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcore.linalg.iterative.keeping.EVERY_S", 0.0)
    monkeypatch.setattr("outcore.linalg.iterative.keeping.MOST_SHARE", 1e9)


def stop_at(step: int, act: Callable[[], object], work: Callable[[], object]) -> None:
    """Run `work`, and call `act` at the given step."""
    count = [0]

    def advance(self: Any, share: float) -> None:
        count[0] += 1
        if count[0] == step:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outcore._util.progress.Meter.advance", advance)
        work()


def kill_at(step: int, work: Callable[[], object]) -> None:
    """Run `work` in a process that is killed at the given step."""

    def killed() -> None:
        stop_at(step, lambda: os.kill(os.getpid(), signal.SIGKILL), work)

    assert in_a_fork(killed) == -signal.SIGKILL


def note_of(out: Path) -> Any:
    return json.loads((out / NOTE).read_bytes())


@pytest.mark.exhaustive(each=True)
@pytest.mark.usefixtures("at_each_step")
@pytest.mark.parametrize(("method", "options", "step"), METHODS)
@pytest.mark.parametrize("b_dtype", ["f8", "c16"])
def test_a_killed_call_goes_on_with_its_iterate(
    tmp_path: Path, method: Any, options: dict[str, Any], step: int, b_dtype: str
) -> None:
    a, b = poisson(SIDE), 1e20 * random((SIDE**2, 2), b_dtype)
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    options = OPTIONS | options
    _, whole = method(A, b, **options)
    kill_at(step, lambda: method(A, b, out=out, **options))
    with pytest.raises(IncompleteError):
        oc.open_array(out)
    # Files that a kill leaves while the call replaces a small file.
    (out / "zarr.json.77.new").write_text("{")
    left = note_of(out)["iterate"]
    last = (step - 1) // options.get("restart", 1) * options.get("restart", 1)
    assert left == {"end": 2, "steps": last, "residual": pytest.approx(whole.history[last - 1])}
    x, report = method(A, b, out=out, **options)
    assert residual(a, x[...] / 1e20, b / 1e20) < 1e-9
    assert report.history[0] <= left["residual"]
    assert len(report.history) < len(whole.history)
    assert any(f"left it after {last} steps" in note for note in report.notes)
    assert report.bytes_read == report.planned_bytes_read
    assert not (out / NOTE).exists()
    assert not list(out.glob("*.new"))


@pytest.mark.parametrize("left", [[], ["zarr.json.77.new"]], ids=["nothing", "half a file"])
def test_what_is_killed_at_its_start_begins_anew(tmp_path: Path, left: list[str]) -> None:
    """The kill leaves a directory without an array."""
    a, b = poisson(SIDE), random(SIDE**2, "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    factors = lu_factor(A, progress=False)
    for call in (
        lambda: gauss_seidel(A, b, out=out, **OPTIONS)[0],
        lambda: lu_solve(factors, b, out=out),
    ):
        out.mkdir()
        for name in left:
            (out / name).write_text("{")
        assert residual(a, call()[...][:, None], b[:, None]) < 1e-9
        assert sorted(p.name for p in out.iterdir()) == ["c", "outcore.generation", "zarr.json"]
        shutil.rmtree(out)
        out.mkdir()
        (out / "zarr.json.77.new").touch()
        (out / "mine").touch()
        with pytest.raises(ExistsError):
            call()
        shutil.rmtree(out)


@pytest.mark.usefixtures("at_each_step")
def test_each_kill_is_gone_on_from(tmp_path: Path) -> None:
    """Steps count across calls; the maximum applies to each call."""
    a, b = poisson(SIDE), random(SIDE**2, "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    options: dict[str, Any] = OPTIONS | {"block": 16, "max_sweeps": 30}
    for kills in range(1, 4):
        kill_at(21, lambda: gauss_seidel(A, b, out=out, **options))
        assert note_of(out)["iterate"]["steps"] == 20 * kills
    x, _ = gauss_seidel(A, b, out=out, **(options | {"max_sweeps": 1000}))
    assert residual(a, x[...][:, None], b[:, None]) < 1e-9
    with contextlib.suppress(Interrupted):
        stop_at(9, interrupt, lambda: gauss_seidel(A, b, out=tmp_path / "y", **options))
    assert note_of(tmp_path / "y")["iterate"]["steps"] == 9
    _, report = gauss_seidel(A, b, out=tmp_path / "y", resume=False, tol=0.5, progress=False)
    assert not any("resumed" in note for note in report.notes)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("method", "options", "step"), METHODS)
def test_a_signal_keeps_the_iterate(
    tmp_path: Path, method: Any, options: dict[str, Any], step: int, number: signal.Signals
) -> None:
    a, b = poisson(SIDE), 1e-20 * random((SIDE**2, 2), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    options = OPTIONS | options

    def work() -> None:
        with pytest.raises(Interrupted, match="the same arguments to resume") as found:
            method(A, b, out=out, **options)
        on_its_way: Matrix = oc.open_array(out, allow_incomplete=True)[...]
        np.testing.assert_array_equal(on_its_way, found.value.x)  # type: ignore[arg-type]

    stop_at(step, lambda: signal.raise_signal(number), work)
    left = note_of(out)["iterate"]
    assert left["steps"] == step
    x, report = method(A, b, out=out, **options)
    assert residual(a, x[...] * 1e20, b * 1e20) < 1e-9
    # GMRES with fewer directions has another first step.
    assert report.history[0] <= 1.01 * left["residual"]


@pytest.mark.usefixtures("at_each_step")
def test_several_processes_go_on(tmp_path: Path) -> None:
    a, b = dominant(SIDE**2, "f8") - 1.5 * SIDE**2 * np.eye(SIDE**2), random((SIDE**2, 2), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    options: dict[str, Any] = OPTIONS | {"block": 16, "tol": 1e-12}

    def solved() -> list[Any]:
        return ThreadJob(3).run(lambda comm: gauss_seidel(A, b, comm=comm, out=out, **options))

    kill_at(7, solved)
    left = note_of(out)["iterate"]
    assert left["steps"] > 0
    for x, report in solved():
        assert residual(a, x[...], b) < 1e-12
        assert report.history[0] <= left["residual"]
        assert any(f"left it after {left['steps']} steps" in note for note in report.notes)


def damage_text(note: Any) -> bytes:
    return json.dumps(note).encode()[:-9]


def far_end(note: Any) -> bytes:
    note["iterate"]["end"] = 7
    return json.dumps(note).encode()


def negative(note: Any) -> bytes:
    return json.dumps(note | {"columns_done": -1}).encode()


def of_another_system(note: Any) -> bytes:
    note["system"]["tol"] = 0.5
    return json.dumps(note).encode()


def odd_field(note: Any) -> bytes:
    note["iterate"]["more"] = 1
    return json.dumps(note).encode()


def no_number(note: Any) -> bytes:
    note["iterate"]["residual"] = float("nan")
    return json.dumps(note).encode()


@pytest.mark.usefixtures("at_each_step")
@pytest.mark.parametrize(
    "change", [damage_text, far_end, negative, of_another_system, odd_field, no_number]
)
def test_another_note_begins_anew(tmp_path: Path, change: Callable[[Any], bytes]) -> None:
    a, b = poisson(SIDE), random((SIDE**2, 2), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    kill_at(10, lambda: cg(A, b, out=out, **OPTIONS))
    (out / NOTE).write_bytes(change(note_of(out)))
    x, report = cg(A, b, out=out, **OPTIONS)
    assert report.history == cg(A, b, **OPTIONS)[1].history
    assert residual(a, x[...], b) < 1e-9


@pytest.mark.usefixtures("at_each_step")
def test_an_iterate_that_is_not_finite_is_left(tmp_path: Path) -> None:
    a, b = poisson(SIDE), random((SIDE**2, 2), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    kill_at(10, lambda: cg(A, b, out=out, **OPTIONS))
    oc.open_array(out, "r+", allow_incomplete=True)[5, 1] = np.nan
    x, report = cg(A, b, out=out, **OPTIONS)
    assert report.history == cg(A, b, **OPTIONS)[1].history
    assert residual(a, x[...], b) < 1e-9


@pytest.mark.usefixtures("at_each_step")
def test_groups_of_other_sizes_find_their_part(tmp_path: Path) -> None:
    a, b = poisson(SIDE), random((SIDE**2, 40), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    small: dict[str, Any] = OPTIONS | {"memory": least_budget(cg, A, b, out=out) + 70_000}
    kill_at(20, lambda: cg(A, b, out=out, **OPTIONS))
    assert note_of(out)["iterate"]["end"] == 40
    kill_at(40, lambda: cg(A, b, out=out, **small))
    left = note_of(out)
    assert 0 < left["columns_done"] < left["iterate"]["end"] == 40
    x, report = cg(A, b, out=out, **OPTIONS)
    assert residual(a, x[...], b) < 1e-9
    assert any("resumed at column" in note for note in report.notes)
    assert any("resumed with x" in note for note in report.notes)


@pytest.mark.usefixtures("at_each_step")
def test_kept_iterates_change_no_digit(tmp_path: Path) -> None:
    """Check extreme ranges too: the call does not save an iterate that scaling would round."""
    a = poisson(SIDE)
    A = on_disk(tmp_path / "A", a)
    for scale in (1.0, 3e-306, 1e300):
        b = scale * random((SIDE**2, 2), "f8")
        want, alike = cg(A, b, **OPTIONS)
        x, report = cg(A, b, out=tmp_path / "x", if_exists="overwrite", **OPTIONS)
        np.testing.assert_array_equal(x[...], want)
        assert report.history == alike.history
        # The report counts the iterates when it writes them.
        assert report.bytes_written >= report.planned_bytes_written > 2 * want.nbytes or scale < 1


@pytest.mark.usefixtures("at_each_step")
def test_what_diverges_leaves_no_iterate(tmp_path: Path) -> None:
    a = random((SIDE**2, SIDE**2), "f8") + 5 * np.eye(SIDE**2)
    A = on_disk(tmp_path / "A", a)
    with pytest.raises(DivergenceError):
        jacobi(A, np.ones(SIDE**2), block=16, out=tmp_path / "x", **OPTIONS)
    assert [p.name for p in tmp_path.iterdir()] == ["A"]


@pytest.mark.usefixtures("at_each_step")
def test_columns_that_did_not_converge_are_an_iterate_too(tmp_path: Path) -> None:
    a, b = poisson(SIDE), random((SIDE**2, 40), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    few: dict[str, Any] = OPTIONS | {"max_iterations": 10}
    few["memory"] = least_budget(cg, A, b, out=out) + 70_000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kill_at(25, lambda: cg(A, b, out=out, **few))
    left = note_of(out)
    assert left["columns_done"] == 0
    assert left["iterate"]["end"] > 10
    x, _ = cg(A, b, out=out, **OPTIONS)
    assert residual(a, x[...], b) < 1e-9


def test_a_note_is_of_the_same_right_hand_sides(tmp_path: Path) -> None:
    a, b = poisson(SIDE), random((SIDE**2, 2), "f8")
    A, out = on_disk(tmp_path / "A", a), tmp_path / "x"
    with contextlib.suppress(Interrupted):
        stop_at(10, interrupt, lambda: cg(A, b, out=out, **OPTIONS))
    assert out.exists()
    with pytest.raises(InvalidError):
        cg(A, b[:-1], out=out, **OPTIONS)
    _, report = cg(A, -b, out=out, **OPTIONS)
    assert report.history == cg(A, -b, **OPTIONS)[1].history
