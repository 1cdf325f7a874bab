"""Assembly: an array's elements computed block by block, in parallel when asked, resumable."""

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore import blocks_done, budget
from outcore._core import Arena, ArrayFile, Ticket, Trace
from outcore.array import Array, open_array
from outcore.array_metadata import read_metadata
from outcore.blocks_done import FILL, BlocksDone, blocks_of
from outcore.casting import convert, is_allowed
from outcore.counts import count_of
from outcore.elements import array_of
from outcore.errors import BudgetError, Interrupted, InvalidError, JournalError, OutcoreError
from outcore.existing import first_difference
from outcore.fill_identity import FillIdentity
from outcore.if_exists import IfExists
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.streams import Box, wait
from outcore.volumes import Place, being_made
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata

Fill: TypeAlias = Callable[..., npt.NDArray[Any]]

_WHY = "assembly by fill was stopped; call create_array again with the same arguments to go on"
_BOUNCE_BYTES = 4 << 20


def fill_array(
    where: Place,
    metadata: Metadata,
    fill: Fill,
    *,
    fill_id: Any,
    make: Callable[[Metadata, IfExists], None],
    if_exists: IfExists,
    memory: int | str | None,
    threads: int,
    resume: bool,
    progress: ProgressLike,
) -> Array:
    """Make the array, or go on with a half-made one, and return it filled.

    ``make(metadata, if_exists)`` makes the files of the array.
    """
    if not callable(fill):
        raise InvalidError(f"fill must be a function such as fill(rows, cols), have {fill!r}")
    identity = FillIdentity.of(fill, fill_id)
    threads = count_of("threads", threads)
    slot_bytes = metadata.grid().slot_bytes
    # A block in each thread and one of each on its way to the disk; and room to pad those that
    # reach beyond the array's edge.
    blocks_bytes = 2 * threads * slot_bytes
    need = blocks_bytes + min(slot_bytes, _BOUNCE_BYTES) + 4 * SLOT_ALIGN_BYTES
    have = budget.resolve(memory)
    if need > have:
        raise BudgetError(
            f"need {need} bytes for the blocks of {threads} threads, have {have}; "
            "raise memory=, or choose smaller chunks= or fewer threads="
        )
    begun = dataclasses.replace(metadata, state="incomplete", why=_WHY)
    with _saying_how_to_go_on(where), being_made(where, "assembly"):
        record = BlocksDone(where, FILL, "assembly")
        stopped = resume and if_exists != "overwrite" and record.was_stopped(begun)
        done = record.done_of(blocks_of(begun)) if stopped and record.is_there() else 0
        if done:
            _refuse_other_attributes(where, begun)
            identity.check_resumed(record)
        else:
            make(begun, "overwrite" if stopped else if_exists)
        record.header = identity.line()
        record.begin(done)
        array = open_array(where.path, "r+", allow_incomplete=True)
        array.mark("incomplete", _WHY)
        boxes = list(array.chunk_boxes())
        with long_call(
            f"assembling {where.path.name}", memory_bytes=have, work=sum(map(_size, boxes)),
            work_done=sum(map(_size, boxes[:done])), progress=progress,
        ) as call:  # fmt: skip
            bounce_bytes = min(have - blocks_bytes, threads * _BOUNCE_BYTES)
            file = array.open_file(call.arena, bounce_bytes, writable=True, trace=call.trace)
            writer = _Writer(record, file, call.trace, done)
            _assemble(array, fill, writer, boxes, threads, call)
            array.report = _report(array, file, boxes[done:], call)
        if done:
            array.report.notes.append(
                f"gone on at block {done} of {len(boxes)}; the figures are of the rest"
            )
        array.mark(None, made={"call": "create_array", **identity._asdict()})
        record.remove()
    return array


def _refuse_other_attributes(where: Place, begun: Metadata) -> None:
    """Refuse to resume for a caller with other attributes: its blocks may be others, too."""
    if difference := first_difference(read_metadata(where), begun, ["attributes"]):
        raise JournalError(
            f"{where.path} holds a stopped assembly, which {difference}; pass the same, or "
            "if_exists='overwrite' to restart"
        )


