"""Assembly: compute an array's elements block by block, in parallel on request, resumable."""

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket, Trace
from outcore._util import budget
from outcore._util.counts import count_of
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import Box, wait
from outcore.array.array import Array, open_array
from outcore.array.existing import first_difference, make_array, refuse_there
from outcore.array.fill_identity import FillIdentity
from outcore.array_files import blocks_done
from outcore.array_files.blocks_done import FILL, BlocksDone, blocks_of
from outcore.array_files.metadata import read_metadata
from outcore.errors import BudgetError, Interrupted, InvalidError, JournalError, OutcoreError
from outcore.layout.casting import convert, is_allowed
from outcore.layout.chunk_walk import runs
from outcore.layout.elements import array_of
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import Place, being_made

Fill: TypeAlias = Callable[..., Any]

_BOUNCE_BYTES = 4 << 20

_BLOCK_BYTES = 64 << 20
"""Largest block that `fill` returns, unless one chunk is larger."""

_BUDGET_SHARE = 8
"""Blocks of more than one chunk take at most the budget divided by this."""


@dataclass(frozen=True)
class Filled:
    """An array that `fill` computes.

    Attributes
    ----------
    where, metadata, reserve
        Its place, its metadata, and whether to reserve its disk space.
    is_whole
        Whether the array already exists, so that only others are filled.
    """

    where: Place
    metadata: Metadata
    reserve: bool
    is_whole: bool = False


def fill_arrays(
    arrays: Sequence[Filled],
    fill: Fill,
    *,
    identities: Sequence[FillIdentity],
    if_exists: IfExists,
    memory: int | str | None,
    threads: int,
    resume: bool,
    progress: ProgressLike,
) -> list[Array]:
    """Make or resume arrays, fill those that are not whole, and return these.

    All arrays have the same shape and chunk layout. If there are several, `fill` returns a tuple.
    """
    threads = count_of("threads", threads)
    slots = [each.metadata.grid().slot_bytes for each in arrays]
    together, have = _chunks_together(sum(slots), max(slots), threads, budget.resolve(memory))
    places = [each.where for each in arrays if not each.is_whole]
    function = _function(len(arrays))
    with _saying_how_to_go_on(places, function), contextlib.ExitStack() as held:
        for where in places:
            held.enter_context(being_made(where, "assembly"))
        outputs = _begun(arrays, identities, if_exists=if_exists, resume=resume)
        done = outputs[0].done
        boxes = list(outputs[0].array.chunk_boxes())
        itemsizes = sum(output.array.dtype.itemsize for output in outputs)
        names = " and ".join(where.path.name for where in places)
        with long_call(
            f"assembling {names}", memory_bytes=have, work=itemsizes * sum(map(_size, boxes)),
            work_done=itemsizes * sum(map(_size, boxes[:done])), progress=progress,
        ) as call:  # fmt: skip
            bounce_bytes = min(
                (have - 2 * threads * together * sum(slots)) // len(slots), threads * _BOUNCE_BYTES
            )
            for number, output in enumerate(outputs):
                output.open(call, bounce_bytes, number)
            _assemble(outputs, len(arrays), fill, boxes, threads, together, call)
            report = _report(function, outputs, boxes[done:], call)
        if done:
            report.notes.append(
                f"resumed at block {done} of {len(boxes)}; the figures are of the rest"
            )
        for output in outputs:
            output.array.report = report
            output.array.mark(None, made=output.identity.made())
            output.record.remove()
    return [output.array for output in outputs]


def _function(count: int) -> str:
    return "create_array" if count == 1 else "create_arrays"


def _why(count: int) -> str:
    """Return the reason why an array is incomplete, if one `fill` makes `count` arrays."""
    again = f"call {_function(count)} again with the same arguments to resume"
    return f"assembly by fill was stopped; {again}"


def is_stopped(where: Place, count: int) -> bool:
    """Whether a stopped assembly of `count` arrays left an incomplete one at this place."""
    with contextlib.suppress(OutcoreError):
        found = read_metadata(where)
        return (found.state, found.why) == ("incomplete", _why(count))
    return False


