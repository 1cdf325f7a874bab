"""Streams of blocks of rows, read ahead of their use, each row once."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import Ticket, Trace, column_extremes
from outcore._util.streams import Pending, wait
from outcore.errors import InvalidError, NonFiniteError, OutcoreError
from outcore.layout.elements import array_of
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.source import RowSource, copy_rows
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

Transform: TypeAlias = Callable[[npt.NDArray[Any]], npt.ArrayLike]


class RowBlock(NamedTuple):
    """Rows from `first`. The caller may change them; their memory is reused for later rows.

    ``whole`` is the complete memory, which the rows of the last block may not fill.
    """

    first: int
    data: Matrix
    whole: Matrix


class _Reading(NamedTuple):
    first: int
    rows: int
    buffer: Matrix
    ticket: Ticket | None


class _Free(NamedTuple):
    """Memory of a block, which may still be in use, or in a pending write."""

    memory: Matrix
    leaving: Pending | None = None

    def taken(self, trace: Trace) -> Matrix:
        """Return the memory after all its users have finished."""
        if isinstance(self.leaving, Ticket):
            wait(self.leaving, trace)
        elif self.leaving is not None:
            # While it waits for a step of a crew, this thread works: that is no waiting for the
            # disk.
            self.leaving.wait()
        return self.memory


class RowStream:
    """Blocks of rows in order: ``for first, data in stream``.

    Parameters
    ----------
    source
        Source of the rows.
    plan
        Heights of the blocks, and buffers, which come from the call's arena.
    call
        The call.
    number
        Number of the source in the trace.
    transform
        Called with each block as it was read; returns the same number of rows.
    first
        A row of the first block. Blocks are cut as if it were 0.
    """

    def __init__(
        self,
        source: RowSource,
        plan: RowPlan,
        call: LongCall,
        number: int = 0,
        transform: Transform | None = None,
        first: int = 0,
    ) -> None:
        layout = plan.layout
        self.source, self._plan, self._trace, self._transform = source, plan, call.trace, transform
        source.open(call, plan.bounce_bytes, number)
        shape = (plan.height, layout.width)
        self._free = deque(
            _Free(allocated(call, shape, layout.dtype, plan.read_order))
            for _ in range(plan.buffers)
        )
        copied = (plan.height, layout.columns)
        self._copies = deque(
            _Free(allocated(call, copied, plan.dtype, plan.order)) for _ in range(plan.copies)
        )
        self._reading: deque[_Reading] = deque()
        self._next, self._at_end = first // plan.height * plan.height, first == source.rows
        self._leaving: Pending | None = None

    def __iter__(self) -> Iterator[RowBlock]:
        while True:
            self._read_ahead()
            if not self._reading:
                return
            first, rows, buffer, ticket = self._reading.popleft()
            if ticket is not None:
                wait(ticket, self._trace)
            skip = self.source.layout.skip
            whole = buffer[:, skip : skip + self.source.columns]
            mine = self._free
            if self._copies:
                mine, used = self._copies, buffer
                whole = buffer = self._converted(first, whole[:rows])
                # The memory of the read is free while its copy is in use.
                self._free.append(_Free(used))
                if self._plan.layout.is_stored:
                    self._read_ahead()
            self._leaving = None
            yield RowBlock(first, whole[:rows], whole)
            mine.append(_Free(buffer, self._leaving))

    def leave(self, pending: Pending) -> None:
        """Reserve the memory of the current block until `pending` has ended."""
        self._leaving = pending

    def abandon(self) -> None:
        """Wait for requests in flight, so that their memory can be freed."""
        tickets: list[Pending | None] = [free.leaving for free in (*self._free, *self._copies)]
        tickets += [self._leaving, *(reading.ticket for reading in self._reading)]
        for ticket in tickets:
            if ticket is not None:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()

    def _read_ahead(self) -> None:
        # Sources without background reads are read only when a block is needed.
        most = len(self._free) if self._plan.layout.is_stored else 1 - len(self._reading)
        for _ in range(most):
            leaving = self._free[0].leaving
            if self._at_end or (self._reading and leaving is not None and not leaving.done()):
                return
            buffer = self._free.popleft().taken(self._trace)
            count, ticket = self.source.fetch(self._next, buffer)
            if count:
                self._reading.append(_Reading(self._next, count, buffer, ticket))
            else:
                self._free.append(_Free(buffer))
            self._next += count
            self._at_end = count < len(buffer) or self._next == self.source.rows

    def _converted(self, first: int, data: Matrix) -> Matrix:
        rows: npt.NDArray[Any] = data
        if self._transform is not None:
            rows = array_of(self._transform(data), "an array from transform")
            if rows.shape != data.shape:
                raise InvalidError(
                    f"transform made {rows.shape} of a block of {data.shape}; "
                    "it must keep the shape"
                )
        target = self._copies.popleft().taken(self._trace)
        copy_rows(rows, target[: len(data)], self.source.name, first)
        return target


@contextmanager
def streams(
    sources: Sequence[RowSource],
    plans: Sequence[RowPlan],
    call: LongCall,
    transform: Transform | None = None,
    first: int = 0,
    number: int = 0,
) -> Iterator[list[RowStream]]:
    """Open streams over sources, from a row; at the end no request is in flight.

    `number` is the number of the first source in the trace.
    """
    opened: list[RowStream] = []
    try:
        for i, (source, plan) in enumerate(zip(sources, plans, strict=True), number):
            opened.append(RowStream(source, plan, call, i, transform, first))
        yield opened
    finally:
        for stream in opened:
            stream.abandon()


def side_by_side(opened: Sequence[RowStream], first: int = 0) -> Iterator[tuple[int, list[Matrix]]]:
    """Yield blocks of equal heights from several streams: (first row, a block of each).

    `first` is the row to begin with; earlier rows of the streams are skipped.

    Raises
    ------
    InvalidError
        If one stream has more rows than another.
    """
    iterators = [iter(stream) for stream in opened]
    blocks: list[Matrix | None] = [None] * len(opened)
    while True:
        for i, iterator in enumerate(iterators):
            if blocks[i] is None:
                block = next(iterator, None)
                blocks[i] = None if block is None else block.data[max(first - block.first, 0) :]
        here = [block for block in blocks if block is not None]
        if not here:
            return
        if len(here) < len(blocks):
            names = [
                (stream.source.name, block is None)
                for stream, block in zip(opened, blocks, strict=True)
            ]
            ended = next(name for name, at_end in names if at_end)
            more = next(name for name, at_end in names if not at_end)
            raise InvalidError(f"{ended} ends after {first} rows, {more} has more; give as many")
        count = min(len(block) for block in here)
        yield first, [block[:count] for block in here]
        blocks = [block[count:] if len(block) > count else None for block in here]
        first += count


def leave(opened: Sequence[RowStream], pending: Pending | None) -> None:
    """Reserve the memory of the current blocks until `pending` has ended."""
    if pending is not None:
        for stream in opened:
            stream.leave(pending)


def allocated(
    call: LongCall, shape: tuple[int, int], dtype: np.dtype[Any], order: str = "F"
) -> Matrix:
    """Allocate whole pages for a matrix from the call's arena, uninitialized."""
    if 0 in shape:
        return np.empty(shape, dtype, order="F")
    memory = memoryview(call.arena.allocate(pages(shape[0] * shape[1] * dtype.itemsize)))
    matrix: Matrix = np.ndarray(shape, dtype, buffer=memory, order="F" if order == "F" else "C")
    return matrix


