"""QR, least squares, AᴴA and SVD resume after a stop without reading the same rows again."""

import contextlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import names_below, one_thread
from rows_cases import VERBS, Case, K, M, columns_of, same, tall_of
from stopping import (
    at_line,
    interrupt,
    interrupted_after,
    is_whole,
    kill_at_line,
    noted_at_once,
    skipped,
    stopped_at,
)
from tall import RATES

import outcore as oc
from outcore._core import Trace
from outcore.array_files.blocks_done import REFLECTIONS, STATE, STEPS
from outcore.errors import CorruptError, DiskFullError, IncompleteError, Interrupted
from outcore.files import catalog
from outcore.linalg import gram, lstsq, svd
from outcore.linalg._output import steps_done
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._rows import kept_state, tsqr_plan
from outcore.linalg._rows.kept_state import KeptState
from outcore.report.longcall import LongCall

__all__ = ["noted_at_once", "one_thread"]  # fixtures for every test here


@pytest.fixture(autouse=True)
def low_blocks_have_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build a triangle of each low block at once, so that the saved state has several of them."""
    monkeypatch.setattr(tsqr_plan, "FACTOR_ROWS", (32, 8192))


@pytest.fixture(params=VERBS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, tmp_path)


def test_it_goes_on_from_every_step(case: Case, tmp_path: Path, all_lines: bool) -> None:
    out = tmp_path / "X"
    whole = case.run(tmp_path / "W")
    report = whole[2]
    case.assert_right(whole)
    assert report.notes == []
    assert report.peak_memory_bytes <= case.memory
    assert report.bytes_read == report.planned_bytes_read
    note, read = 1, report.bytes_read + 1
    begun: list[int] = []
    while True:
        with contextlib.suppress(Interrupted), interrupted_after(note):
            case.run(out)
            break
        with pytest.raises(IncompleteError, match="again"):
            oc.open_array(out)
        told: list[float] = []
        with skipped() as before:
            found = case.run(out, progress=lambda done, left, told=told: told.append(done))
        assert sum(before) > 0
        case.assert_right(found)
        same(found, whole)
        (where,) = (re.match(r"resumed at (?:row|step) (\d+) of (\d+)", t) for t in found[2].notes)
        assert where is not None
        begun.append(int(where[1]))
        # A later stop leaves less to read; a stop at the end leaves nothing of A.
        assert found[2].bytes_read <= read
        assert found[2].bytes_written <= report.bytes_written
        read = found[2].bytes_read
        assert found[2].peak_memory_bytes <= case.memory
        assert told == sorted(told)
        assert told[-1] == 1
        shutil.rmtree(out)
        note += 1 + note // (4 if all_lines else 2)
    assert note > 4, "several steps were noted"
    assert begun == sorted(begun)
    assert read < report.bytes_read / 2


@pytest.mark.exhaustive(every=3)
def test_it_is_stopped_again_and_again(case: Case, tmp_path: Path) -> None:
    out, times = tmp_path / "X", 0
    whole = case.run(tmp_path / "W")
    while True:
        times += 1
        with contextlib.suppress(Interrupted), interrupted_after(1):
            found = case.run(out)
            break
    same(found, whole)
    case.assert_right(found)
    assert times > 4


@pytest.mark.exhaustive
def test_killed_anywhere(case: Case, tmp_path: Path, all_lines: bool) -> None:
    """Kill between a copy of the state, its note, and the data of the result."""
    out, line, resumed = tmp_path / "X", 1, 0
    whole = case.run(tmp_path / "W")
    before = sorted(p.name for p in tmp_path.iterdir())
    pages = ("_output/steps_done.py", "_output/result.py", "_rows/kept_state.py")
    while kill_at_line(line, lambda: case.run(out), pages):
        resume = line % 4 != 0
        found = case.run(out, if_exists="overwrite" if is_whole(out) else "error", resume=resume)
        case.assert_right(found)
        same(found, whole)
        resumed += any("resumed" in note for note in found[2].notes)
        assert resume or found[2].notes == []
        shutil.rmtree(out)
        assert sorted(p.name for p in tmp_path.iterdir()) == before
        line += 7 + line // (9 if all_lines else 3)
    assert resumed > 2


def without_state(out: Path) -> None:
    shutil.rmtree(out / STATE)


def without_reflections(out: Path) -> None:
    shutil.rmtree(out / REFLECTIONS, ignore_errors=True)


def change_a_byte(out: Path, page: int, byte: int) -> None:
    """Flip a bit in both copies of the state."""
    with oc.open_array(out / STATE, "r+", allow_incomplete=True) as kept:
        for first in (0, kept.shape[0] // 2):
            found = kept[first + page]
            found[byte] ^= 64
            kept[first + page] = found


def of_other_steps(out: Path) -> None:
    """Change the number of the step that the state belongs to."""
    change_a_byte(out, 0, 0)


def of_other_blocks(out: Path) -> None:
    """Change the height of the blocks of rows in the state."""
    change_a_byte(out, 0, 8)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(
    "damage", [without_state, without_reflections, of_other_steps, of_other_blocks]
)
def test_without_its_state_it_begins_anew(
    case: Case, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "X"
    with stopped_at(3):
        case.run(out)
    needed = damage is not without_reflections or (out / REFLECTIONS).exists()
    damage(out)
    found = case.run(out)
    case.assert_right(found)
    assert (found[2].notes == []) == needed
    same(found, case.run(tmp_path / "W"))


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("change", ["A", "memory", "resume"])
@pytest.mark.parametrize("verb", ["lstsq", "qr", "svd"])
def test_of_something_else_it_begins_anew(tmp_path: Path, verb: str, change: str) -> None:
    case, out = Case(verb, tmp_path), tmp_path / "X"
    with stopped_at(3):
        case.run(out)
    more: dict[str, Any] = {}
    if change == "A":
        with oc.open_array(case.source, "r+") as array:
            array[0, 0] = array[0, 0]
    elif change == "memory":
        more["memory"] = case.memory - 4096
    else:
        more["resume"] = False
    found = case.run(out, **more)
    assert found[2].notes == []
    case.assert_right(found)


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("lstsq", {"damp": 1.0}),
        ("lstsq", {"cond": 1e-3}),
        ("gram", {"alpha": 2.0}),
        ("gram", {"shift": 1.0}),
        ("gram", {"triangle": "lower"}),
        ("gram", {"dtype": "c8"}),
        ("svd", {"k": 2}),
        ("svd", {"power": 2}),
        ("svd", {"oversample": 9}),
        ("svd", {"seed": 2}),
        ("svd", {"seed": None}),
    ],
)
def test_with_other_arguments_it_begins_anew(
    tmp_path: Path, verb: str, arguments: dict[str, Any]
) -> None:
    case, out = Case(verb, tmp_path), tmp_path / "X"
    with stopped_at(3):
        case.run(out)
    found = case.run(out, **arguments)
    assert found[2].notes == []
    if arguments != {"seed": None}:
        same(found, case.run(tmp_path / "W", **arguments))


def test_right_hand_sides_that_changed(tmp_path: Path) -> None:
    case, out = Case("lstsq", tmp_path), tmp_path / "X"
    with stopped_at(3):
        case.run(out)
    case.b = 2 * case.b
    with oc.open_array(case.right, "r+") as array:
        array[...] = case.b
    found = case.run(out)
    assert found[2].notes == []
    case.assert_right(found)


def test_a_matrix_that_is_written_to_while_it_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was stopped restarts if the matrix changed since the call began."""
    case, out, passed = Case("R", tmp_path), tmp_path / "X", [0]
    keep = KeptState.passed

    def keeping(self: KeptState, *rest: Any) -> None:
        passed[0] += 1
        if passed[0] == 2:
            case.a = 2 * case.a
            with oc.open_array(case.source, "r+") as array:
                array[...] = case.a
        if passed[0] > 2:
            keep(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(KeptState, "passed", keeping)
        with stopped_at(1):
            case.run(out)
    found = case.run(out)
    assert found[2].notes == []
    case.assert_right(found)


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(
    ("verb", "every"),
    [*((verb, 1) for verb in VERBS), *((verb, 5) for verb in ("qr", "gram in parts", "svd"))],
)
def test_all_is_durable_before_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, every: int
) -> None:
    """Each write is synced before the note of a step that a resume relies on."""
    case, calls = Case(verb, tmp_path), list[LongCall]()
    opened, passed, noted = KeptState.__init__, StepsDone.passed, [0]

    def opening(self: KeptState, *rest: Any) -> None:
        opened(self, *rest)
        calls.append(self._call)

    def passing(self: StepsDone, done: int, *rest: Any) -> None:
        if done % every == 0:
            passed(self, done, *rest)

    def noting(self: StepsDone, *rest: Any) -> None:
        noted[0] += 1
        kinds = Trace.kinds()
        spans = calls[-1].trace.spans()
        for number in {int(number) for number in spans[:, 1]}:
            mine = spans[spans[:, 1] == number]
            writes, syncs = (mine[mine[:, 0] == kinds.index(kind)] for kind in ("write", "sync"))
            if len(writes):
                assert len(syncs)
                assert writes[:, 3].max() <= syncs[:, 2].max(), f"array {number} at note {noted[0]}"
        note(self, *rest)

    note = StepsDone._note
    monkeypatch.setattr(KeptState, "__init__", opening)
    monkeypatch.setattr(StepsDone, "passed", passing)
    monkeypatch.setattr(StepsDone, "_note", noting)
    case.assert_right(case.run(tmp_path / "X"))
    assert noted[0] > 3


