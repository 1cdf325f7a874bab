"""Progress of collectives and checkpoints: what each rank gets, and which rank can cancel."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served_pools import above, some_pool
from test_collective import whole
from timeouts import HANG_S

import outcore as oc
from outcore._util import progress
from outcore.collective import call as collective_call
from outcore.collective.progress import Watch
from outcore.errors import OutcoreError

__all__ = ["above"]  # a fixture

PATIENCE_S = HANG_S


@pytest.fixture(params=["embedded", "served"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        yield found


class Late:
    """A communicator of a rank that waits for an event after each broadcast."""

    def __init__(self, comm: ThreadComm, after: threading.Event) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._after = comm, after
        self.barrier = comm.barrier

    def bcast(self, value: Any, root: int = 0) -> Any:
        found = self._comm.bcast(value, root)
        assert self._after.wait(PATIENCE_S)
        return found


def test_it_is_told_while_others_are_awaited(pool: oc.Pool) -> None:
    """Rank 0 gets progress while it waits for rank 1, which waits for that progress."""
    oc.create_array(pool / "u", (64, 64), chunks=(8, 64)).close()
    for call in ("write_all", "read_all"):
        is_told = threading.Event()
        told: list[tuple[float, float]] = []

        def tell(
            fraction: float,
            seconds_left: float,
            told: list[tuple[float, float]] = told,
            is_told: threading.Event = is_told,
        ) -> None:
            told.append((fraction, seconds_left))
            is_told.set()

        def job(
            comm: ThreadComm, call: str = call, tell: Any = tell, is_told: threading.Event = is_told
        ) -> None:
            with oc.open_array(pool / "u", "r+") as u:
                local = np.full((32, 64), comm.rank + 1.0)
                also = {"progress": tell} if comm.rank == 0 else {}
                among = Late(comm, is_told) if comm.rank == 1 else comm
                # The call waits for the marks of a write, but does not show them.
                skip = {"skip_disk": call == "write_all"}
                getattr(u, call)(local, "block,*", among, timeout=60, **also, **skip)

        whole(ThreadJob(2).run(job))
        fractions = [fraction for fraction, _ in told]
        assert len(fractions) > 1
        assert fractions == sorted(fractions)
        assert fractions[0] == 0
        assert told[-1] == (1.0, 0.0)


def test_servers_say_what_they_have_moved(pool: oc.Pool) -> None:
    """Watch the servers as the calls do: they report every byte of the array once."""
    core = (pool / "u").root.core
    with oc.create_array(pool / "u", (300, 200), chunks=(70, 200)) as u:
        for verb, call in (
            ("write_all", lambda: u.write_all(np.ones((300, 200)), "*,*", skip_disk=True)),
            ("read_all", lambda: u.read_all(None, "*,*")),
        ):
            with Watch(core, verb) as watch:  # type: ignore[arg-type]
                wait_for(lambda: watch.is_begun)
                assert watch.moved_bytes == 0
                call()
                wait_for(lambda: watch.moved_bytes > 0)
                wait_for(lambda: watch.moved_bytes == u.nbytes)


def wait_for(what: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("call", ["write_all", "read_all"])
def test_what_a_function_raises_ends_it_for_all(pool: oc.Pool, call: str) -> None:
    oc.create_array(pool / "u", (64, 64), chunks=(8, 64)).close()
    is_told = threading.Event()

    def tell(fraction: float, seconds_left: float) -> None:
        is_told.set()
        raise RuntimeError("enough")

    def job(comm: ThreadComm) -> None:
        with oc.open_array(pool / "u", "r+") as u:
            local = np.ones((32, 64))
            also = {"progress": tell} if comm.rank == 0 else {}
            among = Late(comm, is_told) if comm.rank == 1 else comm
            getattr(u, call)(local, "block,*", among, timeout=60, skip_disk=True, **also)

    first, second = ThreadJob(2).run(job)
    assert isinstance(first, RuntimeError)
    assert isinstance(second, OutcoreError)
    assert "process 0 aborted" in str(second)


def test_a_bar_is_shown_by_rank_0(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    oc.create_array(pool / "u", (64, 64), chunks=(8, 64)).close()
    shown = collective_call.shown
    seen: dict[str, Any] = {}

    def note(core: Any, verb: Any, title: str, nbytes: int, progress: Any) -> Any:
        seen[threading.current_thread().name] = (title, nbytes, progress)
        return shown(core, verb, title, nbytes, progress=False)

    monkeypatch.setattr(collective_call, "shown", note)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

    def job(comm: ThreadComm, given: dict[str, Any]) -> None:
        threading.current_thread().name = f"rank {comm.rank}"
        with oc.open_array(pool / "u", "r+") as u:
            u.write_all(np.ones((32, 64)), "block,*", comm, timeout=60, **given)

    whole(ThreadJob(2).run(lambda comm: job(comm, {})))
    title = "write_all of u"
    assert seen == {"rank 0": (title, 64 * 64 * 8, True), "rank 1": (title, 0, False)}
    whole(ThreadJob(2).run(lambda comm: job(comm, {"progress": False})))
    assert {progress for _, _, progress in seen.values()} == {False}


def test_progress_of_checkpoints(above: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the bytes written and read back, or checked and read, in their order."""
    specs = {
        "u": oc.ArraySpec((40, 60), "f4", chunks=(20, 60)),
        "v": oc.ArraySpec((240,), "f8", chunks=240),
    }
    local = {"u": np.ones((40, 60), "f4"), "v": np.ones(240)}
    ticks = itertools.count()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    u, v = 9600, 1920
    of_all = 2 * (u + v)
    with oc.ArrayGroup(above / "run", specs) as group:
        told: list[float] = []
        for background in (False, True):
            told.clear()
            done = group.checkpoint(
                local, background=background, progress=lambda fraction, _: told.append(fraction)
            )
            if not isinstance(done, int):
                done.wait()
            steps = [u, u + v, u + v + u // 2, 2 * u + v, of_all]
            assert told == pytest.approx(sorted(told))
            assert distinct(told) == pytest.approx([step / of_all for step in steps])
        told.clear()
        group.restart(progress=lambda fraction, _: told.append(fraction))
        steps = [u // 2, u, u + v, 2 * u + v, of_all]
        assert distinct(told) == pytest.approx([step / of_all for step in steps])


def distinct(values: list[float]) -> list[float]:
    """Drop repeated values."""
    found: list[float] = []
    for value in values:
        if not found or value - found[-1] > 1e-9:
            found.append(value)
    return found


def test_tired_of_a_checkpoint(above: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception from one rank's function ends the call on all ranks, without a checkpoint."""
    ticks = itertools.count()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))

    def tell(fraction: float, seconds_left: float) -> None:
        raise RuntimeError("enough")

    def job(comm: ThreadComm) -> None:
        specs = {"u": oc.ArraySpec((40, 60), "f4")}
        with oc.ArrayGroup(above / "run", specs, comm=comm) as group:
            local = {"u": np.ones((20, 60), "f4")}
            also = {"progress": tell} if comm.rank == 0 else {}
            try:
                group.checkpoint(local, schema=oc.Schema("block,*"), **also)
            finally:
                assert group.checkpoints() == []

    first, second = ThreadJob(2).run(job)
    assert isinstance(first, RuntimeError)
    assert isinstance(second, OutcoreError)
