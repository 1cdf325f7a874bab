"""LU resumes after any stop with identical bits, and refuses a journal that does not fit."""

import functools
import itertools
import shutil
import signal
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, lapack_ratio, on_disk, one_thread, random_matrix
from stopping import (
    DECISIVE,
    LEFT_LOOKING,
    after_notes,
    before_notes,
    bits,
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

import outcore as oc
from outcore._util import progress
from outcore.errors import (
    BusyError,
    ConsumedError,
    DiskFullError,
    ForkedError,
    IncompleteError,
    Interrupted,
)
from outcore.linalg import lu_factor, lu_solve, open_factor
from outcore.linalg._lu.slabs.factor_slabs import LuConveyor
from outcore.linalg._lu.slabs.storage import LuStorage
from outcore.linalg._output.journal import Record, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (64, 32), 200_000
RunPython = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return random_matrix(N, "f8")


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "overwrite_a"])
def undisturbed(
    request: pytest.FixtureRequest, matrix: Matrix, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, tuple[Matrix, Matrix], Path]:
    """Return whether A is overwritten, the resulting bits, and an A to copy."""
    home = tmp_path_factory.mktemp("undisturbed")
    on_disk(home / "A", matrix, CHUNKS).close()
    shutil.copytree(home / "A", home / "Z")
    lu = factor(home / "Z", request.param)
    return request.param, bits(lu), home / "A"


def factor(path: Path, overwrite_a: bool = False, **options: Any) -> oc.linalg.LUFactor:
    options = {"memory": MEMORY, "threads": 1, "progress": False} | options
    return lu_factor(path, overwrite_a=overwrite_a, **options)


def assert_same(lu: oc.linalg.LUFactor, expected: tuple[Matrix, Matrix], why: str = "") -> None:
    for have, want in zip(bits(lu), expected, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=why)


def assert_finished(lu: oc.linalg.LUFactor, expected: tuple[Matrix, Matrix]) -> None:
    assert_same(lu, expected)
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]


@pytest.mark.exhaustive
def test_killed_at_any_line(
    tmp_path: Path, undisturbed: tuple[bool, tuple[Matrix, Matrix], Path]
) -> None:
    """kill -9 between any two steps: only complete factors count as whole."""
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"

    def begin() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def numbers(lines: int) -> list[int]:
        """Return every step of the beginning and of the end, and some between."""
        return [*range(2, 130, 5), *range(130, lines - 80, 37), *range(lines - 80, lines, 5)]

    runs = killed_at_lines(
        begin, lambda: factor(path, overwrite_a), tmp_path / "Z.lu", DECISIVE, numbers
    )
    for lu, where in runs:
        assert_same(lu, expected, where)
        assert not (lu.path / "lock").exists() or (lu.path / "journal").exists()
        if overwrite_a:
            with pytest.raises(ConsumedError):
                oc.open_array(path)


def test_killed_again_and_again(
    tmp_path: Path, undisturbed: tuple[bool, tuple[Matrix, Matrix], Path]
) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    lu = killed_again_and_again(
        lambda: factor(path, overwrite_a), tmp_path / "Z.lu", (59, 31), DECISIVE, least=4
    )
    assert_same(lu, expected)


def test_killed_at_random_moments(
    tmp_path: Path, undisturbed: tuple[bool, tuple[Matrix, Matrix], Path], run_python: RunPython
) -> None:
    overwrite_a, expected, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)
    script = f"""
import sys
from outcore.linalg import lu_factor
print("ready", flush=True)
lu_factor(sys.argv[1], overwrite_a={overwrite_a}, memory={MEMORY}, threads=1, progress=False)
"""
    kill_at_random_moments(lambda: run_python(script, str(path)), tmp_path / "Z.lu", 0.06)
    assert_same(whole_or_again(lambda: factor(path, overwrite_a), tmp_path / "Z.lu"), expected)


def test_interrupted_at_any_line(
    tmp_path: Path, undisturbed: tuple[bool, tuple[Matrix, Matrix], Path]
) -> None:
    overwrite_a, expected, source = undisturbed
    pages = (
        *DECISIVE,
        *LEFT_LOOKING,
        "_lu/slabs/factor_slabs.py",
    )
    for step in (97, 211):
        path = tmp_path / f"Z{step}"
        shutil.copytree(source, path)
        lu = interrupted_again_and_again(
            functools.partial(factor, path, overwrite_a),
            tmp_path / f"Z{step}.lu", step, pages, least=4,
        )  # fmt: skip
        assert_finished(lu, expected)


