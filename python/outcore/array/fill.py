"""Assembly: compute an array's elements block by block, in parallel on request, resumable."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.counts import count_of
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import Box, place_in
from outcore.array.array import Array, open_array
from outcore.array.existing import first_difference, make_array, refuse_there
from outcore.array.fill_identity import FillIdentity
from outcore.array.fill_shares import Shares, blocks_in, from_the_first, in_common
from outcore.array.fill_writer import Writer
from outcore.array_files import blocks_done
from outcore.array_files.blocks_done import FILL, BlocksDone, Range, blocks_of
from outcore.array_files.metadata import read_metadata
from outcore.errors import BudgetError, InvalidError, JournalError, OutcoreError
from outcore.layout.casting import convert, is_allowed
from outcore.layout.elements import array_of
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata
from outcore.processes.beats import Beats, Numbers
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing, interrupted
from outcore.processes.team import Team
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import Place, being_made

Fill: TypeAlias = Callable[..., Any]

_Data: TypeAlias = list[npt.NDArray[Any]]
_Filling: TypeAlias = tuple[range, Future[list[_Data]]]
"""Block numbers, and the blocks of each array."""

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
    sharing: Sharing | None = None,
) -> list[Array]:
    """Make or resume arrays, fill those that are not whole, and return these.

    All arrays have the same shape and chunk layout. If there are several, `fill` returns a tuple.
    The first process of a call makes the files and keeps the records; all of them fill blocks.
    """
    sharing = sharing or Sharing()
    threads = count_of("threads", threads)
    slots = [each.metadata.grid().slot_bytes for each in arrays]
    together, have = _chunks_together(sum(slots), max(slots), threads, sharing.budget(memory))
    together = min(sharing.exchange(together))
    places = [each.where for each in arrays if not each.is_whole]
    function = _function(len(arrays))
    outputs = [
        _Output(number, each, identities[number], _why(len(arrays)))
        for number, each in enumerate(arrays)
        if not each.is_whole
    ]
    with (
        _saying_how_to_go_on(places, function),
        contextlib.ExitStack() as held,
        sharing.telling(),
        Team(sharing) as team,
    ):
        done = None
        if team.rank == 0:
            for where in places:
                held.enter_context(being_made(where, "assembly"))
            done = _begun(outputs, if_exists=if_exists, resume=resume)
        done = team.same(done)
        assert done is not None
        for output in outputs:
            output.open_array(is_first=team.rank == 0)
        boxes = list(outputs[0].array.chunk_boxes())
        shares = Shares(outputs[0].metadata, done, together, team.size)
        own = shares.boxes[team.rank]
        itemsizes = sum(output.array.dtype.itemsize for output in outputs)
        names = " and ".join(where.path.name for where in places)
        with long_call(
            f"assembling {names}", memory_bytes=have, work=itemsizes * sum(map(_size, boxes)),
            work_done=itemsizes * _elements_of(boxes, itertools.starmap(range, done)),
            progress=sharing.progress(progress),
        ) as call:  # fmt: skip
            bounce_bytes = min(
                (have - 2 * threads * together * sum(slots)) // len(slots), threads * _BOUNCE_BYTES
            )
            for number, output in enumerate(outputs):
                output.open(call, bounce_bytes, number)
            records = _Records(outputs, shares, is_kept=team.rank == 0)
            with Beats(team, 2, records.note) as beats:
                work = _Work(outputs, len(arrays), fill, boxes, threads * together, call, beats)
                work.run(own, threads, team)
            report = _report(function, outputs, itemsizes * _elements_of(boxes, own), call)
            if count := blocks_in(done):
                report.notes.append(
                    f"resumed at block {count} of {len(boxes)}; the figures are of the rest"
                )
            if team.rank == 0:
                for output in outputs:
                    output.array.mark(None, made=output.identity.made())
                    output.record.remove()
            if team.size > 1:
                report.processes = [process_figures(report, (0, 0), (0, 0))]
            report = whole_report(report, team)
    for output in outputs:
        output.array.report = report
        if team.rank:
            output.array.refresh()
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


def _begun(outputs: "Sequence[_Output]", *, if_exists: IfExists, resume: bool) -> list[Range]:
    """Find the remains of stopped calls, and create the files of the other arrays.

    Return the ranges of blocks that are durable in all arrays; others are computed for all.
    """
    for output in outputs:
        output.find(resume=resume and if_exists != "overwrite")
        if not output.stopped:
            refuse_there(output.filled.where, if_exists)
    done = in_common([output.done for output in outputs], blocks_of(outputs[0].metadata))
    for output in outputs:
        output.begin(done, if_exists)
    return done


class _Output:
    """An array during its assembly.

    Attributes
    ----------
    number
        Its index in the tuple that `fill` returns.
    done
        Ranges of durable chunks that a stopped call left.
    """

    array: Array
    file: ArrayFile
    writer: Writer

    def __init__(self, number: int, filled: Filled, identity: FillIdentity, why: str) -> None:
        self.number, self.filled, self.identity = number, filled, identity
        self.metadata = dataclasses.replace(filled.metadata, state="incomplete", why=why)
        self.record = BlocksDone(filled.where, FILL, "assembly")
        self.done: list[Range] = []
        self.stopped = False

    def find(self, *, resume: bool) -> None:
        """Look for the remains of a stopped call."""
        self.stopped = resume and self.record.was_stopped(self.metadata)
        if self.stopped and self.record.is_there():
            self.done = self.record.ranges_of(blocks_of(self.metadata))
        if blocks_in(self.done):
            _refuse_other_attributes(self.filled.where, self.metadata)
            self.identity.check_resumed(self.record)

    def begin(self, done: Sequence[Range], if_exists: IfExists) -> None:
        """Record which chunks are already done; create the files if necessary."""
        where = self.filled.where
        if not blocks_in(self.done):
            over: IfExists = "overwrite" if self.stopped else if_exists
            make_array(where, self.metadata, if_exists=over, reserve=self.filled.reserve)
        self.record.header = self.identity.line()
        self.record.begin(*from_the_first(done))
        open_array(where.path, "r+", allow_incomplete=True).mark("incomplete", self.metadata.why)

    def open_array(self, *, is_first: bool) -> None:
        """Open the array. The first process of the call counts the opening for all."""
        self.array = open_array(self.filled.where.path, "r+", allow_incomplete=True)
        if not is_first:
            self.array.count_writing(elsewhere=True)

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """Open the array's files for writing."""
        self.file = self.array.open_file(
            call.arena, bounce_bytes, writable=True, trace=call.trace, trace_number=number
        )
        self.writer = Writer(self.file, call.trace)


