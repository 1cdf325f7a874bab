"""Collectives with a failure: all ranks raise, and no partial array counts as complete."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import serve
from served_pools import in_memory, some_pool
from timeouts import TooBusyError, with_enough_time

import outcore as oc
from outcore.array_files import atomic_write
from outcore.collective import call as collective_call
from outcore.collective.call import Call
from outcore.errors import DiskError, IncompleteError, InvalidError, OutcoreError
from outcore.storage.volumes import place

SHAPE = (48, 40)
LONG_S = 300
"""Only a call that hangs takes this long; it is less than the timeouts."""


@pytest.fixture(params=["embedded", "served", "unix"])
def pool(request: pytest.FixtureRequest) -> Iterator[oc.Pool]:
    with some_pool(request.param) as found:
        oc.create_array(found / "u", SHAPE, chunks=(5, 40)).close()
        yield found


def state(pool: oc.Pool) -> str:
    with oc.open_array(pool / "u", allow_incomplete=True) as u:
        return u.info().state


def run(pool: oc.Pool, size: int, work: Callable[[oc.Array, ThreadComm], Any]) -> list[Any]:
    def job(comm: ThreadComm) -> Any:
        with oc.open_array(pool / "u", "r+") as u:
            return work(u, comm)

    before = time.monotonic()
    found = ThreadJob(size).run(job)
    assert time.monotonic() - before < LONG_S, "within bounded time"
    return found


def rows(comm: ThreadComm, value: float = 1.0) -> Any:
    each = -(-SHAPE[0] // comm.size)
    count = max(min(each, SHAPE[0] - comm.rank * each), 0)
    return np.full((count, SHAPE[1]), value)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (3, "'int' object is not iterable"),
        ([lambda: None], "pickle"),
        ((1 // zero for zero in [1, 0]), "ZeroDivisionError"),
    ],
)
def test_boxes_that_are_none_are_told_to_all(boxes: Any, message: str) -> None:
    def job(comm: ThreadComm) -> None:
        oc.Schema.own_boxes(boxes if comm.rank == 1 else [], comm)

    found = ThreadJob(3).run(job)
    for rank, error in enumerate(found):
        assert isinstance(error, InvalidError), error
        assert message in str(error)
        assert ("process 1 has no list of boxes" in str(error)) == (rank != 1)


def test_what_one_gets_wrong_all_are_told(pool: oc.Pool) -> None:
    def work(u: oc.Array, comm: ThreadComm, wrong: str) -> None:
        mine, schema, timeout, verb = rows(comm), oc.Schema("block,*"), 600, u.write_all
        if comm.rank == 1:
            match wrong:
                case "shape":
                    mine = mine[1:]
                case "schema":
                    schema = oc.Schema("*,block")
                case "timeout":
                    timeout = 601
                case "call":
                    verb = u.read_all  # type: ignore[assignment]
                case "closed":
                    u.close()
        verb(mine, schema, comm, timeout=timeout)

    for wrong, message in [
        ("shape", r"process 1 has arrays of the shapes \[\(16, 40\)\], have \[\(15, 40\)\]"),
        ("schema", "processes 1 and 0 do not agree on the memory schema"),
        ("timeout", "do not agree on the timeout"),
        ("call", "do not agree on the call|do not agree on whether they read or write"),
        ("closed", "was closed"),
    ]:
        found = run(pool, 3, lambda u, comm, wrong=wrong: work(u, comm, wrong))
        for each in found:
            assert isinstance(each, OutcoreError), (wrong, found)
            with pytest.raises(OutcoreError, match=message):
                raise each
        assert state(pool) == "whole", "nothing was begun"
    run(pool, 3, lambda u, comm: u.write_all(rows(comm), "block,*", comm))


def test_ranks_with_another_array_are_named(pool: oc.Pool) -> None:
    oc.create_array(pool / "v", SHAPE, chunks=(5, 40)).close()

    def work(u: oc.Array, comm: ThreadComm) -> None:
        if comm.rank == 2:
            u = oc.open_array(pool / "v", "r+")
        u.write_all(rows(comm), "block,*", comm, timeout=600)

    for each in run(pool, 3, work):
        assert "processes 2 and 0 do not agree on the array: 'v' and 'u'" in str(each)


def test_what_rank_0_cannot_begin_all_are_told(pool: oc.Pool) -> None:
    def work(u: oc.Array, comm: ThreadComm) -> None:
        if comm.rank == 0:
            u.close()
        u.write_all(rows(comm), "block,*", comm, timeout=600)

    found = run(pool, 2, work)
    assert all("was closed" in str(each) for each in found), found


class EagerComm(ThreadComm):
    """A communicator whose broadcasts do not wait for receivers, as MPI allows."""

    said: ClassVar[dict[tuple[ThreadJob, int], Any]] = {}
    news = threading.Condition()

    def __init__(self, comm: ThreadComm) -> None:
        super().__init__(comm.rank, comm._shared)
        self._steps = 0

    def bcast(self, value: Any, root: int = 0) -> Any:
        self._steps += 1
        # Not the job's id, which a later job may get: its ranks would hear what this one said.
        key = (self._shared, self._steps)
        with self.news:
            if self.rank == root:
                self.said[key] = value
                self.news.notify_all()
            assert self.news.wait_for(lambda: key in self.said, LONG_S)
            return self.said[key]


def test_late_ranks_are_waited_for(pool: oc.Pool) -> None:
    """The others wait for a rank that opens the array late, or again right after the end."""

    def job(comm: ThreadComm) -> None:
        comm = EagerComm(comm)
        for step in range(3):
            time.sleep(0.1 * (comm.rank == 1))
            with oc.open_array(pool / "u", "r+") as u:
                u.write_all(rows(comm, float(step)), "block,*", comm, timeout=600)
            with oc.open_array(pool / "u") as u:
                assert (u.read_all(None, "*,block", comm, timeout=600) == step).all()

    assert ThreadJob(3).run(job) == [None] * 3


class NeverThere(ThreadComm):
    """A rank that receives messages, but does not join."""

    def __init__(self, comm: ThreadComm) -> None:
        super().__init__(comm.rank, comm._shared)

    def bcast(self, value: Any, root: int = 0) -> Any:
        super().bcast(value, root)
        raise RuntimeError("this rank fails")


def test_a_rank_that_never_comes_is_named(pool: oc.Pool) -> None:
    def attempt(timeout_s: int) -> None:
        def work(u: oc.Array, comm: ThreadComm) -> None:
            there = NeverThere(comm) if comm.rank == 1 else comm
            u.write_all(rows(comm), "block,*", there, timeout=timeout_s)

        found = run(pool, 3, work)
        assert isinstance(found[1], RuntimeError)
        for each in (found[0], found[2]):
            assert isinstance(each, DiskError), found
            if re.search("processes .* 1|processes 1 ", str(each)):
                raise TooBusyError(each)
            assert "process 1" in str(each)
        assert state(pool) == "whole"

    with_enough_time(attempt, least_s=1)


def test_who_comes_late_to_what_was_given_up_is_told_so(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank has removed the file beside the array before another opens it."""
    has_given_up = threading.Event()
    look = collective_call.arrays_of

    def late(local: Any, shapes: Any, dtype: Any, rank: int, *, is_write: bool) -> Any:
        if rank == 1:
            assert has_given_up.wait(LONG_S)
        return look(local, shapes, dtype, rank, is_write=is_write)

    def work(u: oc.Array, comm: ThreadComm) -> None:
        wrong = rows(comm)[1:] if comm.rank == 0 else rows(comm)
        try:
            u.write_all(wrong, "block,*", comm, timeout=600, atomic=True)
        finally:
            has_given_up.set()

    monkeypatch.setattr(collective_call, "arrays_of", late)
    first, second = run(pool, 2, work)
    assert "by the memory schema process 0 has arrays" in str(first)
    assert isinstance(second, InvalidError)
    assert "the error of process 0 says why" in str(second)
    assert state(pool) == "whole"


