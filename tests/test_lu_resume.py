"""LU resumes with identical bits; `test_factor_resume.py` has the tests of each kind."""

import itertools
import signal
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import lapack_ratio, on_disk, one_thread, random_matrix
from resumed_kinds import LU
from stopping import (
    after_notes,
    in_a_fork,
    interrupt,
    stop_after,
)
from timeouts import HANG_S

from outcore._util import progress
from outcore.errors import (
    BusyError,
    DiskFullError,
    IncompleteError,
    Interrupted,
)
from outcore.linalg import lu_solve, open_factor
from outcore.linalg._lu.slabs.factor_slabs import LuConveyor
from outcore.linalg._lu.slabs.storage import LuStorage
from outcore.linalg._output.journal import Record, read_journal
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

matrix, put, factor = LU.matrix, LU.put, LU.factor
RunPython = Callable[..., "subprocess.Popen[str]"]


def test_nothing_is_overwritten_that_a_crash_would_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write neither to noted panels nor to columns of A that are not factored yet."""
    path = put(tmp_path / "Z")
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
    for memory in (LU.memory, 300_000):
        with after_notes(2, interrupt), pytest.raises(Interrupted):
            factor(path, True, memory=memory)
    lu = factor(path, True)
    assert len(set(written)) > len(lu.places) / 2
    assert lapack_ratio(matrix, lu) < 30


def test_an_unwritten_slab_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write fails, and Ctrl-C arrives before the call checks its ticket."""
    A = put(tmp_path / "Z")

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
        factor(A)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    path = put(tmp_path / "Z")
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
    _, errors = run.communicate(timeout=HANG_S)
    assert run.returncode != 0
    assert "Interrupted: LU of Z stopped with" in errors
    assert "call lu_factor again with the same arguments" in errors


def test_a_resumed_run_says_what_it_did(tmp_path: Path) -> None:
    A = put(tmp_path / "Z")
    stop_after(2, A, memory=LU.memory, threads=1)
    journal = read_journal(place(tmp_path / "Z.lu"))
    assert journal is not None
    assert len(journal.records) >= 2
    lu = factor(A)
    assert lu.report is not None
    (note,) = lu.report.notes
    assert note.startswith(f"resumed at panel {journal.panels_done} of 7;")
    assert lu.report.bytes_written == lu.report.planned_bytes_written < matrix.nbytes
    assert lu.report.flops < 2 * len(matrix) ** 3 / 3
    assert lu.norm1 == pytest.approx(np.linalg.norm(matrix, 1))


def test_two_calls_for_one_target(tmp_path: Path, run_python: RunPython) -> None:
    path = put(tmp_path / "Z")
    other = put(tmp_path / "Y")
    seen: list[str] = []

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="in use by another process"):
            factor(path)
        with pytest.raises(BusyError):
            factor(other, out=tmp_path / "Z.lu", if_exists="overwrite")
        run = run_python("from outcore.linalg import lu_factor\nlu_factor('Z', progress=False)")
        seen.append(run.communicate(timeout=HANG_S)[1])

    with after_notes(2, meanwhile):
        lu = factor(path)
    assert "BusyError" in seen[0]
    assert lapack_ratio(matrix, lu) < 30


def test_factors_serve_a_forked_process(tmp_path: Path) -> None:
    lu = factor(put(tmp_path / "Z"))
    ones = np.ones(len(matrix))
    assert in_a_fork(lambda: lu_solve(lu, ones, threads=1, progress=False)) == 0
