"""Common parts of every long call: a budget, a trace, progress, threads, and a clean stop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from outcore._core import Arena, Trace
from outcore._util.counts import count_of
from outcore._util.progress import Meter, ProgressLike
from outcore._util.signals import stop_on_signals
from outcore.blas import blas_choice
from outcore.report.report import io_and_wait_seconds

_MOST_SECONDS = 10.0


@dataclass(frozen=True)
class LongCall:
    """The resources of one long call."""

    arena: Arena
    trace: Trace
    meter: Meter
    title: str
    started: float = field(default_factory=time.perf_counter)

    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.started

    def wait_for_memory(self) -> None:
        """Wait until all memory is back: disk threads may free it after their tickets complete."""
        end = time.monotonic() + _MOST_SECONDS
        while self.arena.used_bytes and time.monotonic() < end:
            time.sleep(0.0005)

    def figures(self) -> dict[str, Any]:
        """Return the common figures of every `Report`: times, memory, trace and title."""
        io_seconds, wait_seconds = io_and_wait_seconds(self.trace)
        return {
            "seconds": self.seconds(),
            "io_seconds": io_seconds,
            "wait_seconds": wait_seconds,
            "memory_bytes": self.arena.budget_bytes,
            "peak_memory_bytes": self.arena.peak_bytes,
            "spans": self.trace.spans(),
            "job": self.title,
        }


@contextmanager
def long_call(
    title: str,
    *,
    memory_bytes: int,
    work: float | None,
    work_done: float = 0.0,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Iterator[LongCall]:
    """Set up a long call, and clean up after it.

    Parameters
    ----------
    title
        Title of the progress bar.
    memory_bytes
        Budget of the arena.
    work, work_done
        Total work in flops, `None` if unknown, and the part of it that an earlier call did.
    threads
        Threads of the BLAS during the call; `None` keeps the number.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.
    """
    check_threads(threads)
    with (
        stop_on_signals(),
        blas_choice.threads(threads),
        Meter(title, work, progress, work_done) as meter,
    ):
        yield LongCall(Arena(memory_bytes), Trace(), meter, title)


def check_threads(threads: int | None) -> None:
    """Refuse an impossible number of threads."""
    if threads is not None:
        count_of("threads", threads)
