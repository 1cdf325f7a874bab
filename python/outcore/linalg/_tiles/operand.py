"""Operands of products and systems: matrices in memory or on disk, used part by part."""

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import BlockStream, Box
from outcore.array.array import Array, open_array
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import ClosedError, InvalidError
from outcore.layout.elements import array_of
from outcore.linalg._tiles.grains import Grains, cut, pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.transposes import simplest
from outcore.linalg._tiles.widened import Converted, as_read, convert_in_place
from outcore.report.longcall import LongCall
from outcore.storage.volumes import PathLike

OperandLike: TypeAlias = Array | PathLike | npt.ArrayLike

Extent: TypeAlias = tuple[slice, slice]
"""Rows and columns of a box of op(X)."""


class Part(NamedTuple):
    """Elements of op(X) in memory.

    ``data`` is column-major. With `trans`, the BLAS reads it as op(X) from `first_row` and
    `first_column` on.
    """

    first_row: int
    first_column: int
    data: Matrix
    trans: Trans

    def cut(self, rows: slice, columns: slice) -> Matrix:
        """Return a box of op(X), for the BLAS with the same `trans`."""
        down = slice(rows.start - self.first_row, rows.stop - self.first_row)
        across = slice(columns.start - self.first_column, columns.stop - self.first_column)
        return self.data[down, across] if self.trans == "N" else self.data[across, down]


class MemoryOperand:
    """op(X) of a matrix X in memory. A vector is a matrix of one column.

    Attributes
    ----------
    shape
        Rows and columns of op(X).
    grains
        An empty grain: the operand is not read.
    copy_bytes
        Memory for a copy, if the BLAS cannot use the matrix directly.
    """

    grains = Grains()

    def __init__(self, given: npt.NDArray[Any], trans: Trans, dtype: np.dtype[Any]) -> None:
        self._given = given.reshape(-1, 1) if given.ndim == 1 else given
        self._trans, self._dtype = simplest(trans, dtype), dtype
        rows, columns = self._given.shape
        self.shape = (rows, columns) if trans == "N" else (columns, rows)
        self._part = self._as_it_is()
        self.copy_bytes = 0 if self._part else pages(given.size * dtype.itemsize)

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """Prepare the operand for a call."""
        if self._part is None:
            self._part = self._copied(call)

    def bytes_read(self) -> int:
        """Bytes read so far."""
        return 0

    def whole(self) -> Part:
        """Return the whole operand as one part."""
        if self._part is None:
            raise ClosedError("this operand is not open; call open() first")
        return self._part

    def parts(self, boxes: Iterable[Extent], memory_bytes: int) -> Iterator[Part]:
        """Yield a part for each box."""
        return (self.whole() for _ in boxes)

    def _as_it_is(self) -> Part | None:
        trans: Trans = self._trans
        if _is_column_major(self._given, self._dtype):
            return Part(0, 0, self._given, trans)
        # The BLAS can use the transpose of a row-major matrix, or transpose that again, but cannot
        # conjugate without a transpose.
        if _is_column_major(self._given.T, self._dtype) and trans != "C":
            return Part(0, 0, self._given.T, "T" if trans == "N" else "N")
        return None

    def _copied(self, call: LongCall) -> Part:
        """Return a column-major copy of op(X)."""
        memory = memoryview(call.arena.allocate(self._given.size * self._dtype.itemsize))
        copy: Matrix = np.ndarray(self.shape, self._dtype, buffer=memory, order="F")
        source = self._given if self._trans == "N" else self._given.T
        np.copyto(copy, source, casting="same_kind")
        if self._trans == "C":
            np.conjugate(copy, out=copy)
        return Part(0, 0, copy, "N")


