"""A process with more than 1024 open files, beyond the range of `select`."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from lockers import lockers

from outcore._util.signals import wait_for_signals


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Open so many files that further descriptors are above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"need 2048 descriptors, the limit is {hard}")
    with ExitStack() as ends:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        ends.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (number := os.open(os.devnull, os.O_RDONLY)) < 1024:
            ends.callback(os.close, number)
        ends.callback(os.close, number)
        yield


def test_waiting_for_a_signal() -> None:
    def handler(*_: object) -> None:
        raise ZeroDivisionError

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        wait_for_signals()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(ZeroDivisionError):
            wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_locker_is_interrupted(tmp_path: Path) -> None:
    with lockers(tmp_path / "file", tmp_path / "file") as (holder, waiter):
        assert holder.ask("x") == "done"
        waiter.send("wait")
        assert waiter.interrupt() == "interrupted"
