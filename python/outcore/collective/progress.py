"""Progress of a collective: the servers report the bytes that they have moved.

A process cannot derive it from its own transfers. These say little about the other processes, and
nothing if servers read its memory directly.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, Self

from outcore._util.progress import Meter, ProgressLike, is_shown
from outcore.errors import OutcoreError

INTERVAL_S = 0.25


class Servers(Protocol):
    """A pool that reports the state of its servers, such as `outcore._core.Pool`."""

    def servers(self) -> list[tuple[int, int, int, int, int, int, bool, str | None]]:
        """Return number, free bytes, requests, bytes read and written, and more of each server."""


class Watch:
    """Count the bytes that servers have moved since it started, in a separate thread.

    So a server that does not answer delays no caller.
    """

    def __init__(self, pool: Servers, verb: Literal["write_all", "read_all"]) -> None:
        self._pool = pool
        self._place = 1 if verb == "write_all" else 0
        self._first = 0
        self.is_begun = False
        """Whether the servers have reported at least once."""
        self.moved_bytes = 0
        """Bytes that the servers have read, or written, since the start, also for other calls."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="outcore-progress", daemon=True)

    def _ask(self) -> None:
        while True:
            with contextlib.suppress(OutcoreError):
                each_moved = [(one[3], one[4]) for one in self._pool.servers()]
                moved = sum(each[self._place] for each in each_moved)
                if not self.is_begun:
                    self._first, self.is_begun = moved, True
                self.moved_bytes = moved - self._first
            if self._is_over.wait(INTERVAL_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()


@contextmanager
def shown(
    pool: Servers,
    verb: Literal["write_all", "read_all"],
    title: str,
    nbytes: int,
    progress: ProgressLike,
) -> Iterator[Callable[[], None] | None]:
    """Show the progress of a collective.

    Parameters
    ----------
    pool, verb
        The pool, and the direction of the transfer.
    title, nbytes
        Title of the bar; bytes of the array in all processes.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.

    Yields
    ------
    callable or None
        Function to call from time to time; `None` if no progress is shown.
    """
    if not is_shown(progress):
        yield None
        return
    with Meter(title, nbytes, progress) as meter, Watch(pool, verb) as watch:
        told = 0

        def tell() -> None:
            nonlocal told
            more, told = watch.moved_bytes - told, watch.moved_bytes
            meter.advance(more)

        yield tell
