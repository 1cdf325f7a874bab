"""The blocks of several processes of one host: each process uses those of the others in place.

The memory of each process has a ring of slots. A thread of the owner reads its next blocks into
free slots, or copies them from its own memory. It notes the slot of each, and says by a semaphore
for each process that the next one is full. A slot is free again when all processes have said so, by
its semaphore. They may use some blocks longer than later ones.
"""

import contextlib
import math
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from outcore._core import Buffer, Ticket, Trace
from outcore._util.streams import BlockStream, Box, Pending
from outcore.errors import OutcoreError
from outcore.processes.blocks import Blocks, ClosedError, Data, Expected, Sent, opened
from outcore.processes.host_memory import HostMemory, host_memory
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class HostBlocks(Blocks):
    """The blocks of several processes of one host.

    Parameters
    ----------
    stream
        The file of the own blocks on disk.
    team
        The processes.
    rings
        The ring of each process.
    more_s
        Additional time to wait for a block, for the work of its owner.
    """

    def __init__(
        self, stream: BlockStream, team: Team, rings: "Rings", trace: Trace, more_s: float
    ) -> None:
        super().__init__(stream)
        self._team, self._rings, self._trace, self._more_s = team, rings, trace, more_s
        self._bytes = self._messages = 0
        self._named = [0] * team.size
        self._to_take: deque[_Numbered] = deque()
        self._own: queue.SimpleQueue[_Numbered | None] = queue.SimpleQueue()
        self._boxes: queue.SimpleQueue[Box | None] = queue.SimpleQueue()
        self._offered: queue.SimpleQueue[tuple[Data, Sent] | None] = queue.SimpleQueue()
        self._sending: set[Sent] = set()
        self._error: BaseException | None = None
        # Only the thread uses these: reads in flight, and the next own block.
        self._reading: deque[tuple[Ticket, _Numbered]] = deque()
        self._next: _Numbered | None = None
        self._thread = threading.Thread(target=self._run, name="outcore-blocks", daemon=True)
        self._thread.start()

    def expect(self, blocks: Iterable[Expected]) -> None:
        """Name the next blocks in the order of their use, the same on all processes."""
        for block in blocks:
            numbered = _Numbered(block, self._named[block.owner])
            self._named[block.owner] += 1
            is_own = block.owner == self._team.rank
            if is_own:
                self._own.put(numbered)
            if block.is_on_disk or not is_own:
                self._to_take.append(numbered)

    def read(self, boxes: Sequence[Box]) -> None:
        """Schedule reads of the next own blocks on disk."""
        for box in boxes:
            self._boxes.put(box)

    def offer(self, blocks: Sequence[Data]) -> Pending:
        """Send own blocks from memory, which must not change until the result is done."""
        sent = Sent(len(blocks))
        self._sending.add(sent)
        for block in blocks:
            self._offered.put((block, sent))
        if self._error is not None:
            sent.fail(self._error)
        return sent

    def take(self) -> Data:
        """Return the next block of another process, or of the own disk; wait for it."""
        (block, number), start_ns = self._to_take.popleft(), self._trace.now_ns()
        self._wait(lambda most_s: self._rings.is_full(block.owner, most_s), block.owner)
        self._trace.record("wait", start_ns)
        slot = self._rings.slot_of(block.owner, number)
        data = self._rings.memory(block, slot)
        weakref.finalize(data, self._rings.let_go, block.owner, slot).atexit = False
        return data

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the thread. After an error it stops waiting for other processes."""
        if kind is not None:
            self._team.leave()
        self._own.put(None)
        self._boxes.put(None)
        self._offered.put(None)
        self._thread.join()

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent."""
        return self._bytes, self._messages

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
            self._error = error
            for sent in list(self._sending):
                sent.fail(error)
            self._team.fail(error)
        finally:
            for ticket, _ in self._reading:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()

    def _start_next(self, *, wait: bool) -> bool:
        """Read the next own block, or copy it; without `wait` only if that is possible now."""
        try:
            self._next = block, number = self._next or opened(self._own.get(wait))
            if not (wait or block.is_on_disk):
                return False  # Blocks before it are still being read.
            while (slot := self._rings.free_slot()) is None:
                if not wait:
                    return False
                self._wait(self._rings.is_any_let_go, None)
            into = self._rings.memory(block, slot)
            if block.is_on_disk:
                box = opened(self._boxes.get(wait))
                self._rings.use(slot, number)
                start = [each.start for each in box]
                ticket = self.stream.file.submit_read(start, [1] * len(box), into)
                self._reading.append((ticket, self._next))
            else:
                memory, sent = opened(self._offered.get(wait))
                self._rings.use(slot, number)
                into[...] = memory
                self._fill(self._next)
                self._rings.let_go(block.owner, slot)
                sent.one_less()
                if sent.done():
                    self._sending.discard(sent)
        except queue.Empty:
            return False
        self._next = None
        return True

    def _fill(self, block: "_Numbered") -> None:
        """Let all processes use a block: this one, too, unless it has it in its memory anyway."""
        self._rings.fill(itself=block.expected.is_on_disk)
        self._bytes += math.prod(block.expected.shape) * block.expected.dtype.itemsize
        self._messages += 1

    def _wait(self, attempt: Callable[[float], bool], owner: int | None) -> None:
        whom = "the others" if owner is None else f"data of rank {owner}"
        self._team.blocks.wait_until(attempt, self._more_s, whom)


