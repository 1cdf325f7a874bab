"""One interface for the communicators of mpi4py, torch.distributed, and similar ones."""

import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from outcore._util.packages import require_that_of
from outcore.errors import DiskError, InvalidError

TIMEOUT_S = 600
"""Default time to wait for other ranks."""

_POLL_S = 0.002
_SOON_S = 2e-5

_CHECK_S = 0.01
"""Longest time without `check` in a wait that has no request."""

_TESTS = 256
"""Tests of a transfer between pauses: MPI may move a few KiB in each, and nothing otherwise."""

_SMALL_BYTES = 64 << 10
"""Larger messages begin when all ranks are ready, so that only the transfer needs many tests."""

_HEAD_BYTES = 2048
"""Size of the first message of a value: the length, and as many bytes of the value as fit."""

_LENGTH_BYTES = 8
_ROOM_BYTES = _HEAD_BYTES - _LENGTH_BYTES

_given_up: list[Any] = []
"""Abandoned requests and their memory, which must stay allocated because they may still
complete."""


class Alone:
    """The communicator of a single process."""

    rank, size = 0, 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Return at once."""


class Communicator:
    """A uniform interface to any communicator: rank, size, broadcast and barrier.

    Parameters
    ----------
    comm
        Any object with a rank (``Get_rank()``, ``get_rank()`` or ``rank``), a size (``Get_size()``,
        ``get_world_size()`` or ``size``), ``bcast(value, root)`` or
        ``broadcast_object_list([value], src)``, and ``barrier()`` or ``Barrier()``; such as a
        communicator of mpi4py, or the module ``torch.distributed``.
    timeout_s
        Seconds to wait for other ranks. It takes effect if the communicator has ``Ibcast``,
        ``Iallgather`` and ``Ibarrier``, as MPI's do. Other communicators use their own timeout.
    check
        Called again and again while this rank waits. An exception that it raises ends the wait.

    Raises
    ------
    InvalidError
        If one of these is missing, the rank is outside the size, or this process is in no
        communicator.
    MissingPackageError
        If its package is too old.
    """

    def __init__(
        self, comm: Any, timeout_s: float = TIMEOUT_S, check: Callable[[], None] = lambda: None
    ) -> None:
        require_that_of(comm, "a communicator")
        self._comm, self._check = comm, check
        self._timeout_s = timeout_s
        if (mpi := _mpi_of(comm)) is not None and comm == mpi.COMM_NULL:
            raise InvalidError(
                "need a communicator with this process, have MPI.COMM_NULL; leave the call to the "
                "processes of the communicator"
            )
        self.rank = _number(comm, ("Get_rank", "get_rank", "rank"))
        self.size = _number(comm, ("Get_size", "get_world_size", "get_size", "size"))
        if not 0 <= self.rank < self.size:
            raise InvalidError(f"rank {self.rank} is none of the {self.size} of a communicator")
        self._barrier = _method(comm, ("barrier", "Barrier"))
        self._bcast = _method(comm, ("bcast", "broadcast_object_list"))
        self._in_place = not hasattr(comm, "bcast")

    def bcast(self, value: Any, root: int, more_s: float = 0.0) -> Any:
        """Return the value that rank `root` passes.

        Parameters
        ----------
        more_s
            Further seconds to wait, for a rank that may come late.

        Raises
        ------
        DiskError
            If a rank does not come in time.
        """
        start = getattr(self._comm, "Ibcast", None)
        if start is not None:
            return self._bcast_in_time(start, value, root, more_s)
        if not self._in_place:
            return self._bcast(value, root)
        values = [value]
        self._bcast(values, root)
        return values[0]

    def _bcast_in_time(
        self, start: Callable[..., Any], value: Any, root: int, more_s: float
    ) -> Any:
        head, data = bytearray(_HEAD_BYTES), b""
        if self.rank == root:
            head, data = _packed(value)
        self._wait(start(head, root), more_s, head)
        length = _length(head)
        rest = bytearray(data[_ROOM_BYTES:] if self.rank == root else max(length - _ROOM_BYTES, 0))
        if rest:
            self._wait(start(rest, root), more_s, rest, _TESTS)
        return value if self.rank == root else pickle.loads(_content(head, rest))

    def fill(
        self,
        memory: Any,
        root: int,
        more_s: float = 0.0,
        starts: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a contiguous array of rank `root` into those of the others; needs ``Ibcast``.

        Parameters
        ----------
        more_s
            As for `bcast`.
        starts
            Called when the others are ready for a large array, before it is sent.

        Raises
        ------
        DiskError
            If a rank does not come in time.
        """
        if memory.nbytes > _SMALL_BYTES:
            self._wait(self._comm.Ibarrier(), more_s, whom=f"the others, and data of rank {root}")
        whom = f"data of rank {root}"
        starts()
        self._wait(self._comm.Ibcast(memory, root), more_s, memory, _TESTS, whom)

    def send(self, memory: Any, rank: int, more_s: float = 0.0) -> None:
        """Send a contiguous array to another rank, which receives it; needs ``Isend``.

        Parameters
        ----------
        more_s
            As for `bcast`.

        Raises
        ------
        DiskError
            If the rank does not come in time.
        """
        self._wait(self._comm.Isend(memory, rank), more_s, memory, _TESTS, f"rank {rank}")

    def receive(self, memory: Any, rank: int, more_s: float = 0.0) -> None:
        """Fill a contiguous array with one that another rank sends; see `send`."""
        self._wait(self._comm.Irecv(memory, rank, 0), more_s, memory, _TESTS, f"rank {rank}")

    def allgather(self, value: Any, more_s: float = 0.0) -> list[Any]:
        """Return the value of each rank, in the order of the ranks.

        Parameters
        ----------
        more_s
            As for `bcast`.

        Raises
        ------
        DiskError
            If a rank does not come in time.
        """
        start = getattr(self._comm, "Iallgather", None)
        if start is None:
            return [self.bcast(value, root, more_s) for root in range(self.size)]
        head, data = _packed(value)
        heads = self._gather(start, head, more_s)
        most = max(max(map(_length, heads)) - _ROOM_BYTES, 0)
        rests = [bytearray()] * self.size
        if most:
            rests = self._gather(start, bytearray(data[_ROOM_BYTES:].ljust(most, b"\0")), more_s)
        return [pickle.loads(_content(*each)) for each in zip(heads, rests, strict=True)]

    def _gather(self, start: Callable[..., Any], mine: bytearray, more_s: float) -> list[bytearray]:
        """Collect the same number of bytes from each rank."""
        each = len(mine)
        found = bytearray(each * self.size)
        tests = _TESTS if each > _HEAD_BYTES else 1
        self._wait(start(mine, found), more_s, (mine, found), tests)
        return [found[at : at + each] for at in range(0, len(found), each)]

    def barrier(self, timeout_s: float) -> None:
        """Return when every rank has called this method.

        Parameters
        ----------
        timeout_s
            Seconds to wait, in place of the communicator's timeout.

        Raises
        ------
        DiskError
            If a rank does not come in time.
        """
        start = getattr(self._comm, "Ibarrier", None)
        if start is None:
            self._barrier()
            return
        self._wait(start(), timeout_s - self._timeout_s)

    def check_duplicable(self) -> None:
        """Refuse a communicator that cannot be duplicated, or that two threads must not use."""
        what = "a checkpoint in the background by several ranks"
        fix = "make it with background=False"
        if not hasattr(self._comm, "Dup"):
            raise InvalidError(f"{what} needs a communicator with Dup, as MPI's have; {fix}")
        if mpi := _mpi_of(self._comm):
            _check_threads(mpi, what, fix)

    def check_mpi(self, what: str) -> None:
        """Refuse a communicator that is not of mpi4py, or that two threads must not use."""
        mpi = _mpi_of(self._comm)
        if mpi is None:
            raise InvalidError(
                f"{what} needs a communicator of mpi4py, have {type(self._comm).__name__}; give "
                "comm=MPI.COMM_WORLD"
            )
        _check_threads(mpi, what, "start one process")

    def duplicate(self) -> Any:
        """Return a communicator of the same ranks with separate messages.

        With ``Idup`` it waits as long as `bcast` does; otherwise as long as ``Dup`` does.

        Raises
        ------
        DiskError
            If a rank does not come in time.
        """
        start = getattr(self._comm, "Idup", None)
        if start is None:
            return self._comm.Dup()
        duplicate, request = start()
        self._wait(request, 0.0, duplicate)
        return duplicate

    def _wait(
        self,
        request: Any,
        more_s: float,
        memory: Any = None,
        tests: int = 1,
        whom: str = "the others",
    ) -> None:
        """Wait for a request; `memory` is the memory that it uses.

        `tests` is the number of tests between two pauses.
        """
        most_s, pause_s, began = self._timeout_s + more_s, _SOON_S, time.monotonic()
        is_done = False
        try:
            while not (is_done := any(request.Test() for _ in range(tests))):
                self._check()
                if time.monotonic() - began > most_s:
                    raise self._lost(most_s, whom)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S)
        finally:
            if not is_done:
                _given_up.append((request, memory))

    def wait_until(self, attempt: Callable[[float], bool], more_s: float, whom: str) -> None:
        """Wait for an action of another rank that sends no message.

        Parameters
        ----------
        attempt
            Waits at most the given seconds, and returns whether it is done.
        more_s
            As for `bcast`.
        whom
            The rank, or the thing that it brings, for the message of an error.

        Raises
        ------
        DiskError
            If it is not done in time.
        """
        most_s, began = self._timeout_s + more_s, time.monotonic()
        while not attempt(_CHECK_S):
            self._check()
            if time.monotonic() - began > most_s:
                raise self._lost(most_s, whom)

    def _lost(self, most_s: float, whom: str) -> DiskError:
        error = DiskError(
            f"rank {self.rank} waited {most_s:.3g} s for {whom} without an answer; one of them has "
            "failed, or never came here: look for its error"
        )
        vars(error)["is_lost"] = True
        return error


