"""Permute the elements of an array on disk, in few passes: ``oc.permute``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.if_exists import IfExists, check_if_exists
from outcore._util.progress import ProgressLike, check_progress
from outcore._util.sizes import format_bytes
from outcore.array.array import Array, open_array
from outcore.array.create import array_metadata
from outcore.array.existing import make_array, open_existing, refuse_other
from outcore.array_files.blocks_done import BETWEEN
from outcore.array_files.metadata import write_metadata
from outcore.convert.copy_notes import CopyNotes, CopyRecord
from outcore.convert.copying import check_apart, copy_to_array, saying_how_to_resume
from outcore.convert.open_source import open_source
from outcore.convert.rechunk_plan import MOST_PASSES
from outcore.convert.sources import Source, Stored
from outcore.convert.targets import ArrayTarget
from outcore.errors import DiskFullError, InvalidError, OutcoreError
from outcore.layout.attributes import carried_attributes
from outcore.layout.zarr_format import Metadata
from outcore.permutations.geometry import Geometry, geometry_of
from outcore.permutations.layouts import Layout, address_matrix
from outcore.permutations.moved_source import MovedSource, Transposed
from outcore.permutations.moves import Move, move_of
from outcore.permutations.run import Ends, Passes
from outcore.permutations.traffic import Side, least_request_bytes
from outcore.report.copy_report import CopyReport
from outcore.report.longcall import LongCall, long_call
from outcore.report.permute_report import PermuteReport
from outcore.storage.volumes import (
    PathLike,
    Place,
    being_made,
    bytes_on_disk,
    place,
    refuse_being_made,
    room_at,
)

T = TypeVar("T")

_WHY = "permuting into it was stopped; call permute again with the same arguments"


def permute(
    src: Any,
    out: PathLike,
    kind: str | None = None,
    *,
    axes: Sequence[int] | int | None = None,
    turns: int = 1,
    matrix: npt.ArrayLike | None = None,
    complement: int | npt.ArrayLike = 0,
    memory: int | str | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    attributes: dict[str, Any] | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
) -> Array:
    """Write the elements of an array in another order, in few passes and bounded memory.

    ``docs/numerics-permutations.md`` derives the passes; ``oc.plan("permute", ...)`` states them.

    Parameters
    ----------
    src
        An array of outcore, or its path; a ``.npy`` file, or an array in memory. Moves by axes
        take any source of `from_array` but raw files and iterators.
    out
        Directory of the new array, also in a pool.
    kind
        A move by axes, of any shape: ``"transpose"``, ``"reverse"`` or ``"rotate"``, as
        `numpy.transpose`, `numpy.flip` and `numpy.rot90`. Or a move of 2, 4, 8, ... elements, in C
        order, by the bits of their indices: see `bit_matrix`.
    axes
        For ``"transpose"``, the old dimension of each new one; by default all in reverse. For
        ``"reverse"``, the dimensions to reverse, by default all. For ``"rotate"``, the plane, by
        default ``(0, 1)``.
    turns
        For ``"rotate"``, the number of quarter turns from the first of `axes` towards the second.
    matrix
        Instead of `kind`: a matrix of zeros and ones, not singular over GF(2). The element at index
        x, in C order, moves to index ``matrix @ x + complement``, by bits, the lowest first.
    complement
        Bits of the new index to invert: an integer, or zeros and ones, lowest bit first.
    memory
        Budget in bytes. A load is at most the largest power of two of which two fit.
    chunks, order, chunk_order, attributes
        As for `create_array`; by default the order and the attributes of `src`.
    if_exists
        As for `create_array`. ``"open"`` opens the whole result of the same call, unless `src` was
        written to since.
    resume
        Whether to resume a stopped call, if `src` has not changed since. Without `resume`, a
        half-made array is refused.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    Array
        The new array, open for reading and writing; its ``report`` is a `PermuteReport`.

    Raises
    ------
    InvalidError
        If the arguments describe no permutation of such an array; if the matrix is singular; if the
        number of elements, or an extent of chunks of two or more dimensions, is no power of two
        where the bits of indices move.
    BudgetError
        If two loads of a few requests do not fit in `memory`.
    DiskFullError
        If the disk has no room for the array, or for the intermediate array of two or more passes,
        which is as large.
    ExistsError, NotFoundError, TruncatedError, BusyError, JournalError, Interrupted
        As for `from_array`.
    """
    with open_source(src, takes_raw=False) as source:
        source.warn(2)
        job = job_of(
            source, out, kind, axes=axes, turns=turns, matrix=matrix, complement=complement,
            memory=memory, chunks=chunks, order=order, chunk_order=chunk_order,
            attributes=attributes,
        )  # fmt: skip
        check_progress(progress)
        check_apart(source, job.where.path)
        if job.layouts is None:
            return _by_copying(job, if_exists, progress, resume=resume)
        return _by_passes(job, if_exists, progress, resume=resume)


@dataclass(frozen=True)
class Job:
    """A checked call of `permute`.

    Attributes
    ----------
    move, source, where, metadata
        The move, and both arrays.
    given
        The arguments of the layout of the new array.
    memory_bytes
        The budget.
    layouts
        Layouts of both arrays; `None` for a copy by tiles.
    """

    move: Move
    source: Source
    where: Place
    metadata: Metadata
    given: dict[str, Any]
    memory_bytes: int
    layouts: tuple[Layout, Layout] | None

    def geometry(self, steps: list[int] | None = None) -> Geometry:
        """Choose the passes, or those of a stopped call."""
        assert self.layouts is not None, "the job has passes"
        assert self.move.matrix is not None, "a job with layouts moves bits"
        before, after = self.layouts
        matrix = address_matrix(before, after, self.move.matrix)
        complement = after.address_of(self.move.complement)
        stopped = None if steps is None else (steps[0], steps[1])
        return geometry_of(
            matrix, complement, min(before.block_bits, after.block_bits), self.source.itemsize,
            self.memory_bytes, stopped,
        )  # fmt: skip


def job_of(
    source: Source,
    out: PathLike,
    kind: str | None,
    *,
    memory: int | str | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    attributes: dict[str, Any] | None = None,
    **options: Any,
) -> Job:
    """Check the arguments of `permute`."""
    move = move_of(source.shape, kind, **options)
    where = place(out)
    dims = None
    if move.axes is not None and source.dims is not None:
        dims = tuple(source.dims[d] for d in move.axes)
    metadata = array_metadata(
        move.new_shape, source.dtype, chunks, source.order if order is None else order,
        chunk_order, dims, attributes,
    )  # fmt: skip
    if attributes is None:
        carried = carried_attributes(source.attributes)
        metadata = dataclasses.replace(metadata, attributes=carried)
    metadata.grid()  # refuses impossible chunks
    given = {"chunks": chunks, "chunk_order": chunk_order, "attributes": attributes}
    metadata = metadata.on(where.volume)
    before = after = None
    if move.matrix is not None:
        if source.kind != "encoded":
            before = Layout.of(source.shape, source.chunks, source.order)
        after = Layout.of(metadata.shape, metadata.chunks, metadata.order)
        if move.axes is None and (before is None or after is None):
            name, found = ("src", source.chunks) if before is None else ("out", metadata.chunks)
            fix = (
                "copy src with oc.from_array(..., chunks=...)" if before is None else "pass chunks="
            )
            raise InvalidError(
                f"need {name} in outcore's own layout, or without chunks, with extents and chunks "
                f"that are powers of two, have chunks {found} of shape {source.shape}; {fix}"
            )
    layouts = None if before is None or after is None else (before, after)
    return Job(move, source, where, metadata, given, budget.resolve(memory), layouts)


def boxes_of(job: Job) -> tuple[Source, int]:
    """Return the source of a move by axes, as a copy reads it, and the most passes of the copy."""
    assert job.move.axes is not None, "a job without layouts moves axes"
    if job.move.flips:
        return MovedSource(job.source, job.move), 1
    return Transposed(job.source, job.move.axes), MOST_PASSES


def _by_copying(job: Job, if_exists: IfExists, progress: ProgressLike, *, resume: bool) -> Array:
    """Move an array by its axes, box by box; only transposes take more than one pass."""
    moved, most_passes = boxes_of(job)
    array, report = copy_to_array(
        moved, job.where.path, memory=job.memory_bytes, order=job.metadata.order,
        if_exists=if_exists, resume=resume, progress=progress, most_passes=most_passes,
        keeps_passes=True, why=_WHY, **job.given,
    )  # fmt: skip
    array.report = _report_of_copy(job, report)
    return array


def _report_of_copy(job: Job, report: CopyReport) -> PermuteReport:
    is_opened = report.reads is None  # an earlier call made the array
    return PermuteReport(
        path=report.path, kind=job.move.kind, shape=report.shape, dtype=report.dtype,
        passes=1 + len(report.between), load_bytes=0, request_bytes=0,
        bytes_read=report.bytes_read or 0, bytes_written=report.bytes_written or 0,
        reads=report.reads or 0, writes=report.writes or 0, requests_before=report.blocks_before,
        nbytes=report.nbytes, file_bytes=report.file_bytes, seconds=report.seconds,
        memory_bytes=report.memory_bytes, peak_memory_bytes=report.peak_memory_bytes,
        pass_seconds=() if is_opened else report.pass_seconds,
    )  # fmt: skip


def _by_passes(job: Job, if_exists: IfExists, progress: ProgressLike, *, resume: bool) -> Array:
    """Move an array by the bits of its addresses."""
    where, source = job.where, job.source
    geometry = job.geometry()
    refuse_being_made(where)
    version = source.version()
    made: dict[str, Any] | None = None
    if version is not None:
        version = {**version, "move": job.move.to_json()}
        made = {"call": "permute", "source": version}
    if check_if_exists(if_exists) == "open":
        names = [name for name, value in job.given.items() if value is not None]
        found = open_existing(where, job.metadata, names)
        if found is not None:
            if made is not None:
                refuse_other(where, found.metadata.made, made, "the source and the permutation")
            found.report = _report(job, geometry, None, _Moved(), geometry.runs_written)
            return found
    record = CopyRecord(where)
    with (
        saying_how_to_resume(record, resume=resume, if_exists=if_exists),
        being_made(where, f"permuting to {where.path.name}"),
    ):
        begun = dataclasses.replace(job.metadata, state="incomplete", why=_WHY)
        stopped = resume and if_exists != "overwrite" and record.was_stopped(begun)
        done = 0
        before = record.passes_of(version, source.casting) if stopped else None
        if before is not None:
            geometry = job.geometry(before[0][-1])
            done = record.done_of(geometry.runs_written)
            write_metadata(where, begun)  # this call may have other attributes
        else:
            is_replaced = stopped or if_exists == "overwrite"
            _check_room(job, geometry, is_replaced=is_replaced)
            make_array(where, begun, if_exists="overwrite" if stopped else if_exists, reserve=True)
        steps = [geometry.block_bits, geometry.load_bits]
        record.describe(version, source.casting, [steps])
        record.begin(done)
        return _run(job, geometry, record, done, progress, made)


def _check_room(job: Job, geometry: Geometry, *, is_replaced: bool) -> None:
    """Refuse a call that the disk has no room for, before the array that it replaces is removed."""
    if job.where.exists() and not is_replaced:
        return  # `make_array` refuses it
    need, have = sum(disk_bytes(job, geometry)), room_at(job.where, is_replaced=is_replaced)
    if need > have:
        raise DiskFullError(
            f"need {need} bytes ({format_bytes(need)}) for {job.where.path} and its intermediate "
            f"array, {have} ({format_bytes(have)}) are free; free some room, or raise memory= for "
            "fewer passes"
        )


def disk_bytes(job: Job, geometry: Geometry) -> tuple[int, int]:
    """Return the bytes on disk of the new array, and of the intermediate one."""
    grid, between = job.metadata.grid(), _between(job).grid()
    between_bytes = between.shard_bytes * between.shards if len(geometry.passes) > 1 else 0
    return grid.shard_bytes * grid.shards, between_bytes


def _between(job: Job) -> Metadata:
    """Return the metadata of the intermediate array: a vector in the order of addresses."""
    count = int(np.prod(job.metadata.shape, dtype=object))
    plain = array_metadata((count,), job.metadata.dtype, None, "C", None, None, None)
    begun = dataclasses.replace(plain, state="incomplete", why=_WHY)
    return begun.on(job.where.volume)


def sides_of(job: Job, count: int) -> list[Side]:
    """Return the arrays of `count` passes: each pass reads one and writes the next."""
    assert job.layouts is not None, "the job has passes"
    before, after = job.layouts
    source = job.source
    begun = Side(source.metadata if isinstance(source, Stored) else None, before)
    out, between = Side(job.metadata, after), _between(job)
    layout = Layout.of(between.shape, between.chunks, "C")
    assert layout is not None, "it is a vector"
    return [begun, *(_alternate(i, count, out, Side(between, layout)) for i in range(count))]


def _alternate(i: int, count: int, last: T, other: T) -> T:
    """Return the target of pass i: `last` of the last pass, `other` of the pass before it."""
    return last if (count - 1 - i) % 2 == 0 else other


@dataclass
class _Moved:
    """Bytes and requests of a call, and the time of its passes."""

    bytes_read: int = 0
    bytes_written: int = 0
    reads: int = 0
    writes: int = 0
    pass_seconds: tuple[float, ...] = ()

    def add(self, ends: Ends, nbytes: int, reads: int, seconds: float) -> None:
        """Add those of a pass; `nbytes` and `reads` count for a source that does not count."""
        self.pass_seconds += (seconds,)
        nbytes, reads = ends.source.moved() or (nbytes, reads)
        self.bytes_read += nbytes
        self.reads += reads
        counted = ends.target.moved()
        assert counted is not None, "arrays count"
        written, writes = counted
        self.bytes_written += written
        self.writes += writes


def _run(
    job: Job,
    geometry: Geometry,
    record: CopyRecord,
    done: int,
    progress: ProgressLike,
    made: dict[str, Any] | None,
) -> Array:
    """Run the passes after the first `done` writes; the caller holds the array's lock."""
    where, count = job.where, len(geometry.passes)
    array = open_array(where.path, "r+", allow_incomplete=True)
    between: Array | None = None
    moved, before = _Moved(), done
    try:
        work = geometry.nbytes * count
        bits = len(geometry.passes[0].matrix)
        of_pass = [1 << bits - geometry.request_bits(i)[1] for i in range(count)]
        firsts = _first_loads(geometry, of_pass, done)
        finished = sum(first * geometry.itemsize << geometry.load_bits for first in firsts)
        title = f"permuting to {where.path.name}"
        with long_call(
            title, memory_bytes=job.memory_bytes, work=work, work_done=finished, progress=progress
        ) as call:
            passes = Passes(geometry, job.metadata.dtype, call)
            if count > 1 and firsts[-1] < geometry.passes[-1].count:
                between = _open_between(job, anew=done == 0)
            for i, first in enumerate(firsts):
                loads = geometry.passes[i]
                if first == loads.count:
                    continue
                per_load = of_pass[i] // loads.count
                at = sum(of_pass[:i]) + first * per_load
                ends = _ends(job, array, between, i, count)
                notes = CopyNotes(record, ends.target.sync, at) if record.goes_on else None
                began = call.seconds()
                passes.run(i, ends, first, notes)
                left = loads.count - first
                read_bits = geometry.request_bits(i)[0]
                moved.add(
                    ends, left * geometry.itemsize << geometry.load_bits,
                    left << geometry.load_bits - read_bits, call.seconds() - began,
                )  # fmt: skip
                del ends
            if between is not None:
                between.close()
            _remove_between(where)
            array.mark(None, made=made)
            record.remove()
            array.report = _report(job, geometry, call, moved, before)
    except BaseException:
        array.close()
        if between is not None:
            between.close()
        if not record.goes_on:
            with contextlib.suppress(OutcoreError):
                _remove_between(where)
        raise
    return array


