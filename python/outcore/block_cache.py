"""Superblocks in memory: buffers, read-ahead in the direction of travel, write-back, pins.

Source: Cettei, Ligon & Ross 1997, section 3: when a block is accessed, all other blocks of its
superblock are read with it, by one request, and kept in a transparent buffer.
"""

import contextlib
import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import Arena, Buffer
from outcore.block_grid import Arrangement, BlockGrid, Coordinates, Memory
from outcore.block_travel import Travel
from outcore.counts import count_of
from outcore.errors import BudgetError, OutcoreError


class Claim(Protocol):
    """A claim on work in the background, such as `outcore._core.Ticket`."""

    def done(self) -> bool:
        """Whether the work is done, well or not."""

    def wait(self) -> None:
        """Wait for the end; raise what the work failed with."""


class Store(Protocol):
    """What holds the superblocks: an array, or a plain file.

    A request is one, however many parts it has. Memory stays as it is until the claim is done.
    """

    @property
    def arrangement(self) -> Arrangement:
        """Where blocks lie in the array and in a buffer."""

    def read(self, superblock: Coordinates, memory: Memory) -> Claim:
        """Start reading a whole superblock into a buffer."""

    def write(self, superblock: Coordinates, memory: Memory, blocks: set[Coordinates]) -> Claim:
        """Start writing blocks of a superblock from its buffer."""

    def sync(self) -> Claim:
        """Start making what was written durable."""

    def close(self) -> None:
        """Let go of the file, when no request is unfinished."""


@dataclass
class BlockStats:
    """What an interface did so far, counted exactly.

    Attributes
    ----------
    reads, writes
        Superblocks read, and written back in whole or in part: one request each.
    hits, misses
        Blocks asked for whose superblock was in a buffer or on its way there, and others.
    read_ahead, read_ahead_hits
        Superblocks read before they were asked for (counted in `reads` too), and how many of
        them were then used.
    bytes_read, bytes_written
        Bytes of the elements in `reads` and `writes`.
    """

    reads: int = 0
    writes: int = 0
    hits: int = 0
    misses: int = 0
    read_ahead: int = 0
    read_ahead_hits: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(eq=False)
class _Slot:
    """A buffer and the superblock in it."""

    buffer: Buffer
    memory: Memory
    superblock: Coordinates = ()
    held: set[Coordinates] = field(default_factory=set)
    """Blocks whose elements are here, or on their way here."""
    dirty: set[Coordinates] = field(default_factory=set)
    leaving: set[Coordinates] = field(default_factory=set)
    """Blocks that `writing` writes."""
    reading: Claim | None = None
    writing: Claim | None = None
    is_ahead: bool = False
    """Read ahead and not yet used."""
    lent: "weakref.ref[Memory] | None" = None

    def is_lent(self) -> bool:
        """Whether a user still views the buffer."""
        return self.lent is not None and self.lent() is not None


