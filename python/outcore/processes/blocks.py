"""Blocks that all processes of a call use in the same order, and those of one process alone."""

import queue
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import Trace
from outcore._util.streams import BlockStream, Box, Pending
from outcore.processes.team import Team

Data = npt.NDArray[Any]

T = TypeVar("T")


class Expected(NamedTuple):
    """A block that all processes are going to use.

    Attributes
    ----------
    owner
        The process that has it.
    shape, dtype
        Its shape, and the type of its elements.
    is_on_disk
        Whether the owner reads it from disk. Else the owner offers it from its memory, and does not
        take it.
    kept
        How many blocks after it a process may take or send before it lets this one go.
    """

    owner: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_on_disk: bool
    kept: int = 2


class Blocks:
    """The blocks of one process alone: those of a stream. They are used within its ``with``.

    Parameters
    ----------
    stream
        Own blocks on disk.
    """

    def __init__(self, stream: BlockStream) -> None:
        self.stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the thread that sends blocks, if there is one."""

    def expect(self, blocks: Iterable[Expected]) -> None:
        """Name the next blocks in the order of their use, the same on all processes."""

    def read(self, boxes: Sequence[Box]) -> None:
        """Schedule reads of the next own blocks on disk."""
        self.stream.extend(boxes)

    def offer(self, blocks: Sequence[Data]) -> Pending:
        """Send own blocks from memory, which must not change until the result is done."""
        return Sent()

    def take(self) -> Data:
        """Return the next block; wait for it."""
        return self.stream.take().data

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent."""
        return 0, 0


class Sent:
    """Blocks that are being sent: work in the background."""

    def __init__(self, count: int = 0) -> None:
        self._left = count
        self._error: BaseException | None = None
        self._over = threading.Event()
        if not count:
            self._over.set()

    def one_less(self) -> None:
        """Note that a block has been sent."""
        self._left -= 1
        if not self._left:
            self._over.set()

    def fail(self, error: BaseException) -> None:
        """Note that the other blocks will not be sent."""
        self._error = error
        self._over.set()

    def done(self) -> bool:
        """Whether all blocks have been sent, or none of the rest will be."""
        return self._over.is_set()

    def wait(self) -> None:
        """Wait until then; raise the error that ended it."""
        self._over.wait()
        if self._error is not None:
            raise self._error


class BlocksOfAll(Blocks):
    """The blocks of several processes, which a thread of each one moves ahead of their use.

    Parameters
    ----------
    stream
        Own blocks on disk.
    team
        The processes.
    more_s
        Additional time to wait for a block, for the work of its owner.
    """

    _thread: "BlocksThread"

    def __init__(self, stream: BlockStream, team: Team, trace: Trace, more_s: float) -> None:
        super().__init__(stream)
        self._team, self._trace, self._more_s = team, trace, more_s
        self._offered: queue.SimpleQueue[tuple[Data, Sent] | None] = queue.SimpleQueue()
        self._sending: set[Sent] = set()
        self._error: BaseException | None = None
        self._bytes = self._messages = 0

    def offer(self, blocks: Sequence[Data]) -> Pending:
        """Send own blocks from memory, which must not change until the result is done."""
        sent = Sent(len(blocks))
        self._sending.add(sent)
        for block in blocks:
            self._offered.put((block, sent))
        if self._error is not None:
            sent.fail(self._error)
        return sent

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the thread. After an error it stops waiting for other processes."""
        if kind is not None:
            self._team.leave()
        self._close()
        self._thread.end()

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent."""
        return self._bytes, self._messages

    @abstractmethod
    def _close(self) -> None:
        """Let the thread end after its work so far."""

    def _count(self, nbytes: int) -> None:
        """Count a message."""
        self._bytes += nbytes
        self._messages += 1

    def _one_less(self, sent: Sent) -> None:
        """Note that an offered block has been sent."""
        sent.one_less()
        if sent.done():
            self._sending.discard(sent)

    def _fail(self, error: BaseException) -> None:
        """Note that the thread has failed, and sends nothing more."""
        self._error = error
        for sent in list(self._sending):
            sent.fail(error)


class Returned(Generic[T]):
    """Values that come back when the last views of blocks die.

    No bytecode runs then, so that a signal cannot raise an exception there, which would be lost
    together with the value.

    Parameters
    ----------
    first
        Values that are there already.
    """

    def __init__(self, first: Iterable[T] = ()) -> None:
        self._first = list(first)
        self._dead: queue.SimpleQueue[weakref.ref[Data] | None] = queue.SimpleQueue()
        self._lent: dict[int, tuple[weakref.ref[Data], T]] = {}

    def after(self, block: Data, value: T) -> "weakref.ref[Data]":
        """Return the reference to a block at whose end `value` comes back."""
        reference = weakref.ref(block, self._dead.put)
        self._lent[id(reference)] = reference, value
        return reference

    def get(self) -> T:
        """Return a value; wait for one. Raise `ClosedError` after the last one before `close`."""
        if self._first:
            return self._first.pop()
        return self._lent.pop(id(opened(self._dead.get())))[1]

    def close(self) -> None:
        """End the waits of `get`."""
        self._dead.put(None)


class BlocksThread(threading.Thread):
    """A running thread, which waits for other processes until its team leaves."""

    def __init__(self, work: Callable[[], None], name: str, team: Team) -> None:
        super().__init__(target=work, name=name, daemon=True)
        # Python before 3.13 takes a thread for ended if Ctrl-C interrupts a `join`.
        self._team, self._ended = team, threading.Event()
        self.start()

    def run(self) -> None:
        """Do the work."""
        try:
            super().run()
        finally:
            self._ended.set()

    def end(self) -> None:
        """Return when the work is done. After Ctrl-C it waits for no other process."""
        try:
            self._ended.wait()
        except BaseException:
            self._team.leave()
            self._ended.wait()
            raise
        finally:
            self.join()


class ClosedError(Exception):
    """The main thread ends the thread of broadcasts."""


def opened(found: Any) -> Any:
    """Return the item of a queue; raise `ClosedError` if that item ends the work."""
    if not found:
        raise ClosedError
    return found
