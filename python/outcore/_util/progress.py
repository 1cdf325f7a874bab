"""Progress of a call, with an estimate of the time left.

A terminal and a Jupyter notebook show a bar. A log file gets a line every ten seconds.
"""

import contextlib
import html
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from outcore._util.printable import as_line
from outcore._util.sizes import format_seconds
from outcore.errors import InvalidError

if TYPE_CHECKING:
    from rich.progress import Progress

ProgressLike: TypeAlias = bool | Callable[[float, float], None]
"""`True`: a bar, or lines in a log file; `False`: nothing; or ``f(fraction, seconds_left)``.

An exception of such a function ends the call as Ctrl-C does, and reaches the caller.
"""

SHOW_AFTER_S = 2.0

LINE_S = 10.0
"""Time between two lines of a log file."""


def check_progress(progress: ProgressLike) -> None:
    """Refuse a value that is neither a boolean nor a function."""
    if not (isinstance(progress, bool) or callable(progress)):
        raise InvalidError(
            f"progress must be True, False or a function of (fraction, seconds left), have "
            f"{progress!r}"
        )


def is_shown(progress: ProgressLike) -> bool:
    """Whether a person or a function follows the progress now; a log file is read later."""
    return callable(progress) or (progress is True and (_is_terminal() or _in_notebook()))


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _in_notebook() -> bool:
    """Whether IPython runs as a kernel, whose front end shows HTML."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class Part:
    """A share of a meter's work that another call does: its ``progress=``."""

    def __init__(self, whole: "Meter", work: float) -> None:
        self._whole, self._work, self._fraction = whole, work, 0.0

    def begin(self, fraction: float) -> None:
        """Record the fraction that an earlier call did, so that it does not count as fast work."""
        self._fraction = fraction
        self._whole.skip(self._work * fraction)

    def __call__(self, fraction: float, seconds_left: float) -> None:
        """Record the progress of the other call."""
        done, self._fraction = fraction - self._fraction, fraction
        self._whole.advance(self._work * done)


class Meter:
    """Progress of one long call, in units of work of the caller's choice.

    The bar appears after two seconds, the first line of a log file after ten. The time left is the
    elapsed time scaled by the remaining work, so the caller should count work that takes time
    (flops), not steps. Without a total, `None`, the meter shows no bar, its lines give the elapsed
    time, and a function gets (0.0, NaN) until the end.
    """

    def __init__(
        self, title: str, total: float | None, progress: ProgressLike, done: float = 0.0
    ) -> None:
        check_progress(progress)
        self._total = math.inf if total is None else max(total, 1e-300)
        self._first = self._done = done
        self._report = progress if callable(progress) else None
        self._started = self._told = time.monotonic()
        self._drawn = self._started
        self._bar: Progress | _NotebookBar | None = None
        self._title = title
        self._shown = progress is True and is_shown(True) and total is not None
        self._is_logged = progress is True and not is_shown(True) and sys.stderr is not None
        if isinstance(progress, Part):
            progress.begin(done / self._total)

    def part(self, work: float) -> Part:
        """Return a part of the work for another call, whose progress this meter shows."""
        return Part(self, work)

    def extend(self, work: float) -> None:
        """Add work that was not in the total."""
        self._total += work

    def skip(self, work: float) -> None:
        """Record work that an earlier call did."""
        self._first += work
        self._done += work

    def seconds_left(self) -> float:
        """Estimate the time left in seconds; NaN before any progress."""
        fresh = self._done - self._first
        elapsed = time.monotonic() - self._started
        # The call may do more work than the total.
        work_left = max(self._total - self._done, 0.0)
        is_known = fresh > 0 and work_left < math.inf
        return elapsed * work_left / fresh if is_known else math.nan

    def advance(self, work: float) -> None:
        """Record `work` finished units."""
        self._done += work
        now = time.monotonic()
        if now - self._told < 0.1:
            return
        self._told = now
        fraction = min(self._done / self._total, 1.0)
        self._tell(fraction, self.seconds_left())
        if self._shown and now - self._started > SHOW_AFTER_S:
            self._draw(fraction)
        elif self._is_logged and now - self._drawn >= LINE_S:
            self._drawn = now
            self._log(now, fraction)

    def _tell(self, fraction: float, seconds_left: float) -> None:
        if self._report is None:
            return
        try:
            self._report(fraction, seconds_left)
        except Exception as error:
            if not isinstance(self._report, Part):
                error.add_note(
                    f"Raised by progress= of a call, {self._title!r}, which it ended as Ctrl-C "
                    "does. If the call can resume, call it again with the same arguments."
                )
            raise

    def _draw(self, fraction: float) -> None:
        left = self._left()
        if self._bar is None:
            self._bar = _NotebookBar(self._title) if _in_notebook() else self._terminal_bar()
        if isinstance(self._bar, _NotebookBar):
            self._bar.update(fraction, left)
        else:
            self._bar.update(self._bar.task_ids[0], completed=fraction, left=left, refresh=True)

    def _left(self) -> str:
        left = self.seconds_left()
        return "time left not known" if math.isnan(left) else f"{format_seconds(left)} left"

    def _terminal_bar(self) -> "Progress":
        # Imported here because rich is slow to import.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        # A name in the title is text, not markup.
        bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
            TextColumn("{task.fields[left]}"), console=Console(stderr=True), transient=True,
            auto_refresh=False,
        )  # fmt: skip
        bar.add_task(as_line(self._title), total=1.0, left="")
        bar.start()
        return bar

    def _log(self, now: float, fraction: float) -> None:
        """Write a line; an error of the log file does not stop the call."""
        if self._total < math.inf:
            text = f"{fraction:.0%} done, {self._left()}"
        else:
            text = f"{format_seconds(now - self._started)} so far"
        with contextlib.suppress(OSError, ValueError):
            print(f"{as_line(self._title)}: {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if kind is None:
            self._tell(1.0, 0.0)


class _NotebookBar:
    """A bar in the output of a notebook's cell, which disappears at the end."""

    def __init__(self, title: str) -> None:
        self._display: Any = sys.modules["IPython"].display
        self._title = html.escape(as_line(title))
        self._handle = self._display.display(self._display.HTML(self._title), display_id=True)

    def update(self, fraction: float, left: str) -> None:
        bar = f'<progress value="{fraction:.4f}" max="1"></progress>'
        text = f"{self._title} {bar} {fraction:.0%}, {left}"
        self._handle.update(self._display.HTML(text))

    def stop(self) -> None:
        self._handle.update(self._display.HTML(""))