def test_a_note_that_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a new note, the copy of the state that the last note names stays unchanged."""
    case, out = Case("R", tmp_path), tmp_path / "X"
    whole = case.run(tmp_path / "W")
    note, write, written = StepsDone._note, KeptState._write, list[int]()

    def noting(self: StepsDone, record: Any, done: int, steps: int) -> None:
        if done in (3, 4):
            raise DiskFullError("no room for a line")
        note(self, record, done, steps)

    def writing(self: KeptState) -> None:
        written.append(self._next)
        write(self)

    monkeypatch.setattr(StepsDone, "_note", noting)
    monkeypatch.setattr(KeptState, "_write", writing)
    with stopped_at(3):
        case.run(out)
    assert written == [0, 1, 0, 0, 0]
    found = case.run(out)
    assert "resumed at step 5 of" in found[2].notes[0]
    same(found, whole)


@pytest.mark.exhaustive(every=3)
def test_a_damaged_copy_is_noticed(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "X"
    with stopped_at(3):
        case.run(out)
    change_a_byte(out, 1, 5)
    with pytest.raises(CorruptError, match="resume=False"):
        case.run(out)
    case.assert_right(case.run(out, resume=False))


def test_numbers_of_numpy(tmp_path: Path) -> None:
    case, out = Case("svd", tmp_path), tmp_path / "X"
    counts = {"k": np.int64(2), "oversample": np.int32(8), "power": np.int8(1)}
    with stopped_at(3):
        case.run(out, **counts)
    assert case.run(out, **counts)[2].notes != []


@pytest.mark.parametrize("verb", ["lstsq", "qr", "gram", "svd"])
def test_interrupted_at_the_end_it_is_whole_or_goes_on(
    tmp_path: Path, verb: str, all_lines: bool
) -> None:
    """No stop hits between the removal of the state and the mark of the whole result."""
    case, out, line = Case(verb, tmp_path), tmp_path / "X", 1
    whole = case.run(tmp_path / "W")
    while True:
        with (
            contextlib.suppress(Interrupted),
            at_line(line, interrupt, ("_output/result.py",)) as count,
        ):
            case.run(out)
        if count[0] < line:
            break
        if is_whole(out):
            with oc.open_array(out) as array:
                np.testing.assert_array_equal(array[...], whole[0][...])
            assert not {STEPS, STATE, REFLECTIONS} & set(names_below(out))
        elif (out / STEPS).exists():
            found = case.run(out)
            assert found[2].notes != []
            same(found, whole)
        shutil.rmtree(out, ignore_errors=True)
        line += 1 if all_lines else 4
    assert line > 21, "few lines were stopped at"


def test_a_disk_that_is_full_keeps_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the call continues without saving its state."""
    tries = [0]

    def full(target: oc.Array, name: str, *rest: Any, **options: Any) -> oc.Array:
        tries[0] += 1
        raise DiskFullError("need room for what is kept")

    monkeypatch.setattr(kept_state, "working_array", full)
    found = case.run(tmp_path / "X")
    case.assert_right(found)
    assert tries[0] > 3


