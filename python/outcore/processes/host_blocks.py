"""The blocks of several processes of one host: each process uses those of the others in place.

The memory of each process has as many slots, and together they are one ring: a block may lie in the
memory of any process. All processes name the blocks in the same order, and for how long they keep
them, so each knows the slots of all without asking. A thread of the owner reads its next blocks
into their slots, or copies them from its own memory, once all processes have let go the block that
had the slot before. By a semaphore for each process it says that its next block is there.

There is no deadlock. All processes let go the block that had the slot of block N before they wait
for N, or for it to be sent (`Turns`). So the first block that is not there yet always gets its
slot: all wait for it or for later ones at most, and its owner has filled all own ones before it.
"""

import contextlib
import heapq
import math
import queue
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from outcore._core import Buffer, Ticket, Trace
from outcore._util.streams import BlockStream, Box
from outcore.errors import OutcoreError
from outcore.processes.blocks import (
    BlocksOfAll,
    BlocksThread,
    ClosedError,
    Data,
    Expected,
    Returned,
    opened,
)
from outcore.processes.host_memory import HostMemory, host_memory
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class HostBlocks(BlocksOfAll):
    """The blocks of several processes of one host.

    Parameters
    ----------
    stream
        The file of the own blocks on disk.
    ring
        The slots of all processes.
    team, more_s
        As for `BlocksOfAll`.
    """

    def __init__(
        self, stream: BlockStream, team: Team, ring: "Ring", trace: Trace, more_s: float
    ) -> None:
        super().__init__(stream, team, trace, more_s)
        self._ring, self._turns = ring, Turns(ring.slots)
        # The blocks that this process uses, and the last ones for which it may keep them.
        self._in_use: list[tuple[weakref.ref[Data], int]] = []
        self._returned: Returned[Turn] = Returned()
        self._to_take: deque[_Placed] = deque()
        self._own: queue.SimpleQueue[_Placed | None] = queue.SimpleQueue()
        self._boxes: queue.SimpleQueue[Box | None] = queue.SimpleQueue()
        # Only the thread uses these: reads in flight, and the next own block.
        self._reading: deque[tuple[Ticket, _Placed]] = deque()
        self._next: _Placed | None = None
        self._thread = BlocksThread(self._run, "outcore-blocks", team)
        self._releases = BlocksThread(self._release, "outcore-releases", team)

    def expect(self, blocks: Iterable[Expected]) -> None:
        """Name the next blocks in the order of their use, the same on all processes."""
        for block in blocks:
            placed = _Placed(block, self._turns.next(block.kept))
            is_own = block.owner == self._team.rank
            if is_own:
                self._own.put(placed)
            if block.is_on_disk or not is_own:
                self._to_take.append(placed)

    def read(self, boxes: Sequence[Box]) -> None:
        """Schedule reads of the next own blocks on disk."""
        for box in boxes:
            self._boxes.put(box)

    def take(self) -> Data:
        """Return the next block of another process, or of the own disk; wait for it."""
        (block, turn), start_ns = self._to_take.popleft(), self._trace.now_ns()
        self._in_use = [(used, last) for used, last in self._in_use if used() is not None]
        # A block that is kept too long may be one for whose slot all processes wait.
        assert all(last >= turn.number for _, last in self._in_use), (turn, self._in_use)
        with self._team.transfers.waiting(self._trace.now_ns):
            self._wait(lambda most_s: self._ring.is_full(block.owner, most_s), block.owner)
        self._trace.record("wait", start_ns)
        data = self._ring.memory(block, turn.slot)
        self._in_use.append((self._returned.after(data, turn), turn.number + block.kept))
        return data

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the threads. After an error they stop waiting for other processes."""
        try:
            super().__exit__(kind)
        finally:
            self._returned.close()
            self._releases.end()

    def _close(self) -> None:
        self._own.put(None)
        self._boxes.put(None)
        self._offered.put(None)

    def _release(self) -> None:
        """Let go blocks that this process no longer uses."""
        with contextlib.suppress(ClosedError):
            while True:
                self._ring.let_go(self._returned.get().slot)

    def _run(self) -> None:
        try:
            while True:
                if not self._start_next(wait=not self._reading):
                    ticket, block = self._reading[0]
                    ticket.wait()
                    self._fill(block)
                    self._reading.popleft()
        except ClosedError:
            pass
        except BaseException as error:
            self._fail(error)
            self._team.fail(error)
        finally:
            for ticket, _ in self._reading:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()

    def _start_next(self, *, wait: bool) -> bool:
        """Read the next own block, or copy it; without `wait` only if that is possible now."""
        try:
            self._next = block, turn = self._next or opened(self._own.get(wait))
            if not (wait or block.is_on_disk):
                return False  # Blocks before it are still being read.
            if wait:
                self._wait(lambda most_s: self._ring.is_free(turn, most_s), None)
            elif not self._ring.is_free(turn):
                return False
            into = self._ring.memory(block, turn.slot)
            if block.is_on_disk:
                box = opened(self._boxes.get(wait))
                start = [each.start for each in box]
                ticket = self.stream.file.submit_read(start, [1] * len(box), into)
                self._reading.append((ticket, self._next))
            else:
                memory, sent = opened(self._offered.get(wait))
                into[...] = memory
                self._fill(self._next)
                self._ring.let_go(turn.slot)
                self._one_less(sent)
        except queue.Empty:
            return False
        self._next = None
        return True

    def _fill(self, block: "_Placed") -> None:
        """Let all processes use a block: this one, too, unless it has it in its memory anyway."""
        self._ring.fill(itself=block.expected.is_on_disk)
        self._count(math.prod(block.expected.shape) * block.expected.dtype.itemsize)

    def _wait(self, attempt: Callable[[float], bool], owner: int | None) -> None:
        whom = "the others" if owner is None else f"data of rank {owner}"
        self._team.blocks.wait_until(attempt, self._more_s, whom)


class Turn(NamedTuple):
    """The slot of a block.

    Attributes
    ----------
    number
        How many blocks of all processes there were before it.
    slot
        The slot.
    before
        How many of those had the same slot.
    """

    number: int
    slot: int
    before: int


class Turns:
    """The slots of blocks, one after the other: the same on all processes, without messages.

    A block gets the slot that is free first. The block that had it is not kept while processes wait
    for the new one.
    """

    def __init__(self, slots: int) -> None:
        # The last block for which each slot is kept.
        self._kept = [(slot - slots, slot) for slot in range(slots)]
        self._before = [0] * slots
        self._number = 0

    def next(self, kept: int) -> Turn:
        """Return the slot of the next block, which is kept for the `kept` blocks after it."""
        last, slot = self._kept[0]
        assert last < self._number, "blocks in use fill all slots"
        heapq.heapreplace(self._kept, (self._number + kept, slot))
        turn = Turn(self._number, slot, self._before[slot])
        self._before[slot] += 1
        self._number += 1
        return turn


class _Placed(NamedTuple):
    """A block and its slot."""

    expected: Expected
    turn: Turn


class Ring:
    """The slots of all processes, in turn one in the memory of each.

    Each process has a semaphore for each process, which counts the blocks of that one that are
    there, and one for each slot, which counts how often a process has let it go.
    """

    def __init__(
        self, memories: list[HostMemory], rank: int, slots: int, slot_bytes: int, held: Buffer
    ) -> None:
        self._memories, self._own, self._rank = memories, memories[rank], rank
        self._size, self._slot_bytes = len(memories), slot_bytes
        self.slots = self._size * slots
        # The account of this process counts its own slots. Nobody touches this memory.
        self._held = held
        # How often processes have let each slot go, as far as this process knows.
        self._let_go = [0] * self.slots

    def memory(self, block: Expected, slot: int) -> Data:
        """Return the memory of a block."""
        turn, rank = divmod(slot, self._size)
        return self._memories[rank].array(turn * self._slot_bytes, block.shape, block.dtype)

    def fill(self, *, itself: bool) -> None:
        """Say to all processes that the next own block is there, and to this one if `itself`."""
        for rank, memory in enumerate(self._memories):
            if itself or rank != self._rank:
                memory.post(self._rank)

    def is_full(self, owner: int, most_s: float) -> bool:
        """Whether the next block of a process is there; wait at most `most_s` for that."""
        return self._own.wait(owner, most_s)

    def let_go(self, slot: int) -> None:
        """Say to all processes that this one no longer uses a slot."""
        for memory in self._memories:
            memory.post(self._size + slot)

    def is_free(self, turn: Turn, most_s: float = 0.0) -> bool:
        """Whether all processes have let go the blocks before; wait as `is_full`."""
        while self._let_go[turn.slot] < turn.before * self._size:
            if not self._own.wait(self._size + turn.slot, most_s):
                return False
            self._let_go[turn.slot] += 1
        return True


def ring_of(team: Team, call: LongCall, slots: int, slot_bytes: int, more_s: float) -> Ring | None:
    """Return the ring of the processes, or `None` if these cannot share memory.

    `slots` is the number of slots in the memory of each process.
    """
    held = call.arena.allocate(slots * slot_bytes)
    values = [0] * (team.size + team.size * slots)
    memories = host_memory(team, slots * slot_bytes, values, more_s)
    if memories is None:
        return None
    return Ring(memories, team.rank, slots, slot_bytes, held)