def refuse_overflow(found: Matrix) -> None:
    """Refuse a column-major result that is not finite, computed from finite operands.

    Raises
    ------
    InvalidError
        If it is not finite.
    """
    # A fast test of sums, which may overflow themselves.
    if np.isfinite(column_extremes(found, False)[0]):
        return
    if not all(np.isfinite(found[:, j]).all() for j in range(found.shape[1])):
        raise InvalidError(f"numbers as large as those of A overflow {found.dtype}; scale it")


def check_finite(
    name: str, first: int, block: Matrix, first_column: int = 0, *, transposed: bool = False
) -> None:
    """Refuse rows with a NaN or an infinity; name the first such row.

    Parameters
    ----------
    name, first, block, first_column
        Name of the matrix; a block of it, and the indices of its first row and column.
    transposed
        Whether the rows are columns of the matrix.

    Raises
    ------
    NonFiniteError
        With the index of the element.
    """
    # A fast test of sums of absolute values, along the contiguous side.
    by_column = block if block.strides[0] == block.itemsize else block.T
    if np.isfinite(column_extremes(by_column, False)[0]):
        return
    for i, row in enumerate(block):
        bad = np.flatnonzero(~np.isfinite(row))
        if len(bad):
            at = (first + i, first_column + int(bad[0]))
            at = at[::-1] if transposed else at
            raise NonFiniteError(
                f"{name}[{at[0]}, {at[1]}] is {row[bad[0]]}; every element must be finite: "
                "correct it, or look for an error in the data",
                at,
            )
