"""A cache of superblocks: buffers, read-ahead in the direction of travel, write-back, pins.

Source: Cettei, Ligon & Ross 1997, section 3: an access to a block reads all blocks of its
superblock by one request, into a transparent buffer.
"""

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, Buffer
from outcore._util import budget
from outcore._util.counts import count_of
from outcore.errors import BudgetError, OutcoreError
from outcore.layout.block_grid import Arrangement, BlockGrid, Coordinates, Memory


class Travel:
    """The direction in which superblocks are visited.

    Two equal steps define a direction, forwards or backwards along any dimension. At the end of a
    line the direction continues with the next line, if superblocks were visited in row-major or
    column-major order.
    """

    def __init__(self, superblocks: Coordinates) -> None:
        self._counts = superblocks
        self._visited: deque[Coordinates] = deque(maxlen=3)

    def visit(self, at: Coordinates) -> Coordinates | None:
        """Record a visit; return the superblock to expect next, if there is a direction."""
        self._visited.append(at)
        if len(self._visited) < 3:
            return None
        positions = np.array(self._visited)
        before, step = np.diff(positions, axis=0)
        ahead = positions[-1] + step
        if (before == step).all() and (ahead >= 0).all() and (ahead < self._counts).all():
            return tuple(ahead.tolist())
        orders: tuple[Literal["C", "F"], ...] = ("C", "F")
        for order in orders:
            numbers = np.ravel_multi_index(tuple(positions.T), self._counts, order=order)
            one, again = np.diff(numbers).tolist()
            number = int(numbers[-1]) + again
            if one == again and abs(one) == 1 and 0 <= number < np.prod(self._counts):
                return tuple(int(i) for i in np.unravel_index(number, self._counts, order=order))
        return None


class Claim(Protocol):
    """A handle of work in the background, such as `outcore._core.Ticket`."""

    def done(self) -> bool:
        """Whether the work has ended, successfully or not."""

    def wait(self) -> None:
        """Wait for the end; raise the error of the work."""


class Store(Protocol):
    """A storage of superblocks: an array or a plain file.

    Each call makes one request, however many parts it has. The caller leaves the memory alone until
    the claim is done.
    """

    @property
    def arrangement(self) -> Arrangement:
        """Positions of blocks in the array and in a buffer."""

    def read(self, superblock: Coordinates, memory: Memory) -> Claim:
        """Start reading a whole superblock into a buffer."""

    def write(self, superblock: Coordinates, memory: Memory, blocks: set[Coordinates]) -> Claim:
        """Start writing blocks of a superblock from its buffer."""

    def sync(self) -> Claim:
        """Start making all earlier writes durable."""

    def close(self) -> None:
        """Release the file, after the last request has ended."""