def test_a_slab_is_durable_before_its_note(
    tmp_path: Path, undisturbed: tuple[bool, tuple[Matrix, Matrix], Path]
) -> None:
    """Write and sync a whole slab before its note, so that a power loss after it loses nothing."""
    overwrite_a, _, source = undisturbed
    path = tmp_path / "Z"
    shutil.copytree(source, path)

    def check(storage: LuStorage, spans: Matrix, record: Record) -> None:
        g = storage.geometry
        place = spans[:, 4] // (g.tiles * g.tile_bytes)
        writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == 1) & np.isin(place, record.places)]
        # A run that overwrites A may write a place twice: the last writes count.
        whole = len(record.places) * g.tiles * g.tile_bytes
        assert int(writes[:, 5].sum()) % whole == 0
        syncs = spans[spans[:, 0] == 2]
        assert (syncs[:, 2] >= writes[:, 3].max()).any()
        assert storage.places_of(types.SimpleNamespace(first=record.first, last=record.last)) == (  # type: ignore[arg-type]
            record.places
        )

    with before_notes(LuStorage, check) as noted:
        factor(path, overwrite_a)
    assert len(noted) >= 4


def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write neither to noted panels nor to columns of A that are not factored yet."""
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    leave, written = LuConveyor._write, []

    def leaving(self: LuConveyor, tiles: range, panel: int) -> None:
        leave(self, tiles, panel)
        storage, journal = self._storage, self._storage.journal
        noted = {at for record in journal.records for at in record.places}
        needed = noted | {*range(journal.panels_done, storage.geometry.panels)}
        at = storage.places[self.part.first + panel]
        assert at not in needed
        # A crash can lose this slab, or until this slab's first tile is written, the one before.
        assert journal.panels_done == self.part.first
        written.append(at)

    monkeypatch.setattr(LuConveyor, "_write", leaving)
    # As if each sync were slow: nothing becomes durable until the call waits for it.
    monkeypatch.setattr(LuStorage, "commit_if_durable", lambda self: None)
    for memory in (MEMORY, 300_000):
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            factor(path, True, memory=memory)
    lu = factor(path, True)
    assert len(set(written)) > len(lu.places) / 2
    assert lapack_ratio(matrix, lu) < 30


def test_an_unwritten_slab_is_not_noted(
    tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write fails, and Ctrl-C arrives before the call checks its ticket."""
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)

    class Failed:
        def __init__(self, ticket: Any) -> None:
            self.ticket = ticket

        def done(self) -> bool:
            return False

        def wait(self) -> None:
            self.ticket.wait()
            raise DiskFullError("no room")

    leave, commit_later = LuConveyor._write, LuStorage.commit_later

    def leaving(self: LuConveyor, tiles: range, panel: int) -> None:
        leave(self, tiles, panel)
        item = self._leaving[-1]
        self._leaving[-1] = item._replace(tickets=[Failed(item.tickets[0])])  # type: ignore[arg-type]

    def failing(self: LuStorage, record: Record) -> None:
        commit_later(self, record)
        raise KeyboardInterrupt

    monkeypatch.setattr(LuConveyor, "_write", leaving)
    monkeypatch.setattr(LuStorage, "commit_later", failing)
    with pytest.raises(Interrupted, match="with 0 of"):
        factor(A.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(
    tmp_path: Path, matrix: Matrix, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    told: list[float] = []

    def watch(done: float, left: float) -> None:
        told.append(done)
        if done > 0.5:
            signal.raise_signal(number)

    with pytest.raises(Interrupted, match=r"LU of Z stopped with [1-9]\d* of 7 panels done; call"):
        factor(path, progress=watch)
    assert told[-1] < 1, "stopped is not finished"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert sorted(p.name for p in (tmp_path / "Z.lu").iterdir()) == ["journal", "lu", "zarr.json"]
    with pytest.raises(IncompleteError, match=r"call lu_factor on .*Z again"):
        open_factor(tmp_path / "Z.lu")
    told.clear()
    lu = factor(path, progress=lambda done, left: told.append(done))
    assert told[0] > 0.3, "progress goes on from where it was"
    assert told == sorted(told)
    assert lapack_ratio(matrix, lu) < 30


def test_sigterm_ends_a_program_with_a_word(tmp_path: Path, run_python: RunPython) -> None:
    on_disk(tmp_path / "Z", random_matrix(700, "c16")).close()
    run = run_python(
        """
from outcore.linalg import lu_factor
print("ready", flush=True)
lu_factor("Z", memory="400 kB", threads=1, progress=lambda done, left: print(done, flush=True))
"""
    )
    assert run.stdout is not None
    run.stdout.readline()
    run.stdout.readline()
    run.terminate()
    _, errors = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "Interrupted: LU of Z stopped with" in errors
    assert "call lu_factor again with the same arguments" in errors


def test_a_resumed_run_says_what_it_did(tmp_path: Path, matrix: Matrix) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    stop_after(2, A, memory=MEMORY, threads=1)
    journal = read_journal(place(tmp_path / "Z.lu"))
    assert journal is not None
    assert len(journal.records) >= 2
    lu = factor(A.path)
    assert lu.report is not None
    (note,) = lu.report.notes
    assert note.startswith(f"resumed at panel {journal.panels_done} of 7;")
    assert lu.report.bytes_written == lu.report.planned_bytes_written < N * N * 8
    assert lu.report.flops < 2 * N**3 / 3
    assert lu.norm1 == pytest.approx(np.linalg.norm(matrix, 1))


@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"memory": [200_000, 300_000, 900_000]}, {"memory": [300_000, 200_000, 250_000]},
     {"threads": [1, 2, 1]}, {"threads": [2, 1, 1]}],
    ids=str,
)  # fmt: skip
def test_another_budget_or_thread_count_goes_on(
    tmp_path: Path, matrix: Matrix, overwrite_a: bool, changes: dict[str, list[int]]
) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    ((name, values),) = changes.items()
    options = {"memory": MEMORY, "threads": 1, "overwrite_a": overwrite_a}
    stop_after(1, path, **options | {name: values[0]})
    stop_after(1, path, **options | {name: values[1]})
    lu = lu_factor(path, progress=False, **options | {name: values[2]})
    assert lapack_ratio(matrix, lu) < 30
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(matrix)[1])
    assert lu.report is not None
    assert any("last bits may differ" in note for note in lu.report.notes)


