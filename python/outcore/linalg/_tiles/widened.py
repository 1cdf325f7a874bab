"""Conversion of elements whose type on disk differs from that of the arithmetic.

A block from a stream is converted into separate memory (`Converted`). A factorization reads
directly into its working memory, and has none to spare; there elements are widened in place
(`WidenedFile`). Neither ever has a copy of the whole matrix.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.streams import Pending
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

_AT_ONCE = 64 << 10
"""Number of elements widened at once; NumPy copies them first, because both types overlap."""


class Converted:
    """Memory for one block in the type of the arithmetic, if that differs.

    Parameters
    ----------
    stored, dtype
        Type on disk, and type of the arithmetic.
    block_bytes
        Bytes of the largest block, in the stored type.
    call
        The call whose arena supplies the memory.
    always
        Whether to copy blocks of equal types, too.

    Attributes
    ----------
    nbytes
        Bytes of the memory.
    """

    def __init__(
        self,
        stored: np.dtype[Any],
        dtype: np.dtype[Any],
        block_bytes: int,
        call: LongCall,
        *,
        always: bool = False,
    ) -> None:
        self._room = None
        self.nbytes = converted_bytes(stored, dtype, block_bytes) or always * pages(block_bytes)
        if self.nbytes:
            room = call.arena.allocate(self.nbytes)
            self._room = np.frombuffer(memoryview(room), dtype)

    def __call__(self, data: Matrix) -> Matrix:
        """Convert a block; the result is valid until the next call."""
        if self._room is None:
            return data
        # A part of a chunk has gaps, so its flags do not show the order.
        is_by_row = data.ndim == 2 and data.strides[1] < data.strides[0]
        room: Matrix = self._room[: data.size].reshape(data.shape, order="C" if is_by_row else "F")
        # Elements beyond the range of the type become infinite, as in a matrix of that type.
        with np.errstate(over="ignore"):
            room[...] = data
        return room


def converted_bytes(stored: np.dtype[Any], dtype: np.dtype[Any], block_bytes: int) -> int:
    """Return the memory for a block in another type; 0 if the types are equal."""
    if dtype == stored:
        return 0
    return pages(-(-block_bytes // stored.itemsize) * dtype.itemsize)


def as_read(
    memory: memoryview, count: int, stored: np.dtype[Any], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the target for reading elements that `convert_in_place` converts afterwards."""
    ahead = count * max(dtype.itemsize - stored.itemsize, 0)
    return np.frombuffer(memory, stored, count, ahead)


def convert_in_place(
    memory: memoryview, count: int, stored: np.dtype[Any], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Convert elements at the place of `as_read`, and move them to the start of the memory."""
    read, found = as_read(memory, count, stored, dtype), np.frombuffer(memory, dtype, count)
    if stored != dtype:
        with np.errstate(over="ignore"):
            for at in range(0, count, _AT_ONCE):
                found[at : at + _AT_ONCE] = read[at : at + _AT_ONCE]
    return found


class MatrixFile(Protocol):
    """The file of a matrix that is factored."""

    def submit_read(
        self, start: Sequence[int], step: Sequence[int], target: npt.NDArray[Any]
    ) -> Pending:
        """Start to read a box."""

    def submit_read_rows(
        self, rows: npt.NDArray[np.int64], first_column: int, target: npt.NDArray[Any]
    ) -> Pending:
        """Start to read a list of rows."""

    def counters(self) -> tuple[int, int, int, int]:
        """Return bytes read, bytes written, read requests, write requests."""

    @property
    def read_granularity(self) -> tuple[int, int]:
        """Granularity of the disk's reads."""


def widened_file(file: ArrayFile, stored: np.dtype[Any], dtype: np.dtype[Any]) -> MatrixFile:
    """Return a file that delivers its elements in a type that is at least as wide."""
    return file if stored == dtype else WidenedFile(file, stored)


class WidenedFile:
    """A file whose elements are widened in the memory that they are read into.

    The elements of a line are read into the end of its memory, and widened from the first one. So
    each is read before another one overwrites it, and no extra memory is needed.
    """

    def __init__(self, file: ArrayFile, stored: np.dtype[Any]) -> None:
        self._file, self._stored = file, stored

    def submit_read(
        self, start: Sequence[int], step: Sequence[int], target: npt.NDArray[Any]
    ) -> Pending:
        """See `MatrixFile`. One dimension of a target is contiguous."""
        lines, ends, is_turned = _ends_of(target, self._stored)
        to = ends[0] if target.ndim == 1 else ends.T if is_turned else ends
        return _Widening(self._file.submit_read(start, step, to), lines, ends)

    def submit_read_rows(
        self, rows: npt.NDArray[np.int64], first_column: int, target: npt.NDArray[Any]
    ) -> Pending:
        """See `MatrixFile`."""
        lines, ends, is_turned = _ends_of(target, self._stored)
        to = ends.T if is_turned else ends
        return _Widening(self._file.submit_read_rows(rows, first_column, to), lines, ends)

    def counters(self) -> tuple[int, int, int, int]:
        """See `MatrixFile`."""
        return self._file.counters()

    @property
    def read_granularity(self) -> tuple[int, int]:
        """See `MatrixFile`."""
        return self._file.read_granularity


def _ends_of(target: npt.NDArray[Any], stored: np.dtype[Any]) -> tuple[Matrix, Matrix, bool]:
    """Return the lines of a target as rows, the end of each, and whether they are columns."""
    lines = target.reshape(1, -1) if target.ndim == 1 else target
    # The stride of a single element has no meaning.
    along, across = lines.strides[::-1]
    is_turned = along != lines.itemsize if lines.shape[1] > 1 else across == lines.itemsize
    lines = lines.T if is_turned else lines
    length = lines.shape[1]
    return lines, lines.view(stored)[:, lines.view(stored).shape[1] - length :], is_turned


class _Widening:
    """A pending read, whose elements are widened when the caller waits for it."""

    def __init__(self, ticket: Pending, lines: Matrix, ends: Matrix) -> None:
        self._ticket, self._lines, self._ends, self._is_due = ticket, lines, ends, True

    def done(self) -> bool:
        """Whether they have been read."""
        return self._ticket.done()

    def wait(self) -> None:
        """Wait for the read, and widen the elements."""
        self._ticket.wait()
        if self._is_due:
            self._is_due = False
            _widen(self._lines, self._ends)


def _widen(lines: Matrix, ends: Matrix) -> None:
    count, length = lines.shape
    together = max(_AT_ONCE // max(length, 1), 1)
    for line in range(0, count, together):
        some = slice(line, line + together)
        for at in range(0, length, _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            lines[some, part] = ends[some, part]