def _refuse_other_attributes(where: Place, begun: Metadata) -> None:
    """Refuse to resume with other attributes, because the computed blocks may differ too."""
    if difference := first_difference(read_metadata(where), begun, ["attributes"]):
        raise JournalError(
            f"{where.path} holds a stopped assembly, which {difference}; pass the same, or "
            "if_exists='overwrite' to restart"
        )


def _report(
    function: str, outputs: Sequence[_Output], planned_bytes: int, call: LongCall
) -> Report:
    """Report on an assembly; the array counts as a matrix with rows along its last dimension."""
    array = outputs[0].array
    n = array.shape[-1] if array.ndim else 1
    moved = [output.file.counters() for output in outputs]
    return call.report(
        Report, function, n, array.dtype, m=array.size // n, flops=0.0, computes=False,
        moved=(sum(each[0] for each in moved), sum(each[1] for each in moved)),
        planned=(0, planned_bytes),
        arrays=[output.array.path.name for output in outputs],
    )  # fmt: skip


def _elements_of(boxes: Sequence[Box], ranges: Iterable[range]) -> int:
    """Count the elements of some blocks."""
    return sum(_size(boxes[number]) for numbers in ranges for number in numbers)


def _size(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box)


@contextmanager
def _saying_how_to_go_on(places: Sequence[Place], function: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        names = " and ".join(str(where.path) for where in places)
        fix = f"call {function} again with the same arguments to resume from here"
        raise interrupted(f"assembly of {names} stopped", error, fix) from None


class _Records:
    """The records of durable blocks; the first process keeps them for all."""

    def __init__(self, outputs: Sequence[_Output], shares: Shares, *, is_kept: bool) -> None:
        self._outputs, self._shares, self._is_kept = outputs, shares, is_kept
        self._noted: list[int] = [0] * len(shares.boxes)

    def note(self, numbers: Numbers) -> None:
        """Record how many of their blocks the processes have made durable, if that is news."""
        counts = numbers[:, 0].tolist()
        if self._is_kept and counts != self._noted:
            self._noted = counts
            ranges = from_the_first(self._shares.durable(counts))
            for output in self._outputs:
                output.record.note(*ranges)


class _Work:
    """The work of this process: fill its blocks, and write them.

    `fill` returns `count` blocks at a time, and at most `in_flight` chunks of each array are on
    their way to the disk.
    """

    def __init__(
        self,
        outputs: Sequence[_Output],
        count: int,
        fill: Fill,
        boxes: list[Box],
        in_flight: int,
        call: LongCall,
        beats: Beats,
    ) -> None:
        self._outputs, self._count, self._fill, self._boxes = outputs, count, fill, boxes
        self._in_flight, self._call, self._beats = in_flight, call, beats
        self._filled_bytes = self._shown_bytes = 0
        self._synced = time.monotonic()

    def run(self, own: Sequence[range], threads: int, team: Team) -> None:
        """Fill the boxes of this process, and wait for the others."""
        pending: deque[_Filling] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for numbers in own:
                    if len(pending) >= threads:
                        self._settle(*pending.popleft())
                    team.check()
                    chunks = [self._boxes[number] for number in numbers]
                    future = pool.submit(
                        _blocks, self._fill, chunks, self._outputs, self._count, self._call
                    )
                    pending.append((numbers, future))
                    del future  # its error is in no cycle with this frame
                while pending:
                    self._settle(*pending.popleft())
                self._sync()
                self._tell(is_last=True)
                self._beats.wait(self._show)
            except BaseException:
                for _, future in pending:
                    future.cancel()
                # If this fails too, the last note stands. The first error is the one to raise.
                for output in self._outputs:
                    with contextlib.suppress(OutcoreError):
                        output.writer.sync()
                with contextlib.suppress(OutcoreError):
                    self._tell()
                raise

    def _settle(self, numbers: range, future: "Future[list[_Data]]") -> None:
        """Write the blocks of a call of `fill`, and sync from time to time."""
        try:
            found = future.result()
        finally:
            del future  # its error is in no cycle with this frame
        for output, blocks in zip(self._outputs, found, strict=True):
            for number, block in zip(numbers, blocks, strict=True):
                output.writer.write(self._boxes[number], block, self._in_flight)
                self._filled_bytes += block.nbytes
        unsynced = max(output.writer.unsynced for output in self._outputs)
        is_late = time.monotonic() - self._synced > blocks_done.NOTE_S
        if unsynced > blocks_done.SYNC_BYTES or is_late:
            self._sync()
        self._tell()
        self._show()

    def _sync(self) -> None:
        for output in self._outputs:
            output.writer.sync()
        self._synced = time.monotonic()

    def _tell(self, *, is_last: bool = False) -> None:
        durable = min(output.writer.durable for output in self._outputs)
        self._beats.tell((durable, self._filled_bytes), is_last=is_last)

    def _show(self) -> None:
        """Show the progress of all processes."""
        filled = int(self._beats.numbers[:, 1].sum())
        self._call.meter.advance(filled - self._shown_bytes)
        self._shown_bytes = filled


def _blocks(
    fill: Fill, chunks: list[Box], outputs: Sequence[_Output], count: int, call: LongCall
) -> "list[_Data]":
    """Call `fill` for the box of some chunks, and copy the result, since it may reuse memory."""
    box = tuple(
        slice(min(s.start for s in along), max(s.stop for s in along))
        for along in zip(*chunks, strict=True)
    )
    start_ns = call.trace.now_ns()
    try:
        returned = fill(*box)
    except Exception as error:
        error.add_note(f"raised by {_call_of(box)}")
        raise
    call.trace.record("compute", start_ns)
    if count > 1 and not (isinstance(returned, tuple | list) and len(returned) == count):
        have = f"{len(returned)}" if isinstance(returned, tuple | list) else "none"
        raise InvalidError(
            f"fill must return a tuple of {count} arrays, have {have}; return one block for each "
            "path"
        )
    given = returned if count > 1 else (returned,)
    return [_copied(given[output.number], box, chunks, output, call) for output in outputs]


def _call_of(box: Box) -> str:
    return f"fill{tuple((s.start, s.stop) for s in box)}"


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
            f"{_call_of(box)} must return shape {shape}, have {given.shape}; return all elements "
            "of the block"
        )
    if not is_allowed(given.dtype, dtype, "same_kind"):
        raise InvalidError(
            f"{_call_of(box)} must return {dtype}, have {given.dtype}; convert with .astype()"
        )
    blocks = []
    for chunk in chunks:
        buffer = memoryview(call.arena.allocate(_size(chunk) * dtype.itemsize))
        extents = tuple(s.stop - s.start for s in chunk)
        block: npt.NDArray[Any] = np.ndarray(extents, dtype, buffer=buffer, order=order)
        convert(
            given[place_in(chunk, box)], block, at=[s.start for s in chunk],
            fix="make the array with a wider dtype=, or return numbers that fit",
        )  # fmt: skip
        blocks.append(block)
    return blocks