def _chunks_together(slots_bytes: int, slot_bytes: int, threads: int, have: int) -> tuple[int, int]:
    """Choose the largest number of chunks in a block of `fill`; return it with the budget.

    For each thread, the budget holds a block in progress and a block in flight to the disk. It also
    has room to pad blocks that extend beyond the array's edge. Blocks of more than one chunk leave
    most of the budget free, because `fill` needs memory for its computation.
    """
    least = 2 * threads * slots_bytes
    need = least + min(slot_bytes, _BOUNCE_BYTES) + 4 * SLOT_ALIGN_BYTES
    if need > have:
        raise BudgetError(
            f"need {need} bytes for the blocks of {threads} threads, have {have}; "
            "raise memory=, or choose smaller chunks= or fewer threads="
        )
    most = min(have // _BUDGET_SHARE // (2 * threads), _BLOCK_BYTES)
    return max(most // slots_bytes, 1), have


def _begun(
    arrays: Sequence[Filled],
    identities: Sequence[FillIdentity],
    *,
    if_exists: IfExists,
    resume: bool,
) -> "list[_Output]":
    """Find the remains of stopped calls, and create the files of the other arrays."""
    outputs = [
        _Output(number, each, identities[number], _why(len(arrays)))
        for number, each in enumerate(arrays)
        if not each.is_whole
    ]
    for output in outputs:
        output.find(resume=resume and if_exists != "overwrite")
        if not output.stopped:
            refuse_there(output.filled.where, if_exists)
    # Blocks that one array lacks are computed for all arrays.
    done = min(output.done for output in outputs)
    for output in outputs:
        output.begin(done, if_exists)
    return outputs


class _Output:
    """An array during its assembly.

    Attributes
    ----------
    number
        Its index in the tuple that `fill` returns.
    done
        Number of durable chunks.
    """

    array: Array
    file: ArrayFile
    writer: "_Writer"

    def __init__(self, number: int, filled: Filled, identity: FillIdentity, why: str) -> None:
        self.number, self.filled, self.identity = number, filled, identity
        self.metadata = dataclasses.replace(filled.metadata, state="incomplete", why=why)
        self.record = BlocksDone(filled.where, FILL, "assembly")
        self.done, self.stopped = 0, False

    def find(self, *, resume: bool) -> None:
        """Look for the remains of a stopped call."""
        self.stopped = resume and self.record.was_stopped(self.metadata)
        if self.stopped and self.record.is_there():
            self.done = self.record.done_of(blocks_of(self.metadata))
        if self.done:
            _refuse_other_attributes(self.filled.where, self.metadata)
            self.identity.check_resumed(self.record)

    def begin(self, done: int, if_exists: IfExists) -> None:
        """Record how many chunks are already done; create the files if necessary."""
        if not self.done:
            over: IfExists = "overwrite" if self.stopped else if_exists
            where, reserve = self.filled.where, self.filled.reserve
            make_array(where, self.metadata, if_exists=over, reserve=reserve)
        self.done = done
        self.record.header = self.identity.line()
        self.record.begin(done)
        self.array = open_array(self.filled.where.path, "r+", allow_incomplete=True)
        self.array.mark("incomplete", self.metadata.why)

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """Open the array's files for writing."""
        self.file = self.array.open_file(
            call.arena, bounce_bytes, writable=True, trace=call.trace, trace_number=number
        )
        self.writer = _Writer(self.record, self.file, call.trace, self.done)


def _refuse_other_attributes(where: Place, begun: Metadata) -> None:
    """Refuse to resume with other attributes, because the computed blocks may differ too."""
    if difference := first_difference(read_metadata(where), begun, ["attributes"]):
        raise JournalError(
            f"{where.path} holds a stopped assembly, which {difference}; pass the same, or "
            "if_exists='overwrite' to restart"
        )


def _report(
    function: str, outputs: "Sequence[_Output]", boxes: list[Box], call: LongCall
) -> Report:
    """Report on an assembly; the array counts as a matrix with rows along its last dimension."""
    array = outputs[0].array
    n = array.shape[-1] if array.ndim else 1
    moved = [output.file.counters() for output in outputs]
    itemsizes = sum(output.array.dtype.itemsize for output in outputs)
    return call.report(
        Report, function, n, array.dtype, m=array.size // n, flops=0.0, computes=False,
        moved=(sum(each[0] for each in moved), sum(each[1] for each in moved)),
        planned=(0, sum(map(_size, boxes)) * itemsizes),
        arrays=[output.array.path.name for output in outputs],
    )  # fmt: skip


def _size(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box)


@contextmanager
def _saying_how_to_go_on(places: Sequence[Place], function: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        names = " and ".join(str(where.path) for where in places)
        raise Interrupted(
            f"assembly of {names} stopped; call {function} again with the same arguments to resume "
            "from here"
        ) from None


class _Writer:
    """Write blocks in order, and record from time to time how many are durable."""

    def __init__(self, record: BlocksDone, file: ArrayFile, trace: Trace, done: int) -> None:
        self.done = done
        self._record, self._file, self._trace = record, file, trace
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._unsynced = 0
        self._noted = time.monotonic()
        self._is_doubtful = False  # whether written blocks may be lost

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
        """Wait for the blocks in flight, make them durable, and record it.

        After a failed sync nothing is recorded any more: the system may have dropped the data, and
        may not report that again.
        """
        try:
            while self._tickets:
                self._reap()
        finally:
            # Blocks written before the failed one count.
            if not self._is_doubtful:
                self._is_doubtful = True
                wait(self._file.submit_sync(), self._trace)
                self._is_doubtful = False
                self._record.note(self.done)
                self._unsynced, self._noted = 0, time.monotonic()


def _assemble(
    outputs: Sequence[_Output],
    count: int,
    fill: Fill,
    boxes: list[Box],
    threads: int,
    together: int,
    call: LongCall,
) -> None:
    """Fill the remaining blocks of the arrays; `fill` returns `count` blocks at a time."""
    m = outputs[0].metadata
    walk = runs(m.counts, m.chunk_order, m.chunks_per_block, outputs[0].done, together)
    pending: deque[tuple[range, Future[list[list[npt.NDArray[Any]]]]]] = deque()

    def settle() -> None:
        numbers, future = pending.popleft()
        try:
            found = future.result()
        finally:
            del future  # its error is in no cycle with this frame
        for output, blocks in zip(outputs, found, strict=True):
            for number, block in zip(numbers, blocks, strict=True):
                output.writer.write(boxes[number], block, threads * together)
                call.meter.advance(block.nbytes)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for numbers in walk:
                if len(pending) >= threads:
                    settle()
                chunks = [boxes[number] for number in numbers]
                pending.append((numbers, pool.submit(_blocks, fill, chunks, outputs, count, call)))
            while pending:
                settle()
            for output in outputs:
                output.writer.note()
        except BaseException:
            for _, future in pending:
                future.cancel()
            # If this fails too, the last note stands. The first error is the one to raise.
            for output in outputs:
                with contextlib.suppress(OutcoreError):
                    output.writer.note()
            raise


def _blocks(
    fill: Fill, chunks: list[Box], outputs: Sequence[_Output], count: int, call: LongCall
) -> list[list[npt.NDArray[Any]]]:
    """Call `fill` for the box of some chunks, and copy the result, since it may reuse memory."""
    box = tuple(
        slice(min(s.start for s in along), max(s.stop for s in along))
        for along in zip(*chunks, strict=True)
    )
    start_ns = call.trace.now_ns()
    returned = fill(*box)
    call.trace.record("compute", start_ns)
    if count > 1 and not (isinstance(returned, tuple | list) and len(returned) == count):
        have = f"{len(returned)}" if isinstance(returned, tuple | list) else "none"
        raise InvalidError(
            f"fill must return a tuple of {count} arrays, have {have}; return one block for each "
            "path"
        )
    given = returned if count > 1 else (returned,)
    return [_copied(given[output.number], box, chunks, output, call) for output in outputs]


def _copied(
    returned: Any, box: Box, chunks: list[Box], output: _Output, call: LongCall
) -> list[npt.NDArray[Any]]:
    """Copy each chunk's part of a block that `fill` returned."""
    shape = tuple(s.stop - s.start for s in box)
    dtype = output.array.dtype
    order: Literal["C", "F"] = "F" if output.array.order == "F" else "C"
    given = array_of(returned)
    if given.shape != shape:
        raise InvalidError(
            f"fill{tuple((s.start, s.stop) for s in box)} must return shape {shape}, "
            f"have {given.shape}"
        )
    if not is_allowed(given.dtype, dtype, "same_kind"):
        raise InvalidError(f"fill must return {dtype}, have {given.dtype}; convert with .astype()")
    blocks = []
    for chunk in chunks:
        buffer = memoryview(call.arena.allocate(_size(chunk) * dtype.itemsize))
        extents = tuple(s.stop - s.start for s in chunk)
        block: npt.NDArray[Any] = np.ndarray(extents, dtype, buffer=buffer, order=order)
        part = tuple(
            slice(s.start - b.start, s.stop - b.start) for s, b in zip(chunk, box, strict=True)
        )
        convert(
            given[part], block, at=[s.start for s in chunk],
            fix="make the array with a wider dtype=, or return numbers that fit",
        )  # fmt: skip
        blocks.append(block)
    return blocks
