"""Copies of sources to arrays of outcore, block by block in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from outcore._util import budget
from outcore._util.if_exists import IfExists, check_if_exists
from outcore._util.progress import ProgressLike, check_progress
from outcore.array.array import Array, open_array
from outcore.array.create import DiskLayout, array_metadata
from outcore.array.existing import make_array, open_existing, refuse_other
from outcore.array_files.blocks_done import BETWEEN
from outcore.array_files.metadata import read_metadata, write_metadata
from outcore.convert.block_copy import check_blocks, copy_blocks
from outcore.convert.copy_notes import CopyNotes, CopyRecord
from outcore.convert.copy_plan import (
    CopyPlan,
    Pass,
    Step,
    pieces_of,
    plan_copy,
    planned_passes,
)
from outcore.convert.rechunk_plan import MOST_PASSES, array_end, array_passes
from outcore.convert.sources import Source, Stored, fast_to_slow
from outcore.convert.targets import ArrayTarget, Target
from outcore.errors import DiskFullError, Interrupted, InvalidError, OutcoreError
from outcore.layout.attributes import carried_attributes
from outcore.layout.zarr_format import Metadata
from outcore.report.copy_report import CopyReport
from outcore.report.longcall import LongCall, long_call
from outcore.storage.volumes import (
    INSIDE,
    AnyPath,
    PathLike,
    Place,
    being_made,
    bytes_on_disk,
    filling,
    how_they_meet,
    place,
    refuse_being_made,
    room_at,
)

_WHY = (
    "copying into it was stopped; call from_array, convert or rechunk again with the same arguments"
)


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
    layout: DiskLayout | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
    steps: Sequence[Step] | None = None,
    most_passes: int = MOST_PASSES,
    keeps_passes: bool = False,
    verify: bool = False,
    why: str = _WHY,
) -> tuple[Array, CopyReport]:
    """Copy an open source as `from_array` does; return the array and a report.

    `layout` divides the array over disks. A copy that begins takes one pass in blocks of given
    `steps`; by default the passes that `choose_passes` chooses, at most `most_passes`. If the disk
    has no room for an array between two passes, it takes one pass, or is refused with
    `keeps_passes`. With `verify`, the array is read back after each pass. The error of a half-made
    array gives `why`, which names the call that resumes it.
    """
    metadata = array_metadata(
        source.shape, source.dtype, chunks, source.order if order is None else order, chunk_order,
        source.dims if dims is None else dims, attributes,
    )  # fmt: skip
    if attributes is None:
        carried = carried_attributes(source.attributes)
        metadata = dataclasses.replace(metadata, attributes=carried)
    metadata.grid()  # refuses impossible chunks
    check_progress(progress)
    memory_bytes = budget.resolve(memory)
    where = place(path)
    is_chosen = bool(chunks or chunk_order or order == "F")
    metadata = (layout or DiskLayout()).of(where, metadata, is_chosen=is_chosen)
    target = array_end(metadata).side

    def choose(most: int) -> list[Pass]:
        if steps is None:
            return array_passes(source, metadata, memory_bytes, most)
        plan = plan_copy(
            source.side, target, source.itemsize, memory_bytes, steps, is_resumed=False
        )
        return [Pass(plan)]

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
            blocks = choose(most_passes)[-1].plan.blocks
            return found, _report_opened(found, blocks)
    record = CopyRecord(where)
    with (
        saying_how_to_resume(record, resume=resume, if_exists=if_exists),
        being_made(where, f"copying to {where.path.name}"),
    ):
        begun = dataclasses.replace(metadata, state="incomplete", why=why)
        stopped = resume and if_exists != "overwrite" and record.was_stopped(begun)
        done, finished, is_left = 0, 0, True
        before = record.passes_of(version, source.casting, verify=verify) if stopped else None
        if before is not None:
            begun_steps, between = before
            blocks = math.prod(map(len, pieces_of(source.shape, begun_steps[-1])))
            done = record.done_of(blocks)
            finished = _finished(record, len(between))
            is_left = done < blocks or finished == len(between)
            if not is_left:
                finished = len(between)  # the arrays between were removed: the copy is whole
            passes = planned_passes(
                source.side, target, source.itemsize, memory_bytes, begun_steps, between,
                is_resumed=True, finished=finished,
            )  # fmt: skip
            write_metadata(where, begun)  # this call may have other attributes
        else:
            passes = choose(most_passes)
            how: IfExists = "overwrite" if stopped else if_exists
            lack = _lack_of_room(where, begun, source.order, passes, how)
            if lack and keeps_passes:
                raise DiskFullError(lack)
            if lack:
                passes = choose(1)
            begun_steps = [one.plan.steps for one in passes]
            between = [one.chunks for one in passes if one.chunks is not None]
            make_array(where, begun, if_exists=how, reserve=True)
        record.describe(version, source.casting, begun_steps, between, verify=verify)
        record.begin(done)
        *earlier, (plan, _) = passes
        with _between(
            record, source, metadata, finished if is_left else 0, earlier, memory_bytes, progress,
            verify=verify,
        ) as (nearest, reports):  # fmt: skip
            array, report = _copy_to(
                where, record, nearest, plan, done, memory_bytes, progress, made,
                has_between=bool(between), verify=verify and is_left,
            )  # fmt: skip
        for each in reversed(reports):
            report = report.after(each)
        report = dataclasses.replace(report, between=tuple(between), verified=verify)
        array.report = report
        return array, report


def _lack_of_room(
    where: Place, metadata: Metadata, order: str, passes: Sequence[Pass], if_exists: IfExists
) -> str:
    """Say that the disk has no room for the array and those between its passes; else nothing."""
    arrays = [array_between(metadata, one, order) for one in passes[:-1]]
    sizes = [array.grid().shard_bytes * array.grid().shards for array in arrays]
    is_replaced = if_exists == "overwrite"
    if not sizes or (where.exists() and not is_replaced):
        return ""  # `make_array` refuses what exists
    # An array between two passes exists until the next one is complete.
    most = max(a + b for a, b in itertools.pairwise([0, *sizes, 0]))
    need = metadata.grid().shard_bytes * metadata.grid().shards + most
    have = room_at(where, is_replaced=is_replaced)
    if need <= have:
        return ""
    return (
        f"need {need} bytes on disk for {where.path}, with {most} for the array between two "
        f"passes, {have} are free; free some room, or raise memory= until one pass suffices"
    )


def array_between(metadata: Metadata, one: Pass, order: str) -> Metadata:
    """Return the array that a pass other than the last one makes."""
    assert one.chunks is not None, "it is not the last pass"
    return Metadata(
        metadata.shape, metadata.dtype, one.chunks, order,
        slot_align_bytes=metadata.slot_align_bytes,
    )  # fmt: skip


def order_of_blocks(order: str, target: Metadata) -> str:
    """Choose the order of blocks in memory for a pass from an array between two.

    In this order, chunks of the target lie in long runs, if `order` does not give them already.
    Then the threads of the disk transpose while they read chunks. Otherwise the caller would, one
    element at a time for each chunk that it writes.
    """
    dims = fast_to_slow(target.order, len(target.shape))
    fastest = next((d for d in dims if target.chunks[d] > 1), None)
    return {0: "F", len(dims) - 1: "C"}.get(fastest, order) if fastest is not None else order


@contextlib.contextmanager
def _between(
    record: CopyRecord,
    source: Source,
    target: Metadata,
    finished: int,
    passes: Sequence[Pass],
    memory_bytes: int,
    progress: ProgressLike,
    *,
    verify: bool,
) -> Iterator[tuple[Source, list[CopyReport]]]:
    """Copy a source through arrays inside the unfinished copy; yield the last one as a source.

    `target` is the array that the last pass makes.
    A stopped call `finished` some passes before these. The arrays are removed once the copy is
    complete, or has failed and cannot resume.
    """
    reports: list[CopyReport] = []
    places = _places_between(record, finished + len(passes))
    try:
        with contextlib.ExitStack() as opened:
            for number in range(max(finished - 1, 0), len(places)):
                here = places[number]
                if number >= finished:
                    one = passes[number - finished]
                    array, report = copy_to_array(
                        source, here.path, memory=memory_bytes, chunks=one.chunks,
                        order=source.order, chunk_order="row-major", attributes={},
                        steps=one.plan.steps, progress=progress, verify=verify,
                    )  # fmt: skip
                    array.close()
                    reports.append(report)
                opened.close()
                _remove_there(places[:number])
                array = open_array(here.path)
                left = [array_between(target, each, source.order) for each in passes]
                following = [*left, target][number + 1 - finished]
                order = order_of_blocks(source.order, following)
                source = opened.enter_context(Stored(array, block_order=order))
                source.keep(array)
            yield source, reports
    except BaseException:
        if not record.goes_on:
            with contextlib.suppress(OutcoreError):
                _remove_there(places)
        raise


def _remove_there(places: Sequence[Place]) -> None:
    """Remove the arrays at these places, if they exist, and locks that killed calls left."""
    for each in [*places, *map(filling, places)]:
        if each.volume.exists(each.name):
            each.volume.remove(each.name)


def _finished(record: CopyRecord, count: int) -> int:
    """Return the number of passes, of the `count` before the last one, that a call finished."""
    places = enumerate(_places_between(record, count), 1)
    whole = [
        number for number, each in places if each.exists() and read_metadata(each).state is None
    ]
    return max(whole, default=0)


def _places_between(record: CopyRecord, count: int) -> list[Place]:
    return [record.where.below(name) for name in BETWEEN[:count]]


@contextlib.contextmanager
def saying_how_to_resume(
    record: CopyRecord, *, resume: bool, if_exists: IfExists
) -> Iterator[None]:
    """Turn Ctrl-C into an error that says how to resume."""
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
    source: Source,
    plan: CopyPlan,
    done: int,
    memory_bytes: int,
    progress: ProgressLike,
    made: dict[str, Any] | None,
    *,
    has_between: bool,
    verify: bool,
) -> tuple[Array, CopyReport]:
    """Copy into a new array, from block number `done` on; the caller holds the array's lock."""
    array = open_array(where.path, "r+", allow_incomplete=True)
    target = ArrayTarget(array)
    boxes = plan.boxes(column_major=target.column_major)
    sums: list[int] | None = [] if verify else None
    copied = sum(math.prod(s.stop - s.start for s in box) for box in itertools.islice(boxes, done))
    try:
        title = f"copying to {where.path.name}"
        with long_call(
            title, memory_bytes=memory_bytes, work=array.nbytes * (1 + verify),
            work_done=copied * array.dtype.itemsize, progress=progress,
        ) as call:  # fmt: skip
            notes = CopyNotes(record, target.sync, done) if record.goes_on else None
            slots = copy_blocks(source, target, plan, call, where.path, notes, sums)
            target.finish()
            if sums is not None:
                check_blocks(source, target, target, slots, plan, call, where.path, sums, notes)
            if has_between:
                record.note(plan.blocks)  # a later call that finds no array between needs none
                _remove_there([where.below(name) for name in BETWEEN])
            array.mark(None, made=made)
            record.remove()
    except BaseException:
        array.close()
        raise
    report = report_on(
        plan, call, path=where.path, file_format="outcore", shape=array.shape, dtype=array.dtype,
        order=array.order, chunks=array.chunks, done_before=done, moved=(source, target),
    )  # fmt: skip
    # The next pass needs the memory.
    source.end()
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
    moved: tuple[Source, Target] | None = None,
) -> CopyReport:
    """Return the report on a finished copy, with the counts of both sides if they are given."""
    read = written = None
    seconds = call.seconds()
    if moved is not None:
        read, written = moved[0].moved(), moved[1].moved()
        back = moved[1].moved_back()
        read = read and (read[0] + back[0], read[1] + back[1])
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
        seconds=seconds,
        pass_seconds=(seconds,),
        memory_bytes=call.arena.budget_bytes,
        peak_memory_bytes=call.arena.peak_bytes,
        bytes_read=read and read[0],
        reads=read and read[1],
        bytes_written=written and written[0],
        writes=written and written[1],
    )


def check_apart(source: Source, path: AnyPath) -> None:
    """Refuse a target that contains the source, which overwriting would remove, or lies in it."""
    meet = None if source.path is None else how_they_meet(path, source.path)
    if meet == INSIDE:
        raise InvalidError(f"{path} lies in {source.path}, its source; choose another name")
    if meet is not None:
        raise InvalidError(f"{path} cannot be copied onto itself; choose another name")
