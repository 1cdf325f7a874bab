"""The buffers over a store that completes late, checks overlaps, and sometimes fails."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from block_cases import Case, cuts
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import values

import outcore as oc
from outcore._core import Arena
from outcore.errors import DiskError
from outcore.layout.block_grid import Arrangement, BlockGrid, Coordinates, Memory


class Late:
    """A request that completes in `wait`, or with some probability in `done`."""

    def __init__(self, store: "LateStore", superblock: Coordinates, memory: Memory) -> None:
        self.store, self.superblock, self.memory = store, superblock, memory
        self.finish: Callable[[], None] = lambda: None
        self.is_done = False
        self.error: DiskError | None = None
        for other in store.unfinished:
            assert other.superblock != superblock, "a superblock is moved twice at once"
            assert not np.shares_memory(other.memory, memory), "memory is moved twice at once"
        store.unfinished.append(self)

    def done(self) -> bool:
        if not self.is_done and self.store.random.random() < self.store.early:
            self._end()
        return self.is_done

    def wait(self) -> None:
        if self.store.interrupts:
            self.store.interrupts -= 1
            raise KeyboardInterrupt
        if not self.is_done:
            self._end()
        if self.error:
            raise self.error

    def _end(self) -> None:
        self.is_done = True
        self.store.unfinished.remove(self)
        if self.store.random.random() < self.store.failing:
            self.error = DiskError("by chance")
        else:
            self.finish()


class LateStore:
    """Superblocks of an array in memory."""

    def __init__(self, disk: np.ndarray[Any, Any], arrangement: Arrangement, seed: int) -> None:
        self.disk, self.arrangement = disk, arrangement
        self.random = np.random.default_rng(seed)
        self.early, self.failing = 0.3, 0.0
        self.interrupts = 0
        self.unfinished: list[Late] = []
        self.reads = self.writes = 0

    def read(self, superblock: Coordinates, memory: Memory) -> Late:
        self.reads += 1
        claim = Late(self, superblock, memory)
        memory[:] = self.random.integers(0, 256, memory.shape, np.uint8)

        def finish() -> None:
            for start, part in self.arrangement.parts(superblock, memory):
                part[...] = self.disk[self.box(start, part)]

        claim.finish = finish
        return claim

    def write(self, superblock: Coordinates, memory: Memory, blocks: set[Coordinates]) -> Late:
        self.writes += 1
        claim = Late(self, superblock, memory)
        parts = self.arrangement.parts(superblock, memory, blocks)
        as_submitted = memory.copy()

        def finish() -> None:
            assert (memory == as_submitted).all(), "memory is changed while it is written"
            for start, part in parts:
                self.disk[self.box(start, part)] = part

        claim.finish = finish
        return claim

    @staticmethod
    def box(start: Coordinates, part: np.ndarray[Any, Any]) -> tuple[slice, ...]:
        return tuple(slice(a, a + n) for a, n in zip(start, part.shape, strict=True))

    def sync(self) -> Late:
        return Late(self, (-1,), np.empty(0, np.uint8))

    def close(self) -> None:
        assert self.unfinished == []


class Persistent:
    """An interface that repeats failed calls, like a user who repairs the disk."""

    def __init__(self, blocks: oc.Blocks) -> None:
        self._blocks = blocks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocks, name)
        return self._again(found) if callable(found) else found

    def __getitem__(self, at: Any) -> Any:
        return self.read(at)

    def __setitem__(self, at: Any, data: Any) -> None:
        self.write(at, data)

    @staticmethod
    def _again(call: Callable[..., Any]) -> Callable[..., Any]:
        def persist(*args: Any, **given: Any) -> Any:
            for _ in range(1000):
                try:
                    return call(*args, **given)
                except DiskError:
                    pass
            raise AssertionError("it fails for ever")

        return persist


@examples(200)
@given(
    data=st.data(),
    cut=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=3),
    by_block=st.booleans(),
    failing=st.sampled_from([0.0, 0.3]),
)
def test_memory_in_flight_is_left_alone_and_nothing_is_lost(
    data: st.DataObject, cut: list[tuple[int, int]], by_block: bool, failing: float
) -> None:
    shape = tuple(n for n, _ in cut)
    model, how = values(shape, "i4"), data.draw(cuts(shape))
    grid = BlockGrid.of(shape, [b for _, b in cut], how.pop("superblock"))
    arrangement = Arrangement(grid, model.dtype, "C", by_block)
    store = LateStore(model.copy(), arrangement, data.draw(st.integers(0, 1 << 30)))
    buffers = min(how.pop("buffers"), math.prod(grid.superblocks))
    arena = Arena(buffers * arrangement.buffer_bytes)
    blocks = oc.Blocks(
        store, arena, name="a model", buffers=buffers, pin=None, writable=True, **how
    )
    store.failing = failing
    try:
        Case(model, data.draw, may_pin=buffers > 1).play(Persistent(blocks))
        assert (blocks.stats.reads, blocks.stats.writes) == (store.reads, store.writes)
    finally:  # also after an abandoned case
        store.failing = 0
        blocks.close()
    np.testing.assert_array_equal(store.disk, model)


def nine() -> tuple[LateStore, oc.Blocks]:
    """Return a store of nine superblocks of one element, three buffers, and no early completion."""
    arrangement = Arrangement(BlockGrid.of((9,), 1), np.dtype("i4"), "C", by_block=True)
    store = LateStore(np.arange(9, dtype="i4"), arrangement, seed=0)
    store.early = 0
    arena = Arena(3 * arrangement.buffer_bytes)
    return store, oc.Blocks(
        store, arena, name="a model", buffers=3, pin=None, writable=True, read_ahead=True
    )


def test_what_is_written_to_is_not_on_its_way_any_more() -> None:
    store, B = nine()
    for at in (0, 1, 2):
        B.read(at)
    assert [claim.superblock for claim in store.unfinished] == [(3,)], "is read ahead"
    B[3] = 77
    assert B.read(3) == [77]
    B.close()
    store, B = nine()
    B.read(0)
    B[0] = 77
    for at in (1, 2):
        B.read(at)
    assert [claim.superblock for claim in store.unfinished] == [(0,)], "gives its buffer to 3"
    B[0] = 78
    assert store.disk[0] == 77
    B.close()
    assert store.disk[0] == 78


def test_after_an_interrupt_all_is_as_it_was() -> None:
    """Ctrl-C while the interface waits: the request continues, and the next call waits for it."""
    store, B = nine()
    calls: list[Callable[[], Any]] = [
        lambda: B.read(5), lambda: B.view(5), lambda: B.write(5, 55), B.flush, lambda: B.read(7),
        lambda: B.write(8, 88), lambda: B.read(1), lambda: B.read(2), lambda: B.read(3), B.close,
    ]  # fmt: skip
    interrupted = 0
    for call in calls:
        store.interrupts = 1
        try:
            call()
        except KeyboardInterrupt:
            interrupted += 1
        store.interrupts = 0
        call()
    assert interrupted >= 5
    assert store.disk.tolist() == [0, 1, 2, 3, 4, 55, 6, 7, 88]


@pytest.mark.parametrize("then", [0, 1, 2])
def test_the_next_call_tells_of_a_write_that_failed(then: int) -> None:
    """The next call raises the error, even if its own blocks are in buffers."""
    store, B = nine()
    B.read(0)
    B[0] = 77
    B.read(1)
    B.read(2)  # 3 is read ahead next, in place of 0
    (claim,) = store.unfinished
    store.failing = 1
    with pytest.raises(DiskError):
        claim.wait()
    with pytest.raises(DiskError, match="by chance"):
        B.read(then)
    store.early = 1
    for _ in range(20):
        assert B.read(then) == [77 if then == 0 else then], "it is told once"
    store.failing = 0
    B.close()
    assert store.disk[0] == 77
