"""Memory that processes of a host share, its semaphores, and the slots of blocks there."""

import ctypes
import errno
import mmap
import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from timeouts import HANG_S

from outcore._util.streams import BlockStream
from outcore.processes import host_memory
from outcore.processes.blocks import ClosedError, Expected
from outcore.processes.broadcasts import blocks_of
from outcore.processes.host_blocks import Turns
from outcore.processes.host_memory import HostMemory
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class Pair:
    """The first of two processes; `second` makes the other one's values from its own."""

    rank, size = 0, 2

    def __init__(self, second: Any) -> None:
        self._second, self.waits = second, list[float]()

    def all_of(self, value: Any, more_s: float = 0.0) -> list[Any]:
        self.waits.append(more_s)
        return [value, value if isinstance(value, bool) else self._second(*value)]


def memories(second: Any) -> list[HostMemory] | None:
    return host_memory.host_memory(cast(Team, Pair(second)), 8192, [0, 2], 0.0)


def test_processes_see_the_same_memory() -> None:
    # This process plays the other one, too, and maps its own memory twice.
    found = memories(lambda *here: here)
    assert found is not None
    first, second = found
    first.array(4096, (3, 2), np.dtype("f8"))[...] = np.arange(6).reshape(3, 2)
    assert second.array(4096, (6,), np.dtype("f8")).tolist() == [0, 2, 4, 1, 3, 5]
    second.post(0)
    assert [first.wait(0), first.wait(0), second.wait(0, 0.001)] == [True, False, False]
    assert [second.wait(1, 9), first.wait(1, 9), first.wait(1)] == [True, True, False]


@pytest.mark.skipif(not hasattr(host_memory._c, "sem_clockwait"), reason="an old library of C")
def test_no_wait_uses_a_clock_that_someone_may_set(monkeypatch: pytest.MonkeyPatch) -> None:
    found = memories(lambda *here: here)
    assert found is not None
    asked, clock_gettime = [], time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda *at: asked.append(*at) or clock_gettime(*at))
    assert not found[0].wait(0, 0.001)
    assert asked == [time.CLOCK_MONOTONIC]


def test_an_older_library_of_c_uses_the_other_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_CLOCK", time.CLOCK_REALTIME)
    found = memories(lambda *here: here)
    assert found is not None
    assert [found[1].wait(1, 9), found[0].wait(0, 0.001)] == [True, False]


def test_a_wait_that_cannot_succeed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = memories(lambda *here: here)
    assert found is not None

    def fail(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    broken = SimpleNamespace(sem_trywait=fail, sem_clockwait=fail, sem_timedwait=fail)
    monkeypatch.setattr(host_memory, "_c", broken)
    for most_s in (0.0, 9.0):
        with pytest.raises(OSError, match="cannot wait for a semaphore: Invalid"):
            found[0].wait(0, most_s)


def test_blocks_wait_for_the_work_of_others_before_they_share_memory() -> None:
    pair = Pair(lambda *here: here)
    arena = SimpleNamespace(allocate=bytearray)
    call = cast(LongCall, SimpleNamespace(arena=arena, trace=None))
    with blocks_of(cast(BlockStream, None), cast(Team, pair), call, 1, 2, 64, 7.0):
        pass
    assert pair.waits == [7.0, 7.0]


class Interrupted(threading.Event):
    """An event whose first wait ends by Ctrl-C."""

    _is_over = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_over:
            return super().wait(timeout)
        self._is_over = True
        raise KeyboardInterrupt


def test_ctrl_c_at_the_end_of_blocks_ends_their_thread() -> None:
    left = threading.Event()

    def wait_until(*_: object) -> None:
        # The other process lets no slot go.
        assert left.wait(HANG_S)
        raise ClosedError

    pair = Pair(lambda *here: here)
    vars(pair).update(leave=left.set, blocks=SimpleNamespace(wait_until=wait_until))
    arena = SimpleNamespace(allocate=bytearray)
    call = cast(LongCall, SimpleNamespace(arena=arena, trace=None))
    blocks: Any = blocks_of(cast(BlockStream, None), cast(Team, pair), call, 1, 1, 64, 0.0)
    data = np.ones((2, 2), order="F")
    blocks._thread._ended = Interrupted()
    blocks.expect([Expected(0, data.shape, data.dtype, is_on_disk=False)] * 2)
    blocks.offer([data, data])
    with pytest.raises(KeyboardInterrupt):
        blocks.__exit__(None)
    assert left.is_set()
    assert not blocks._thread.is_alive()


def test_the_system_reserves_the_memory_before_its_use() -> None:
    reserved = []

    def note(*here: Any) -> Any:
        reserved.append(os.fstat(here[2]).st_blocks * 512)
        return here

    assert memories(note) is not None
    assert reserved[0] >= 8192 + mmap.PAGESIZE


@pytest.mark.parametrize(
    "second",
    [
        lambda host, *rest: (("another host", host[1]), *rest),
        lambda host, process, handle, token: (host, process, handle, b"0" * len(token)),
        lambda host, process, handle, token: (host, process, 1 << 20, token),
        lambda host, process, handle, token: (host, process, os.open("/", 0), token),
    ],
)
def test_processes_without_common_memory(second: Any) -> None:
    assert memories(second) is None


@pytest.mark.parametrize("name", ["memfd_create", "posix_fallocate"])
def test_a_system_without_such_memory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(os, name, refuse)
    assert host_memory.host_memory(cast(Team, Nobody()), 8192, [0], 0.0) is None


class Nobody(Pair):
    def __init__(self) -> None:
        pass

    def all_of(self, value: Any, more_s: float = 0.0) -> list[Any]:
        return [value, value]


def test_blocks_get_slots_that_are_free_by_then() -> None:
    turns = Turns(8)
    # Each run of ten blocks keeps its first three until the tenth.
    kept, last, before = [9, 8, 7, *[2] * 6, 1], [-1] * 8, [0] * 8
    for number in range(100):
        turn = turns.next(kept[number % 10])
        assert (turn.number, turn.before) == (number, before[turn.slot])
        assert last[turn.slot] < number
        last[turn.slot] = number + kept[number % 10]
        before[turn.slot] += 1
    assert min(before) >= 10


def test_blocks_kept_for_equally_long_use_all_slots_in_turn() -> None:
    turns = Turns(6)
    assert [turns.next(2).slot for _ in range(13)] == [*range(6), *range(6), 0]


def test_more_blocks_in_use_than_slots() -> None:
    turns = Turns(3)
    for kept in (3, 2, 1):
        turns.next(kept)
    with pytest.raises(AssertionError, match="fill all slots"):
        turns.next(0)