def test_short_calls_keep_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_done, "NOTE_S", 60.0)
    monkeypatch.setattr(kept_state, "working_array", lambda *rest, **options: 1 / 0)
    case.assert_right(case.run(tmp_path / "X"))


@pytest.mark.parametrize("kind", ["iterator", "memmap", "transform", "memory"])
def test_what_cannot_be_known_again_is_not_kept(tmp_path: Path, kind: str) -> None:
    a, A, is_known = tall_of("f8"), tall_of("f8"), kind == "memory"
    options: dict[str, Any] = {"out": tmp_path / "G", "memory": 100_000, "progress": False}
    if kind == "iterator":
        A = iter([a[:400], a[400:]])
    elif kind == "memmap":
        A = np.memmap(tmp_path / "f", a.dtype, "w+", 0, a.shape)
        A[...] = a
    elif kind == "transform":
        options["transform"] = lambda rows: rows
    with contextlib.suppress(Interrupted), interrupted_after(2):
        gram(A, **options)
    assert (tmp_path / "G" / STATE).exists() == is_known
    G, report = gram(iter([a]) if kind == "iterator" else A, if_exists="overwrite", **options)
    assert bool(report.notes) == is_known
    np.testing.assert_allclose(G[...], a.T @ a, atol=1e-9)
    assert not {STATE, STEPS} & set(names_below(tmp_path / "G"))


