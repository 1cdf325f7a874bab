"""Steps of work shared by threads: their order, and the thread of each item."""

import contextlib
import functools
import gc
import itertools
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from linpack import two_threads
from timeouts import HANG_S

from outcore._core import Trace
from outcore.blas import blas_choice
from outcore.linalg._tiles.crew import AHEAD, Crew

__all__ = ["two_threads"]  # a fixture for every test here

LONG = HANG_S


@pytest.fixture(autouse=True)
def nothing_left(two_threads: None) -> Iterator[None]:
    """Check that the BLAS has its threads, and that no other thread is left."""
    yield
    assert blas_choice.in_use()[1] == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("outcore-crew")]


class _Log:
    """Log of started and finished items, by thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lines: list[str] = []
        self.names: set[str] = set()

    def work(self, name: str, pause: float = 0.0) -> Callable[[], None]:
        def work() -> None:
            assert blas_choice.in_use()[1] == 1
            self.note(f"begin {name}")
            time.sleep(pause)
            self.note(f"end {name}")
            self.names.add(threading.current_thread().name)

        return work

    def note(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)

    def before(self, first: str, second: str) -> bool:
        return self.lines.index(first) < self.lines.index(second)


@pytest.fixture
def log() -> _Log:
    return _Log()


def nothing() -> None:
    """Do nothing at the end of a step."""


@pytest.mark.parametrize("seed", range(5))
def test_steps_end_in_order_and_works_of_one_place_follow_each_other(log: _Log, seed: int) -> None:
    pauses = random.Random(seed)
    caller = threading.current_thread()
    places: dict[int, list[str]] = {}

    def done(step: int) -> None:
        assert threading.current_thread() is caller
        log.note(f"done {step}")

    with Crew(Trace()) as crew:
        assert crew.size == 2
        for step in range(30):
            works = []
            for w, place in enumerate(pauses.sample(range(4), 2)):
                name = f"{step}.{w}"
                places.setdefault(place, []).append(name)
                works.append((place, log.work(name, pauses.random() / 500)))
            crew.add(works, functools.partial(done, step))
            assert crew.unsettled <= AHEAD
    assert crew.unsettled == 0
    assert [line for line in log.lines if "done" in line] == [f"done {i}" for i in range(30)]
    assert len(log.lines) == 30 * 5, "each work once"
    for step in range(30):
        assert all(log.before(f"end {step}.{w}", f"done {step}") for w in range(2))
    for names in places.values():
        for first, second in itertools.pairwise(names):
            assert log.before(f"end {first}", f"begin {second}")


def test_two_threads_work_at_once(log: _Log) -> None:
    together = threading.Barrier(2)

    def meet() -> None:
        together.wait(LONG)
        log.work("met")()

    with Crew(Trace()) as crew:
        for place in range(6):
            crew.add([(place, meet)], nothing)
        crew.settle(0)
    assert len(log.names) == 2
    assert log.lines.count("end met") == 6


def test_help_does_one_work_and_tells_whether_there_was_one(log: _Log) -> None:
    other, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert other.wait(LONG)

    with Crew(Trace()) as crew:
        assert not crew.help()
        crew.add([("a", wait)], nothing)
        assert begun.wait(LONG)
        crew.add([("a", log.work("waits"))], nothing)
        assert not crew.help(), "it waits for what another thread does"
        crew.add([("b", log.work("free"))], nothing)
        assert crew.help()
        assert log.lines == ["begin free", "end free"]
        assert crew.unsettled == 3, "steps end in order"
        other.set()
        crew.settle(0)
    assert log.before("end free", "begin waits")


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_an_error_is_told_wherever_it_was(log: _Log, failing: int) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    def run() -> None:
        with Crew(Trace()) as crew:
            for number in range(8):
                work = fail if number == failing else log.work(str(number), 0.001)
                crew.add([(number, work), ("b", log.work(f"{number}b"))], nothing)
            crew.settle(0)

    with pytest.raises(MemoryError, match="no room"):
        run()
    count = len(log.lines)
    time.sleep(0.02)
    assert len(log.lines) == count, "nothing goes on"


def test_who_gives_up_waits_for_what_is_being_done(log: _Log) -> None:
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        log.work("slow", 0.05)()

    def run() -> None:
        with Crew(Trace()) as crew:
            crew.add([(0, slow)], nothing)
            assert begun.wait(LONG)
            crew.add([(0, log.work("never"))], nothing)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert log.lines == ["begin slow", "end slow"]


def test_alone_each_step_is_done_when_it_is_added() -> None:
    done: list[int] = []
    with blas_choice.threads(1), Crew(Trace()) as crew:
        assert crew.size == 1
        for step in range(3):
            work = functools.partial(done.append, 2 * step)
            crew.add([(step, work)], functools.partial(done.append, 2 * step + 1))
            assert done == list(range(2 * step + 2))


def test_who_cannot_set_the_threads_of_the_blas_works_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blas_choice, "set_threads", lambda count: 2)
    with Crew(Trace()) as crew:
        assert crew.size == 1
        done: list[int] = []
        crew.add([(0, lambda: done.append(blas_choice.in_use()[1]))], nothing)
        assert done == [2]


def test_of_two_crews_at_once_the_inner_one_leaves_the_blas_alone(log: _Log) -> None:
    with Crew(Trace()) as outer, Crew(Trace()) as inner:
        assert (outer.size, inner.size) == (2, 1)
        inner.add([(0, log.work("one"))], nothing)
    assert log.lines == ["begin one", "end one"]


def test_interrupted_at_any_moment_no_thread_is_left(log: _Log) -> None:
    """The BLAS also gets its threads back."""

    def run() -> None:
        crew = Crew(Trace())
        try:
            with crew:
                for number in range(6):
                    crew.add([(number % 2, log.work(str(number)))], nothing)
        finally:
            crew.close()

    begin, stops = time.perf_counter(), 0
    run()
    usual = time.perf_counter() - begin
    main = threading.main_thread().ident
    assert main is not None
    for moment in np.linspace(0, usual, 250):
        timer = threading.Timer(moment, signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            run()
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            stops += 1
        timer.join()
        assert not [t for t in threading.enumerate() if t.name.startswith("outcore-crew")]
        assert blas_choice.in_use()[1] == 2
    assert stops == 250


def test_after_an_error_works_know_of_nothing_any_more() -> None:
    class Held:
        """An object that an item refers to."""

    def run() -> weakref.ref[Held]:
        held = Held()

        failed = threading.Event()

        def fail() -> None:
            if threading.current_thread() is threading.main_thread():
                assert failed.wait(LONG)
                return
            failed.set()
            raise MemoryError(repr(type(held)))

        with contextlib.suppress(MemoryError), Crew(Trace()) as crew:
            for place in range(3):
                crew.add([(place, fail)], nothing)
            crew.settle(0)
            pytest.fail("no error was told")
        return weakref.ref(held)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()