class _Numbered(NamedTuple):
    """A block, and how many blocks its owner has had before it."""

    expected: Expected
    number: int


class Rings:
    """The rings of all processes.

    Each has semaphores for the processes, one for all slots, and one for each slot. Behind its
    slots lie the numbers of the slots of its last blocks.
    """

    def __init__(
        self, memories: list[HostMemory], rank: int, slots: int, slot_bytes: int, held: Buffer
    ) -> None:
        self._memories, self._own, self._rank = memories, memories[rank], rank
        self._slots, self._slot_bytes = slots, slot_bytes
        # The account of this process counts its own slots. Nobody touches this memory.
        self._held = held
        # Processes that may still use each own slot.
        self._users = [0] * slots
        kind, first = np.dtype(np.int64), slots * slot_bytes
        self._slots_of = [memory.array(first, (slots,), kind) for memory in memories]

    def memory(self, block: Expected, slot: int) -> Data:
        """Return the memory of a block."""
        first = slot * self._slot_bytes
        return self._memories[block.owner].array(first, block.shape, block.dtype)

    def slot_of(self, owner: int, number: int) -> int:
        """Return the slot of a full block that this process has not let go."""
        return int(self._slots_of[owner][number % self._slots])

    def free_slot(self) -> int | None:
        """Return an own slot that no process uses, if there is one."""
        while self.is_any_let_go():
            pass
        for slot in range(self._slots):
            while self._users[slot] and self._own.wait(len(self._memories) + 1 + slot):
                self._users[slot] -= 1
            if not self._users[slot]:
                return slot
        return None

    def use(self, slot: int, number: int) -> None:
        """Give a free slot to an own block, until all processes let it go."""
        self._users[slot] = len(self._memories)
        self._slots_of[self._rank][number % self._slots] = slot

    def fill(self, *, itself: bool) -> None:
        """Say to all processes that the next own slot is full, and to this one if `itself`."""
        for rank in range(len(self._memories)):
            if itself or rank != self._rank:
                self._own.post(rank)

    def is_full(self, owner: int, most_s: float) -> bool:
        """Whether the next slot of a process is full; wait at most `most_s` for that."""
        return self._memories[owner].wait(self._rank, most_s)

    def let_go(self, owner: int, slot: int) -> None:
        """Say that this process no longer uses a slot."""
        self._memories[owner].post(len(self._memories) + 1 + slot)
        self._memories[owner].post(len(self._memories))

    def is_any_let_go(self, most_s: float = 0.0) -> bool:
        """Whether a process has let an own slot go, once for each time; wait as `is_full`."""
        return self._own.wait(len(self._memories), most_s)


def rings_of(
    team: Team, call: LongCall, slots: int, slot_bytes: int, more_s: float
) -> Rings | None:
    """Return the rings of the processes, or `None` if these cannot share memory."""
    held = call.arena.allocate(slots * slot_bytes)
    values = [0] * (team.size + 1 + slots)
    nbytes = slots * (slot_bytes + np.dtype(np.int64).itemsize)
    memories = host_memory(team, nbytes, values, more_s)
    if memories is None:
        return None
    return Rings(memories, team.rank, slots, slot_bytes, held)