@dataclass
class BlockStats:
    """Exact counts of an interface's work so far.

    Attributes
    ----------
    reads, writes
        Superblocks read; superblocks written back in whole or in part. Each is one request.
    hits, misses
        Requested blocks whose superblock was in a buffer or being read into one; all others.
    read_ahead, read_ahead_hits
        Superblocks read before they were requested (also counted in `reads`); the number of them
        that were used later.
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
    """Blocks whose elements are in the buffer, or are being read into it."""
    dirty: set[Coordinates] = field(default_factory=set)
    leaving: set[Coordinates] = field(default_factory=set)
    """Blocks that the claim `writing` is writing."""
    reading: Claim | None = None
    writing: Claim | None = None
    is_ahead: bool = False
    """Whether the superblock was read ahead and is not used yet."""
    lent: "weakref.ref[Memory] | None" = None

    def is_lent(self) -> bool:
        """Whether a user still views the buffer."""
        return self.lent is not None and self.lent() is not None


class SuperblockCache:
    """A fixed number of buffers for superblocks of a store.

    If a write-back fails, the next call raises its error. No data are lost: the blocks stay dirty,
    and are written again by `flush` or when their buffer is needed.
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
        self._slots: dict[Coordinates, _Slot] = {}  # the most recently used comes last
        self._travel = Travel(self._grid.superblocks) if read_ahead else None
        self._current: Coordinates | None = None  # read last
        self._expected: Coordinates | None = None  # to be read ahead
        self.pinned: frozenset[Coordinates] = frozenset()
        self.stats = BlockStats()

    def block(self, at: Coordinates) -> npt.NDArray[Any]:
        """Return the elements of a block in its buffer; read them first if necessary.

        They stay in the buffer until the next call.
        """
        return self._arrangement.block(at, self._slot_with(at).memory)

    def lend(self, at: Coordinates) -> npt.NDArray[Any]:
        """Return a read-only view of a block; its elements stay while a view exists."""
        slot = self._slot_with(at)
        memory = slot.lent() if slot.lent is not None else None
        if memory is None:
            memory = np.frombuffer(memoryview(slot.buffer), np.uint8)
            slot.lent = weakref.ref(memory)
        view = self._arrangement.block(at, memory)
        view.flags.writeable = False
        return view

    def store_block(self, at: Coordinates, data: npt.NDArray[Any]) -> None:
        """Copy elements into a block's buffer, to be written later. Nothing is read."""
        self.raise_errors()
        superblock = self._grid.superblock_of(at)
        slot = self._slots.get(superblock)
        self._count(slot is not None)
        if slot is None:
            slot = self._taken_for(superblock)
        self._use(slot)
        with contextlib.suppress(OutcoreError):  # the read may be a read-ahead of other blocks
            self._finish_reading(slot)
        self._finish_writing(slot)
        self._arrangement.block(at, slot.memory)[...] = data
        slot.held.add(at)
        slot.dirty.add(at)
        self._read_ahead()

    def pin(self, superblocks: Iterable[Coordinates]) -> None:
        """Never evict these superblocks, once they are in a buffer.

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
        """Allow the eviction of these superblocks again."""
        self.pinned = self.pinned.difference(superblocks)

    @property
    def is_dirty(self) -> bool:
        """Whether any block is not yet written to the disk."""
        return any(slot.dirty or slot.writing for slot in self._slots.values())

    def flush(self) -> None:
        """Write all dirty blocks and wait; try all of them, then raise the first error."""
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
        raise_first(errors)

    def close(self) -> None:
        """Wait for all requests in flight, ignore their errors, and release the buffers."""
        for slot in self._slots.values():
            for claim in (slot.reading, slot.writing):
                if claim is not None:
                    with contextlib.suppress(OutcoreError):
                        claim.wait()
        self._slots.clear()
        self._free.clear()

    def raise_errors(self) -> None:
        """Raise the error of a write-back that has failed since the last call."""
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
            # Write the dirty blocks out before the read of the whole superblock replaces them.
            self._clean(slot)
            self._start_reading(slot)
        if self._travel is not None and superblock != self._current:
            self._current, self._expected = superblock, self._travel.visit(superblock)
        # Before the wait, so that the disk always has a next request.
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
        """Yield the slots to evict: unused read-ahead first, then the least recently used."""
        free = [
            slot for at, slot in self._slots.items() if at not in self.pinned and not slot.is_lent()
        ]
        yield from (slot for slot in free if slot.is_ahead)
        yield from (slot for slot in free if not slot.is_ahead)

    def _taken_for(self, superblock: Coordinates) -> _Slot:
        """Take a buffer for the superblock; evict another superblock if necessary."""
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
        """Start reading the expected superblock, unless that would have to wait."""
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
                return  # the next call tries again
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
        """Evict the superblock of a clean slot."""
        if slot.reading is not None:
            with contextlib.suppress(OutcoreError):  # nobody needs this read-ahead
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
        """Write the dirty blocks and wait."""
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
            # Otherwise read-ahead would fail at every call for lack of this buffer.
            self._expected = None
            raise
        slot.writing = None


def raise_first(errors: list[OutcoreError]) -> None:
    """Raise the first of the errors, if any, and clear the list, which would keep their frames."""
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()


def check_buffers(buffers: int, grid: BlockGrid) -> int:
    """Return the number of useful buffers: at most one for each superblock."""
    return min(count_of("buffers", buffers), math.prod(grid.superblocks))


def check_memory(
    memory: int | str | None, buffers: int, buffer_bytes: int, *, beside: int = 0
) -> int:
    """Return the bytes of the arena; refuse a budget too small for the buffers and `beside`."""
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