class SuperblockCache:
    """A fixed number of buffers for superblocks of a store.

    An error of a write-back is raised by the next call, and nothing is lost: what could not be
    written stays, and is written again by `flush` or when its buffer is needed.
    """

    def __init__(self, store: Store, arena: Arena, buffers: int, *, read_ahead: bool) -> None:
        self._store = store
        self._arrangement = store.arrangement
        self._grid = store.arrangement.grid
        self._free: list[_Slot] = []
        for _ in range(buffers):
            buffer = arena.allocate(self._arrangement.buffer_bytes)
            self._free.append(_Slot(buffer, np.frombuffer(memoryview(buffer), np.uint8)))
        self._buffers = buffers
        self._slots: dict[Coordinates, _Slot] = {}  # the most recently used is the last
        self._travel = Travel(self._grid.superblocks) if read_ahead else None
        self._current: Coordinates | None = None  # was read last
        self._expected: Coordinates | None = None  # is to be read ahead
        self.pinned: frozenset[Coordinates] = frozenset()
        self.stats = BlockStats()

    def block(self, at: Coordinates) -> npt.NDArray[Any]:
        """Return the elements of a block, in its buffer, after reading them if they are not there.

        They stay there until the next call.
        """
        return self._arrangement.block(at, self._slot_with(at).memory)

    def lend(self, at: Coordinates) -> npt.NDArray[Any]:
        """As `block`, for reading only; the elements stay as long as anybody views them."""
        slot = self._slot_with(at)
        memory = slot.lent() if slot.lent is not None else None
        if memory is None:
            memory = np.frombuffer(memoryview(slot.buffer), np.uint8)
            slot.lent = weakref.ref(memory)
        view = self._arrangement.block(at, memory)
        view.flags.writeable = False
        return view

    def store_block(self, at: Coordinates, data: npt.NDArray[Any]) -> None:
        """Put elements into a block's buffer, to be written later. Nothing is read for it."""
        self.raise_errors()
        superblock = self._grid.superblock_of(at)
        slot = self._slots.get(superblock)
        self._count(slot is not None)
        if slot is None:
            slot = self._taken_for(superblock)
        self._use(slot)
        with contextlib.suppress(OutcoreError):  # a read-ahead, perhaps of other blocks
            self._finish_reading(slot)
        self._finish_writing(slot)
        self._arrangement.block(at, slot.memory)[...] = data
        slot.held.add(at)
        slot.dirty.add(at)
        self._read_ahead()

    def pin(self, superblocks: Iterable[Coordinates]) -> None:
        """Never evict these, once they are here.

        Raises
        ------
        BudgetError
            If there are fewer buffers than pinned superblocks.
        """
        pinned = self.pinned.union(superblocks)
        if len(pinned) > self._buffers:
            raise BudgetError(
                f"need {len(pinned)} buffers for as many pinned superblocks, have {self._buffers}; "
                "raise buffers=, or pin fewer"
            )
        self.pinned = pinned

    def unpin(self, superblocks: Iterable[Coordinates]) -> None:
        """Let these be evicted again."""
        self.pinned = self.pinned.difference(superblocks)

    @property
    def is_dirty(self) -> bool:
        """Whether anything is not on disk yet."""
        return any(slot.dirty or slot.writing for slot in self._slots.values())

    def flush(self) -> None:
        """Write what is dirty, and wait for it; raise the first error after trying all of it."""
        errors = []
        for slot in self._slots.values():
            try:
                self._finish_writing(slot)
            except OutcoreError as error:
                errors.append(error)
            else:
                self._start_writing(slot)
        for slot in self._slots.values():
            try:
                self._finish_writing(slot)
            except OutcoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Wait for what is going on, whatever becomes of it, and let go of the buffers."""
        for slot in self._slots.values():
            for claim in (slot.reading, slot.writing):
                if claim is not None:
                    with contextlib.suppress(OutcoreError):
                        claim.wait()
        self._slots.clear()
        self._free.clear()

    def raise_errors(self) -> None:
        """Raise the error of a write that failed meanwhile."""
        for slot in list(self._slots.values()):
            if slot.writing is not None and slot.writing.done():
                self._finish_writing(slot)

    def _slot_with(self, at: Coordinates) -> _Slot:
        self.raise_errors()
        superblock = self._grid.superblock_of(at)
        slot = self._slots.get(superblock)
        is_held = slot is not None and at in slot.held
        self._count(is_held)
        if slot is None:
            slot = self._taken_for(superblock)
        self._use(slot)
        if not is_held:
            # What was written into it before goes out, then the whole superblock comes in.
            self._clean(slot)
            self._start_reading(slot)
        if self._travel is not None and superblock != self._current:
            self._current, self._expected = superblock, self._travel.visit(superblock)
        # Before waiting, so that the disk has the next request when it is done with this one.
        self._read_ahead()
        self._finish_reading(slot)
        return slot

    def _count(self, is_hit: bool) -> None:
        if is_hit:
            self.stats.hits += 1
        else:
            self.stats.misses += 1

    def _use(self, slot: _Slot) -> None:
        self._slots[slot.superblock] = self._slots.pop(slot.superblock)
        if slot.is_ahead:
            slot.is_ahead = False
            self.stats.read_ahead_hits += 1

    def _victims(self) -> Iterator[_Slot]:
        """Slots whose superblock may go: what was read ahead in vain, then the least used."""
        free = [
            slot for at, slot in self._slots.items() if at not in self.pinned and not slot.is_lent()
        ]
        yield from (slot for slot in free if slot.is_ahead)
        yield from (slot for slot in free if not slot.is_ahead)

    def _taken_for(self, superblock: Coordinates) -> _Slot:
        """Empty a buffer, waiting for it if need be."""
        if not self._free:
            slot = next(self._victims(), None)
            if slot is None:
                raise BudgetError(
                    f"need a buffer for superblock {superblock}; all {self._buffers} are pinned or "
                    "hold blocks that are still viewed; raise buffers=, unpin superblocks, or let "
                    "go of views (or copy them)"
                )
            self._clean(slot)
            self._empty(slot)
        return self._fill_next(superblock)

    def _read_ahead(self) -> None:
        """Start reading the superblock that is expected next, if that takes no waiting."""
        superblock = self._expected
        if superblock is None or superblock in self._slots:
            self._expected = None
            return
        if not self._free:
            current = next(reversed(self._slots.values()))
            slot = next((one for one in self._victims() if one is not current), None)
            if slot is None:
                return
            self._start_writing(slot)
            if any(claim and not claim.done() for claim in (slot.reading, slot.writing)):
                return  # the next call looks again
            self._finish_writing(slot)
            self._empty(slot)
        slot = self._fill_next(superblock)
        self._start_reading(slot)
        slot.is_ahead = True
        self.stats.read_ahead += 1
        self._expected = None

    def _fill_next(self, superblock: Coordinates) -> _Slot:
        slot = self._free.pop()
        slot.superblock = superblock
        self._slots[superblock] = slot
        return slot

    def _empty(self, slot: _Slot) -> None:
        """Give up the superblock of a clean slot."""
        if slot.reading is not None:
            with contextlib.suppress(OutcoreError):  # nobody asked for it
                slot.reading.wait()
        del self._slots[slot.superblock]
        self._free.append(_Slot(slot.buffer, slot.memory))

    def _start_reading(self, slot: _Slot) -> None:
        slot.reading = self._store.read(slot.superblock, slot.memory)
        slot.held = set(self._grid.blocks_of(slot.superblock))
        self.stats.reads += 1
        whole = self._grid.superblock_shape(slot.superblock)
        self.stats.bytes_read += self._arrangement.nbytes(whole)

    def _finish_reading(self, slot: _Slot) -> None:
        if slot.reading is None:
            return
        try:
            slot.reading.wait()
        except OutcoreError:
            slot.held = set()
            slot.reading = None
            raise
        slot.reading = None

    def _clean(self, slot: _Slot) -> None:
        """Write what is dirty and wait for it."""
        self._finish_writing(slot)
        self._start_writing(slot)
        self._finish_writing(slot)

    def _start_writing(self, slot: _Slot) -> None:
        if slot.dirty and slot.writing is None:
            slot.writing = self._store.write(slot.superblock, slot.memory, slot.dirty)
            slot.leaving, slot.dirty = slot.dirty, set()
            self.stats.writes += 1
            self.stats.bytes_written += sum(
                self._arrangement.nbytes(self._grid.block_shape(at)) for at in slot.leaving
            )

    def _finish_writing(self, slot: _Slot) -> None:
        if slot.writing is None:
            return
        try:
            slot.writing.wait()
        except OutcoreError:
            slot.dirty |= slot.leaving
            slot.writing = None
            # Reading ahead must not fail again at every call for want of this buffer.
            self._expected = None
            raise
        slot.writing = None


def check_buffers(buffers: int, grid: BlockGrid) -> int:
    """Return how many buffers are of use, of those asked for: one for each superblock at most."""
    return min(count_of("buffers", buffers), math.prod(grid.superblocks))


def check_memory(
    memory: int | str | None, buffers: int, buffer_bytes: int, *, beside: int = 0
) -> int:
    """Return the bytes of the arena; refuse if they do not hold the buffers and `beside`."""
    need = buffers * buffer_bytes + beside
    have = budget.available_bytes() if memory is None else budget.resolve(memory)
    if need > have:
        fit = (have - beside) // buffer_bytes
        fix = f"give buffers={fit}" if fit > 0 else "choose smaller superblocks"
        raise BudgetError(
            f"need {need} bytes of memory for {buffers} buffers of {buffer_bytes} bytes, one for a "
            f"superblock each, have {have}; {fix}, or raise memory="
        )
    return need if memory is None else have
