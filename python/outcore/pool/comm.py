"""A pool that lives as long as one parallel job: its servers are threads of the job's processes.

Seamons et al. (1995) and others run I/O nodes inside an MPI job in the same way.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outcore import _core
from outcore._util.communicator import Communicator
from outcore._util.launchers import check_launcher
from outcore._util.this_machine import own_host
from outcore.errors import InvalidError, OutcoreError, ReadOnlyError, from_kind

T = TypeVar("T")


@dataclass(frozen=True)
class _Seat:
    """One rank's description of its directory.

    Attributes
    ----------
    machine
        Identifier of the machine: equal text means the same machine.
    directory, identity
        The absolute path, and the file system's identifier (device and inode).
    mark
        Pool and number of the I/O server that owns the directory, if any.
    has_manager
        Whether the directory contains the names of a pool.
    host
        Address by which other machines reach this one.
    """

    machine: str
    directory: str
    identity: tuple[int, int]
    mark: tuple[str, int] | None
    has_manager: bool
    host: str


class PoolJob:
    """The servers of a pool in the processes of one job, as seen by one rank."""

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        self._comm = comm
        self._timeout_s = timeout_s
        self._daemons: list[_core.Daemon] = []
        self._sockets: SocketDirectory | None = None
        self.core: _core.Pool
        self.url: str
        self.own_server: int

    @classmethod
    def start(
        cls,
        comm: Any,
        directory: str | os.PathLike[str],
        *,
        host: str | None,
        timeout_s: float,
        threads: int,
    ) -> "PoolJob":
        """Start the servers of this rank, and connect to all servers; see `Pool.from_comm`."""
        communicator = Communicator(comm, timeout_s)
        check_launcher(communicator.size, os.environ, sys.modules.get("mpi4py.MPI"))
        job = cls(communicator, timeout_s)
        try:
            job._begin(os.fspath(directory), host, threads)
        except BaseException:
            job.abandon()
            raise
        return job

    def leave(self) -> None:
        """Wait until every rank has left, and stop the servers of this one.

        Raises
        ------
        DiskError
            If another rank does not arrive. The servers of this rank are stopped regardless.
        """
        if self._sockets is None:
            return
        try:
            self._comm.barrier(self._timeout_s)
        finally:
            self.abandon()
        # After this barrier the directories of all ranks are free, before `close` returns on any
        # rank.
        self._comm.barrier(self._timeout_s)

    def abandon(self) -> None:
        """Stop the servers of this rank without waiting for other ranks."""
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._daemons.clear()
        if self._sockets is not None:
            self._sockets.close()
            self._sockets = None

    def _begin(self, directory: str, host: str | None, threads: int) -> None:
        rank = self._comm.rank
        seats = self._all(lambda: _take_seat(directory.replace("{rank}", str(rank)), host))
        is_one_machine = len({seat.machine for seat in seats}) == 1
        managing = _managing_rank(seats)
        key = self._comm.bcast(secrets.token_hex(32), 0)
        # Private to the user, and with a short path, because the path of a UNIX socket must be
        # short.
        sockets = SocketDirectory()
        self._sockets = sockets

        def listen(name: str) -> list[str]:
            if is_one_machine:
                return [f"unix:{sockets.path}/{name}"]
            return [f"tcp:{seats[rank].host}:0"]

        def start_manager() -> list[str]:
            if rank != managing:
                return []
            found = _core.Daemon.manager(seats[rank].directory, listen("manager"), key)
            self._daemons.append(found)
            return found.addresses

        manager = self._all(start_manager)[managing]

        def used() -> int:
            # Numbers of retired servers are never assigned again.
            if rank != managing:
                return 0
            core = _core.Pool.connect(manager, key=key)
            try:
                return max((*core.server_ids, *core.retired_ids), default=-1) + 1
            finally:
                core.close()

        numbers = _server_numbers(seats, self._all(used)[managing])
        places = [(seat.machine, seat.identity) for seat in seats]
        self.own_server = numbers[places.index(places[rank])]

        def start_server() -> None:
            if rank in numbers:
                where, number = seats[rank].directory, numbers[rank]
                server = _core.Daemon.io(where, listen("io"), key, manager, number, threads)
                self._daemons.append(server)

        self._all(start_server)

        def connect() -> _core.Pool:
            core = _core.Pool.connect(manager, key=key, patience_s=max(int(self._timeout_s), 1))
            missing = sorted(set(core.server_ids) - set(numbers.values()))
            if missing:
                core.close()
                raise InvalidError(
                    f"need the directories of all {len(core.server_ids)} I/O servers of the pool, "
                    f"those of {', '.join(map(str, missing))} are missing; start as many ranks as "
                    "the pool was made by, with the same directories"
                )
            return core

        connected: list[_core.Pool] = []
        try:
            self._all(lambda: connected.append(connect()))
        except BaseException:
            for core in connected:
                core.close()
            raise
        self.core = connected[0]
        # The same prefix as for an embedded pool, so that names do not depend on the way of
        # opening.
        self.url = f"outcore:{seats[managing].directory}::"

    def _all(self, step: Callable[[], T]) -> list[T]:
        """Run one step on all ranks, and return their results; if one rank fails, all raise."""
        mine: Exception | None = None
        said: tuple[str, Any] = ("", None)
        try:
            said = ("", step())
        except OutcoreError as error:
            mine, said = error, (error.kind, str(error))
        except Exception as error:
            mine, said = error, (OutcoreError.kind, f"{type(error).__name__}: {error}")
        found = self._comm.allgather(said)
        if mine is not None:
            try:
                raise mine
            finally:
                del mine  # it is in no cycle with this frame
        for rank, (kind, value) in enumerate(found):
            if kind:
                raise from_kind(kind, f"rank {rank} of {len(found)}: {value}")
        return [value for _, value in found]


def _take_seat(directory: str, host: str | None) -> _Seat:
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as error:
        raise ReadOnlyError(
            f"cannot make the directory {directory}: {error.strerror}; choose another one"
        ) from None
    full = os.path.realpath(directory)
    if "::" in full:
        raise InvalidError(f"a pool cannot be in {full}: its name has '::' in it")
    status = os.stat(full)
    return _Seat(
        machine=_machine(),
        directory=full,
        identity=(status.st_dev, status.st_ino),
        mark=_core.server_mark(full),
        has_manager=os.path.exists(os.path.join(full, "manager", "metadata.sqlite")),
        host=host or own_host(),
    )


def _machine() -> str:
    """Return an identifier of this machine, and of the container if it has its own file system."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/mnt')}"