def _remove_between(where: Place) -> None:
    if where.exists(BETWEEN[0]):
        where.volume.remove(where.below(BETWEEN[0]).name)


def _first_loads(geometry: Geometry, of_pass: list[int], done: int) -> list[int]:
    """Return the first load of each pass that is not durable yet."""
    firsts = []
    for loads, requests in zip(geometry.passes, of_pass, strict=True):
        here = min(done, requests)
        firsts.append(here // (requests // loads.count))
        done -= here
    return firsts


def _open_between(job: Job, *, anew: bool) -> Array:
    below = job.where.below(BETWEEN[0])
    if anew:
        make_array(below, _between(job), if_exists="overwrite", reserve=True)
    return open_array(below.path, "r+", allow_incomplete=True)


def _ends(job: Job, array: Array, between: Array | None, number: int, count: int) -> Ends:
    """Return the source and target of a pass: the last one writes the new array."""
    sides = sides_of(job, count)
    arrays = [_alternate(i, count, array, between) for i in range(count)]
    into = arrays[number]
    assert into is not None, "more than one pass needs an intermediate array"
    source = job.source
    if number > 0:
        of = arrays[number - 1]
        assert of is not None, "more than one pass needs an intermediate array"
        source = Stored(of)
    return Ends(
        source, sides[number].layout, ArrayTarget(into), sides[number + 1].layout, job.where.path
    )


def _report(
    job: Job, geometry: Geometry, call: LongCall | None, moved: _Moved, before: int
) -> PermuteReport:
    metadata = job.metadata
    return PermuteReport(
        path=str(job.where.path), kind=job.move.kind, shape=metadata.shape,
        dtype=metadata.dtype.name, passes=len(geometry.passes),
        load_bytes=geometry.itemsize << geometry.load_bits,
        request_bytes=least_request_bytes(geometry, sides_of(job, len(geometry.passes))),
        requests_before=before,
        nbytes=geometry.nbytes, file_bytes=bytes_on_disk(job.where.path),
        seconds=0.0 if call is None else call.seconds(), memory_bytes=job.memory_bytes,
        peak_memory_bytes=0 if call is None else call.arena.peak_bytes,
        **dataclasses.asdict(moved),
    )  # fmt: skip
