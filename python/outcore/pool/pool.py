"""A pool: several disks as one place for files and arrays."""

import operator
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcore import _core
from outcore.errors import InvalidError
from outcore.pool.comm import PoolJob
from outcore.pool.directories import check_directories
from outcore.pool.logical_disk import LogicalDisk
from outcore.pool.names import PoolNames
from outcore.storage.pool_root import PoolRoot
from outcore.storage.pool_stat import ServerStatus
from outcore.storage.volumes import PathLike


class Pool(PoolNames):
    """Several disks as one place for files and arrays.

    ``pool / "name"`` is a path. `outcore.create_array`, `outcore.open_array`, the solvers and all
    other functions that take a path accept it. The pool stripes files over its servers.
    """

    def __init__(
        self,
        core: _core.Pool,
        url: str,
        *,
        is_shared: bool = False,
        key: str | None = None,
        job: PoolJob | None = None,
    ) -> None:
        super().__init__(PoolRoot(url, core, is_shared, key))
        self._job = job
        if job is not None:
            self._root.own_server = job.own_server
        self._disks: weakref.WeakSet[LogicalDisk] = weakref.WeakSet()

    @classmethod
    def embedded(cls, directories: Sequence[PathLike], *, threads: int = 4) -> "Pool":
        """Open or create the pool in some directories, with its servers in this process.

        Parameters
        ----------
        directories
            One directory for each server, best on separate disks; missing ones are created. The
            first one also holds the names and layouts of all files. To open a pool, pass all of its
            directories except those of retired servers. An additional, empty directory becomes a
            new server, which new files use.
        threads
            Concurrent requests in each directory. Use fewer if several directories are on one disk.

        Raises
        ------
        BusyError
            If the pool is already open, in this process or another.
        InvalidError
            If a directory belongs to another pool, or one of this pool's directories is missing.
        DeniedError
            If a directory belongs to a retired server.
        """
        return cls._embedded(directories, threads)

    @classmethod
    def _embedded(
        cls, directories: Sequence[PathLike], threads: int = 4, *, skips_retired: bool = False
    ) -> "Pool":
        if isinstance(directories, str | os.PathLike):
            raise InvalidError(f"need a list of directories, have {directories!r}")
        names = [os.path.abspath(os.fspath(directory)) for directory in directories]
        if any("::" in name for name in names[:1]):
            raise InvalidError(f"a pool cannot be in {names[0]}: its name has '::' in it")
        if names:
            check_directories([Path(name) for name in names])
        core = _core.Pool.embedded(names, threads, skips_retired)
        return cls(core, f"outcore:{os.path.realpath(names[0])}::")

    @classmethod
    def from_comm(
        cls,
        comm: Any,
        directory: PathLike,
        *,
        host: str | None = None,
        timeout: float = 60.0,
        threads: int = 4,
    ) -> "Pool":
        """Open or create the pool of a parallel job, with its servers in the job's processes.

        All ranks call this method, and `close`, together. A pool created by N ranks is opened by N
        ranks; the assignment of its directories to ranks may differ.

        Parameters
        ----------
        comm
            Communicator of the job: mpi4py's, or an object with a rank, a size, ``bcast`` and
            ``barrier``, such as ``torch.distributed``.
        directory
            Directory of the server's files, best on a separate disk for each rank: ``{rank}`` in it
            is replaced by the number of the rank. Ranks of one machine with the same directory
            share one server.
        host
            Name or address by which other machines reach this rank's machine; by default its host
            name's address.
        timeout
            Seconds after which a silent server, or a rank that does not arrive in `close`, counts
            as dead.
        threads
            Concurrent requests on each disk.

        Raises
        ------
        InvalidError
            If the directories do not form one pool, or some are missing; if a launcher started
            several processes but each has a communicator of size 1.
        BusyError
            If the pool is already open.
        OutcoreError
            On every rank, if one rank fails.
        """
        job = PoolJob.start(comm, directory, host=host, timeout_s=timeout, threads=threads)
        return cls(job.core, job.url, is_shared=True, job=job)

    @property
    def core(self) -> _core.Pool:
        """The pool object of the compiled module."""
        return self._root.core

    @property
    def url(self) -> str:
        """The prefix of names in the pool, as text."""
        return self._root.url

    @property
    def id(self) -> str:
        """The random identifier of the pool, in hexadecimal digits."""
        return self._root.core.id

    @property
    def messages(self) -> int:
        """Number of messages sent to I/O servers so far."""
        return self._root.core.messages

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be written to files striped over all servers."""
        return self._root.volume.free_bytes()

    def __repr__(self) -> str:
        return f"<outcore.Pool {self.url}>"

    def logical_disk(self, rank: int, *, within: str = "") -> LogicalDisk:
        """Open a logical disk for this process alone: each of its files lies wholly on one server.

        Parameters
        ----------
        rank
            Number of the disk. It lies on the server of this number, modulo the number of servers.
        within
            Directory of the pool for the disk; separates jobs that run at the same time.

        Raises
        ------
        BusyError
            If another process, or call, has the disk open.
        """
        disk = LogicalDisk(self._root, operator.index(rank), within)
        self._disks.add(disk)
        return disk

    def servers(self, *, partial: bool = False) -> list[ServerStatus]:
        """Return the status of each I/O server, except retired ones.

        Parameters
        ----------
        partial
            Whether to include servers that cannot be reached, or fail, with the reason.

        Raises
        ------
        DiskError
            If a server cannot be reached, unless `partial`.
        OutcoreError
            If a server fails in another way, unless `partial`.
        """
        return [ServerStatus(*each) for each in self._root.core.servers(partial)]

    @property
    def retired(self) -> list[int]:
        """Numbers of the retired I/O servers."""
        return self._root.core.retired_ids

    def retire(self, server: int, *, undo: bool = False) -> None:
        """Retire an I/O server whose disk is dead: its data counts as lost.

        New files lie on the other servers. A file with a part on the retired server can be removed,
        and its parts on other servers can be read. Any other access raises an error that names the
        server. If the server returns, the pool refuses it.

        Parameters
        ----------
        server
            Number of the server. The server must no longer answer.
        undo
            Whether to revoke the retirement: the server may then return, with all its data.

        Raises
        ------
        DeniedError
            If the caller has only the key of a user.
        BusyError
            If the server answers; if `undo` needs the pool closed, because it is open without that
            server's directory.
        InvalidError
            If the pool never had a server of this number.
        """
        number = operator.index(server)
        if not 0 <= number < 1 << 32:
            raise InvalidError(f"need the number of an I/O server, below 2^32, have {number}")
        self._root.core.retire(number, undo)

    def close(self) -> None:
        """Close the pool: stop its servers, or the connections to them.

        Arrays and files that are still open in the pool become unusable. Closing twice is harmless.
        All ranks of a parallel job close its pool together, and its servers run until all ranks
        have arrived.
        """
        self._let_go()
        if self._job is not None:
            self._job.leave()

    def _let_go(self, *, is_failing: bool = False) -> None:
        for disk in list(self._disks):
            disk.close()
        self._root.close(is_failing=is_failing)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._let_go(is_failing=True)
        finally:
            # The other ranks may never arrive in `close`: the end of this rank's servers reports
            # the error to them.
            if self._job is not None:
                self._job.abandon()
