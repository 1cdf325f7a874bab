"""The calls of this process while it records a trace (`outcore.report.chrome_trace`)."""

import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from outcore._core import Trace
from outcore.errors import BusyError


@dataclass(frozen=True)
class TracedCall:
    """A call: its title, its start and end in nanoseconds, and its spans as in a report.

    Times count from the origin of all traces of the machine.
    """

    title: str
    start_ns: int
    end_ns: int
    rows: npt.NDArray[np.uint64]


@dataclass
class Recording:
    """The calls of this process so far, for the trace in the file `path`."""

    path: str
    calls: list[TracedCall] = field(default_factory=list)


_lock = threading.Lock()
_active: list[Recording] = []


def begin(path: str) -> Recording:
    """Record the calls of all threads of this process from now on.

    Raises
    ------
    BusyError
        If this process records a trace already.
    """
    with _lock:
        if _active:
            raise BusyError(
                f"a trace is being recorded, in {_active[0].path}; end it before the next begins"
            )
        _active.append(Recording(path))
        return _active[0]


def end() -> None:
    """Record no more calls."""
    with _lock:
        _active.clear()


def path() -> str:
    """Return the file of the trace that is being recorded; empty if there is none."""
    with _lock:
        return _active[0].path if _active else ""


def new_trace() -> Trace | None:
    """Return a trace for a call that keeps none otherwise; `None` if no trace is being recorded."""
    return Trace() if path() else None


def add(title: str, start_ns: int, trace: Trace) -> None:
    """Add a call that ends now."""
    if path():
        add_rows(title, start_ns, trace.now_ns(), trace.spans())


def add_rows(title: str, start_ns: int, end_ns: int, rows: npt.NDArray[np.uint64]) -> None:
    """Add spans of a call."""
    with _lock:
        for recording in _active:
            recording.calls.append(TracedCall(title, start_ns, end_ns, rows))