def test_a_full_disk_stops_cleanly(tmp_path: Path, small_disk: Path) -> None:
    """The factors reserve their space at the start; the journal finds no space."""
    a, out = random_matrix(1000, "f8"), small_disk / "F"
    A = on_disk(tmp_path / "Z", a)
    lu = stopped_by_a_full_disk(lambda: lu_factor(A, memory=300_000, out=out, progress=False), out)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30


def test_two_calls_for_one_target(tmp_path: Path, matrix: Matrix, run_python: RunPython) -> None:
    path = on_disk(tmp_path / "Z", matrix, CHUNKS).path
    other = on_disk(tmp_path / "Y", matrix, CHUNKS).path
    seen: list[str] = []

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="in use by another process"):
            factor(path)
        with pytest.raises(BusyError):
            factor(other, out=tmp_path / "Z.lu", if_exists="overwrite")
        run = run_python("from outcore.linalg import lu_factor\nlu_factor('Z', progress=False)")
        seen.append(run.communicate(timeout=60)[1])

    with after_notes(2, meanwhile):
        lu = factor(path)
    assert "BusyError" in seen[0]
    assert lapack_ratio(matrix, lu) < 30


def test_a_forked_process_is_told(tmp_path: Path, matrix: Matrix) -> None:
    A = on_disk(tmp_path / "Z", matrix, CHUNKS)
    lu = factor(A.path, out=tmp_path / "F")

    def with_the_parents_array() -> None:
        with pytest.raises(ForkedError, match="fork"):
            lu_factor(A, memory=MEMORY, progress=False)

    assert in_a_fork(with_the_parents_array) == 0
    assert not (tmp_path / "Z.lu").exists()
    # A call by path opens everything again.
    assert in_a_fork(lambda: factor(A.path)) == 0
    assert in_a_fork(lambda: lu_solve(lu, np.ones(N), threads=1, progress=False)) == 0
    assert lapack_ratio(matrix, open_factor(tmp_path / "Z.lu")) < 30
