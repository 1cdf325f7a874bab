"""A pool: several disks as one place for files and arrays."""

import operator
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from outcore import _core
from outcore.errors import InvalidError
from outcore.logical_disk import LogicalDisk
from outcore.pool_comm import PoolJob
from outcore.pool_directories import check_directories
from outcore.pool_names import PoolNames
from outcore.pool_path import PoolRoot
from outcore.pool_stat import ServerStatus
from outcore.volumes import PathLike


class Pool(PoolNames):
    """Several disks as one place for files and arrays.

    ``pool / "name"`` is a path that `outcore.create_array`, `outcore.open_array`, the solvers and
    whatever else takes a path take as well; files go round the pool's servers in stripe units.
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
        self._disks: weakref.WeakSet[LogicalDisk] = weakref.WeakSet()

    @classmethod
    def embedded(cls, directories: Sequence[PathLike], *, threads: int = 4) -> "Pool":
        """Open the pool in some directories, or make it, with its servers in this process.

        Parameters
        ----------
        directories
            One for each server, best each on a disk of its own; they are made if they are not
            there. The first one has the names and layouts of all files too. A pool is opened with
            all of its directories but those of servers that were retired; one more, which is empty,
            becomes a new server, which new files use.
        threads
            Requests in work at once in each directory: fewer, where several are on one disk.

        Raises
        ------
        BusyError
            If the pool is open already, in this process or another.
        InvalidError
            If a directory is of another pool, or one of this pool's is missing.
        DeniedError
            If a directory is of a server that was retired.
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
        """Open the pool of a parallel job, or make it, with its servers in the job's processes.

        All ranks call this, and `close`, together. A pool that is made by so many ranks is opened
        again by as many, in whatever order they have its directories.

        Parameters
        ----------
        comm
            Communicator of the job: mpi4py's, or what has a rank, a size, ``bcast`` and
            ``barrier``; see `outcore.communicator.Communicator`.
        directory
            Where the servers keep their files, best on a disk of each rank's own: ``{rank}`` in it
            is replaced by the number of the rank. Ranks of one machine whose directory is the same
            share one server.
        host
            Name or address of this rank's machine for the others, where there are several; by
            default that by which it is known.
        timeout
            Seconds after which a server, or a rank on `close`, that gives no sign of life counts
            as dead.
        threads
            Requests in work at once on each disk.

        Raises
        ------
        InvalidError
            If the directories are not those of one pool, or some of its are missing; if a launcher
            started several processes, of which each finds itself alone.
        BusyError
            If the pool is open already.
        OutcoreError
            On every rank, if anything fails on one.
        """
        job = PoolJob.start(comm, directory, host=host, timeout_s=timeout, threads=threads)
        return cls(job.core, job.url, is_shared=True, job=job)

    @property
    def core(self) -> _core.Pool:
        """The compiled part."""
        return self._root.core

    @property
    def url(self) -> str:
        """What names in the pool begin with as text."""
        return self._root.url

    @property
    def id(self) -> str:
        """A number that was made at random with the pool, in hexadecimal digits."""
        return self._root.core.id

    @property
    def messages(self) -> int:
        """Messages sent to I/O servers so far."""
        return self._root.core.messages

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be written to files that go round all servers."""
        return self._root.volume.free_bytes()

    def __repr__(self) -> str:
        return f"<outcore.Pool {self.url}>"

    def logical_disk(self, rank: int, *, within: str = "") -> LogicalDisk:
        """Take a part of the pool for this process alone: files that lie on one server whole.

        Parameters
        ----------
        rank
            Number of the disk. It lies on the server of this number, counted round.
        within
            Directory of the pool that the disk belongs to, for jobs that run at once.

        Raises
        ------
        BusyError
            If another process, or call, has the disk.
        """
        disk = LogicalDisk(self._root, operator.index(rank), within)
        self._disks.add(disk)
        return disk

    def servers(self, *, partial: bool = False) -> list[ServerStatus]:
        """Ask each I/O server how it is; those that were retired are left out.

        Parameters
        ----------
        partial
            Whether servers that cannot be reached, or fail, are listed too, with the reason.

        Raises
        ------
        DiskError
            If one cannot be reached, unless `partial`.
        OutcoreError
            If one fails in another way, unless `partial`.
        """
        return [ServerStatus(*each) for each in self._root.core.servers(partial)]

    @property
    def retired(self) -> list[int]:
        """Numbers of the I/O servers that were retired."""
        return self._root.core.retired_ids

    def retire(self, server: int, *, undo: bool = False) -> None:
        """Retire an I/O server whose disk is dead: what lay on it counts as gone.

        New files lie on the others. A file that has a part there can still be removed, and read
        where it lies on others; anything else is an error that names it. The server is refused
        should it come back.

        Parameters
        ----------
        server
            Its number. It must not answer any more.
        undo
            Whether to take that back: then the server may come back, with all that lies on it.

        Raises
        ------
        DeniedError
            If the caller only has the key of a user.
        BusyError
            If the server answers; if `undo` needs the pool closed, since it is open without that
            server's directory.
        InvalidError
            If the pool never had a server of this number.
        """
        number = operator.index(server)
        if not 0 <= number < 1 << 32:
            raise InvalidError(f"need the number of an I/O server, below 2^32, have {number}")
        self._root.core.retire(number, undo)

    def close(self) -> None:
        """Let go of the pool: stop its servers, or the connections to them.

        Arrays and files that are still open in it are of no use then. Closing twice is harmless.
        A pool of a parallel job is closed by all ranks together, and stays until all have come.
        """
        self._let_go()
        if self._job is not None:
            self._job.leave()

    def _let_go(self) -> None:
        for disk in list(self._disks):
            disk.close()
        self._root.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None or self._job is None:
            self.close()
            return
        # The other ranks may never come: they are told by the end of this one's servers.
        try:
            self._let_go()
        finally:
            self._job.abandon()
