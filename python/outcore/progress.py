"""Progress with an honest estimate of the time left, on the standard error of a terminal."""

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from outcore.errors import InvalidError
from outcore.printable import as_line
from outcore.sizes import format_seconds

ProgressLike: TypeAlias = bool | Callable[[float, float], None]
"""`True`: a bar where a terminal shows it; `False`: none; or ``f(fraction, seconds_left)``.

What such a function raises ends the call as Ctrl-C does, and goes to the caller.
"""

SHOW_AFTER_S = 2.0


def check_progress(progress: ProgressLike) -> None:
    """Refuse what is neither a choice nor a function."""
    if not (isinstance(progress, bool) or callable(progress)):
        raise InvalidError(
            f"progress must be True, False or a function of (fraction, seconds left), have "
            f"{progress!r}"
        )


def is_shown(progress: ProgressLike) -> bool:
    """Whether anybody would see it."""
    return callable(progress) or (progress is True and sys.stderr.isatty())


class Part:
    """A share of a meter's work, which another call does: its ``progress=``."""

    def __init__(self, whole: "Meter", work: float) -> None:
        self._whole, self._work, self._fraction = whole, work, 0.0

    def begin(self, fraction: float) -> None:
        """Note what an earlier call did of it, so that it does not count as fast work."""
        self._fraction = fraction
        self._whole.skip(self._work * fraction)

    def __call__(self, fraction: float, seconds_left: float) -> None:
        """Note how far the other call is."""
        done, self._fraction = fraction - self._fraction, fraction
        self._whole.advance(self._work * done)


class Meter:
    """Progress of one long call, in units of work of the caller's choice.

    The bar appears after two seconds. The time left is the elapsed time scaled by the work left, so
    the caller should count work that takes time (flops), not steps. Of a total that is not known,
    `None`, no bar is shown, and a function gets (0.0, NaN) until the end.
    """

    def __init__(
        self, title: str, total: float | None, progress: ProgressLike, done: float = 0.0
    ) -> None:
        check_progress(progress)
        self._total = math.inf if total is None else max(total, 1e-300)
        self._first = self._done = done
        self._report = progress if callable(progress) else None
        self._started = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._title = title
        self._shown = progress is True and sys.stderr.isatty() and total is not None
        if isinstance(progress, Part):
            progress.begin(done / self._total)

    def part(self, work: float) -> Part:
        """Let another call do a part of the work, and show it in this meter."""
        return Part(self, work)

    def extend(self, work: float) -> None:
        """Add work that was not foreseen."""
        self._total += work

    def skip(self, work: float) -> None:
        """Note work that an earlier call did."""
        self._first += work
        self._done += work

    def seconds_left(self) -> float:
        """Estimate the time left in seconds; NaN before there is anything to go by."""
        fresh = self._done - self._first
        elapsed = time.monotonic() - self._started
        # More may be done than was foreseen.
        work_left = max(self._total - self._done, 0.0)
        is_known = fresh > 0 and work_left < math.inf
        return elapsed * work_left / fresh if is_known else math.nan

    def advance(self, work: float) -> None:
        """Note that `work` units are done."""
        self._done += work
        now = time.monotonic()
        if now - self._told < 0.1:
            return
        self._told = now
        fraction = min(self._done / self._total, 1.0)
        self._tell(fraction, self.seconds_left())
        if self._shown and now - self._started > SHOW_AFTER_S:
            self._draw(fraction)

    def _tell(self, fraction: float, seconds_left: float) -> None:
        if self._report is None:
            return
        try:
            self._report(fraction, seconds_left)
        except Exception as error:
            if not isinstance(self._report, Part):
                error.add_note(
                    f"Raised by progress= of a call, {self._title!r}, which it ended as Ctrl-C "
                    "does: where that can go on, call again with the same arguments."
                )
            raise

    def _draw(self, fraction: float) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
                TextColumn("{task.fields[left]}"), console=Console(stderr=True), transient=True,
                auto_refresh=False,
            )  # fmt: skip
            self._bar.add_task(as_line(self._title), total=1.0, left="")
            self._bar.start()
        left = f"{format_seconds(self.seconds_left())} left"
        self._bar.update(self._bar.task_ids[0], completed=fraction, left=left, refresh=True)

    def __enter__(self) -> "Meter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            self._tell(1.0, 0.0)