@pytest.mark.parametrize("verb", ["gram", "svd"])
def test_a_matrix_in_memory_may_have_another_order_later(tmp_path: Path, verb: str) -> None:
    """The saved sum of row-major blocks is the conjugate."""
    a = columns_of(M, "c16", 120) if verb == "svd" else tall_of("c16")
    options: dict[str, Any] = {"memory": 210_000, "progress": False}
    if verb == "svd":
        options |= {"memory": 900_000, "k": K, "power": 1, "tol": None, "seed": 1}
    call: Callable[..., Any] = svd if verb == "svd" else gram
    want = call(a, out=tmp_path / "W", **options)[:-1]
    for order in ("F", "C"):
        out = tmp_path / order
        with stopped_at(2):
            call(np.array(a, order="FC"[order == "F"]), out=out, **options)
        *results, _ = call(np.array(a, order=order), out=out, **options)
        for found, each in zip(results, want, strict=True):
            np.testing.assert_allclose(found[...], each[...], rtol=0, atol=1e-9)


def test_results_in_memory_keep_nothing(tmp_path: Path) -> None:
    case = Case("lstsq", tmp_path)
    before = names_below(tmp_path)
    with interrupted_after(1):
        x, _ = lstsq(case.source, case.right, memory=case.memory, progress=False)
    case.solves(x)
    assert names_below(tmp_path) == before


@pytest.mark.exhaustive(every=3)
def test_what_is_left_is_known_and_can_be_removed(case: Case, tmp_path: Path) -> None:
    """A kill during the removal of left-overs leaves an object that can be removed."""
    before = names_below(tmp_path)
    for is_half_gone in (False, True):
        with stopped_at(2):
            case.run(tmp_path / "X")
        if is_half_gone:
            (tmp_path / "X" / STEPS).unlink()
            (tmp_path / "X" / "zarr.json").unlink()
        found = catalog.recognise(tmp_path / "X")
        assert found is not None
        assert found.state == "incomplete"
        catalog.remove(found)
        assert names_below(tmp_path) == before


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("lstsq", {"rhs": K}),
        ("least norm", {"rhs": K, "order": "F"}),
        ("R", {}),
        ("qr", {"mode": "economic"}),
        ("wide qr", {"mode": "economic"}),
        ("gram", {}),
        ("svd", {"k": K, "power": 1}),
    ],
)
def test_the_plan_has_room_for_what_is_kept(
    tmp_path: Path, verb: str, options: dict[str, Any]
) -> None:
    """The plan counts all files on disk at once, except indexes and padding of small chunks."""
    case, largest, write = Case(verb, tmp_path), [0], KeptState._write

    def writing(self: KeptState) -> None:
        write(self)
        files = [path for path in (tmp_path / "X").rglob("*") if path.is_file()]
        largest[0] = max(largest[0], sum(path.stat().st_size for path in files))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptState, "_write", writing)
        found = case.run(tmp_path / "X")
    A = oc.open_array(case.source)
    name = {"least norm": "lstsq", "R": "qr", "wide qr": "qr"}.get(verb, verb)
    planned = oc.plan(
        name, m=A.shape[0], n=A.shape[1], dtype="c16", memory=case.memory, chunks=A.chunks,
        rates=RATES, **({"out": True} if "mode" not in options else {}), **options,
    )  # fmt: skip
    assert planned.disk_bytes is not None
    assert largest[0] <= planned.disk_bytes + (8 if verb != "svd" else 38) * 4096
    assert largest[0] > planned.disk_bytes / 2
    assert found[2].peak_memory_bytes <= planned.peak_memory_bytes
