"""Copies of arrays, block by block in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, Ticket
from outcore._util import budget
from outcore._util.if_exists import IfExists, check_if_exists
from outcore._util.progress import ProgressLike, check_progress
from outcore._util.streams import Box
from outcore.array.array import Array, open_array
from outcore.array.create import array_metadata
from outcore.array.existing import make_array, open_existing, refuse_other
from outcore.array_files.metadata import write_metadata
from outcore.convert.copy_notes import CopyNotes, CopyRecord
from outcore.convert.copy_plan import CopyPlan, Side, plan_copy
from outcore.convert.open_source import open_source
from outcore.convert.sources import InMemory, Source
from outcore.convert.targets import ArrayTarget, Target, array_side, writing
from outcore.errors import Interrupted, InvalidError, OutcoreError
from outcore.layout.attributes import carried_attributes
from outcore.layout.casting import Casting
from outcore.report.copy_report import CopyReport
from outcore.report.longcall import LongCall, long_call
from outcore.storage.volumes import (
    INSIDE,
    AnyPath,
    PathLike,
    Place,
    being_made,
    bytes_on_disk,
    how_they_meet,
    place,
    refuse_being_made,
)

_WHY = "copying into it was stopped; call from_array, or convert, again with the same arguments"


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
    order: Literal["C", "F"] = "F" if source.order == "F" else "C"
    count = tuple(s.stop - s.start for s in box)
    out: npt.NDArray[Any] = np.ndarray(count, source.dtype, buffer=slot.buffer, order=order)
    return out, source.fetch(box, out)


def from_array(
    source: Any,
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    memory: int | str | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
) -> Array:
    """Copy an array from any supported source to disk in bounded memory.

    Parameters
    ----------
    source
        One of

        - a NumPy array, memmap, or anything that `numpy.asarray` accepts; an outcore `Array`; an
          h5py dataset; a zarr-python array; a dask array, which is computed some chunks at a time;
          any other object with ``shape``, ``dtype`` and slicing, and perhaps ``chunks``;
        - an iterator of blocks of rows, of any heights, with ``shape=``; or of single rows, with
          the whole shape;
        - the name of a ``.npy`` file;
        - the name of an HDF5 file. If it has several datasets, append ``::`` and the name of one
          (``"data.h5::run/u"``), unless a file has exactly that name;
        - the name of a Zarr array of any version and codec, or in outcore's own layout;
        - the name of a TIFF, NIfTI or Parquet file;
        - the name of any other file of plain elements, with ``shape=`` and ``dtype=``.
    path, chunks, chunk_order
        As for `create_array`.
    dtype
        Type of the elements on disk; by default that of `source`. For a raw file, the type in the
        file.
    casting
        Rule of the conversion to `dtype`. ``"same_kind"``: as NumPy does, but a number beyond the
        range of `dtype` is an error, and integers of all types convert. ``"unsafe"``: with any
        loss, as `numpy.ndarray.astype` does: float64 becomes int32, and integers wrap.
    shape
        Shape of a raw file; for an iterator, the number of rows or the whole shape.
    source_order, offset
        For a raw file: the order of its elements, and the number of bytes before the first one.
    memory
        Budget in bytes for the blocks in flight, and for the memory of the source's library beside
        them. Each chunk of the source is decoded once, if a block of whole chunks of both sides
        fits. The budget excludes the memory in which a dask graph or an iterator makes a block.
    order
        Order of elements in a chunk; by default that of `source`.
    dims, attributes
        As for `create_array`; by default those of an outcore, Zarr, HDF5 or other named source.
    if_exists
        As for `create_array`. ``"open"`` opens a whole copy of the same source, unless the source
        was written to since. It recognises a file or directory by its name, or an array. For any
        other source it compares shape, type and layout, but no elements.
    resume
        Whether to resume a stopped copy, if `source` has not changed since: a file or directory
        given by name, an array of outcore, or a zarr-python array in a directory. A copy from any
        other source restarts: from memory, a mapping, a computation, or an iterator. Without
        `resume`, a half-made copy is refused.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    Array
        The copy, open for reading and writing; its ``report`` gives the cost.

    Raises
    ------
    InvalidError
        If the source cannot be copied, its elements cannot be converted, or an iterator yields
        blocks of another width or another number of rows than announced.
    BudgetError
        If even the smallest blocks do not fit in `memory`.
    ClosedError
        If `source` belongs to a closed HDF5 file.
    NotFoundError, TruncatedError
        If a file is missing or too short, including files to which an HDF5 dataset links.
    MissingPackageError
        If the package that reads the source is not installed.
    ExistsError, DiskFullError, BusyError
        As for `create_array`.
    JournalError
        If `path` contains a half-made copy of another shape, layout or source, or `source` has
        changed since.
    Interrupted
        On Ctrl-C or SIGTERM. The unfinished copy is marked incomplete, as after any failure.
    """
    with open_source(
        source, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as opened:
        opened.warn(2)
        return copy_to_array(
            opened, path, memory=memory, chunks=chunks, order=order, chunk_order=chunk_order,
            dims=dims, attributes=attributes, if_exists=if_exists, resume=resume,
            progress=progress,
        )[0]  # fmt: skip


def copy_to_array(
    source: Source,
    path: PathLike,
    *,
    memory: int | str | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
) -> tuple[Array, CopyReport]:
    """Copy an open source as `from_array` does; return the array and a report."""
    metadata = array_metadata(
        source.shape, source.dtype, chunks, source.order if order is None else order, chunk_order,
        source.dims if dims is None else dims, attributes,
    )  # fmt: skip
    if attributes is None:
        carried = carried_attributes(source.attributes)
        metadata = dataclasses.replace(metadata, attributes=carried)
    metadata.grid()  # refuses impossible chunks
    side = array_side(metadata, in_parts=source.gridded)
    check_progress(progress)
    memory_bytes = budget.resolve(memory)
    plan = plan_copy(source.side, side, source.itemsize, memory_bytes)
    where = place(path)
    metadata = metadata.on(where.volume)
    check_apart(source, where.path)
    refuse_being_made(where)
    version = source.version()
    made: dict[str, Any] | None = None
    if version is not None:
        made = {"call": "from_array", "source": version, "casting": source.casting}
    if check_if_exists(if_exists) == "open":
        given: dict[str, Any] = {
            "chunks": chunks, "chunk_order": chunk_order, "dims": dims, "attributes": attributes
        }  # fmt: skip
        found = open_existing(where, metadata, [name for name in given if given[name] is not None])
        if found is not None:
            if made is not None:
                refuse_other(where, found.metadata.made, made, "the source")
            return found, _report_opened(found, plan.blocks)
    record = CopyRecord(where)
    with (
        _saying_how_to_go_on(record, resume=resume, if_exists=if_exists),
        being_made(where, f"copying to {where.path.name}"),
    ):
        begun = dataclasses.replace(metadata, state="incomplete", why=_WHY)
        stopped = resume and if_exists != "overwrite" and record.was_stopped(begun)
        done = 0
        steps = record.steps_of(version, source.casting) if stopped else None
        if steps is not None:
            plan = plan_copy(source.side, side, source.itemsize, memory_bytes, steps)
            done = record.done_of(plan.blocks)
            write_metadata(where, begun)  # this call may have other attributes
        else:
            make_array(where, begun, if_exists="overwrite" if stopped else if_exists, reserve=True)
        record.describe(version, source.casting, plan)
        record.begin(done)
        return _copy_to(where, record, side, source, plan, done, memory_bytes, progress, made)


@contextlib.contextmanager
def _saying_how_to_go_on(
    record: CopyRecord, *, resume: bool, if_exists: IfExists
) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if if_exists == "overwrite" and resume:
            how = "without if_exists='overwrite'"
        else:
            how = "with the same arguments" if resume else "with if_exists='overwrite'"
        what = "resume" if resume and record.goes_on else "restart"
        raise Interrupted(
            f"copying to {record.where.path} was stopped; call it again {how} to {what}"
        ) from None


def _copy_to(
    where: Place,
    record: CopyRecord,
    side: Side,
    source: Source,
    plan: CopyPlan,
    done: int,
    memory_bytes: int,
    progress: ProgressLike,
    made: dict[str, Any] | None,
) -> tuple[Array, CopyReport]:
    """Copy into a new array, from block number `done` on; the caller holds the array's lock."""
    array = open_array(where.path, "r+", allow_incomplete=True)
    target = ArrayTarget(array, side)
    boxes = plan.boxes(column_major=target.column_major)
    copied = sum(math.prod(s.stop - s.start for s in box) for box in itertools.islice(boxes, done))
    try:
        title = f"copying to {where.path.name}"
        with long_call(
            title, memory_bytes=memory_bytes, work=array.nbytes,
            work_done=copied * array.dtype.itemsize, progress=progress,
        ) as call:  # fmt: skip
            notes = CopyNotes(record, target.sync, done) if record.goes_on else None
            copy_blocks(source, target, plan, call, where.path, notes)
            target.finish()
            array.mark(None, made=made)
            record.remove()
    except BaseException:
        array.close()
        raise
    report = report_on(
        plan, call, path=where.path, file_format="outcore", shape=array.shape, dtype=array.dtype,
        order=array.order, chunks=array.chunks, done_before=done,
    )  # fmt: skip
    array.report = report
    return array, report


