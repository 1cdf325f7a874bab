"""Sources of matrix rows: an array on disk or in memory, or an iterator.

A source delivers each row once, in order. It can also deliver the columns of a matrix as rows.
"""

import copy
import dataclasses
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore.array.array import Array, open_array
from outcore.errors import InvalidError
from outcore.layout.elements import array_of, computed, refuse_masked
from outcore.layout.slicing import check_extents, is_sliced, part_of
from outcore.linalg._rows.plan import RowLayout
from outcore.linalg._rows.shares import ALONE, Shares, shares_of
from outcore.linalg._tiles.grains import Grains
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.linalg._tiles.result_dtype import work_dtype
from outcore.processes.sharing import Sharing
from outcore.report.longcall import LongCall
from outcore.storage.volumes import PathLike

RowsLike: TypeAlias = Array | PathLike | npt.ArrayLike | Iterable[npt.ArrayLike] | Iterator[Any]

_STRIP_ROWS = 32
"""Rows that are copied at a time, so that transposing misses the cache on neither side."""


class RowSource(ABC):
    """Source of rows, which delivers them from the first to the last.

    Attributes
    ----------
    name
        Name of the matrix in the caller's arguments, for messages.
    layout
        Layout of the matrix, for plans.
    is_vector
        Whether it was given as a vector, which is a matrix of one column.
    can_repeat
        Whether the rows can be read a second time.
    first_column, first_row
        First column and row to read. Rows count from the latter.
    """

    can_repeat = True
    is_vector = False
    first_column = 0
    first_row = 0

    def __init__(self, name: str, layout: RowLayout) -> None:
        self.name, self.layout = name, layout

    @property
    def rows(self) -> int | None:
        """Number of rows; `None` if unknown before the end."""
        return self.layout.rows

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.layout.columns

    def deliver(self, dtype: np.dtype[Any]) -> None:
        """Convert elements that are not on disk to this type."""
        if not self.layout.is_stored:
            self.layout = dataclasses.replace(self.layout, dtype=dtype)

    def narrowed(self, first: int, end: int) -> "RowSource":
        """Return a source of the same rows, with their columns `first` to ``end - 1`` only."""
        part = copy.copy(self)
        part.layout = self.layout.narrowed(first, end)
        part.first_column = first - part.layout.skip
        return part

    def part(self, rows: slice) -> "RowSource":
        """Return a source of some rows only, from a whole grain to another, or to the end."""
        part = copy.copy(self)
        part.layout = dataclasses.replace(self.layout, rows=rows.stop - rows.start)
        part.first_row = self.first_row + rows.start
        return part

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """Prepare for a call; `number` is the source's number in the trace."""

    @abstractmethod
    def fetch(self, first: int, target: Matrix) -> tuple[int, Ticket | None]:
        """Start to fill `target` with the rows from `first`; return their number.

        Fewer rows than the height of `target` are the last ones.
        """

    def bytes_read(self) -> int:
        """Bytes read from disk so far."""
        return 0


class StoredRows(RowSource):
    """Rows, or columns, of an array on disk."""

    def __init__(self, name: str, array: Array, *, transposed: bool = False) -> None:
        rows, columns = (*array.shape, 1)[:2]
        chunks = (*array.chunks, 1)[:2]
        # A chunk of a single column is contiguous in either order, and can be read in parts.
        by_row = array.order == "C" or chunks[1] == 1
        grains = Grains.of(chunks, "C" if by_row else "F", array.dtype.itemsize)
        layout = RowLayout(rows, columns, array.dtype, by_row, grains)
        super().__init__(name, layout.transposed() if transposed else layout)
        self.array, self._transposed = array, transposed
        self.is_vector = array.ndim == 1
        self._file: ArrayFile | None = None

    def open(self, call: LongCall, bounce_bytes: int, number: int) -> None:
        """See `RowSource`."""
        self._file = open_whole_chunks(self.array, call, bounce_bytes, number)

    def fetch(self, first: int, target: Matrix) -> tuple[int, Ticket | None]:
        """See `RowSource`. The read covers all grains that contain elements of the matrix."""
        assert self._file is not None, "open comes first"
        assert self.rows is not None, "an array has a shape"
        count = min(len(target), self.rows - first)
        if count <= 0:
            return 0, None
        first += self.first_row
        box = target[: self.layout.grains.covering(count, 1)[0]]
        start = [self.first_column, first] if self._transposed else [first, self.first_column]
        box = box.T if self._transposed else box
        if self.array.ndim == 1:
            start, box = [first], box.reshape(-1)
        return count, self._file.submit_read(start, [1] * len(start), box)

    def bytes_read(self) -> int:
        """See `RowSource`."""
        return self._file.counters()[0] if self._file else 0


