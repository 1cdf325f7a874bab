"""Each factorization resumes after any stop with identical bits, and refuses a wrong state."""

import functools
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, names_below, on_disk, one_thread
from resumed_kinds import CHOLESKY, KINDS, LU, QR, Kind
from stopping import (
    after_notes,
    before_notes,
    in_a_fork,
    interrupt,
    interrupted_again_and_again,
    kill_at_random_moments,
    killed_again_and_again,
    killed_at_lines,
    stop_after,
    stopped_by_a_full_disk,
    whole_or_again,
)
from tall import tall

import outcore as oc
from outcore.errors import (
    BusyError,
    ConsumedError,
    ForkedError,
    IncompleteError,
    Interrupted,
    JournalError,
)
from outcore.linalg import lu_factor, open_factor
from outcore.linalg._cholesky.conveyor import CholeskyConveyor
from outcore.linalg._factors.conveyor import SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.journal import Journal, Record
from outcore.storage.pool_locks import LOCK_FILE
from outcore.storage.volumes import is_held

__all__ = ["one_thread"]  # a fixture for every test here

RunPython = Callable[..., "subprocess.Popen[str]"]
Undisturbed = tuple[tuple[Matrix, ...], Path]
two_kinds = pytest.mark.parametrize("kind", [CHOLESKY, QR], ids=str)
"""Tests whose counterparts for LU are in `test_lu_resume.py`."""


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "overwrite_a"])
def overwrite_a(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def undisturbed(
    kind: Kind, overwrite_a: bool, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    """Return the resulting bits, and an A to copy."""
    home = tmp_path_factory.mktemp("undisturbed")
    kind.put(home / "A")
    shutil.copytree(home / "A", home / "Z")
    slabs: list[Record] = []
    append = Journal.append

    def noting(self: Journal, record: Record) -> None:
        slabs.append(record)
        append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", noting)
        found = kind.factor(home / "Z", overwrite_a)
    assert len(slabs) >= 4
    assert not (found.path / LOCK_FILE).exists()
    return kind.bits(found), home / "A"


@pytest.mark.exhaustive(each=True)
def test_killed_at_any_line(
    tmp_path: Path, kind: Kind, overwrite_a: bool, undisturbed: Undisturbed, all_lines: bool
) -> None:
    """kill -9 between any two steps: only complete factors count as whole."""
    expected, source = undisturbed
    path = tmp_path / "Z"

    def begin() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def numbers(lines: int) -> list[int]:
        """Return many steps of the beginning and of the end, and some between."""
        first, by, between, last, by_last = kind.lines
        end = lines - last
        found = [*range(2, first, by), *range(first, end, between), *range(end, lines, by_last)]
        return found if all_lines else found[::3]

    runs = killed_at_lines(
        begin, lambda: kind.factor(path, overwrite_a), tmp_path / f"Z{kind.suffix}", kind.pages,
        numbers,
    )  # fmt: skip
    for found, where in runs:
        kind.assert_same(found, expected, where)
        if kind is LU:
            # A kill after the last step leaves the file of a lock that the system has released.
            assert not is_held(found.path)
        if overwrite_a:
            with pytest.raises(ConsumedError):
                oc.open_array(path)


@pytest.mark.exhaustive(each=True)
def test_killed_again_and_again(
    tmp_path: Path, kind: Kind, overwrite_a: bool, undisturbed: Undisturbed
) -> None:
    expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    found = killed_again_and_again(
        lambda: kind.factor(path, overwrite_a), tmp_path / f"Z{kind.suffix}", kind.kills,
        kind.pages, least=4,
    )  # fmt: skip
    kind.assert_same(found, expected)


@pytest.mark.exhaustive(keep=0)
def test_killed_at_random_moments(
    tmp_path: Path, kind: Kind, overwrite_a: bool, undisturbed: Undisturbed, run_python: RunPython
) -> None:
    expected, source = undisturbed
    path, out = tmp_path / "Z", tmp_path / f"Z{kind.suffix}"
    shutil.copytree(source, path)
    name = kind.function.__name__
    script = f"""
import sys
from outcore.linalg import {name}
print("ready", flush=True)
{name}(sys.argv[1], overwrite_a={overwrite_a}, memory={kind.memory}, threads=1, progress=False)
"""
    kill_at_random_moments(lambda: run_python(script, str(path)), out, 0.06)
    kind.assert_same(whole_or_again(lambda: kind.factor(path, overwrite_a), out), expected)


@pytest.mark.exhaustive(each=True)
def test_interrupted_at_any_line(
    tmp_path: Path, kind: Kind, overwrite_a: bool, undisturbed: Undisturbed
) -> None:
    expected, source = undisturbed
    for step in kind.steps:
        path = tmp_path / f"Z{step}"
        shutil.copytree(source, path)
        found = interrupted_again_and_again(
            functools.partial(kind.factor, path, overwrite_a), tmp_path / f"Z{step}{kind.suffix}",
            step, (*kind.pages, *kind.more_pages), kind.least,
        )  # fmt: skip
        kind.assert_finished(found, expected)


def test_a_slab_is_durable_before_its_note(
    tmp_path: Path, kind: Kind, overwrite_a: bool, undisturbed: Undisturbed
) -> None:
    """Write and sync a whole slab before its note, so that a power loss after it loses nothing."""
    _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)

    def check(storage: FactorStorage[Any], spans: Matrix, record: Record) -> None:
        g = storage.geometry
        at = spans[:, 4] // (g.tiles * g.tile_bytes)
        is_write = (spans[:, 0] == 1) & (spans[:, 1] == 1)
        writes = spans[is_write & np.isin(at, record.places)]
        panels = range(record.first, record.last)
        assert [storage.places[panel] for panel in panels] == record.places
        for panel, place in zip(panels, record.places, strict=True):
            written = int(spans[is_write & (at == place), 5].sum())
            tiles = g.tiles - (g.first_tile(panel) if kind is CHOLESKY else 0)
            # A run that overwrites A may write a place twice.
            assert written == tiles * g.tile_bytes or (
                overwrite_a and written > tiles * g.tile_bytes
            )
            assert kind is CHOLESKY or written % (tiles * g.tile_bytes) == 0
        syncs = spans[spans[:, 0] == 2]
        assert (syncs[:, 2] >= writes[:, 3].max()).any()

    with before_notes(kind.storage, check) as noted:
        kind.factor(path, overwrite_a)
    assert len(noted) >= 4


@pytest.mark.parametrize(
    ("kind", "conveyor"), [(CHOLESKY, CholeskyConveyor), (QR, SlabConveyor)], ids=["Cholesky", "QR"]
)
def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, kind: Kind, conveyor: Any, overwrite_a: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No write goes to a recorded panel, or to columns of A that were not factored then.

    No write happens before the previous slab is recorded: a crash loses one slab at most.
    """
    path = kind.put(tmp_path / "Z")
    panel_done, written = conveyor.panel_done, []

    def leaving(self: Any, panel: int) -> None:
        panel_done(self, panel)
        storage, journal = self._storage, self._storage.journal
        noted = {at for record in journal.records for at in record.places}
        at = storage.places[panel]
        assert at not in noted
        if overwrite_a:
            assert at not in range(journal.panels_done, storage.geometry.panels)
        assert journal.panels_done == getattr(self.part, "slab", self.part).first
        written.append(at)

    monkeypatch.setattr(conveyor, "panel_done", leaving)
    # As if each sync were slow: nothing becomes durable until the call waits for it.
    monkeypatch.setattr(FactorStorage, "commit_if_durable", lambda self: None)
    for memory in kind.changes[0]["memory"][:2]:
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            kind.factor(path, overwrite_a, memory=memory)
    found = kind.factor(path, overwrite_a)
    assert len(set(written)) > len(found.places) / 2
    kind.check(kind.matrix, found)


@two_kinds
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(tmp_path: Path, kind: Kind, number: signal.Signals) -> None:
    path, out, name = kind.put(tmp_path / "Z"), tmp_path / f"Z{kind.suffix}", kind.function.__name__
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    text = rf"{kind} of Z stopped with [1-9]\d* of \d+ panels done; call {name} again with"
    with (
        after_notes(2, lambda: signal.raise_signal(number)),
        pytest.raises(Interrupted, match=text),
    ):
        kind.factor(path)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert sorted(p.name for p in out.iterdir()) == kind.begun_names
    with pytest.raises(IncompleteError, match=rf"call {name} on .*Z again"):
        open_factor(out)
    kind.check(kind.matrix, kind.factor(path))


@pytest.mark.parametrize(
    ("kind", "changes"), [(kind, changes) for kind in KINDS for changes in kind.changes], ids=str
)
def test_another_budget_or_thread_count_goes_on(
    tmp_path: Path, kind: Kind, changes: dict[str, list[int]], overwrite_a: bool
) -> None:
    path = kind.put(tmp_path / "Z")
    ((name, values),) = changes.items()
    options = {"memory": kind.memory, "threads": 1, "overwrite_a": overwrite_a}
    for value in values[:2]:
        stop_after(1, path, kind.function, **options | {name: value})
    found = kind.function(path, progress=False, **options | {name: values[2]})
    kind.check(kind.matrix, found)
    assert found.norm1 == pytest.approx(np.linalg.norm(kind.matrix, 1))
    assert found.report is not None
    assert any("last bits may differ" in note for note in found.report.notes)


@two_kinds
def test_a_torn_note_is_dropped(tmp_path: Path, kind: Kind) -> None:
    expected = kind.bits(kind.factor(kind.put(tmp_path / "Y")))
    path = kind.put(tmp_path / "Z")
    stop_after(2, path, kind.function, memory=kind.memory, threads=1)
    journal = tmp_path / f"Z{kind.suffix}" / "journal"
    journal.write_bytes(journal.read_bytes()[:-3])
    kind.assert_finished(kind.factor(path), expected)


@two_kinds
def test_changed_input_is_refused(tmp_path: Path, kind: Kind) -> None:
    path = kind.put(tmp_path / "Z")
    stop_after(2, path, kind.function, memory=kind.memory)
    with oc.open_array(path, "r+") as array:
        array[3, 3] = 7
    before = names_below(tmp_path)
    with pytest.raises(JournalError, match="was written to since"):
        kind.factor(path)
    assert names_below(tmp_path) == before
    changed = kind.matrix.copy()
    changed[3, 3] = 7
    kind.check(changed, kind.factor(path, resume=False))


@pytest.mark.parametrize(
    ("kind", "matrix"), [(CHOLESKY, CHOLESKY.matrix), (QR, tall(180, 180, "f8"))],
    ids=["Cholesky", "QR"],
)  # fmt: skip
def test_one_kind_of_factorization_does_not_go_on_with_another(
    tmp_path: Path, kind: Kind, matrix: Matrix
) -> None:
    path, out = on_disk(tmp_path / "Z", matrix, kind.chunks).path, tmp_path / "F"
    stop_after(1, path, kind.function, memory=kind.memory, out=out)
    text = f"stopped factorization by {kind.function.__name__}, not by lu_factor"
    with pytest.raises(JournalError, match=text):
        lu_factor(path, out=out, memory=kind.memory, progress=False)
    lu_factor(path, out=out, memory=kind.memory, resume=False, progress=False)
    with pytest.raises(oc.errors.ExistsError, match="complete factors"):
        kind.factor(path, out=out)
    found = kind.factor(path, out=out, if_exists="overwrite")
    assert sorted(p.name for p in out.iterdir()) == kind.names
    kind.check(matrix, found)


def test_a_full_disk_stops_cleanly(tmp_path: Path, small_disk: Path, kind: Kind) -> None:
    """The factors reserve their space at the start; the journal finds no space."""
    (a, memory), out = kind.large, small_disk / "F"
    A = on_disk(tmp_path / "Z", a)
    found = stopped_by_a_full_disk(
        lambda: kind.function(A, memory=memory, out=out, progress=False), out
    )
    kind.check(a, found)


@two_kinds
def test_two_calls_for_one_target(tmp_path: Path, kind: Kind) -> None:
    path = kind.put(tmp_path / "Z")

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="in use by another process"):
            kind.factor(path)
        if kind is CHOLESKY:
            with pytest.raises(BusyError):
                lu_factor(path, out=tmp_path / "Z.cho", if_exists="overwrite")

    with after_notes(2, meanwhile):
        found = kind.factor(path)
    kind.check(kind.matrix, found)


def test_a_forked_process_is_told(tmp_path: Path, kind: Kind) -> None:
    A, out = on_disk(tmp_path / "Z", kind.matrix, kind.chunks), tmp_path / f"Z{kind.suffix}"
    kind.factor(A.path, out=tmp_path / "F")

    def with_the_parents_array() -> None:
        with pytest.raises(ForkedError, match="fork"):
            kind.function(A, memory=kind.memory, progress=False)

    assert in_a_fork(with_the_parents_array) == 0
    assert not out.exists()
    # With the path, the call opens all files itself.
    assert in_a_fork(lambda: kind.factor(A.path)) == 0
    found = whole_or_again(lambda: kind.factor(A.path), out)
    kind.check(kind.matrix, found)
