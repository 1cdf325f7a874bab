"""The processes of a call while each does its own part, between their common steps.

`Sharing` notices an error when all processes meet. Here a process may wait for blocks of another,
or compute for a long time. A process that fails sends its error to all others, and they look for
it whenever they wait.
"""

import contextlib
import pickle
import threading
import time
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy.typing as npt

from outcore._util.communicator import Communicator
from outcore._util.signals import signals_held
from outcore.processes.sharing import Origin, Sharing, failure, origin_of
from outcore.processes.transfers import Transfers

T = TypeVar("T")

_ALARM_BYTES = 4096
_MOST_TEXT = 900
"""Characters of a long error that other processes receive: at most four bytes each."""

_SENT_S = 2.0
"""Longest time to send an error: a process that died never takes it."""

_unsent: list[Any] = []
"""Requests that never ended, and their memory, which must stay allocated."""


class _LeftError(Exception):
    """The process has failed, so its threads stop waiting."""


class Team:
    """The processes of a call during its run, within its ``with``.

    Attributes
    ----------
    blocks, notes
        Communicators for the thread that sends blocks, and for the one that records steps. Several
        processes have them, one process does not.
    raw
        MPI's communicator of `notes`, for messages between two processes.
    patience_s
        Time to wait for another process without work.
    rank, size
        Number of this process, and number of processes.
    sent
        Bytes and messages that this process has sent, other than by `blocks`.
    transfers
        Times of the transfers of blocks, and of the waits for them.
    """

    blocks: Communicator
    notes: Communicator
    raw: Any

    def __init__(self, sharing: Sharing) -> None:
        self._sharing, self.rank, self.size = sharing, sharing.rank, sharing.size
        self.patience_s = sharing.patience_s
        self._lock = threading.Lock()
        self._origin: Origin | None = None
        self._heard = bytearray(_ALARM_BYTES)
        self._duplicates: list[Any] = []
        self._alarm: Any = None
        self._is_left, self.sent, self.transfers = False, (0, 0), Transfers()
        self._failure: BaseException | None = None
        self._has_warned = False

    def __enter__(self) -> Self:
        if self.size == 1:
            return self
        try:
            with signals_held():
                # Duplication carries no errors, so the others learn here of earlier ones.
                self._sharing.meet()
                raw, self.blocks = self._sharing.duplicate(self.check)
                self.raw, self.notes = self._sharing.duplicate(self.check)
                self._duplicates = [raw, self.raw]
                self._alarm = raw.Irecv(self._heard)
        except BaseException as error:
            if self._alarm is not None:
                self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.size == 1:
            return
        failed = error
        try:
            if failed is None:
                self._sharing.meet()
        except BaseException as late:
            failed = late
            raise
        finally:
            self._end(failed)

    def telling(self) -> contextlib.AbstractContextManager[None]:
        """Return a block as `Sharing.telling` does, whose errors also end the waits of others."""
        return self._sharing.telling(self._warn_of)

    def _end(self, error: BaseException | None) -> None:
        """Stop listening, and tell the others of an error that they do not know."""
        with self._lock:
            if self._origin is None:
                self._alarm.Cancel()
                self._alarm.Wait()
            self._alarm = None
        if error is None:
            for duplicate in self._duplicates:
                duplicate.Free()
            return
        # The communicators stay: requests of them may be pending.
        _unsent.append(self._duplicates)
        self._warn_of(error)

    def part_of(self, columns: slice, rank: int | None = None) -> slice:
        """Return the columns of process `rank`, or of this one, if all divide some evenly."""
        count, rank = columns.stop - columns.start, self.rank if rank is None else rank
        first, end = (columns.start - (-count * at // self.size) for at in (rank, rank + 1))
        return slice(first, end)

    def fill_columns(self, X: npt.NDArray[Any], columns: slice) -> None:
        """Copy the columns of each process to all others; `X` has one or two dimensions."""
        whole = X[:, None] if X.ndim == 1 else X
        for rank in range(self.size) if self.size > 1 else ():
            part = whole[:, self.part_of(columns, rank)]
            if part.shape[1]:
                self._fill(part.T, rank)

    def add_up(self, R: npt.NDArray[Any], room: npt.NDArray[Any], more_s: float) -> None:
        """Replace the columns of R by their sums over all processes, the same on each.

        Parameters
        ----------
        room
            Memory for two columns.
        more_s
            As for `Sharing.exchange`.
        """
        part, total = room[:, 0], room[:, 1]
        for j in range(R.shape[1]):
            total[:] = 0
            for rank in range(self.size):
                part[:] = R[:, j]
                self._fill(part, rank, more_s)
                total += part
            R[:, j] = total

    def send(self, memory: npt.NDArray[Any], rank: int, more_s: float) -> None:
        """Send a contiguous array to one process, which receives it."""
        self.notes.send(memory, rank, more_s)
        self.sent = self.sent[0] + memory.nbytes, self.sent[1] + 1

    def receive(self, memory: npt.NDArray[Any], rank: int, more_s: float) -> None:
        """Fill a contiguous array with one that another process sends."""
        self.notes.receive(memory, rank, more_s)

    def broadcast(self, memory: npt.NDArray[Any], more_s: float, rank: int = 0) -> None:
        """Copy a contiguous array of the first process, or of process `rank`, to all others."""
        if self.size > 1:
            self._fill(memory, rank, more_s)

    def _fill(self, memory: npt.NDArray[Any], rank: int, more_s: float = 0.0) -> None:
        self.blocks.fill(memory, rank, more_s)
        if rank == self.rank:
            self.sent = self.sent[0] + memory.nbytes, self.sent[1] + 1

    def leave(self) -> None:
        """End all waits of this process, which has failed."""
        self._is_left = True

    def fail(self, error: BaseException) -> None:
        """End all waits of this process by an error of one of its threads."""
        self._failure = error

    def check(self) -> None:
        """Raise the error of another process, or of another thread of this one, or a death."""
        if self._failure is not None:
            raise self._failure
        if self._is_left:
            raise _LeftError
        with self._lock:
            if self._origin is None and self._alarm is not None and self._alarm.Test():
                self._origin = Origin(*pickle.loads(self._heard))
        if self._origin is not None:
            raise failure(self._origin)
        self._sharing.deaths.check()

    def same(self, value: T) -> T:
        """Return the value of the first process. All meet here, outside of the run."""
        return self._sharing.same(value)

    def all_of(self, value: T, more_s: float = 0.0) -> list[T]:
        """Return the values of all processes. All meet here, outside of the run."""
        return self._sharing.exchange(value, more_s)

    def exchange(self, value: T, more_s: float = 0.0) -> list[T]:
        """Return the values of all processes. One thread at a time may call this.

        Parameters
        ----------
        more_s
            As for `Sharing.exchange`.
        """
        return [value] if self.size == 1 else self.notes.allgather(value, more_s)

    def _warn_of(self, error: BaseException) -> None:
        """Send an error of this process to all others, once, if they do not know it."""
        is_known = self._origin is not None or getattr(error, "is_told", False)
        if not (is_known or self._has_warned):
            self._has_warned = True
            with contextlib.suppress(Exception):
                self._warn(origin_of(error, self.rank))

    def _warn(self, origin: Origin) -> None:
        """Send the error of this process to all others."""
        text = pickle.dumps(tuple(origin))
        if len(text) > _ALARM_BYTES:
            text = pickle.dumps(
                tuple(origin._replace(message=origin.message[:_MOST_TEXT], more={}))
            )
        text = text.ljust(_ALARM_BYTES, b"\0")
        raw = self._duplicates[0]
        others = {*range(self.size)} - {self.rank} - self._sharing.deaths.lost
        sent = [raw.Isend(text, rank) for rank in sorted(others)]
        _unsent.append((sent, text))
        end = time.monotonic() + _SENT_S
        while sent and time.monotonic() < end:
            sent = [each for each in sent if not each.Test()]
            time.sleep(0.001)


def alone() -> Team:
    """Return the team of a single process."""
    return Team(Sharing())
