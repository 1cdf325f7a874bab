"""A temporary copy of a matrix in lower precision, for factors that refinement corrects."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore._core import ArrayFile, column_extremes
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream, Box, WriteBehind
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata, version_of
from outcore.errors import ExistsError, InvalidError
from outcore.layout.zarr_format import Metadata
from outcore.linalg._geometry.box_reads import StreamReads
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._output.result import claimed, written
from outcore.linalg._systems.refine_plan import (
    copy_bounce_bytes,
    copy_boxes,
    copy_height,
    copy_tiles_height,
)
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix, not_finite, room_in
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import Place, filling

_WHY = "a copy that solve makes for itself; it was stopped: call solve again, or remove this"
COPY = "its copy in lower precision"
"""Name of a copy in reports."""

_OF = "copy_of"
"""Attribute of a copy, with the fields of `Copied`."""


class TooLowError(Exception):
    """The lower precision does not suffice; the message says why. `solve` always catches it."""


def is_copy(where: Place) -> bool:
    """Whether `where` is a temporary copy made by `solve`, in any state."""
    try:
        return where.exists() and _OF in read_metadata(where).attributes
    except InvalidError:
        return False  # another Zarr object


def is_current(where: Place, source: Place, low: np.dtype[Any]) -> bool:
    """Whether `where` is a complete copy of the present matrix, or one that LU consumed."""
    if not where.exists():
        return False
    metadata = read_metadata(where)
    return (
        metadata.state != "incomplete"
        and metadata.dtype == low
        and metadata.attributes.get(_OF) == _now(source)._asdict()
    )


class Copied(NamedTuple):
    """The origin of a copy: the path of the matrix, and its version when the copy started."""

    path: str
    generation: int
    modified_ns: int


def copied(where: Place) -> Copied:
    """Return the origin of a copy."""
    return Copied(**read_metadata(where).attributes[_OF])


def remove_copy(where: Place) -> None:
    """Remove a copy, and the lock that a killed call may have left beside it."""
    for each in (where, filling(where)):
        if each.volume.exists(each.name):
            each.volume.remove(each.name)


def _now(source: Place) -> Copied:
    return Copied(source.source, *version_of(source))


def make_copy(
    A: Array,
    where: Place,
    low: np.dtype[Any],
    tile: tuple[int, int],
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
) -> Report:
    """Copy A in lower precision, in tiles that LU can take over.

    Raises
    ------
    TooLowError
        If an element is too large for it, or a row or column has only elements too small for it.
    NonFiniteError
        If A has a NaN or an infinity.
    """
    if where.volume.exists(where.name) and not is_copy(where):
        raise ExistsError(
            f"{where.path} exists, where solve would put a temporary copy; remove it, or pass "
            "another factors="
        )
    metadata = Metadata(
        A.shape, low, tile, "F", "column-major", attributes={_OF: _now(A.place)._asdict()}
    )
    rows, columns = copy_boxes(Layout.of(A.metadata), A.dtype, tile, memory_bytes)
    box_bytes = pages(rows * columns * A.dtype.itemsize)
    with (
        long_call(
            f"copying {A.path.name} in {low}", memory_bytes=memory_bytes, work=A.nbytes,
            threads=threads, progress=progress,
        ) as call,
        claimed(where.path, (), if_exists="overwrite", why=_WHY),
        written(where, metadata, _WHY) as copy,
    ):  # fmt: skip
        bounce = copy_bounce_bytes(memory_bytes)
        source = A.open_file(call.arena, bounce, trace=call.trace)
        # Opened as a file of whole tiles, so that padding below the last row can be written too.
        height = copy_height(A.shape[0], tile[0], rows)
        shape = copy_tiles_height(A.shape[0], tile[0]), A.shape[1]
        grid = dataclasses.replace(copy.metadata, shape=shape).grid()
        copy.count_writing()
        target = ArrayFile(where.volume, where.name, grid, True, call.arena, bounce, call.trace, 1)
        stream = BlockStream(
            source, A.dtype, call.arena, 2 * box_bytes, call.trace, least_bytes=box_bytes
        )
        stream.extend(_cut(A.shape, (rows, columns)))
        extremes = _Extremes(A.shape[0], low)
        with WriteBehind(target, most=1, trace=call.trace) as writer:
            for box, block in stream:
                start_ns = call.trace.now_ns()
                below = height - A.shape[0] if box[0].stop == A.shape[0] else 0
                whole = _converted(block, below, low, call)
                converted = whole[: block.shape[0]]
                _check(converted, block, box)
                extremes.see(converted, box)
                call.trace.record("compute", start_ns)
                writer.write(box, whole)
                call.meter.advance(block.nbytes)
            writer.flush(sync=True)
        extremes.check()
        reads = StreamReads.of(A, bounce, source.read_granularity)
        planned = reads.bytes_of_grid((rows, columns)), height * A.shape[1] * low.itemsize
        return call.report(
            Report, "copy", A.shape[0], A.dtype, computes=False, planned=planned,
            moved=(source.counters()[0], target.counters()[1]), arrays=["the matrix", COPY],
        )  # fmt: skip


def _cut(shape: tuple[int, ...], extents: tuple[int, int]) -> Iterator[Box]:
    """Boxes of a matrix, one column of boxes after another."""
    for j in range(0, shape[1], extents[1]):
        for i in range(0, shape[0], extents[0]):
            yield (
                slice(i, min(i + extents[0], shape[0])),
                slice(j, min(j + extents[1], shape[1])),
            )


def _converted(block: Matrix, below: int, low: np.dtype[Any], call: LongCall) -> Matrix:
    """Round a block to lower precision, in memory from the budget, with rows of zeros below."""
    rows, columns = block.shape
    out: Matrix = room_in(call.arena, (rows + below, columns), low, "F")
    # `_check` finds infinities. An element that becomes zero may be negligible.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[:rows] = block
    out[rows:] = 0
    return out


def _check(converted: Matrix, block: Matrix, box: Box) -> None:
    """Raise for elements that are not finite, in A or only in lower precision."""
    if math.isfinite(column_extremes(converted, False)[0]):
        return
    for j in range(block.shape[1]):
        for i in np.flatnonzero(~np.isfinite(converted[:, j])):
            row, column, value = box[0].start + int(i), box[1].start + j, block[i, j]
            if not np.isfinite(value):
                raise not_finite(row, column, value)
            raise TooLowError(
                f"A[{row}, {column}] = {value:.3g} is too large for {converted.dtype}"
            )


class _Extremes:
    """Largest element of each row and column of the copy, by real and imaginary parts."""

    def __init__(self, n: int, low: np.dtype[Any]) -> None:
        self.real = np.dtype(f"f{low.itemsize // (2 if low.kind == 'c' else 1)}")
        self.low = low
        self.rows, self.columns = np.zeros(n, self.real), np.zeros(n, self.real)

    def see(self, block: Matrix, box: Box) -> None:
        for part in (block.real, block.imag) if self.low.kind == "c" else (block,):
            for axis, (largest, where) in enumerate(((self.columns, box[1]), (self.rows, box[0]))):
                seen = largest[where]
                np.maximum(seen, np.maximum.reduce(part, axis=axis), out=seen)
                np.maximum(seen, -np.minimum.reduce(part, axis=axis), out=seen)

    def check(self) -> None:
        """Raise if a row or a column of the copy is zero, or has lost its digits to underflow."""
        for name, largest in (("row", self.rows), ("column", self.columns)):
            small = np.flatnonzero(largest < np.finfo(self.real).tiny)
            if len(small):
                raise TooLowError(
                    f"{name} {small[0]} of A has no element large enough for {self.low}"
                )