class SlicedRows(RowSource):
    """Rows of a NumPy array, a memmap, or another object with a shape, a type and slicing."""

    def __init__(self, name: str, array: Any, *, transposed: bool = False) -> None:
        rows, columns = (*array.shape, 1)[:2]
        by_row = not getattr(getattr(array, "flags", None), "f_contiguous", False)
        if transposed:
            rows, columns, by_row = columns, rows, not by_row
        super().__init__(name, RowLayout(int(rows), int(columns), np.dtype(array.dtype), by_row))
        self._array, self._transposed = array, transposed
        self._all_columns = self.columns
        self.is_vector = len(array.shape) == 1

    def fetch(self, first: int, target: Matrix) -> tuple[int, Ticket | None]:
        """See `RowSource`."""
        assert self.rows is not None, "an array has a shape"
        count = max(min(len(target), self.rows - first), 0)
        if count:
            first += self.first_row
            rows = slice(first, first + count)
            part = part_of(self._array, self._box(rows), self.name)
            part = part.reshape(count, -1) if part.ndim == 1 else part
            part = part.T if self._transposed else part
            if part.shape != (count, self.columns):
                raise InvalidError(
                    f"need rows of shape {(count, self.columns)} from {self.name}, have "
                    f"{part.shape}; its shape and its slicing must agree"
                )
            copy_rows(part, target[:count], self.name, first)
        return count, None

    def _box(self, rows: slice) -> Any:
        # Some objects accept a single index only, so a second one is used only if necessary.
        if self.columns == self._all_columns and not self._transposed:
            return rows
        columns = slice(self.first_column, self.first_column + self.columns)
        return (columns, rows) if self._transposed else (rows, columns)


class IteratedRows(RowSource):
    """Rows from an iterator of blocks of any heights, whose number is unknown before the end.

    A block of one dimension is a row; with `is_column` it is a part of a single column.
    """

    can_repeat = False

    def __init__(
        self,
        name: str,
        blocks: Iterator[npt.ArrayLike],
        *,
        is_column: bool = False,
        transposed: bool = False,
    ) -> None:
        self.name, self._blocks = name, blocks
        self._is_column, self._transposed = is_column, transposed
        self._rest: Matrix = np.empty((0, 0))
        self._columns: int | None = None
        if not self._refill(0):
            raise InvalidError(f"the iterator {name} has no rows; has it been used before?")
        self._columns = self._rest.shape[1]
        super().__init__(name, RowLayout(None, self._columns, self._rest.dtype, True))
        self._given = work_dtype(name, self._rest.dtype)

    def fetch(self, first: int, target: Matrix) -> tuple[int, Ticket | None]:
        """See `RowSource`."""
        filled = 0
        while filled < len(target) and (len(self._rest) or self._refill(first + filled)):
            count = min(len(target) - filled, len(self._rest))
            copy_rows(
                self._rest[:count], target[filled : filled + count], self.name, first + filled
            )
            self._rest = self._rest[count:]
            filled += count
        return filled, None

    def _refill(self, first: int) -> bool:
        """Fetch the next block that has rows."""
        for given in self._blocks:
            block = array_of(given, f"a block of rows from the iterator {self.name}")
            if block.ndim == 1:
                self.is_vector = True
                block = block[:, None] if self._is_column or self._transposed else block[None]
            if block.ndim == 2 and self._transposed:
                block = block.T
            if block.ndim != 2 or (self._columns is not None and block.shape[1] != self._columns):
                width = "n" if self._columns is None else str(self._columns)
                wanted = f"({width}, columns)" if self._transposed else f"(rows, {width})"
                raise InvalidError(
                    f"need blocks of shape {wanted} from the iterator {self.name}, have one of "
                    f"{np.shape(given)} after {first} {'columns' if self._transposed else 'rows'}"
                )
            if len(block):
                self._refuse_wider(block, first)
                self._rest = block
                return True
        return False

    def _refuse_wider(self, block: npt.NDArray[Any], first: int) -> None:
        """Refuse a block that would have to be rounded to the type of the first one."""
        if self._columns is None or block.dtype.kind not in "fc":
            return
        dtype = np.result_type(self._given, self.layout.dtype)
        if np.result_type(work_dtype(self.name, block.dtype), dtype) != dtype:
            raise _other_type(self.name, dtype, block.dtype, first)


