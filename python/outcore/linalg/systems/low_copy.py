"""A temporary copy of a matrix in lower precision, for factors that refinement makes up for."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from outcore._core import column_extremes
from outcore.array import Array
from outcore.array_metadata import read_metadata
from outcore.errors import ExistsError, InvalidError, NonFiniteError
from outcore.linalg.factors.changes import version_of
from outcore.linalg.grains import pages
from outcore.linalg.matrix import Matrix
from outcore.linalg.result import claimed, written
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.streams import BlockStream, Box, WriteBehind
from outcore.volumes import Place, filling
from outcore.zarr_format import Metadata

_WHY = "a copy that solve makes for itself; it was stopped: call solve again, or remove this"
_OF = "copy_of"
"""Attribute of a copy: what `Copied` has."""

_MOST_BOX_BYTES = 64 << 20
_MOST_BOUNCE_BYTES = 4 << 20


class TooLowError(Exception):
    """The lower precision does not do; the message says why. Always caught by `solve`."""


def is_copy(where: Place) -> bool:
    """Whether there is a copy that `solve` made for itself, in whatever state."""
    try:
        return where.exists() and _OF in read_metadata(where).attributes
    except InvalidError:
        return False  # something else of Zarr's


def is_current(where: Place, source: Place, low: np.dtype[Any]) -> bool:
    """Whether there is a complete copy of the matrix as it is now, or what LU left of it."""
    if not where.exists():
        return False
    metadata = read_metadata(where)
    return (
        metadata.state != "incomplete"
        and metadata.dtype == low
        and metadata.attributes.get(_OF) == _now(source)._asdict()
    )


class Copied(NamedTuple):
    """Of what a copy is: the path of the matrix, and its version when the copy was begun."""

    path: str
    generation: int
    modified_ns: int


def copied(where: Place) -> Copied:
    """Tell of what a copy is."""
    return Copied(**read_metadata(where).attributes[_OF])


def remove_copy(where: Place) -> None:
    """Remove a copy, and the lock that a killed call may have left beside it."""
    for each in (where, filling(where)):
        if each.volume.exists(each.name):
            each.volume.remove(each.name)


def _now(source: Place) -> Copied:
    return Copied(str(source.path), *version_of(source))


def _boxes(A: Array, tile: tuple[int, int], memory_bytes: int) -> tuple[int, int]:
    """Choose the boxes of the copy: whole chunks on both sides, or whole runs of A's chunks."""
    most = min(memory_bytes // 4, _MOST_BOX_BYTES) // A.dtype.itemsize
    box = [max(a, b, 1) for a, b in zip(A.chunks, tile, strict=True)]
    for slow in (1, 0) if A.order == "F" else (0, 1):
        box[slow] = max(min(box[slow], most // box[1 - slow]), 1)
    return box[0], box[1]


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
        If an element is too large for it, or all of a row or column too small.
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
    rows, columns = _boxes(A, tile, memory_bytes)
    box_bytes = pages(rows * columns * A.dtype.itemsize)
    with (
        long_call(
            f"copying {A.path.name} in {low}", memory_bytes=memory_bytes, work=A.nbytes,
            threads=threads, progress=progress,
        ) as call,
        claimed(where.path, (), overwrite=True, why=_WHY),
        written(where, metadata, _WHY) as copy,
    ):  # fmt: skip
        bounce = min(_MOST_BOUNCE_BYTES, memory_bytes // 16)
        source = A.open_file(call.arena, bounce, trace=call.trace)
        target = copy.open_file(call.arena, bounce, writable=True, trace=call.trace, trace_number=1)
        stream = BlockStream(
            source, A.dtype, call.arena, 2 * box_bytes, call.trace, least_bytes=box_bytes
        )
        stream.extend(_cut(A.shape, (rows, columns)))
        extremes = _Extremes(A.shape[0], low)
        with WriteBehind(target, most=1, trace=call.trace) as writer:
            for box, block in stream:
                start_ns = call.trace.now_ns()
                converted = _converted(block, low, call)
                _check(converted, block, box)
                extremes.see(converted, box)
                call.trace.record("compute", start_ns)
                writer.write(box, converted)
                call.meter.advance(block.nbytes)
            writer.flush(sync=True)
        extremes.check()
        return Report(
            verb="copy",
            n=A.shape[0],
            dtype=A.dtype.name,
            flops=0,
            bytes_read=source.counters()[0],
            bytes_written=target.counters()[1],
            planned_bytes_read=A.nbytes,
            planned_bytes_written=A.size * low.itemsize,
            **call.figures(),
        )


def _cut(shape: tuple[int, ...], extents: tuple[int, int]) -> Iterator[Box]:
    """Boxes of a matrix, column of boxes by column of boxes."""
    for j in range(0, shape[1], extents[1]):
        for i in range(0, shape[0], extents[0]):
            yield (
                slice(i, min(i + extents[0], shape[0])),
                slice(j, min(j + extents[1], shape[1])),
            )


def _converted(block: Matrix, low: np.dtype[Any], call: LongCall) -> Matrix:
    """Round a block to lower precision, in memory from the budget."""
    room = memoryview(call.arena.allocate(block.size * low.itemsize))
    out: Matrix = np.ndarray(block.shape, low, buffer=room, order="F")
    # Infinities are looked for afterwards; what becomes zero may be small beside the rest.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        out[...] = block
    return out


def _check(converted: Matrix, block: Matrix, box: Box) -> None:
    """Refuse what is not finite, in A or in lower precision only."""
    if math.isfinite(column_extremes(converted, False)[0]):
        return
    for j in range(block.shape[1]):
        for i in np.flatnonzero(~np.isfinite(converted[:, j])):
            row, column, value = box[0].start + int(i), box[1].start + j, block[i, j]
            if not np.isfinite(value):
                raise NonFiniteError(
                    f"A[{row}, {column}] is {value}; every element must be finite: correct it, or "
                    "look for an error in the assembly",
                    (row, column),
                )
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
        """Refuse a copy with a row or a column that lost its digits, or is zero."""
        for name, largest in (("row", self.rows), ("column", self.columns)):
            small = np.flatnonzero(largest < np.finfo(self.real).tiny)
            if len(small):
                raise TooLowError(
                    f"{name} {small[0]} of A has no element large enough for {self.low}"
                )
