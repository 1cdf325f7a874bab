"""The blocks of a copy: read ahead, written behind, and read back, within the budget."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from outcore._core import Arena, Buffer, Ticket
from outcore._util.streams import Box
from outcore.convert.copy_notes import CopyNotes
from outcore.convert.copy_plan import CopyPlan
from outcore.convert.sources import InMemory, Source
from outcore.convert.targets import Target, writing
from outcore.errors import CorruptError, OutcoreError
from outcore.report.longcall import LongCall
from outcore.storage.volumes import AnyPath


class Readable(Protocol):
    """A source, or a target that reads its written blocks back."""

    reads_ahead: bool

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """Read a box into `out`, or return a ticket for the read."""


@dataclass
class Slot:
    """Memory of a block, and the pending write that uses it."""

    buffer: Buffer | None
    writing: Ticket | None = None

    def wait(self) -> None:
        """Wait for the write."""
        if self.writing is not None:
            self.writing.wait()
        self.writing = None

    def checksum(self, data: npt.NDArray[Any]) -> int:
        """Return the CRC-32C of a block in this memory."""
        assert self.buffer is not None, "blocks with checksums have memory"
        return self.buffer.crc32c(data.nbytes)


Take = Callable[[Box, Slot, npt.NDArray[Any]], None]


def copy_blocks(
    source: Source,
    target: Target,
    plan: CopyPlan,
    call: LongCall,
    path: AnyPath,
    notes: CopyNotes | None = None,
    sums: list[int] | None = None,
) -> list[Slot]:
    """Copy all blocks; read ahead and write behind as far as the plan's memory allows.

    With `notes`, skip the blocks that are already durable, and record the progress. Append the
    CRC-32C of each block to `sums`. Return the memory of the blocks.
    """
    source.begin(call.arena, plan.bounce_bytes)
    target.begin(call.arena, plan.bounce_bytes)
    slots = _slots(source, plan, call.arena, summed=sums is not None)

    def write(box: Box, slot: Slot, data: npt.NDArray[Any]) -> None:
        if sums is not None:
            sums.append(slot.checksum(data))
        with writing(path):
            slot.writing = target.write(box, data)
            if notes is not None and slot.writing is not None:
                notes.add(slot.writing, data.nbytes)
        call.meter.advance(data.nbytes)

    boxes = plan.boxes(column_major=target.column_major)
    if notes is not None:
        boxes = itertools.islice(boxes, notes.done, None)
    try:
        _move(boxes, slots, source, source, write)
        source.check_end()
        if notes is not None:
            notes.finish()
    except BaseException:
        if notes is not None:
            notes.stop()
        raise
    return slots


def check_blocks(
    source: Source,
    target: Target,
    made: Readable,
    slots: list[Slot],
    plan: CopyPlan,
    call: LongCall,
    path: AnyPath,
    sums: list[int],
    notes: CopyNotes | None = None,
) -> None:
    """Read a finished copy back from `made`, and compare the checksums of its blocks.

    `slots` are the result of `copy_blocks`. `sums` are the checksums of the blocks that this call
    copied. The blocks before them are read from the source again.

    Raises
    ------
    CorruptError
        If a block differs. The next call then resumes at this block.
    """
    boxes = functools.partial(plan.boxes, column_major=target.column_major)
    known: list[int] = []

    def note(_: Box, slot: Slot, data: npt.NDArray[Any]) -> None:
        known.append(slot.checksum(data))

    _move(itertools.islice(boxes(), plan.blocks - len(sums)), slots, source, source, note)
    expected = enumerate([*known, *sums])

    def compare(box: Box, slot: Slot, data: npt.NDArray[Any]) -> None:
        (number, need), found = next(expected), slot.checksum(data)
        if found != need:
            if notes is not None:
                notes.back_to(number)
            at = ", ".join(f"{s.start}:{s.stop}" for s in box)
            raise CorruptError(
                f"need CRC-32C {need:08x} in the elements [{at}] of {path}, as they were written, "
                f"have {found:08x} when they are read back; check the disk, then call again with "
                "the same arguments"
            )
        call.meter.advance(data.nbytes)

    _move(boxes(), slots, source, made, compare)


def _move(
    boxes: Iterable[Box], slots: list[Slot], source: Source, reader: Readable, take: Take
) -> None:
    """Read boxes ahead, in the memory layout of `source`, and call `take` for each in order."""
    ahead = len(slots) // 2 if reader.reads_ahead else 0
    reading: deque[tuple[Box, Slot, npt.NDArray[Any], Ticket | None]] = deque()

    def take_first() -> None:
        box, slot, data, ticket = reading[0]
        if ticket is not None:
            ticket.wait()
        reading.popleft()
        take(box, slot, data)

    try:
        for box, slot in zip(boxes, itertools.cycle(slots), strict=False):
            if len(reading) > ahead:
                take_first()
            slot.wait()
            reading.append((box, slot, *_fetch(source, reader, box, slot)))
        while reading:
            take_first()
        for slot in slots:
            slot.wait()
    finally:
        # After a failure, wait for all transfers and ignore their errors: the first error counts.
        for ticket in [*(each[3] for each in reading), *(slot.writing for slot in slots)]:
            with contextlib.suppress(OutcoreError):
                if ticket is not None:
                    ticket.wait()


def _slots(source: Source, plan: CopyPlan, arena: Arena, *, summed: bool) -> list[Slot]:
    if isinstance(source, InMemory) and not source.converts and not summed:
        return [Slot(None) for _ in range(plan.depth)]
    return [Slot(arena.allocate(plan.block_bytes)) for _ in range(plan.depth)]


def _fetch(
    source: Source, reader: Readable, box: Box, slot: Slot
) -> tuple[npt.NDArray[Any], Ticket | None]:
    if slot.buffer is None:
        assert isinstance(source, InMemory)
        return source.view(box), None
    out = source.empty(box, memoryview(slot.buffer))
    return out, reader.fetch(box, out)