def _report_opened(array: Array, blocks: int) -> CopyReport:
    """Return the report for a copy that an earlier call made."""
    array.report = CopyReport(
        path=str(array.path), format="outcore", shape=array.shape, dtype=array.dtype.name,
        order=array.order, chunks=array.chunks, codec="none", nbytes=array.nbytes,
        file_bytes=bytes_on_disk(array.path), blocks=blocks, blocks_before=blocks, times_read=0.0,
        seconds=0.0, memory_bytes=0, peak_memory_bytes=0,
    )  # fmt: skip
    return array.report


def report_on(
    plan: CopyPlan,
    call: LongCall,
    *,
    path: AnyPath,
    file_format: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    order: str,
    chunks: tuple[int, ...] | None,
    codec: str = "none",
    done_before: int = 0,
) -> CopyReport:
    """Return the report on a finished copy."""
    return CopyReport(
        path=str(path),
        format=file_format,
        shape=shape,
        dtype=dtype.name,
        order=order,
        chunks=chunks,
        codec=codec,
        nbytes=int(np.prod(shape, dtype=object)) * dtype.itemsize,
        file_bytes=bytes_on_disk(path),
        blocks=plan.blocks,
        blocks_before=done_before,
        times_read=plan.times_read,
        seconds=call.seconds(),
        memory_bytes=call.arena.budget_bytes,
        peak_memory_bytes=call.arena.peak_bytes,
    )


def check_apart(source: Source, path: AnyPath) -> None:
    """Refuse a target that contains the source, which overwriting would remove, or lies in it."""
    meet = None if source.path is None else how_they_meet(path, source.path)
    if meet == INSIDE:
        raise InvalidError(f"{path} lies in {source.path}, its source; choose another name")
    if meet is not None:
        raise InvalidError(f"{path} cannot be copied onto itself; choose another name")
