"""Progress of a collective: what the servers have moved, which they are asked now and then.

A process cannot tell by itself: what it gives or takes says little of the others, and nothing where
servers read its memory themselves.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Protocol, Self

from outcore.errors import OutcoreError
from outcore.progress import Meter, ProgressLike, is_shown

INTERVAL_S = 0.25


class Servers(Protocol):
    """What tells how its servers are: a pool, as `outcore._core` has it."""

    def servers(self) -> list[tuple[int, int, int, int, int, int, bool, str | None]]:
        """Of each its number, free bytes, requests, bytes read, bytes written, and more."""


class Watch:
    """Asks servers what they have moved since it began, by a thread of its own.

    So a server that does not answer holds up nobody else.
    """

    def __init__(self, pool: Servers, verb: Literal["write_all", "read_all"]) -> None:
        self._pool = pool
        self._place = 1 if verb == "write_all" else 0
        self._first = 0
        self.is_begun = False
        """Whether the servers were asked."""
        self.moved_bytes = 0
        """All bytes that they have read, or written, since: those of other calls too."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
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
        Whose servers move what.
    title, nbytes
        For the bar; bytes that all processes have of the array.
    progress
        See `outcore.progress.ProgressLike`.

    Yields
    ------
    callable or None
        What is to be called now and then; `None` if nobody looks.
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
