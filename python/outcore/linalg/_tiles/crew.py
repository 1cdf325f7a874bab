"""Steps of work on blocks in memory, by several threads, one of which also does the I/O.

A BLAS splits each product into one part for each of its threads, and all wait for the slowest. So
each time that an I/O thread needs a core, the whole product waits. The threads of a crew take whole
products, each as soon as it has finished the previous one, and a few steps ahead of the slowest
thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack

from outcore._core import Trace
from outcore._util.signals import signals_held
from outcore.blas import blas_choice
from outcore.linalg._tiles.team import one_thread

AHEAD = 5
"""Largest number of unfinished steps when a new one is added: enough to keep all threads busy."""

Work = Callable[[], None]


class _Task:
    """A work item, and the one that it waits for."""

    def __init__(self, place: Hashable, work: Work, after: "_Task | None", step: "Step") -> None:
        self.place, self.work, self.after, self.step = place, work, after, step
        self.is_done = False


class Step:
    """Work items that may run concurrently, and a callback at their end."""

    def __init__(self, crew: "Crew", count: int, end: Callable[[], None]) -> None:
        self._crew, self.left, self.end = crew, count, end

    def done(self) -> bool:
        """Whether all items of this step and of earlier ones are done."""
        return not any(step.left for step in self._crew.steps_until(self))

    def wait(self) -> None:
        """Work, or wait, until they are done. Only for the thread that adds steps."""
        self._crew.settle(self._crew.unsettled - len(self._crew.steps_until(self)))


class Crew:
    """As many threads as the BLAS has, including the caller's; use it as a context manager.

    At the end of the context all steps are done, unless it ends with an error. If the number of
    BLAS threads cannot be set, the caller works alone, with all BLAS threads.

    Parameters
    ----------
    trace
        Trace of the computation.
    most
        Largest useful number of threads; by default as many as the BLAS has.
    """

    def __init__(self, trace: Trace, most: int | None = None) -> None:
        self._trace, self._most = trace, most
        # The code acquires the lock directly: Ctrl-C may interrupt a condition's own locking
        # half-way.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due: deque[_Task] = deque()
        self._steps: deque[Step] = deque()
        self._last: dict[Hashable, _Task] = {}
        self._error: BaseException | None = None
        self._is_over = False
        self._others: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> "Crew":
        try:
            with signals_held():
                self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        size = blas_choice.in_use()[1]
        if size > 1 and self._stack.enter_context(one_thread()):
            for number in range(1, size if self._most is None else min(size, self._most)):
                name = f"outcore-crew-{number}"
                other = threading.Thread(target=self._help_on, name=name, daemon=True)
                try:
                    other.start()
                except RuntimeError:
                    break  # The system allows no more.
                self._others.append(other)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self.settle(0)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel waiting items, and wait for running ones. It may be called again."""
        with signals_held():
            with self._lock:
                self._is_over = True
                self._due.clear()
                self._changed.notify_all()
            for other in self._others:
                other.join()
            self._stack.close()
            # This releases the memory of the items at once, even if an error's traceback refers to
            # it.
            self._steps.clear()
            self._last.clear()
            self._error = None

    @property
    def size(self) -> int:
        """Number of threads that work concurrently."""
        return len(self._others) + 1

    @property
    def unsettled(self) -> int:
        """Number of added steps whose callback has not been called yet."""
        return len(self._steps)

    def steps_until(self, last: Step) -> list[Step]:
        """Return a step and its predecessors whose callbacks have not been called yet."""
        steps = list(self._steps)
        return steps[: steps.index(last) + 1] if last in steps else []

    def add(
        self, works: Sequence[tuple[Hashable, Work]], done: Callable[[], None] = lambda: None
    ) -> Step:
        """Add a step, and return it. The call may first work off earlier steps.

        Parameters
        ----------
        works
            Items that may run concurrently with each other and with those of earlier steps. Items
            of the same place, the first of each pair, run one after the other.
        done
            Called by the caller's thread when they are done, in the order of steps.
        """
        step = Step(self, len(works), done)
        self._steps.append(step)
        with self._lock:
            for place, work in works:
                task = _Task(place, work, self._last.get(place), step)
                self._last[place] = task
                self._due.append(task)
            self._changed.notify_all()
        self.settle(AHEAD if self.size > 1 else 0)
        return step

    def settle(self, most: int) -> None:
        """Work, or wait, until at most `most` steps are not done, or the crew is closed.

        Raises
        ------
        BaseException
            The exception of an item.
        """
        self._note_ends()
        while len(self._steps) > most:
            with self._lock:
                task = self._next()
                while task is None and self._steps[0].left and not self._is_over:
                    self._changed.wait()
                    task = self._next()
                if self._is_over and self._error is None:
                    return
            if task is not None:
                self._do(task)
            self._note_ends()

    def help(self) -> bool:
        """Do one item that does not wait, if there is any; return whether there was."""
        with self._lock:
            task = self._next()
        if task is None:
            return False
        self._do(task)
        self._note_ends()
        return True

    def _note_ends(self) -> None:
        if self._error is not None:
            raise self._error
        while self._steps and not self._steps[0].left:
            self._steps.popleft().end()

    def _next(self) -> _Task | None:
        """Remove and return the first item that does not wait for another one."""
        for task in self._due:
            if task.after is None or task.after.is_done:
                self._due.remove(task)
                return task
        return None

    def _do(self, task: _Task) -> None:
        start_ns = self._trace.now_ns()
        task.work()
        self._trace.record("compute", start_ns)
        with self._lock:
            task.is_done, task.after = True, None
            if self._last.get(task.place) is task:
                del self._last[task.place]
            task.step.left -= 1
            self._changed.notify_all()

    def _help_on(self) -> None:
        """Do items until the crew is closed."""
        while True:
            with self._lock:
                task = self._next()
                while task is None:
                    if self._is_over:
                        return
                    self._changed.wait()
                    task = self._next()
            try:
                self._do(task)
            except BaseException as error:  # The caller's thread raises it.
                with self._lock:
                    self._error = error
                    self._is_over = True
                    self._due.clear()
                    self._changed.notify_all()
                return
            del task
