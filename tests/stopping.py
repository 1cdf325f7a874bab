"""Stopping a factorization: at a note, at a line of the code, by a signal, by kill -9."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, packed

import outcore as oc
from outcore import linalg
from outcore.errors import Interrupted
from outcore.linalg import lu_factor
from outcore.linalg.factors.journal import Journal, Record

# The pages that decide what is on disk, and when.
DECISIVE = ("factors/begin.py", "factors/storage.py", "lu/storage.py", "factors/journal.py")


@contextlib.contextmanager
def at_line(
    number: int, act: Callable[[], None], pages: tuple[str, ...] = DECISIVE
) -> Iterator[Any]:
    """Act before the line of this number, counted over the lines executed on some pages."""
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
    """Do work in a forked process; its exit status (negative: the signal that killed it)."""
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
    """Do work in a process that is killed at a line; whether it was, else it came to the end."""

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
    """Kill runs of a script some time after each says "ready", until one has made factors.

    A run may be killed before it has made anything, and after its factors are whole.
    """
    for delay_s in np.random.default_rng(0).uniform(0, within_s, kills):
        run = start()
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        run.kill()
        _, errors = run.communicate(timeout=60)
        assert run.returncode in (0, -signal.SIGKILL), errors
        with contextlib.suppress(oc.OutcoreError):
            linalg.open_factor(result)
            return
        assert run.returncode != 0, "it came to its end, and left no factors"


@contextlib.contextmanager
def after_notes(count: int, act: Callable[[], None]) -> Iterator[None]:
    """Act when so many slabs were noted."""
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
    """Begin a factorization, and interrupt it when so many slabs were noted."""
    again = f"{factor.__name__} again"
    with after_notes(notes, interrupt), pytest.raises(Interrupted, match=again):
        factor(A, progress=False, **options)


def bits(lu: linalg.LUFactor) -> tuple[Matrix, Matrix]:
    """What must be the same to the last bit."""
    return packed(lu), lu.piv


def lines_of(run: Callable[[], object], pages: tuple[str, ...]) -> int:
    """Count the lines of some pages that a call comes to."""
    with at_line(0, interrupt, pages) as lines:
        run()
    return int(lines[0])
