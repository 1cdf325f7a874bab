"""Slabs of an operand, each read while the previous one is in use."""

from collections import deque
from collections.abc import Sequence

from outcore._core import Ticket
from outcore._util.streams import wait
from outcore.linalg._tiles.operand import DiskOperand, Extent, MemoryOperand, Part
from outcore.report.longcall import LongCall

_READ_BYTES = 4 << 20
"""Slabs are read in requests of about this size, so that other requests need not wait long."""


class MemorySlabs:
    """Slabs of an operand that is wholly in memory."""

    def __init__(self, operand: MemoryOperand) -> None:
        self._operand = operand

    def take(self) -> Part:
        """Return the next slab."""
        return self._operand.whole()

    def release(self) -> None:
        """Do nothing: the operand stays in memory."""

    def advance(self) -> None:
        """Do nothing: no reads are pending."""


class DiskSlabs:
    """Slabs of an operand on disk, in a known order, in buffers of one size.

    Parameters
    ----------
    operand
        The operand, which must be open.
    boxes
        The slabs, each beginning with a grain.
    buffers, slab_bytes
        Number of slabs in memory, and the size of each.
    steps
        Number of calls of `advance` within which a slab is read.
    """

    def __init__(
        self,
        operand: DiskOperand,
        boxes: Sequence[Extent],
        call: LongCall,
        *,
        buffers: int,
        slab_bytes: int,
        steps: int,
    ) -> None:
        self._operand, self._call, self._steps = operand, call, steps
        self._boxes = deque(boxes)
        self._free = [memoryview(call.arena.allocate(slab_bytes)) for _ in range(buffers)]
        self._held: deque[memoryview] = deque()
        self._coming: deque[_Coming] = deque()
        self._begin()

    def take(self) -> Part:
        """Wait for the next slab and return it."""
        coming = self._coming.popleft()
        coming.submit(len(coming.reads))
        for ticket in coming.tickets:
            wait(ticket, self._call.trace)
        self._held.append(coming.memory)
        return self._operand.read_part(coming.box, coming.memory)

    def release(self) -> None:
        """Release the slab that was taken first. The caller must not view it any more."""
        self._free.append(self._held.popleft())
        self._begin()

    def advance(self) -> None:
        """Start some more reads of the next slab."""
        for coming in self._coming:
            if coming.reads:
                coming.submit(coming.pace)
                return

    def _begin(self) -> None:
        while self._free and self._boxes:
            memory, box = self._free.pop(), self._boxes.popleft()
            self._coming.append(_Coming(self._operand, box, memory, self._steps))


class _Coming:
    """A slab that is being read."""

    def __init__(self, operand: DiskOperand, box: Extent, memory: memoryview, steps: int) -> None:
        self.box, self.memory = box, memory
        self.data = operand.array_of(box, memory)
        self.reads = deque(operand.requests(box, _READ_BYTES))
        self.tickets: list[Ticket] = []
        self.pace = -(-len(self.reads) // steps)
        self._operand = operand
        self._first = [s.start for s in operand.on_disk(box)]

    def submit(self, count: int) -> None:
        """Start some of the reads."""
        for _ in range(min(count, len(self.reads))):
            request = self.reads.popleft()
            inside = tuple(
                slice(s.start - first, s.stop - first)
                for s, first in zip(request, self._first, strict=True)
            )
            start = [s.start for s in request]
            self.tickets.append(self._operand.submit_read(start, self.data[inside]))
