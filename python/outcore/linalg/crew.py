"""Steps of work on blocks in memory, done by threads of which one also reads and writes.

A BLAS cuts each product into one part for each of its threads, and all wait for the slowest: each
time that a thread which reads needs a core, the whole product waits. The threads of a crew take
whole products, each as soon as it is done with the one before, and some steps ahead of the slowest.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from types import TracebackType

from outcore import blas_choice
from outcore._core import Trace
from outcore.linalg.team import one_thread
from outcore.signals import signals_held

AHEAD = 5
"""Steps that are not done, at most, when another one is added: enough to keep the threads busy."""

Work = Callable[[], None]


class _Task:
    """A work, and the one that it waits for."""

    def __init__(self, place: Hashable, work: Work, after: "_Task | None", step: "Step") -> None:
        self.place, self.work, self.after, self.step = place, work, after, step
        self.is_done = False


class Step:
    """Works that may be done at once, and what follows when all are."""

    def __init__(self, crew: "Crew", count: int, end: Callable[[], None]) -> None:
        self._crew, self.left, self.end = crew, count, end

    def done(self) -> bool:
        """Whether all works are done, those of earlier steps too."""
        return not any(step.left for step in self._crew.steps_until(self))

    def wait(self) -> None:
        """Work, or wait, until they are. Only for the thread that adds steps."""
        self._crew.settle(self._crew.unsettled - len(self._crew.steps_until(self)))


class Crew:
    """As many threads as the BLAS has, the caller's with them; use it as a context manager.

    At the end of the context all steps are done, unless it ends with an error. Where the number of
    threads of the BLAS cannot be set, the caller works alone, with all of them.

    Parameters
    ----------
    trace
        For what is computed.
    most
        Threads that there is work for; by default as many as the BLAS has.
    """

    def __init__(self, trace: Trace, most: int | None = None) -> None:
        self._trace, self._most = trace, most
        # The lock itself is taken and let go: Ctrl-C may come in between where a condition does it.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.settle(0)
        finally:
            self.close()

    def close(self) -> None:
        """Give up what is not begun, and wait for what is. It may be called again."""
        with signals_held():
            with self._lock:
                self._is_over = True
                self._due.clear()
                self._changed.notify_all()
            for other in self._others:
                other.join()
            self._stack.close()
            # What works know of goes back at once, also by way of an error's traceback.
            self._steps.clear()
            self._last.clear()
            self._error = None

    @property
    def size(self) -> int:
        """Threads that work at once."""
        return len(self._others) + 1

    @property
    def unsettled(self) -> int:
        """Steps that were added, and whose end was not yet noted."""
        return len(self._steps)

    def steps_until(self, last: Step) -> list[Step]:
        """Return a step and those before it of which the end was not yet noted."""
        steps = list(self._steps)
        return steps[: steps.index(last) + 1] if last in steps else []

    def add(
        self, works: Sequence[tuple[Hashable, Work]], done: Callable[[], None] = lambda: None
    ) -> Step:
        """Add a step, and return it; there may be some work first, so that not too much is left.

        Parameters
        ----------
        works
            These may be done at once, and beside those of steps before, but for those of the same
            place, with which each comes: of each place one is done after the other.
        done
            Is called by the caller's thread when they are done, in the order of steps.
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
        """Work, or wait, until at most so many steps are not done, unless it is given up.

        Raises
        ------
        BaseException
            What a work raised.
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
        """Do a work, if there is one that does not wait; tell whether."""
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
        """Take the first work that does not wait for another one."""
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
        """Do works until it is over."""
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
