"""Transfers of right-hand sides and solutions on disk by columns, within a call's budget."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import Box, wait
from outcore.array.array import Array
from outcore.errors import BudgetError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall
from outcore.report.report import RIGHT_HAND_SIDES, SOLUTIONS

T = TypeVar("T")

TRANSFER_BYTES = (64 << 10, 16 << 20)
"""Least and most memory per array for data whose layout on disk differs from memory."""


@dataclass(frozen=True)
class ColumnRoom:
    """Memory that columns of right-hand sides and solutions take from a budget.

    Attributes
    ----------
    column_bytes
        Memory of each right-hand side; 0 if all of them belong to the caller.
    transfer_bytes
        Memory for the transfers of each array on disk.
    stage_bytes
        Memory for conversions; 0 without conversions.
    arrays
        Number of arrays on disk.
    """

    column_bytes: int
    transfer_bytes: int
    stage_bytes: int
    arrays: int

    @classmethod
    def of(cls, rhs: RightHandSide, memory_bytes: int, also: Sequence[Any] = ()) -> "ColumnRoom":
        """Return the memory for a right-hand side, its solution, and arrays `also` read."""
        reads = [array for array in (rhs.b, *also) if isinstance(array, Array)]
        writes = rhs.out is not None
        least, most = TRANSFER_BYTES
        transfer = pages(min(max(memory_bytes // 32, least), most))
        converts = any(rhs.is_split or array.dtype != rhs.dtype for array in reads) or (
            writes and rhs.is_split
        )
        return cls(
            column_bytes=rhs.height * rhs.parts * rhs.dtype.itemsize if reads or writes else 0,
            transfer_bytes=transfer,
            stage_bytes=transfer if converts else 0,
            arrays=len(reads) + writes,
        )

    @property
    def beside_bytes(self) -> int:
        """Memory beside the columns themselves."""
        # Columns begin on a page.
        rounding = SLOT_ALIGN_BYTES if self.column_bytes else 0
        return self.arrays * self.transfer_bytes + self.stage_bytes + rounding


def fitted(
    rhs: RightHandSide,
    memory_bytes: int,
    cut: Callable[[ColumnRoom], T],
    also: Sequence[Any] = (),
) -> tuple[ColumnRoom, T]:
    """Divide a budget with generous memory for transfers or, if that does not fit, with the least.

    Raises
    ------
    BudgetError
        If `cut` raises it even with the least memory for transfers.
    """
    room = ColumnRoom.of(rhs, memory_bytes, also)
    try:
        return room, cut(room)
    except BudgetError:
        room = ColumnRoom.of(rhs, 0, also)
        return room, cut(room)


class Columns:
    """Moves columns between arrays of the shape of b and the memory of a call.

    Attributes
    ----------
    asked
        Bytes requested to be read and written. Disks move slightly more if requests are not
        aligned.
    """

    def __init__(self, rhs: RightHandSide, call: LongCall, room: ColumnRoom) -> None:
        self._rhs, self._call, self._room = rhs, call, room
        self._stage = memoryview(
            call.arena.allocate(room.stage_bytes) if room.stage_bytes else bytearray()
        )
        self._files: dict[int, ArrayFile] = {}
        self.asked = (0, 0)

    def load(
        self,
        array: Any,
        columns: slice,
        X: Matrix,
        number: int | None = None,
        *,
        writable: bool = False,
    ) -> None:
        """Read columns of b, or of its solution, into X in the factors' type.

        `number` identifies another array in the trace. An array to which `store` writes later must
        be `writable`.
        """
        rhs = self._rhs
        if not isinstance(array, Array):
            rhs.load(array, columns, X)
            return
        if number is None:
            number = RIGHT_HAND_SIDES if array is rhs.b else SOLUTIONS
        file = self._open(array, number, writable=writable)
        self.asked = self.asked[0] + _bytes(array, columns), self.asked[1]
        converts = rhs.is_split or array.dtype != rhs.dtype
        for box in self._boxes(array, columns, is_cut=converts or array.metadata.growing):
            rows, here = box[0], _within(box, columns)
            if converts:
                part = self._staged(array.dtype, box)
                self._wait(file.submit_read(_start(box), _steps(box), part))
                rhs.convert(part.reshape(len(part), -1), X[rows], here)
            else:
                part = X[rows, here]
                self._wait(file.submit_read(_start(box), _steps(box), _as_vector(part, array.ndim)))

    def store(self, x: Any, columns: slice, X: Matrix) -> None:
        """Write columns of a solution from X, in the layout of `load`."""
        rhs = self._rhs
        if not isinstance(x, Array):
            rhs.store(X, x, columns)
            return
        file = self._open(x, SOLUTIONS, writable=True)
        self.asked = self.asked[0], self.asked[1] + _bytes(x, columns)
        for box in self._boxes(x, columns, is_cut=rhs.is_split):
            rows, here = box[0], _within(box, columns)
            if rhs.is_split:
                part = self._staged(x.dtype, box)
                half = X.shape[1] // 2
                joined = part.reshape(len(part), -1)
                joined.real = X[rows, here]
                joined.imag = X[rows, here.start + half : here.stop + half]
            else:
                part = _as_vector(X[rows, here], x.ndim)
            self._wait(file.submit_write(_start(box), _steps(box), part))

    def sync(self) -> None:
        """Return once the stored columns would survive power loss."""
        if SOLUTIONS in self._files:
            self._wait(self._files[SOLUTIONS].submit_sync())

    def counters(self) -> tuple[int, int]:
        """Bytes read and written."""
        found = [file.counters() for file in self._files.values()]
        return sum(c[0] for c in found), sum(c[1] for c in found)

    def _open(self, array: Array, number: int, *, writable: bool) -> ArrayFile:
        if number not in self._files:
            self._files[number] = array.open_file(
                self._call.arena, self._room.transfer_bytes, writable=writable,
                trace=self._call.trace, trace_number=number,
            )  # fmt: skip
        return self._files[number]

    def _boxes(self, array: Array, columns: slice, *, is_cut: bool) -> Iterator[Box]:
        """Cut columns of an array into boxes, one per request."""
        whole = (slice(0, array.shape[0]), columns)[: array.ndim]
        if not is_cut:
            yield whole
            return
        for box in array.small_boxes(self._room.stage_bytes or self._room.transfer_bytes):
            if array.ndim == 1:
                yield box
                continue
            first, end = max(box[1].start, columns.start), min(box[1].stop, columns.stop)
            if first < end:
                yield box[0], slice(first, end)

    def _staged(self, dtype: np.dtype[Any], box: Box) -> npt.NDArray[Any]:
        shape = tuple(s.stop - s.start for s in box)
        return np.ndarray(shape, dtype, buffer=self._stage, order="F")

    def _wait(self, ticket: Ticket) -> None:
        wait(ticket, self._call.trace)


def _bytes(array: Array, columns: slice) -> int:
    count: int = columns.stop - columns.start
    return array.shape[0] * count * array.dtype.itemsize


def _start(box: Box) -> list[int]:
    return [s.start for s in box]


def _steps(box: Box) -> list[int]:
    return [1] * len(box)


def _within(box: Box, columns: slice) -> slice:
    """Columns of a box, counted from the first requested one; a vector is one column."""
    if len(box) == 1:
        return slice(0, 1)
    return slice(box[1].start - columns.start, box[1].stop - columns.start)


def _as_vector(part: Matrix, ndim: int) -> npt.NDArray[Any]:
    return part[:, 0] if ndim == 1 else part
