"""Blocks that are read ahead of their use, or written behind the caller."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Stream, Ticket, Trace
from outcore.errors import OutcoreError

T = TypeVar("T")

Box: TypeAlias = tuple[slice, ...]


class Block(NamedTuple):
    """A block of a stream: its box in the array, and its elements."""

    index: Box  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a block
    data: npt.NDArray[Any]


class Pending(Protocol):
    """Work in the background: a ticket of the disk, or a step of a crew."""

    def done(self) -> bool:
        """Whether the work has ended."""

    def wait(self) -> object:
        """Wait for the end of the work; raise its exception."""


def place_in(part: Box, box: Box) -> Box:
    """Return the place of a part inside its box."""
    return tuple(slice(p.start - b.start, p.stop - b.start) for p, b in zip(part, box, strict=True))


def wait(ticket: Pending, trace: Trace | None = None) -> None:
    """Wait for work in the background, and record the waiting time."""
    if trace is None or ticket.done():
        ticket.wait()
        return
    start = trace.now_ns()
    ticket.wait()
    trace.record("wait", start)


def timed(items: Iterable[T], trace: Trace) -> Iterator[T]:
    """Yield the items, and record the time that the caller spends on each."""
    for item in items:
        start_ns = trace.now_ns()
        yield item
        # Its memory is free for the next item.
        del item
        trace.record("compute", start_ns)


def polled(items: Iterable[T], poll: Callable[[], None]) -> Iterator[T]:
    """Yield the items, and call `poll` before each."""
    for item in items:
        poll()
        yield item
        del item


def kept(items: Iterable[T], held: list[T], poll: Callable[[], None]) -> Iterator[T]:
    """Yield the items like `polled`, and append them to `held` for later use."""
    for item in polled(items, poll):
        held.append(item)
        yield item


class BlockStream:
    """Blocks of an array in a known order: ``for block in stream``.

    The stream reads the next blocks ahead, as far as `memory_bytes` allows. The memory of a block
    is free again when its last view dies. If the caller keeps too many blocks, the next step raises
    `BudgetError`. For blocks of different sizes, `least_bytes` (the largest size) lets the same
    memory serve them all.
    """

    def __init__(
        self,
        file: ArrayFile,
        dtype: np.dtype[Any],
        arena: Arena,
        memory_bytes: int,
        trace: Trace | None = None,
        *,
        least_bytes: int = 0,
    ) -> None:
        self.file = file
        self._stream = Stream(file, arena, memory_bytes, least_bytes)
        self._dtype = dtype
        self._trace = trace

    def untimed(self) -> Self:
        """Return this stream, whose caller records the waits itself."""
        self._trace = None
        return self

    def extend(self, schedule: Iterable[Box]) -> None:
        """Add blocks, each a tuple of slices without steps, at the end of the schedule."""
        self._stream.extend(
            [([s.start for s in box], [s.stop - s.start for s in box]) for box in schedule]
        )

    def __len__(self) -> int:
        return self._stream.remaining()

    def __iter__(self) -> Iterator[Block]:
        while len(self):
            yield self.take()

    def take(self) -> Block:
        """Return the next block; wait until it has been read."""
        start_ns = self._trace.now_ns() if self._trace else 0
        buffer, start, count, strides = self._stream.next()
        if self._trace:
            self._trace.record("wait", start_ns)
        data: npt.NDArray[Any] = np.ndarray(
            tuple(count), self._dtype, buffer=memoryview(buffer), strides=tuple(strides)
        )
        return Block(tuple(slice(a, a + n) for a, n in zip(start, count, strict=True)), data)


class WriteBehind:
    """Writes in the background; the next call, or `flush`, raises their errors.

    The memory of a block must not change until `flush`. The number of blocks in flight is limited,
    and so is their memory.
    """

    def __init__(self, file: ArrayFile, most: int = 8, trace: Trace | None = None) -> None:
        self._file = file
        self._most = most
        self._trace = trace
        self._tickets: deque[Ticket] = deque()

    def write(self, index: Box, data: npt.NDArray[Any]) -> None:
        """Start writing `data` to the box `index` of the array."""
        while self._tickets and (self._tickets[0].done() or len(self._tickets) >= self._most):
            wait(self._tickets.popleft(), self._trace)
        self._tickets.append(
            self._file.submit_write([s.start for s in index], [1] * len(index), data)
        )

    def flush(self, *, sync: bool = False) -> None:
        """Wait until everything is written; with `sync`, until it survives power loss."""
        while self._tickets:
            wait(self._tickets.popleft(), self._trace)
        if sync:
            wait(self._file.submit_sync(), self._trace)

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Wait for the writes in flight, and ignore their errors."""
        while self._tickets:
            with contextlib.suppress(OutcoreError):
                self._tickets.popleft().wait()
