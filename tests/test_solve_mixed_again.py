"""A mixed-precision solve that is called again after a stop or a kill."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, hpl_residual, on_disk, one_thread, random_matrix
from scipy.linalg import LinAlgWarning
from stopping import DECISIVE, after_notes, at_line, in_a_fork, interrupt

import outcore as oc
from outcore.errors import ExistsError, Interrupted
from outcore.files import catalog
from outcore.linalg import lu_factor, solve
from outcore.linalg._systems.refine import Refinement

__all__ = ["one_thread"]  # a fixture for every test here

N = 200
PAGES = (
    *DECISIVE, "_systems/low_copy.py", "_systems/low_factors.py", "_output/own.py",
    "_output/result.py",
)  # fmt: skip


@pytest.fixture
def matrix() -> Matrix:
    return random_matrix(N, "f8")


def mixed(path: Path, **more: Any) -> tuple[Any, oc.Report]:
    options = {"memory": 200_000, "factor_dtype": "f4", "threads": 1, "progress": False}
    return solve(path, np.ones(N), **options | more)


def check_again(path: Path, a: Matrix, **more: Any) -> oc.Report:
    """Solve again, and check that only the matrix remains."""
    x, report = mixed(path, **more)
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return report


def lines_executed(path: Path) -> int:
    with at_line(-1, interrupt, PAGES) as count:
        mixed(path)
    return int(count[0])


@pytest.mark.exhaustive(keep=0)
def test_killed_anywhere(tmp_path: Path, matrix: Matrix) -> None:
    """After a kill, `outcore info` lists all left-overs; the next call solves and removes them."""
    path = on_disk(tmp_path / "Z", matrix).path
    total = lines_executed(path)
    assert total > 500
    states = set()
    for number in (*range(5, total, total // 25), *range(total - 40, total, 4)):
        status = in_a_fork(functools.partial(_until_killed, path, number))
        assert status == -signal.SIGKILL
        # A lock file counts as part of the object that it locks.
        left = {p for p in tmp_path.iterdir() if p != path and p.suffix != ".filling"}
        entries = {Path(entry.path): entry for entry in catalog.find(tmp_path)[0]}
        assert left <= entries.keys(), "outcore info lists all of it"
        states |= {(p.name, entries[p].state) for p in left}
        check_again(path, matrix)
    assert {("Z.f4.lu.copy", "incomplete"), ("Z.f4.lu.copy", "consumed")} <= states
    assert {("Z.f4.lu", "incomplete"), ("Z.f4.lu", "whole")} <= states


def _until_killed(path: Path, number: int) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with at_line(number, die, PAGES):
        mixed(path)


def test_what_is_left_can_be_removed(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    total = lines_executed(path)
    for number in range(100, total, total // 5):
        assert in_a_fork(functools.partial(_until_killed, path, number)) == -signal.SIGKILL
        for entry in catalog.find(tmp_path)[0]:
            if entry.path != str(path):
                assert entry.state != "in use"
                catalog.remove(entry)
        assert [p.name for p in tmp_path.iterdir()] == ["Z"]
    check_again(path, matrix)


def test_the_factorization_goes_on(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    whole = check_again(path, matrix)
    with after_notes(2, interrupt), pytest.raises(Interrupted, match="call solve again"):
        mixed(path)
    assert {p.name for p in tmp_path.iterdir()} == {"Z", "Z.f4.lu", "Z.f4.lu.copy"}
    array, factors, copy = catalog.find(tmp_path)[0]
    assert (copy.kind, copy.state) == ("array", "consumed")
    assert "gave its disk space to the factors in" in copy.text
    report = check_again(path, matrix)
    assert any("resumed at panel" in note for note in report.notes)
    assert report.bytes_written < whole.bytes_written / 2, "the copy was not made again"
    assert factors.kind == "factor"
    assert array.state == "whole"


def test_anew_where_that_is_asked_for(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        mixed(path)
    report = check_again(path, matrix, resume=False)
    assert not any("resumed" in note for note in report.notes)


@pytest.mark.parametrize("stage", ["copying", "factoring", "refining"])
def test_anew_where_the_matrix_has_changed(
    tmp_path: Path, matrix: Matrix, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    total = lines_executed(path)
    if stage == "refining":
        stop_in_refinement(path, monkeypatch)
    elif stage == "factoring":
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            mixed(path)
    else:
        in_a_fork(functools.partial(_until_killed, path, total // 10))
    with oc.open_array(path, "r+") as array:
        array[0, 0] = matrix[0, 0] = 33
    if stage == "refining":
        with pytest.raises(ExistsError, match="as it was before"):
            mixed(path)
    report = check_again(path, matrix, if_exists="overwrite" if stage == "refining" else "error")
    assert not any("resumed" in note or "used" in note for note in report.notes)


def stop_in_refinement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Refinement, "_measure", lambda self, X, R: interrupt())
        with pytest.raises(Interrupted, match="call solve again"):
            mixed(path)


def test_refinement_begins_with_the_factors_that_are_there(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    stop_in_refinement(path, monkeypatch)
    assert {p.name for p in tmp_path.iterdir()} == {"Z", "Z.f4.lu"}
    report = check_again(path, matrix)
    assert report.bytes_written == 0
    assert any("used the factors" in note for note in report.notes)


def test_stopped_in_the_full_factorization(tmp_path: Path, matrix: Matrix) -> None:
    """The next call resumes the full factorization, without trying single precision again."""
    matrix[3, 4] = 1e300
    path = on_disk(tmp_path / "Z", matrix).path
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        mixed(path)
    assert {p.name for p in tmp_path.iterdir()} == {"Z", "Z.lu"}
    with pytest.warns(LinAlgWarning, match="badly scaled"):
        report = check_again(path, matrix)
    assert report.method == "LU"
    assert any("resumed at panel" in note for note in report.notes)
    assert any("existed, or were begun" in note for note in report.notes)


def test_what_belongs_to_another_matrix_stays(tmp_path: Path, matrix: Matrix) -> None:
    """Keep the left-overs of another matrix whose factors have the same path."""
    one, two = (on_disk(tmp_path / name, matrix).path for name in ("one", "two"))
    factors = tmp_path / "F"
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        mixed(one, factors=factors)
    with pytest.raises(ExistsError, match=r"a stopped solve with .*one left"):
        mixed(two, factors=factors)
    x, report = mixed(one, factors=factors)
    assert any("resumed" in note for note in report.notes)
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        mixed(one, factors=factors)
    x, _ = mixed(two, factors=factors, if_exists="overwrite")
    assert hpl_residual(matrix, x, np.ones(N)) < 16
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two"}


def test_an_array_of_the_users_in_the_place_of_the_copy(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    oc.from_array(np.ones(3), tmp_path / "Z.f4.lu.copy")
    with pytest.raises(ExistsError, match="where solve would put a temporary copy"):
        mixed(path, if_exists="overwrite")
    assert oc.open_array(tmp_path / "Z.f4.lu.copy").shape == (3,)


def test_the_matrix_changes_while_it_is_factored(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path / "Z", matrix).path

    def change() -> None:
        with oc.open_array(path, "r+") as array:
            array[0, 0] = matrix[0, 0] = 7

    with after_notes(1, change), pytest.raises(oc.OutcoreError, match="was written to while"):
        mixed(path)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]
    check_again(path, matrix)


def test_progress_goes_to_the_end(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    told: list[float] = []
    mixed(path, progress=lambda done, left: told.append(done))
    assert told[-1] == 1
    assert told == sorted(told)


def test_full_factors_are_not_taken_for_low_ones(tmp_path: Path, matrix: Matrix) -> None:
    path = on_disk(tmp_path / "Z", matrix).path
    lu_factor(path, memory=200_000, out=tmp_path / "F", progress=False)
    x, report = mixed(path, factors=tmp_path / "F")
    assert report.method == "LU"
    assert hpl_residual(matrix, x, np.ones(N)) < 16