def test_a_write_that_fails_midway_leaves_it_incomplete(
    pool: oc.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank fails during the write of the array."""

    def work(u: oc.Array, comm: ThreadComm, *, atomic: bool) -> None:
        memory = rows(comm, 5.0)
        if comm.rank == 1:
            comm = FailsLater(comm)
        u.write_all(memory, "block,*", comm, timeout=600, atomic=atomic)

    go_on = Call._run

    def run_to_failure(self: Any, work: Any, file: Any, arrays: Any) -> None:
        if arrays and isinstance(self._comm._comm, FailsLater):
            self._failed = RuntimeError("fails midway")
        go_on(self, work, file, arrays)

    monkeypatch.setattr(Call, "_run", run_to_failure)
    for atomic in (True, False):
        found = run(pool, 3, lambda u, comm, atomic=atomic: work(u, comm, atomic=atomic))
        assert isinstance(found[1], RuntimeError)
        for each in (found[0], found[2]):
            assert isinstance(each, OutcoreError), found
            assert "process 1 aborted: RuntimeError: fails midway" in str(each)
        assert state(pool) == ("whole" if atomic else "incomplete")
        with oc.open_array(pool / "u", allow_incomplete=True) as u:
            assert not atomic or (u[...] == 0).all()
    with pytest.raises(IncompleteError, match="write_all was stopped"):
        oc.open_array(pool / "u")
    monkeypatch.undo()

    def again(comm: ThreadComm) -> None:
        with oc.open_array(pool / "u", "r+", allow_incomplete=True) as u:
            u.write_all(rows(comm), "block,*", comm, timeout=600)

    assert ThreadJob(3).run(again) == [None] * 3
    assert state(pool) == "whole"
    assert not atomic_write.left(place(pool / "u"))


class FailsLater(ThreadComm):
    def __init__(self, comm: ThreadComm) -> None:
        super().__init__(comm.rank, comm._shared)


RANK = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from communicators import FileComm
import outcore as oc

rank, url, how, where, timeout = int(sys.argv[2]), *sys.argv[3:6], int(sys.argv[6])
comm = FileComm(Path(where), rank, 3)
pool = oc.connect(url)
u = oc.open_array(pool / "u", "r+", allow_incomplete=True)
mine = np.full((400, 1000), rank + 1.0)
try:
    u.write_all(mine, "block,*", comm, timeout=600)
    while True:
        if rank == 0:
            print("again", flush=True)
        u.write_all(mine, "block,*", comm, timeout=timeout)
except KeyboardInterrupt:
    # In a call, or between two of them.
    print("stopped", flush=True)
except oc.OutcoreError as error:
    print("told", error, flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["tcp", "unix"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_rank_that_is_killed_or_stopped(
    how: signal.Signals,
    way: str,
    run_python: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tests = str(Path(__file__).parent)

    def attempt(timeout_s: int) -> None:
        where = tmp_path / str(timeout_s)
        where.mkdir()
        given = [url, how.name, str(where), str(timeout_s)]
        ranks = [run_python(RANK, tests, str(rank), *given) for rank in range(3)]
        assert ranks[0].stdout is not None
        begun = [ranks[0].stdout.readline() for _ in range(3)]
        os.kill(ranks[2].pid, how)
        said = [rank.communicate(timeout=600) for rank in ranks]
        if begun != ["again\n"] * 3 or re.search("processes (0|1)|rank", said[0][0]):
            raise TooBusyError(begun, said)
        assert "told" in said[0][0], said
        assert "process 2" in said[0][0], said
        assert "told" in said[1][0], said
        if how == signal.SIGINT:
            assert "stopped" in said[2][0], said
            assert ranks[2].returncode == 0
        else:
            assert ranks[2].returncode == -9

    with in_memory() as home, serve(home, way) as (url, key), oc.connect(url, key=key) as pool:
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        oc.create_array(pool / "u", (1200, 1000), chunks=(100, 1000)).close()
        with_enough_time(attempt)


def test_a_server_that_stops_fails_all() -> None:
    with in_memory() as home, serve(home) as (url, key), oc.connect(url, key=key) as pool:
        oc.create_array(pool / "u", SHAPE, chunks=(5, 40)).close()
        stopped = threading.Event()

        def job(comm: ThreadComm) -> Any:
            with oc.open_array(pool / "u", "r+") as u:
                try:
                    while True:
                        u.write_all(rows(comm), "block,*", comm, timeout=600)
                        stopped.set()
                finally:
                    comm._shared.barrier.abort()

        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.extend(ThreadJob(2).run(job)))
        thread.start()
        stopped.wait(LONG_S)
        pool.close()
        thread.join(LONG_S)
        assert len(result) == 2
        assert all(isinstance(each, Exception) for each in result), result


def test_schemas_that_cannot_be() -> None:
    for make, message in [
        (lambda: oc.Schema("block,block"), "need a mesh"),
        (lambda: oc.Schema("blocks"), "need block, cyclic"),
        (lambda: oc.Schema("block,block", mesh=(2, 2)).on((4,), 4), "need one of block"),
        (lambda: oc.Schema("block,*", mesh=(3,)).on((4, 4), 2), "have 2"),
        (lambda: oc.Schema.boxes([[]]).on((4,), 2), "need the boxes of 2"),
        (
            lambda: oc.Schema.boxes([[(slice(0, 3),)], [(slice(2, 4),)]]).on(
                (4,), 2, is_write=True
            ),
            "process 0 and the box .* of process 1 overlap, .*; leave ghost cells out",
        ),
        (lambda: oc.Schema.boxes([[(slice(0, 4, 2),)]]).on((4,), 1), "without steps"),
    ]:
        with pytest.raises(InvalidError, match=message):
            make()
