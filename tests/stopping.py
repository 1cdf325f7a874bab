"""Stopping a factorization: at a record, at a line of the code, by a signal, by kill -9."""

import contextlib
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import pytest
from linpack import Matrix, packed
from timeouts import HANG_S

import outcore as oc
from outcore import linalg
from outcore._util.progress import Meter
from outcore.errors import DiskFullError, IncompleteError, Interrupted, NotFoundError
from outcore.files import catalog
from outcore.linalg import lu_factor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output import steps_done
from outcore.linalg._output.factor import Factor
from outcore.linalg._output.journal import Journal, Record
from outcore.linalg._output.steps_done import StepsDone
from outcore.report.longcall import LongCall

# The files that decide the order and content of writes to disk.
DECISIVE = (
    "_factors/begin.py",
    "_factors/storage.py",
    "_lu/slabs/storage.py",
    "_output/journal.py",
)

# The loops and the conveyor that all factorizations share.
LEFT_LOOKING = ("_factors/conveyor.py", "_factors/left_looking.py")

F = TypeVar("F", bound=Factor)


@contextlib.contextmanager
def at_line(
    number: int, act: Callable[[], None], pages: tuple[str, ...] = DECISIVE
) -> Iterator[Any]:
    """Call `act` before a line, counted over the executed lines of some files."""
    names = {os.path.normpath(Path(linalg.__file__).parent / page) for page in pages}
    assert all(map(os.path.exists, names)), "a page that is nowhere stops nothing"
    count = [0]

    def lines(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            count[0] += 1
            if count[0] == number:
                act()
        return lines

    def calls(frame: FrameType, event: str, argument: object) -> Any:
        return lines if frame.f_code.co_filename in names else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        yield count
    finally:
        sys.settrace(before)


def in_a_fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; return its exit status (negative: the signal)."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_line(
    number: int, work: Callable[[], object], pages: tuple[str, ...] = DECISIVE
) -> bool:
    """Run `work` in a process that is killed at a line; return whether it was killed."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def doomed() -> None:
        with at_line(number, die, pages):
            work()

    status = in_a_fork(doomed)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def kill_at_random_moments(
    start: Callable[[], "subprocess.Popen[str]"], result: Path, within_s: float, kills: int = 3
) -> None:
    """Kill runs of a script some time after each prints "ready", until one has made factors.

    A kill may come before a run has created any file, and after its factors are complete.
    """
    for delay_s in np.random.default_rng(0).uniform(0, within_s, kills):
        run = start()
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        run.kill()
        _, errors = run.communicate(timeout=HANG_S)
        assert run.returncode in (0, -signal.SIGKILL), errors
        with contextlib.suppress(oc.OutcoreError):
            linalg.open_factor(result)
            return
        assert run.returncode != 0, "it came to its end, and left no factors"


@contextlib.contextmanager
def after_notes(count: int, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` after this many slabs were recorded."""
    append, noted = Journal.append, [0]

    def noting(self: Journal, record: Record) -> None:
        append(self, record)
        noted[0] += 1
        if noted[0] == count:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", noting)
        yield


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def stop_after(
    notes: int, A: oc.Array | Path, factor: Callable[..., Any] = lu_factor, **options: Any
) -> None:
    """Start a factorization, and interrupt it after this many slabs were recorded."""
    again = f"{factor.__name__} again"
    with after_notes(notes, interrupt), pytest.raises(Interrupted, match=again):
        factor(A, progress=False, **options)


def bits(lu: linalg.LUFactor) -> tuple[Matrix, Matrix]:
    """Return the arrays that must agree to the last bit."""
    return packed(lu), lu.piv


def lines_of(run: Callable[[], object], pages: tuple[str, ...]) -> int:
    """Count the executed lines of some files in a call."""
    with at_line(0, interrupt, pages) as lines:
        run()
    return int(lines[0])


def whole_or_again(run: Callable[[], F], out: Path) -> F:
    """Open the factors of a killed call, or repeat the call if they are incomplete."""
    try:
        found: Any = linalg.open_factor(out)
    except oc.OutcoreError:
        return run()
    return found  # type: ignore[no-any-return]


def killed_at_lines(
    begin: Callable[[], object],
    run: Callable[[], F],
    out: Path,
    pages: tuple[str, ...],
    numbers: Callable[[int], Iterable[int]],
) -> Iterator[tuple[F, str]]:
    """Kill a call at some of its lines, from its start each time; yield its factors, and the line.

    ``numbers`` chooses the lines, given their number.
    """
    begin()
    count = lines_of(run, pages)
    for number in sorted(set(numbers(count))):
        shutil.rmtree(out, ignore_errors=True)
        begin()
        if kill_at_line(number, run, pages):
            yield whole_or_again(run, out), f"killed at line {number} of {count}"


def killed_again_and_again(
    run: Callable[[], F], out: Path, lines: tuple[int, int], pages: tuple[str, ...], least: int
) -> F:
    """Kill each call a little later than the previous one, until one completes.

    ``lines`` has the first line for a kill, and the distance of the later ones.
    """
    first, step = lines
    for kills in itertools.count(1):
        kill_at_line(first + step * kills, run, pages)
        # A kill may come after the factors are complete, and before the end of the call.
        with contextlib.suppress(IncompleteError, NotFoundError):
            found: Any = linalg.open_factor(out)
            break
    assert kills > least
    return found  # type: ignore[no-any-return]


