"""Timeouts of ranks and servers that never answer: long enough for those that do."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from outcore._util import communicator

T = TypeVar("T")

HANG_S = 900.0
"""What takes longer hangs, even on a busy machine."""


class TooBusyError(Exception):
    """A live rank reached the timeout that a test gave it: the machine is too busy for that."""


def with_enough_time(attempt: Callable[[int], T], least_s: int = 2) -> T:
    """Call `attempt` with a timeout in seconds, and with a longer one if it raises `TooBusyError`.

    For tests of ranks or servers that never answer, which have to wait for the whole timeout.
    """
    for timeout_s in (least_s, 8 * least_s):
        with contextlib.suppress(TooBusyError):
            return attempt(timeout_s)
    return attempt(64 * least_s)


class Clock:
    """The time of all communicators: it stands still until a rank is dead, and flies then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._died_at: float | None = None
        monkeypatch.setattr(communicator, "time", self)

    def go(self) -> None:
        """Begin: a rank is dead."""
        self._died_at = time.monotonic()

    def monotonic(self) -> float:
        """Return a time in seconds."""
        return 0.0 if self._died_at is None else 1000 * (time.monotonic() - self._died_at)

    def sleep(self, seconds: float) -> None:
        """Pause for this real time."""
        time.sleep(seconds)
