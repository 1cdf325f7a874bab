"""The blocks of a copy: read ahead, written behind, within the budget."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from outcore._core import Arena, Ticket
from outcore._util.streams import Box
from outcore.convert.copy_notes import CopyNotes
from outcore.convert.copy_plan import CopyPlan
from outcore.convert.sources import InMemory, Source
from outcore.convert.targets import Target, writing
from outcore.errors import OutcoreError
from outcore.report.longcall import LongCall
from outcore.storage.volumes import AnyPath


@dataclass
class _Slot:
    """Memory of a block, and the pending write that uses it."""

    buffer: memoryview | None
    writing: Ticket | None = None

    def wait(self) -> None:
        if self.writing is not None:
            self.writing.wait()
        self.writing = None


def copy_blocks(
    source: Source,
    target: Target,
    plan: CopyPlan,
    call: LongCall,
    path: AnyPath,
    notes: CopyNotes | None = None,
) -> None:
    """Copy all blocks; read ahead and write behind as far as the plan's memory allows.

    With `notes`, skip the blocks that are already durable, and record the progress.
    """
    source.begin(call.arena, plan.bounce_bytes)
    target.begin(call.arena, plan.bounce_bytes)
    slots = _slots(source, plan, call.arena)
    ahead = plan.depth // 2 if source.reads_ahead else 0
    reading: deque[tuple[Box, _Slot, npt.NDArray[Any], Ticket | None]] = deque()

    def write_first() -> None:
        box, slot, data, ticket = reading[0]
        if ticket is not None:
            ticket.wait()
        reading.popleft()
        with writing(path):
            slot.writing = target.write(box, data)
            if notes is not None and slot.writing is not None:
                notes.add(slot.writing, data.nbytes)
        call.meter.advance(data.nbytes)

    boxes = plan.boxes(column_major=target.column_major)
    if notes is not None:
        boxes = itertools.islice(boxes, notes.done, None)
    try:
        for box, slot in zip(boxes, itertools.cycle(slots), strict=False):
            if len(reading) > ahead:
                write_first()
            slot.wait()
            reading.append((box, slot, *_fetch(source, box, slot)))
        while reading:
            write_first()
        source.check_end()
        for slot in slots:
            slot.wait()
        if notes is not None:
            notes.finish()
    except BaseException:
        if notes is not None:
            notes.stop()
        raise
    finally:
        # After a failure, wait for all transfers and ignore their errors: the first error counts.
        for ticket in [*(each[3] for each in reading), *(slot.writing for slot in slots)]:
            with contextlib.suppress(OutcoreError):
                if ticket is not None:
                    ticket.wait()


def _slots(source: Source, plan: CopyPlan, arena: Arena) -> list[_Slot]:
    if isinstance(source, InMemory) and not source.converts:
        return [_Slot(None) for _ in range(plan.depth)]
    return [_Slot(memoryview(arena.allocate(plan.block_bytes))) for _ in range(plan.depth)]


def _fetch(source: Source, box: Box, slot: _Slot) -> tuple[npt.NDArray[Any], Ticket | None]:
    if slot.buffer is None:
        assert isinstance(source, InMemory)
        return source.view(box), None
    out = source.empty(box, slot.buffer)
    return out, source.fetch(box, out)
