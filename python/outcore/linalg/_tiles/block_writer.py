"""Blocks of a result: in memory while they are computed, then written to the disk."""

import contextlib
import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import wait
from outcore.errors import OutcoreError
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import Extent
from outcore.linalg._tiles.pitch import allocate_matrix
from outcore.report.longcall import LongCall


class WholeResult:
    """A result that is entirely in memory."""

    def __init__(self, whole: Matrix) -> None:
        self._whole = whole

    def begin(self, block: Extent) -> Matrix:
        """Return the memory of a block."""
        return self._whole[block]

    def wait_free(self, along: slice) -> None:
        """Wait until the memory of a part of the block is writable."""

    def is_free(self, along: slice) -> bool:
        """Return whether it is writable."""
        return True

    def done(self, edge: int) -> None:
        """Release the block up to an edge: it is final."""

    def advance(self) -> None:
        """Continue to write."""

    def flush(self) -> None:
        """Wait until everything is written."""

    abandon = sync = flush


class _Leaving(NamedTuple):
    """A part of a block to write: its position along the block, on disk, and in memory."""

    along: slice
    start: list[int]
    data: npt.NDArray[Any]


class DiskResult:
    """A result on disk, with one block in memory.

    A block becomes final along one axis, starting at one end. Its chunks are written a few at a
    time, at each `advance`, so that concurrent reads need not wait for all of them.

    Parameters
    ----------
    file
        The file, open as an array of whole chunks.
    block_shape
        Rows, in whole chunks, and columns of a block in memory.
    chunk
        Chunk of a matrix on disk; `None` for a vector.
    axis
        Axis along which blocks become final.
    is_backward
        Whether they become final from the last row to the first.
    steps
        Number of calls of `advance` for the writes of a block.
    """

    def __init__(
        self,
        file: ArrayFile,
        call: LongCall,
        dtype: np.dtype[Any],
        block_shape: tuple[int, int],
        *,
        chunk: tuple[int, int] | None,
        axis: int,
        steps: int,
        is_backward: bool = False,
    ) -> None:
        self._file, self._trace, self._axis = file, call.trace, axis
        self._is_backward = is_backward
        self._is_vector = chunk is None
        self._chunk = chunk or block_shape
        self._memory = allocate_matrix(call.arena, *block_shape, dtype)
        chunks = math.prod(-(-n // c) for n, c in zip(block_shape, self._chunk, strict=True))
        self._pace = -(-chunks // steps)
        self._waiting: deque[_Leaving] = deque()
        self._tickets: deque[tuple[slice, Ticket]] = deque()

    def begin(self, block: Extent) -> Matrix:
        """Return the memory of a block; parts of it may still be in use."""
        self._first = [s.start for s in block]
        self._shape = tuple(s.stop - s.start for s in block)
        self._final = self._shape[self._axis] if self._is_backward else 0
        return self._memory[: self._shape[0], : self._shape[1]]

    def wait_free(self, along: slice) -> None:
        """Wait until no earlier block needs the memory of a part of the block."""
        while any(_meet(part.along, along) for part in self._waiting):
            self._submit()
        left = deque[tuple[slice, Ticket]]()
        while self._tickets:
            where, ticket = self._tickets[0]
            if _meet(where, along):
                wait(ticket, self._trace)
            elif not ticket.done():
                left.append((where, ticket))
            self._tickets.popleft()
        self._tickets = left

    def is_free(self, along: slice) -> bool:
        """Return whether `wait_free` would return at once."""
        if any(_meet(part.along, along) for part in self._waiting):
            return False
        return all(ticket.done() or not _meet(where, along) for where, ticket in self._tickets)

    def done(self, edge: int) -> None:
        """Release the block up to an edge along its axis, or down to it: it is final."""
        rows, columns = self._shape
        unit = 1 if self._is_vector else self._chunk[0]
        # Only whole chunks are queued, except for the last part.
        if self._axis == 0 and self._is_backward:
            edge = min(-(-edge // unit) * unit, self._final)
        elif self._axis == 0 and edge < rows:
            edge = edge // unit * unit
        low, high = sorted((self._final, edge))
        self._final = edge
        if low == high:
            return
        if self._axis == 0:
            self._leave(slice(low, high), slice(0, columns))
        else:
            self._leave(slice(0, rows), slice(low, high))

    def _leave(self, rows: slice, columns: slice) -> None:
        """Queue a part of the block, chunk by chunk."""
        if rows.stop == self._shape[0] and not self._is_vector:
            # Below the last row of the matrix, zeros fill whole chunks.
            padded = -(-rows.stop // self._chunk[0]) * self._chunk[0]
            self._memory[rows.stop : padded, columns] = 0
            rows = slice(rows.start, padded)
        for i in cut(rows.start, rows.stop, self._chunk[0]):
            for j in cut(columns.start, columns.stop, self._chunk[1]):
                start = [self._first[0] + i.start, self._first[1] + j.start]
                data: npt.NDArray[Any] = self._memory[i, j]
                if self._is_vector:
                    start, data = [max(start)], data.reshape(-1)
                self._waiting.append(_Leaving((i, j)[self._axis], start, data))

    def advance(self) -> None:
        """Start some more writes."""
        for _ in range(min(self._pace, len(self._waiting))):
            self._submit()

    def flush(self) -> None:
        """Wait until everything is written."""
        while self._waiting:
            self._submit()
        while self._tickets:
            wait(self._tickets.popleft()[1], self._trace)

    def sync(self) -> None:
        """Wait until all final parts survive power loss."""
        self.flush()
        wait(self._file.submit_sync(), self._trace)

    def abandon(self) -> None:
        """Wait for the writes in flight, and ignore their errors."""
        self._waiting.clear()
        while self._tickets:
            with contextlib.suppress(OutcoreError):
                self._tickets.popleft()[1].wait()

    def _submit(self) -> None:
        part = self._waiting.popleft()
        ticket = self._file.submit_write(part.start, [1] * len(part.start), part.data)
        self._tickets.append((part.along, ticket))


def _meet(a: slice, b: slice) -> bool:
    return bool(a.start < b.stop and b.start < a.stop)
