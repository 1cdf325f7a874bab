"""A pool: several disks as one place for files and arrays."""

import operator
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from outcore import _core
from outcore.errors import ExistsError, InvalidError
from outcore.hints import hints_of, mode_bits, modified_ns_of
from outcore.logical_disk import LogicalDisk
from outcore.pool_comm import PoolJob
from outcore.pool_directories import check_directories
from outcore.pool_file import PoolFile
from outcore.pool_path import PoolPath, PoolRoot
from outcore.pool_stat import PoolStat, ServerStatus
from outcore.volumes import PathLike


class Pool:
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
        self._root = PoolRoot(url, core, is_shared, key)
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

    def __truediv__(self, name: str) -> PoolPath:
        return PoolPath(self._root, name)

    def open(
        self,
        path: str | PoolPath,
        mode: str = "r",
        hints: dict[str, Any] | None = None,
        *,
        permissions: int = 0o666,
    ) -> PoolFile:
        """Open a file of bytes.

        Parameters
        ----------
        path
            A name in the pool.
        mode
            ``"r"`` to read; ``"r+"`` to read and write what is there; ``"w"`` to begin anew;
            ``"a"`` to append: each ``write`` goes to the end, wherever the position is, and what
            names its place goes there; ``"x"`` for a file that must not be there yet. All but the
            first also read, whether there is a ``"+"`` or not. A ``"b"`` is allowed: there is no
            text mode.
        hints
            How a new file is laid out: ``stripe_unit_bytes``, ``stripe_count`` and ``base`` (the
            first server), or what MPI calls them, ``striping_unit``, ``striping_factor`` and
            ``start_iodevice``. With ``round_units``, only so many stripe units go round the
            servers, and what follows them lies on the last one. Others are kept, and ignored.
        permissions
            The mode of a new file, as `os.open` takes it: without the bits of the umask.

        Returns
        -------
        PoolFile

        Raises
        ------
        NotFoundError, ExistsError
            If the file is not there, or is there already (``"x"``).
        InvalidError
            For another mode, hints that cannot be, or a directory.
        DeniedError
            If the user may not read or write it.
        """
        return self._at(path).open(mode, hints, permissions=permissions)

    def ls(self, path: str | PoolPath = "") -> list[str]:
        """List the names in a directory, sorted.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        return [name for name, _ in self._root.core.names(self._at(path).inside)]

    def stat(self, path: str | PoolPath) -> PoolStat:
        """Tell what a name is.

        Raises
        ------
        NotFoundError
            If there is nothing of this name.
        """
        return self._at(path).stat()

    def scandir(self, path: str | PoolPath = "") -> Iterator[tuple[PoolPath, PoolStat]]:
        """Yield what is in a directory, sorted by name, with what `stat` tells of each.

        They come in pages of a thousand, each one question to the manager and one to each server.
        """
        return self._at(path).scandir()

    def exists(self, path: str | PoolPath) -> bool:
        """Whether there is something of this name."""
        return self._at(path).exists()

    def mkdir(
        self,
        path: str | PoolPath,
        *,
        mode: int = 0o777,
        exist_ok: bool = False,
        hints: dict[str, Any] | None = None,
    ) -> None:
        """Make a directory, and those above it.

        Parameters
        ----------
        path
            Its name.
        mode
            Its permission bits, as `os.mkdir` takes them: without those of the umask. Directories
            above it that are made get them too, and are searched by who may read them.
        exist_ok
            Whether it may be there already.
        hints
            How new files in it, and in directories below it, are laid out where nobody says
            otherwise; see `open`. A directory that is there gets them too.

        Raises
        ------
        ExistsError
            If there is something of this name, unless it is a directory and may be.
        """
        where = self._at(path)
        layout = None if hints is None else hints_of(hints)
        if not where.exists():
            self._root.core.make_directory(where.inside, mode_bits(mode))
        elif not exist_ok or not where.is_dir():
            raise ExistsError(f"{where} exists; choose another name")
        if layout is not None:
            self._root.core.set_default_layout(where.inside, **layout)

    def rm(self, path: str | PoolPath, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive`, one with all that it holds.

        Raises
        ------
        NotFoundError
            If there is nothing of this name.
        InvalidError
            If a directory is not empty.
        """
        where = self._at(path)
        if not where.inside:
            raise InvalidError("the root of a pool cannot be removed; name what is in it")
        if recursive:
            self._root.volume.remove(where.inside)
            return
        try:
            self._root.core.remove_one(where.inside)
        except ExistsError:
            raise InvalidError(
                f"{where} is not empty; pass recursive=True to remove what it holds"
            ) from None

    def mv(self, old: str | PoolPath, new: str | PoolPath) -> None:
        """Rename a file or directory.

        A file of the new name is replaced at once by a file, an empty directory by a directory.

        Raises
        ------
        NotFoundError
            If there is nothing of the old name.
        ExistsError
            If there is something else of the new name.
        """
        self._root.volume.rename(self._at(old).inside, self._at(new).inside)

    def chmod(self, path: str | PoolPath, mode: int) -> None:
        """Set the permission bits, 0o1777 at most.

        Raises
        ------
        DeniedError
            If the user is neither the owner nor has the pool's key.
        """
        self._set(path, mode=mode)

    def chown(
        self, path: str | PoolPath, owner: int | None = None, group: int | None = None
    ) -> None:
        """Set the owner and the group, by number; `None` or -1 leaves what is there.

        Raises
        ------
        DeniedError
            As POSIX has it: an owner gives files to groups that it is a member of, and only who
            has the pool's key gives them to other users.
        """
        kept = (None, -1)
        self._set(
            path, owner=None if owner in kept else owner, group=None if group in kept else group
        )

    def utime(
        self,
        path: str | PoolPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
    ) -> None:
        """Set the time of the last change of content, as `os.utime` does.

        Parameters
        ----------
        path
            A name in the pool.
        times, ns
            Times of the last read and of the last change, since 1970, in seconds or in
            nanoseconds. A pool does not keep the first. By default it is now.

        Raises
        ------
        DeniedError
            If the user is neither the owner nor has the pool's key; now may be set by who may
            write, too.
        """
        if times is None and ns is None:
            self._root.core.touch(self._at(path).inside)
            return
        self._set(path, modified_ns=modified_ns_of(times, ns))

    def _set(self, path: str | PoolPath, **attributes: int | None) -> None:
        try:
            self._root.core.set_attributes(self._at(path).inside, **attributes)
        except (OverflowError, TypeError):
            raise InvalidError(
                "modes, owners, groups and times are integers of at least 0 that fit, have "
                f"{attributes}"
            ) from None

    def getxattr(self, path: str | PoolPath, name: str) -> bytes:
        """Return an extended attribute.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        return self._root.core.extended(self._at(path).inside, name)

    def setxattr(self, path: str | PoolPath, name: str, value: bytes) -> None:
        """Set an extended attribute: 64 KiB at most, of 256 at most on a file or directory.

        Their names are any text of up to 255 bytes. Names that begin with ``hint.`` are those of
        hints which nobody here knew when the file was made.
        """
        self._root.core.set_extended(self._at(path).inside, name, bytes(value))

    def listxattr(self, path: str | PoolPath) -> list[str]:
        """List the names of the extended attributes, sorted."""
        return self._root.core.extended_names(self._at(path).inside)

    def removexattr(self, path: str | PoolPath, name: str) -> None:
        """Remove an extended attribute.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        self._root.core.set_extended(self._at(path).inside, name)

    def set_layout(self, path: str | PoolPath, hints: dict[str, Any]) -> None:
        """Set how files that are made below a directory are laid out, where their hints don't say.

        The hints are those of `open`. They take the place of those that the directory had.
        """
        sorted_hints = hints_of(hints)
        self._root.core.set_default_layout(self._at(path).inside, **sorted_hints)

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
            Whether servers that cannot be reached are listed too, with the reason.

        Raises
        ------
        DiskError
            If one cannot be reached, unless `partial`.
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

    def _at(self, path: str | PoolPath) -> PoolPath:
        if not isinstance(path, PoolPath):
            return PoolPath(self._root, path)
        if not path.root.is_alike(self._root):
            raise InvalidError(f"{path} is a name in another pool")
        return PoolPath(self._root, path.inside)
