"""Process many pieces with several threads in bounded memory, with a watcher."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from outcore._core import Arena, Buffer
from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError

PIECE_BYTES = 4 << 20
"""Size of the pieces in which files are copied, in bytes."""

MOST_WORKERS = 16
"""Largest number of pieces in flight; more of them do not make disks faster."""

_WATCH_S = 0.1

_Task = TypeVar("_Task")


def workers_in(memory_bytes: int) -> int:
    """Return the number of threads that a budget allows; each has memory for one piece.

    Raises
    ------
    BudgetError
        If the budget does not suffice for one.
    """
    if memory_bytes < PIECE_BYTES:
        raise BudgetError(
            f"need {format_bytes(PIECE_BYTES)} for a piece of a file, have "
            f"{format_bytes(memory_bytes)}; pass more memory"
        )
    return min(memory_bytes // PIECE_BYTES, MOST_WORKERS)


def work_through(
    tasks: Iterable[_Task],
    work: Callable[[_Task, Buffer], None],
    arena: Arena,
    workers: int,
    watch: Callable[[], None],
) -> None:
    """Run `work` on each task, several at a time, each with memory for one piece.

    Parameters
    ----------
    tasks
        The tasks; the threads take them in order, one thread at a time.
    work
        Function to call from several threads.
    arena
        Source of the memory.
    workers
        Number of threads.
    watch
        Function to call from this thread ten times a second, and at the end. It may raise an error,
        as Ctrl-C does.

    Raises
    ------
    Exception
        The first error of a task; no task starts after it. When this function returns or raises, no
        task is running.
    """
    crew = _Crew(iter(tasks), work, arena)
    threads = [
        threading.Thread(target=crew.run, name="outcore-copy", daemon=True) for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(_WATCH_S)
                watch()
    except BaseException:
        crew.stop()
        for thread in threads:
            thread.join()
        raise
    if crew.error is not None:
        try:
            raise crew.error
        finally:
            del crew  # its error is in no cycle with this frame
    watch()


class _Crew(Generic[_Task]):
    def __init__(
        self, tasks: Iterator[_Task], work: Callable[[_Task, Buffer], None], arena: Arena
    ) -> None:
        self._tasks, self._work, self._arena = tasks, work, arena
        self._lock = threading.Lock()
        self._is_stopped = False
        self.error: BaseException | None = None

    def stop(self) -> None:
        self._is_stopped = True

    def run(self) -> None:
        try:
            buffer = self._arena.allocate(PIECE_BYTES)
            while True:
                with self._lock:
                    task = None if self._is_stopped else next(self._tasks, None)
                if task is None:
                    return
                self._work(task, buffer)
        except BaseException as error:
            with self._lock:
                self._is_stopped = True
                self.error = self.error or error