def _mpi_of(comm: Any) -> Any:
    """Return the module ``mpi4py.MPI`` of a communicator, or `None` for other communicators."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and isinstance(comm, mpi.Comm) else None


def _check_threads(mpi: Any, what: str, fix: str) -> None:
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise InvalidError(
            f"{what} needs MPI_THREAD_MULTIPLE, have less: leave mpi4py.rc.thread_level as it is, "
            f"or {fix}"
        )


def _packed(value: Any) -> tuple[bytearray, bytes]:
    """Return the first message of a value, and all of its bytes."""
    data = pickle.dumps(value)
    begin = data[:_ROOM_BYTES].ljust(_ROOM_BYTES, b"\0")
    return bytearray(len(data).to_bytes(_LENGTH_BYTES) + begin), data


def _length(head: bytearray) -> int:
    return int.from_bytes(head[:_LENGTH_BYTES])


def _content(head: bytearray, rest: bytearray) -> bytearray:
    """Join the bytes of a value, without padding."""
    return (head[_LENGTH_BYTES:] + rest)[: _length(head)]


def _number(comm: Any, names: tuple[str, ...]) -> int:
    for name in names:
        found = getattr(comm, name, None)
        if found is not None:
            return int(found() if callable(found) else found)
    raise _lacking(comm, names)


def _method(comm: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    for name in names:
        found = getattr(comm, name, None)
        if callable(found):
            method: Callable[..., Any] = found
            return method
    raise _lacking(comm, names)


def _lacking(comm: Any, names: tuple[str, ...]) -> InvalidError:
    return InvalidError(
        f"need a communicator with {' or '.join(names)}, have {type(comm).__name__}; give one of "
        "mpi4py, or one with its interface"
    )