def _managing_rank(seats: list[_Seat]) -> int:
    """Return the rank that runs the manager: the one with the pool's names, else the first."""
    found = {
        (seat.machine, seat.identity): rank
        for rank, seat in reversed(list(enumerate(seats)))
        if seat.has_manager
    }
    if len(found) > 1:
        ranks = ", ".join(map(str, sorted(found.values())))
        raise InvalidError(
            f"the directories of the ranks {ranks} have a pool each; give the directories of one "
            "pool, or empty ones"
        )
    marked = [seat.directory for seat in seats if seat.mark is not None]
    if marked and not found:
        raise InvalidError(
            f"{marked[0]} is of a pool whose names are in none of the directories; give all that "
            "the pool was made in, or empty ones"
        )
    return next(iter(found.values()), 0)


def _server_numbers(seats: list[_Seat], used: int) -> dict[int, int]:
    """Choose the ranks that run I/O servers, one for each directory, and their numbers.

    All numbers that the pool has ever used are below `used`.
    """
    running: dict[tuple[str, tuple[int, int]], int] = {}
    for rank, seat in enumerate(seats):
        running.setdefault((seat.machine, seat.identity), rank)
    ranks = sorted(running.values())
    numbers = {rank: mark[1] for rank in ranks if (mark := seats[rank].mark) is not None}
    if len(set(numbers.values())) < len(numbers):
        raise InvalidError(
            f"the directories of the ranks {', '.join(map(str, numbers))} are of the I/O servers "
            f"{', '.join(map(str, numbers.values()))}: one is a copy of another; leave it out"
        )
    following = max(used, *(number + 1 for number in numbers.values()), 0)
    fresh = [rank for rank in ranks if rank not in numbers]
    return numbers | {rank: following + place for place, rank in enumerate(fresh)}


_PREFIX = "outcore-sockets-"
_LOCK = "lock"


class SocketDirectory:
    """A new directory for sockets, inside the one for temporary files; `close` removes it.

    The constructor first removes the directories that killed processes of this user left. A process
    owns its directory by a lock on a file in it, which the kernel releases with the process. So a
    directory in use is never removed, even across containers and reused process numbers.

    Attributes
    ----------
    path
        The directory.
    """

    def __init__(self) -> None:
        remove_left()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Until this process holds the lock, another one may take the directory for a leftover.
            if _hold(self._handle):
                return
            os.close(self._handle)

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_left() -> None:
    """Remove the directories of this user that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
            handle = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _hold(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _hold(lock: int) -> bool:
    """Lock an open file; `False` if another process has locked, or removed, the file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(lock).st_nlink > 0
