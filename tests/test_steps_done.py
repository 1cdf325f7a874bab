"""Results that calls write to disk in steps: a stopped call resumes at the next step."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import names_below, one_thread, random_matrix
from stopping import is_whole, kill_at_line, noted_at_once, skipped, stopped_at

import outcore as oc
from outcore._util import budget
from outcore.array_files.blocks_done import STEPS
from outcore.errors import IncompleteError
from outcore.files import catalog
from outcore.linalg import (
    export_lapack,
    form_q,
    lu_factor,
    matmul,
    open_factor,
    qr_factor,
    solve_triangular,
)
from outcore.linalg._output import steps_done

__all__ = ["noted_at_once", "one_thread"]  # fixtures for every test here

N, MEMORY = 256, 300_000
Call = Callable[..., tuple[oc.Array, oc.Report]]


def _with_report(result: Any) -> tuple[oc.Array, oc.Report]:
    return result, result.report


class Case:
    """A verb and its expected result."""

    def __init__(self, verb: str, where: Path) -> None:
        a, b = random_matrix(N, "c16"), random_matrix(N, "c16", 1)
        self.verb, self.source, self.memory = verb, where / "A", MEMORY
        self.a = a
        A = oc.from_array(a, self.source, order="F", chunks=(64, 64), progress=False)
        A.close()
        if verb == "matmul":
            self.expected = a @ b
            self.call: Call = lambda **more: _with_report(matmul(self.source, b, **more))
        elif verb == "solve_triangular":
            triangle = np.tril(a) + 20 * np.eye(N)
            oc.from_array(triangle, self.source, order="F", chunks=(64, 64), if_exists="overwrite",
                          progress=False).close()  # fmt: skip
            self.expected = scipy.linalg.solve_triangular(triangle, b, lower=True)
            self.call = lambda **more: _with_report(
                solve_triangular(self.source, b, lower=True, **more)
            )
        elif verb == "form_q":
            self.memory = 420_000
            self.source = qr_factor(self.source, memory=self.memory, progress=False).path
            self.expected = scipy.linalg.qr(a)[0]
            self.call, self.memory = (
                lambda **more: form_q(open_factor(self.source), **more),
                450_000,
            )
        else:
            self.source = lu_factor(self.source, memory="2 MB", progress=False).path
            self.expected = scipy.linalg.lu_factor(a)[0]
            self.call = lambda **more: self._export(**more)

    def _export(self, **more: Any) -> tuple[oc.Array, oc.Report]:
        packed, _, report = export_lapack(open_factor(self.source), **more)
        return packed, report

    def run(self, out: Path, **more: Any) -> tuple[oc.Array, oc.Report]:
        return self.call(**{"out": out, "memory": self.memory, "progress": False} | more)

    def assert_right(self, X: oc.Array) -> None:
        np.testing.assert_allclose(X[...], self.expected, rtol=0, atol=1e-10)
        assert not (Path(X.path) / STEPS).exists()


VERBS = ["matmul", "solve_triangular", "form_q", "export_lapack"]


@pytest.fixture(params=VERBS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, tmp_path)


def test_a_stopped_call_goes_on(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "X"
    whole, report = case.run(tmp_path / "W")
    case.assert_right(whole)
    assert report.notes == []
    with stopped_at(2):
        case.run(out)
    with pytest.raises(IncompleteError, match="again"):
        oc.open_array(out)
    header, *lines = (out / STEPS).read_text().splitlines()
    assert json.loads(lines[-1])["blocks_done"] == 2
    assert json.loads(header)["memory_bytes"] == case.memory
    with stopped_at(1):
        case.run(out)
    # Files that a kill leaves while the call replaces a small file.
    for half_written in ("zarr.json.77.new", f"{STEPS}.77.new"):
        (out / half_written).write_text("{")
    told: list[float] = []
    with skipped() as before:
        X, again = case.run(out, progress=lambda fraction, left: told.append(fraction))
    assert sum(before) > 0
    case.assert_right(X)
    np.testing.assert_array_equal(X[...], whole[...])
    assert names_below(out) == names_below(tmp_path / "W")
    assert any("resumed at step 3 of" in note for note in again.notes)
    assert again.bytes_read < report.bytes_read == report.planned_bytes_read
    assert again.bytes_written < report.bytes_written == report.planned_bytes_written
    assert again.peak_memory_bytes <= case.memory
    assert told == sorted(told)
    assert told[-1] == 1


@pytest.mark.exhaustive
def test_killed_anywhere(case: Case, tmp_path: Path, all_lines: bool) -> None:
    """Kill a call anywhere, also before a note, and while a result replaces a half-made one."""
    out, line, resumed = tmp_path / "X", 1, 0
    before = sorted(p.name for p in tmp_path.iterdir())
    while kill_at_line(line, lambda: case.run(out), ("_output/steps_done.py", "_output/result.py")):
        resume = line % 4 != 0
        X, report = case.run(
            out, if_exists="overwrite" if is_whole(out) else "error", resume=resume
        )
        case.assert_right(X)
        resumed += any("resumed" in note for note in report.notes)
        assert resume or report.notes == []
        shutil.rmtree(out)
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        line += 3 if all_lines else 17
    assert resumed > 2


def damage(case: Case, out: Path) -> None:
    """Truncate the record."""
    (out / STEPS).write_bytes((out / STEPS).read_bytes()[:-20])


def write_again(case: Case, out: Path) -> None:
    """Write the same elements again: outcore cannot know that they are the same."""
    if case.verb == "form_q":
        (case.source / "qr" / "c" / "0" / "0").touch()
    elif case.verb == "export_lapack":
        (case.source / "lu" / "c" / "0" / "0").touch()
    else:
        with oc.open_array(case.source, "r+") as array:
            array[0, 0] = array[0, 0]


@pytest.mark.parametrize(
    ("change", "more"),
    [(None, {"resume": False}), (None, {"less": 4096}), (damage, {}), (write_again, {})],
)
def test_of_something_else_it_begins_anew(
    case: Case, tmp_path: Path, change: Callable[[Case, Path], None] | None, more: dict[str, Any]
) -> None:
    out = tmp_path / "X"
    with stopped_at(1):
        case.run(out)
    if change:
        change(case, out)
    if "less" in more:
        more = {"memory": case.memory - more["less"]}
    X, report = case.run(out, **more)
    assert report.notes == []
    case.assert_right(X)


def test_other_arguments_and_other_operands_in_memory(tmp_path: Path) -> None:
    case, out = Case("matmul", tmp_path), tmp_path / "X"
    a, b = case.a, random_matrix(N, "c16", 5)

    def product(right: Any, **more: Any) -> oc.Array:
        options = {"out": out, "memory": MEMORY, "progress": False}
        result: oc.Array = matmul(case.source, right, **options | more)
        return result

    with stopped_at(1):
        product(b)
    again = product(np.asfortranarray(b))
    assert any("resumed" in note for note in again.report.notes)
    shutil.rmtree(out)
    for other, more, expected in [
        (b, {"alpha": 2.0}, 2 * a @ b), (b, {"trans_a": "C"}, a.conj().T @ b), (-b, {}, -a @ b),
    ]:  # fmt: skip
        with stopped_at(1):
            product(b)
        X = product(other, **more)
        assert X.report.notes == []
        np.testing.assert_allclose(X[...], expected, atol=1e-10)
        shutil.rmtree(out)


def test_the_budget_is_that_of_the_stopped_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume without `memory=` keeps the first budget: another one would change the steps."""
    case, out = Case("matmul", tmp_path), tmp_path / "X"
    with stopped_at(1):
        case.run(out)
    for memory in ("2 MB", None):
        with stopped_at(1):
            case.run(out, memory=memory)
    X, report = case.run(out, memory=None)
    assert report.memory_bytes == MEMORY
    assert any("resumed at step 3" in note for note in report.notes)
    case.assert_right(X)
    shutil.rmtree(out)
    with stopped_at(1):
        case.run(out)
    monkeypatch.setattr(budget, "available_bytes", lambda: MEMORY - 1)
    monkeypatch.setattr(budget, "resolve", lambda memory: MEMORY - 4096)
    X, report = case.run(out, memory=None)
    assert report.notes == []
    case.assert_right(X)


def test_short_calls_note_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_done, "NOTE_S", 60.0)
    monkeypatch.setattr(steps_done, "_digest", lambda given: 1 / 0)
    X, _ = case.run(tmp_path / "X")
    case.assert_right(X)


def test_what_is_left_can_be_seen_and_removed(case: Case, tmp_path: Path) -> None:
    before = names_below(tmp_path)
    with stopped_at(1):
        case.run(tmp_path / "X")
    found = catalog.recognise(tmp_path / "X")
    assert found is not None
    assert found.state == "incomplete"
    catalog.remove(found)
    assert names_below(tmp_path) == before