class DiskOperand:
    """op(X) of an array X on disk. A vector is a matrix of one column.

    Attributes
    ----------
    shape
        Rows and columns of op(X).
    grains
        Units in which the operand is read.
    """

    copy_bytes = 0

    def __init__(self, array: Array, trans: Trans, dtype: np.dtype[Any]) -> None:
        self._array, self._trans = array, simplest(trans, array.dtype)
        rows, columns = (*array.shape, 1)[:2]
        grains = grains_of(array, dtype)
        self.shape = (rows, columns) if trans == "N" else (columns, rows)
        self.grains = grains if trans == "N" else grains.transposed()
        self.stored, self.dtype = array.dtype, dtype
        self._file: ArrayFile | None = None
        self._call: LongCall | None = None

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """Open its files for a call; `number` identifies the operand in the trace."""
        self._file, self._call = open_whole_chunks(self._array, call, bounce_bytes, number), call

    def bytes_read(self) -> int:
        """Bytes read so far."""
        return self.opened()[0].counters()[0]

    def parts(self, boxes: Iterable[Extent], memory_bytes: int) -> Iterator[Part]:
        """Yield a part for each box, which begins with a grain; read ahead within the memory."""
        file, call = self.opened()
        schedule = list(boxes)
        converted = self.converted(schedule, call)
        memory_bytes -= converted.nbytes
        stream = BlockStream(file, self.stored, call.arena, memory_bytes, call.trace)
        stream.extend(map(self.on_disk, schedule))
        return (self.part(box, converted(stream.take().data)) for box in schedule)

    def converted(
        self, schedule: Sequence[Extent], call: LongCall, *, is_shared: bool = False
    ) -> Converted:
        """Return memory for the conversion of boxes.

        If other processes use the memory of a box too, it also serves boxes that `part` changes.
        """
        counts = (self._count(self.on_disk(box)) for box in schedule)
        most = max(counts, default=0) * self.stored.itemsize
        is_changed = is_shared and self.is_by_row and self._trans == "C"
        return Converted(self.stored, self.dtype, most, call, always=is_changed)

    @property
    def is_by_row(self) -> bool:
        """Whether the rows of the array are contiguous."""
        return self._array.ndim == 2 and self._array.order == "C"

    @staticmethod
    def _count(box: Box) -> int:
        return math.prod(s.stop - s.start for s in box)

    def on_disk(self, box: Extent) -> Box:
        """Return the whole grains that hold a box, as array indices; a box begins with a grain."""
        rows, columns = box
        down, across = self.grains.covering(rows.stop - rows.start, columns.stop - columns.start)
        rows = slice(rows.start, rows.start + down)
        columns = slice(columns.start, columns.start + across)
        own = (rows, columns) if self._trans == "N" else (columns, rows)
        return own[: self._array.ndim]

    def requests(self, box: Extent, most_bytes: int) -> list[Box]:
        """Cut ``on_disk(box)`` along its slow dimension into parts of whole grains."""
        whole = self.on_disk(box)
        grain = (self.grains.rows, self.grains.columns)
        grain = grain if self._trans == "N" else grain[::-1]
        slow = 0 if self._array.order == "C" or len(whole) == 1 else 1
        lines = whole[slow].stop - whole[slow].start
        total = self._count(whole) * self.stored.itemsize
        step = max(most_bytes * lines // total // grain[slow], 1) * grain[slow]
        parts = cut(whole[slow].start, whole[slow].stop, step)
        return [(*whole[:slow], part, *whole[slow + 1 :]) for part in parts]

    def array_of(self, box: Extent, memory: memoryview) -> npt.NDArray[Any]:
        """View memory as the elements of ``on_disk(box)``, in the type and order of the disk."""
        whole = self.on_disk(box)
        found = as_read(memory, self._count(whole), self.stored, self.dtype)
        return self._shaped(found, whole)

    def read_part(self, box: Extent, memory: memoryview) -> Part:
        """Return a box that was read into `array_of`'s view as a part, in the arithmetic's type."""
        whole = self.on_disk(box)
        found = convert_in_place(memory, self._count(whole), self.stored, self.dtype)
        return self.part(box, self._shaped(found, whole))

    def _shaped(self, elements: npt.NDArray[Any], whole: Box) -> npt.NDArray[Any]:
        shape = tuple(s.stop - s.start for s in whole)
        return elements.reshape(shape, order="F" if self._array.order == "F" else "C")

    def submit_read(self, first: list[int], target: npt.NDArray[Any]) -> Ticket:
        """Start a read into `target`, from index `first` of the array."""
        return self.opened()[0].submit_read(first, [1] * len(first), target)

    def part(self, box: Extent, data: npt.NDArray[Any]) -> Part:
        """Return the elements of ``on_disk(box)`` as a part. It may change them."""
        rows, columns = box
        if data.ndim == 1 or self._array.order == "F":
            data = data.reshape(-1, 1) if data.ndim == 1 else data
            return Part(rows.start, columns.start, data, self._trans)
        if self._trans == "C":
            np.conjugate(data, out=data)
        return Part(rows.start, columns.start, data.T, "T" if self._trans == "N" else "N")

    def opened(self) -> tuple[ArrayFile, LongCall]:
        """Return its files, and the call for which they are open."""
        if self._file is None or self._call is None:
            raise ClosedError(f"{self._array.path} is not open; call open() first")
        return self._file, self._call


Operand: TypeAlias = MemoryOperand | DiskOperand


def open_whole_chunks(
    array: Array, call: LongCall, bounce_bytes: int, number: int, *, writable: bool = False
) -> ArrayFile:
    """Open an array's files as an array of whole chunks, which extends beyond its edges.

    A box of whole chunks then has no gaps, and has the same layout in memory and on disk.
    """
    if writable:
        array.count_writing()
    extents = zip(array.shape, array.chunks, strict=True)
    shape = tuple(-(-n // chunk) * chunk for n, chunk in extents)
    return ArrayFile(
        array.place.volume, array.place.name,
        dataclasses.replace(array.metadata, shape=shape).grid(),
        writable, call.arena, bounce_bytes, call.trace, number,
    )  # fmt: skip


def _is_column_major(matrix: Matrix, dtype: np.dtype[Any]) -> bool:
    try:
        kernels(dtype).matrix("X", matrix, False)
    except ValueError:
        return False
    return True


def operand(given: Array | npt.NDArray[Any], trans: Trans, dtype: np.dtype[Any]) -> Operand:
    """Make an operand for a call with element type `dtype`."""
    if isinstance(given, Array):
        return DiskOperand(given, trans, dtype)
    return MemoryOperand(given, trans, dtype)


def read_arrays(given: Mapping[str, OperandLike]) -> dict[str, Array | npt.NDArray[Any]]:
    """Open arrays given by their paths, and convert other operands to arrays.

    Raises
    ------
    InvalidError
        If one is neither a matrix nor a vector.
    """
    found: dict[str, Array | npt.NDArray[Any]] = {}
    for name, x in given.items():
        if isinstance(x, str | os.PathLike):
            x = open_array(x)
        found[name] = x if isinstance(x, Array) else array_of(x, f"a matrix as {name}")
        if found[name].ndim not in (1, 2):
            raise InvalidError(f"need a matrix or a vector as {name}, have {found[name].shape}")
    return found


def grains_of(array: Array, dtype: np.dtype[Any]) -> Grains:
    """Return the grains of an array on disk, for arithmetic in `dtype`."""
    computed = 0 if array.dtype == dtype else dtype.itemsize
    return Grains.of(array.chunks, array.order, array.dtype.itemsize, computed)