def paired_rows(pairs: Iterator[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
    """Split an iterator of (block of A, block of b) into two, which advance together."""
    waiting: tuple[deque[Any], deque[Any]] = deque(), deque()

    def side(number: int) -> Iterator[Any]:
        while True:
            if not waiting[number]:
                for pair in pairs:
                    if not isinstance(pair, tuple) or len(pair) != 2:
                        raise InvalidError(
                            "without b, the iterator must give pairs (block of A, block of b); "
                            "or give b"
                        )
                    if len(np.atleast_2d(pair[0])) != len(np.atleast_1d(pair[1])):
                        raise InvalidError(
                            f"a block of A of shape {np.shape(pair[0])} and a block of b of shape "
                            f"{np.shape(pair[1])} differ in rows"
                        )
                    for queue, block in zip(waiting, pair, strict=True):
                        queue.append(block)
                    break
                else:
                    return
            yield waiting[number].popleft()

    return side(0), side(1)


def row_source(
    name: str,
    given: RowsLike,
    *,
    is_column: bool = False,
    transposed: bool = False,
) -> RowSource:
    """Return the source for a matrix.

    Parameters
    ----------
    name
        Name of the matrix in the caller's arguments.
    given
        An array on disk or its path, a NumPy array or memmap, an object with shape, dtype and
        slicing, or an iterator of blocks of rows.
    is_column
        Whether a block of one dimension from an iterator is a part of a column.
    transposed
        Whether to deliver the columns of the matrix as rows.

    Raises
    ------
    InvalidError
        If it is none of these, or not a matrix (a vector is a matrix of one column).
    """
    if isinstance(given, str | os.PathLike):
        given = open_array(given)
    found: Any = given
    if not isinstance(given, Array) and not is_sliced(given):
        if _is_iterated(given):
            return IteratedRows(name, iter(given), is_column=is_column, transposed=transposed)
        found = computed(given)
    refuse_masked(found)
    if not isinstance(found, Array) and not is_sliced(found):
        try:
            found = np.asarray(found)
        except (ValueError, TypeError) as error:
            raise InvalidError(
                f"{name} is no matrix ({error}); for blocks of rows pass an iterator, iter(blocks)"
            ) from None
    check_extents(found, name)
    shape: tuple[int, ...] = tuple(found.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise InvalidError(
            f"need a matrix of at least one row and column as {name}, have {shape}; numpy.linalg "
            "takes empty ones"
        )
    kind = StoredRows if isinstance(found, Array) else SlicedRows
    return kind(name, found, transposed=transposed)


def _is_iterated(given: Any) -> TypeGuard[Iterable[Any]]:
    """Whether the object yields blocks; an array, or a table of pandas, does not."""
    is_array = hasattr(given, "__array__") or (hasattr(given, "shape") and hasattr(given, "ndim"))
    return isinstance(given, Iterable) and not isinstance(given, list | tuple) and not is_array


def own_rows(
    sources: Sequence[RowSource], sharing: Sharing, least: int = 1
) -> tuple[Shares, list[RowSource]]:
    """Divide rows that are read side by side between the processes of a call.

    Returns the rows of each, and the sources of those of this process. For `least` see
    `outcore.linalg._rows.shares.shares_of`.
    """
    if sharing.size == 1:
        return ALONE, list(sources)
    layouts = [source.layout for source in sources]
    shares = shares_of(layouts, sharing.size, sharing.rank, least)
    return shares, [source.part(shares.own) for source in sources]


def known_operands(
    given: Mapping[str, tuple[RowSource, object]],
) -> dict[str, Array | npt.NDArray[Any]]:
    """Return the operands that a later call can recognize; none unless all are recognizable.

    Parameters
    ----------
    given
        Source and original argument of each operand. The rows of an iterator are unknown in
        advance. Those of a memmap, or of another sliced object, may change without a trace.
    """
    known: dict[str, Array | npt.NDArray[Any]] = {}
    for name, (source, array) in given.items():
        if isinstance(source, StoredRows):
            known[name] = source.array
        elif isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
            known[name] = array
        else:
            return {}
    return known


def copy_rows(source: npt.NDArray[Any], target: Matrix, name: str, first: int) -> None:
    """Copy and convert rows; `first` is the number of the first one."""
    if not np.can_cast(source.dtype, target.dtype, "same_kind"):
        raise _other_type(name, target.dtype, source.dtype, first)
    for i in range(0, len(source), _STRIP_ROWS):
        target[i : i + _STRIP_ROWS] = source[i : i + _STRIP_ROWS]


def _other_type(name: str, need: np.dtype[Any], have: np.dtype[Any], first: int) -> InvalidError:
    return InvalidError(
        f"need elements of {need} from {name}, have {have} from row {first} on; make all blocks of "
        "one type"
    )