def interrupted_again_and_again(
    run: Callable[[], F], out: Path, step: int, pages: tuple[str, ...], least: int
) -> F:
    """Interrupt each call, in its arithmetic too: every call leaves a state that can be resumed."""
    for stops in itertools.count(1):
        try:
            with at_line(step * stops, interrupt, pages):
                # A call that is stopped after its last step has complete factors.
                found = whole_or_again(run, out)
            break
        except KeyboardInterrupt:
            assert not (out / "lock").exists()
    assert stops > least
    # Ctrl-C right after the factors are marked complete leaves their journal, too.
    (out / "journal").unlink(missing_ok=True)
    return found


@contextlib.contextmanager
def before_notes(
    kind: type[FactorStorage], check: Callable[[Any, Any, Record], None]
) -> Iterator[list[Record]]:
    """Check the spans of the trace before each record; yield the records.

    ``check`` gets the storage, the spans and the record.
    """
    calls: list[tuple[FactorStorage, LongCall]] = []
    storage_open, append = kind.open, Journal.append
    noted: list[Record] = []

    def opening(self: FactorStorage, call: LongCall) -> None:
        calls.append((self, call))
        storage_open(self, call)

    def noting(self: Journal, record: Record) -> None:
        storage, call = calls[0]
        check(storage, call.trace.spans(), record)
        noted.append(record)
        append(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "open", opening)
        patch.setattr(Journal, "append", noting)
        yield noted


def fill_up(filler: Path) -> None:
    """Fill the disk with a new file."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def stopped_by_a_full_disk(run: Callable[[], F], out: Path, match: str = "journal") -> F:
    """Fill the disk of ``out`` at the first record, so that the journal finds no space, and resume.

    ``match`` is the path in the error if the factors do not reserve their space at the start.
    """
    filler = out.with_name("filler")

    with after_notes(1, lambda: fill_up(filler)), pytest.raises(DiskFullError, match=match):
        run()
    with pytest.raises(IncompleteError):
        linalg.open_factor(out)
    assert not (out / "lock").exists()
    filler.unlink()
    found = run()
    assert found.report is not None
    assert "resumed" in found.report.notes[0]
    return found


def assert_known_and_removed(out: Path) -> None:
    """Check that a stopped call's remains are recognized, even after a killed removal."""
    entry = catalog.recognise(out)
    assert entry is not None
    assert (entry.kind, entry.state) == ("factor", "incomplete")
    (out / "zarr.json").unlink()
    entry = catalog.recognise(out)
    assert entry is not None
    assert entry.kind == "left-over"
    catalog.remove(entry)
    assert not out.exists()


def killed_until_whole(
    start: Callable[[bool], "subprocess.Popen[str]"], path: Path, delays_s: Iterable[float]
) -> tuple[int, int]:
    """Kill each run of a script some time after it prints "ready", until it has made an array.

    ``start`` gets whether the run will be killed; the run after the last delay is not. Returns the
    number of kills, and the number of further lines that the runs printed.
    """
    killed = said = 0
    for delay_s in (*delays_s, None):
        run = start(delay_s is not None)
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        if delay_s is not None:
            time.sleep(delay_s)
            run.kill()
        lines, errors = run.communicate(timeout=600)
        said += len(lines.splitlines())
        killed += run.returncode == -signal.SIGKILL
        assert run.returncode in (0, -signal.SIGKILL), errors
        try:  # a kill may come after the array is complete, and before the end of the script
            oc.open_array(path).close()
        except (IncompleteError, NotFoundError):
            assert run.returncode != 0
        else:
            break
    return killed, said


def note_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record each step of a result that is written in steps."""
    monkeypatch.setattr(steps_done, "NOTE_S", 0.0)
    monkeypatch.setattr(steps_done, "MOST_SHARE", math.inf)


@pytest.fixture(autouse=True)
def noted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record each step in every test of a file that imports this."""
    note_each_step(monkeypatch)


@contextlib.contextmanager
def interrupted_after(note: int) -> Iterator[None]:
    """Interrupt right after this record of steps, if there are that many."""
    passed, notes = StepsDone.passed, [0]

    def passing(self: StepsDone, done: int, *rest: Any) -> None:
        before = self.done
        passed(self, done, *rest)
        notes[0] += self.done > before
        if notes[0] == note:
            interrupt()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepsDone, "passed", passing)
        yield


@contextlib.contextmanager
def stopped_at(note: int) -> Iterator[None]:
    """Interrupt right after this record of steps; a later call resumes."""
    with (
        interrupted_after(note),
        pytest.raises(Interrupted, match="to resume"),
    ):
        yield


@contextlib.contextmanager
def skipped() -> Iterator[list[float]]:
    """Yield the work that an earlier call did, which the estimate of the time left must ignore."""
    skip, found = Meter.skip, list[float]()

    def skipping(self: Meter, work: float) -> None:
        found.append(work)
        skip(self, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Meter, "skip", skipping)
        yield found


def is_whole(path: Path) -> bool:
    """Return whether there is a complete array."""
    with contextlib.suppress(oc.OutcoreError):
        oc.open_array(path).close()
        return True
    return False
