"""Common parts of every long call: a budget, a trace, progress, threads, and a clean stop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from outcore._core import Arena, Trace
from outcore._util.counts import count_of
from outcore._util.progress import Meter, ProgressLike
from outcore._util.signals import stop_on_signals
from outcore.blas import blas_choice
from outcore.report import tracing
from outcore.report.report import Report, io_and_wait_seconds

R = TypeVar("R", bound=Report)

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
            "trace": tracing.path(),
        }

    def report(
        self,
        kind: type[R],
        verb: str,
        n: int,
        dtype: np.dtype[Any],
        *,
        moved: tuple[int, int],
        planned: tuple[int | None, int | None],
        flops: float = 0,
        computes: bool = True,
        **more: Any,
    ) -> R:
        """Return a report on the call.

        Parameters
        ----------
        kind
            Type of the report.
        verb, n, dtype, flops, more
            Figures of the report.
        moved, planned
            Bytes read and written, as counted and as planned.
        computes
            Whether the BLAS and its threads are figures of the report.
        """
        if computes:
            more["kernels"], more["threads"] = blas_choice.in_use()
        return kind(
            verb=verb, n=n, dtype=dtype.name, flops=flops, bytes_read=moved[0],
            bytes_written=moved[1], planned_bytes_read=planned[0],
            planned_bytes_written=planned[1], **more, **self.figures(),
        )  # fmt: skip


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
        call = LongCall(Arena(memory_bytes), Trace(), meter, title)
        start_ns = call.trace.now_ns()
        try:
            yield call
        finally:
            tracing.add(title, start_ns, call.trace)


def check_threads(threads: int | None) -> None:
    """Refuse an impossible number of threads."""
    if threads is not None:
        count_of("threads", threads)