def _report(array: Array, file: ArrayFile, boxes: list[Box], call: LongCall) -> Report:
    """Report on an assembly; an array of more dimensions counts as a matrix of its last one."""
    n = array.shape[-1] if array.ndim else 1
    bytes_read, bytes_written, *_ = file.counters()
    return Report(
        verb="create_array",
        m=array.size // n,
        n=n,
        dtype=array.dtype.name,
        flops=0.0,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        planned_bytes_read=0,
        planned_bytes_written=sum(map(_size, boxes)) * array.dtype.itemsize,
        arrays=[array.path.name],
        **call.figures(),
    )


def _size(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box)


@contextmanager
def _saying_how_to_go_on(where: Place) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"assembly of {where.path} stopped; call create_array again with the same arguments "
            "to go on from here"
        ) from None


class _Writer:
    """Writes blocks in order and notes, now and then, how many are durable."""

    def __init__(self, record: BlocksDone, file: ArrayFile, trace: Trace, done: int) -> None:
        self.done = done
        self._record, self._file, self._trace = record, file, trace
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._unsynced = 0
        self._noted = time.monotonic()
        self._is_doubtful = False  # whether blocks that were written may be gone

    def write(self, box: Box, data: npt.NDArray[Any], most: int) -> None:
        while len(self._tickets) >= most:
            self._reap()
        ticket = self._file.submit_write([s.start for s in box], [1] * len(box), data)
        self._tickets.append((ticket, data.nbytes))
        if (
            self._unsynced > blocks_done.SYNC_BYTES
            or time.monotonic() - self._noted > blocks_done.NOTE_S
        ):
            self.note()

    def _reap(self) -> None:
        ticket, nbytes = self._tickets[0]
        wait(ticket, self._trace)
        self._tickets.popleft()
        self.done += 1
        self._unsynced += nbytes

    def note(self) -> None:
        """Wait for the blocks on their way, make them durable, and note it.

        Where that failed once, nothing is noted any more: a system that could not make something
        durable may drop it, and not say so again.
        """
        try:
            while self._tickets:
                self._reap()
        finally:
            # What was written before a block that failed counts.
            if not self._is_doubtful:
                self._is_doubtful = True
                wait(self._file.submit_sync(), self._trace)
                self._is_doubtful = False
                self._record.note(self.done)
                self._unsynced, self._noted = 0, time.monotonic()


def _assemble(
    array: Array, fill: Fill, writer: _Writer, boxes: list[Box], threads: int, call: LongCall
) -> None:
    order: Literal["C", "F"] = "F" if array.order == "F" else "C"
    pending: deque[tuple[Box, Future[npt.NDArray[Any]]]] = deque()
    dtype, arena, trace = array.dtype, call.arena, call.trace

    def settle() -> None:
        box, future = pending.popleft()
        writer.write(box, future.result(), threads)
        call.meter.advance(_size(box))

    with ThreadPoolExecutor(threads) as pool:
        try:
            for box in boxes[writer.done :]:
                if len(pending) >= threads:
                    settle()
                pending.append((box, pool.submit(_block, fill, box, dtype, order, arena, trace)))
            while pending:
                settle()
            writer.note()
        except BaseException:
            for _, future in pending:
                future.cancel()
            # Where even this fails, the last note stands; the first error is the one to tell.
            with contextlib.suppress(OutcoreError):
                writer.note()
            raise


def _block(
    fill: Fill,
    box: Box,
    dtype: np.dtype[Any],
    order: Literal["C", "F"],
    arena: Arena,
    trace: Trace,
) -> npt.NDArray[Any]:
    """Ask for a block and copy it: the user may return the same memory each time."""
    shape = tuple(s.stop - s.start for s in box)
    start_ns = trace.now_ns()
    given = array_of(fill(*box))
    trace.record("compute", start_ns)
    if given.shape != shape:
        raise InvalidError(
            f"fill{tuple((s.start, s.stop) for s in box)} must return shape {shape}, "
            f"have {given.shape}"
        )
    if not is_allowed(given.dtype, dtype, "same_kind"):
        raise InvalidError(f"fill must return {dtype}, have {given.dtype}; convert with .astype()")
    buffer = memoryview(arena.allocate(math.prod(shape) * dtype.itemsize))
    block: npt.NDArray[Any] = np.ndarray(shape, dtype, buffer=buffer, order=order)
    convert(
        given, block, at=[s.start for s in box],
        fix="make the array with a wider dtype=, or return what fits",
    )  # fmt: skip
    return block
