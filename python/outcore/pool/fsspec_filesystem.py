"""A pool as an fsspec file system, for software that reads and writes by URL.

fsspec finds it by the package's entry points for ``outcore://`` and ``outcore+tls://``.
"""

import io
import stat
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path, tokenize

from outcore._util.packages import require
from outcore.errors import (
    ExistsError,
    InvalidError,
    IsDirectoryError,
    LinkLoopError,
    NotDirectoryError,
    NotFoundError,
    OutcoreError,
)
from outcore.pool.access import access_to, split_url
from outcore.pool.fsspec_file import CompressedFile, PoolBufferedFile, TextFile
from outcore.pool.pool import Pool
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_parts import is_part
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_reading import read_one, read_ranges, steadily
from outcore.storage.pool_stat import PoolStat
from outcore.storage.volumes import PathLike
from outcore.storage.whole_file import copy_whole, make_way, write_whole

require("fsspec", "a pool as a file system of fsspec")


class OutcoreFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A pool as a file system of fsspec.

    ``fsspec.open("outcore://HOST:PORT/name")``, and other software that accepts such a URL, uses it
    without an import of outcore. Names are those of a file system: ``/sim/u``.

    Files get their names when they are closed, and are durable by then. Until then ``ls`` and other
    calls do not show them. Only the read-ahead of open files is cached.

    Parameters
    ----------
    location
        ``HOST:PORT`` of a pool, ``tls:HOST:PORT``, the path of its UNIX socket, or the first
        directory of a pool that is embedded in this process. A URL contains it.
    pool
        The pool itself, if it is open.
    key
        File with a key; by default the one that the variable ``OUTCORE_KEY`` names.
    directories
        All directories of an embedded pool, to open it until the process ends.
    hints
        Layout of new files; see `outcore.Pool.open`.
    **options
        As for every file system of fsspec.

    Raises
    ------
    InvalidError
        If no pool is given, or it is not open and cannot be opened.
    BusyError
        If an embedded pool is open in another process.
    DiskError, DeniedError
        If no server answers, or the pool refuses the key.
    """

    protocol = ("outcore", "outcore+tls")
    root_marker = "/"
    # Instances are cheap, because the pools behind them stay open.
    cachable = False

    def __init__(
        self,
        location: str | None = None,
        *,
        pool: Pool | None = None,
        key: PathLike | None = None,
        directories: Sequence[PathLike] = (),
        hints: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._hints = hints
        self._access = access_to(location, pool, key, directories)

    # Interface of every fsspec file system: names, identity, options to recreate it.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        name = split_url(stringify_path(path))[1].strip("/")
        return f"/{name}" if name else ""

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, Any]:
        location = split_url(stringify_path(path))[0]
        return {} if location is None else {"location": location}

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a name."""
        return self._access.address.url_of(self._strip_protocol(name))

    @property
    def fsid(self) -> str:
        """Permanent identifier of the pool."""
        return f"outcore-{self._access.root.core.id}"

    @property
    def _fs_token(self) -> str:
        return str(tokenize(type(self), self._access.address, self._hints))

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options that recreate the file system in another process; a pool becomes its address."""
        return self._options

    @storage_options.setter
    def storage_options(self, given: dict[str, Any]) -> None:
        if given.get("pool") is not None:
            address = self._access.address
            given = given | {"pool": None, "location": address.location, "key": address.key}
        self._options = {name: value for name, value in given.items() if value is not None}

    def _path(self, path: Any) -> PoolPath:
        location, name = split_url(stringify_path(path))
        address = self._access.address
        if location is not None and location != address.location:
            raise InvalidError(
                f"{path} is in another pool than this file system's, {address.location}; make one "
                "for it, by fsspec.open or fsspec.url_to_fs"
            )
        return PoolPath(self._access.root, name.lstrip("/"))

    # Queries.

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        """List a directory: names, or with `detail` the `info` of each.

        A link has the type ``"other"`` here, as in fsspec's local file system, and its own mode,
        owner and times, so ``walk``, ``find`` and `rm` do not go through it.

        The ``size`` of a file that is being replaced may be too small here; `info` returns the
        right one.
        """
        where = self._path(path)
        found = [each for each in where.scandir() if not is_part(each[0].name)]
        if not found and where.is_file():
            return [self.info(path) if detail else _name(where)]
        return [_listed(*each) if detail else _name(each[0]) for each in found]

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """Describe a file or directory.

        Returns
        -------
        dict
            ``name``; ``type``, ``"file"`` or ``"directory"``; ``size`` in bytes; ``mode``, ``uid``
            and ``gid`` as in `os.stat`. ``mtime`` and ``ctime`` are the times of the last change of
            content and of metadata, in seconds since 1970. A file also has ``stripe_unit_bytes``,
            ``round_units`` and its ``servers``. ``islink`` says whether it is a symbolic link; then
            ``destination`` is its target, and all else describes the file or directory there. A
            broken link has the type ``"other"``.
        """
        where = self._path(path)
        return _entry(where, steadily(where, where.lstat))

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether the name exists. A pool that does not answer raises an error."""
        return self._path(path).exists()

    def isdir(self, path: Any) -> bool:
        """Whether the name is a directory."""
        return self._path(path).is_dir()

    def isfile(self, path: Any) -> bool:
        """Whether the name is a file."""
        return self._path(path).is_file()

    def modified(self, path: Any) -> datetime:
        """Return the time of the last write."""
        return datetime.fromtimestamp(self._modified_ns(path) / 1e9, UTC)

    def checksum(self, path: Any) -> int:
        """Return a number that changes when the file does."""
        return int(self.ukey(path), 16)

    def ukey(self, path: Any) -> str:
        """Return a text that changes when the file does."""
        modified_ns, info = self._modified_ns(path), self.info(path)
        return str(tokenize(self.fsid, info["name"], info["size"], modified_ns))

    def _modified_ns(self, path: Any) -> int:
        where = self._path(path)
        return where.root.volume.modified_ns(where.inside)

    # Directories, removal, renames, copies.

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Make a directory, and by default those above it."""
        where = self._path(path)
        if not create_parents and not where.parent.is_dir():
            raise NotFoundError(f"there is no directory {where.parent}; make it first")
        _make_directory(where)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Make a directory, and those above it."""
        where = self._path(path)
        try:
            _make_directory(where)
        except ExistsError:
            if not exist_ok or not where.is_dir():
                raise

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        where = self._path(path)
        if where.is_file():
            raise NotDirectoryError(f"{where} is a file; remove it with rm")
        _refuse_root(where)
        where.root.core.remove_one(where.inside)

    def rm_file(self, path: Any) -> None:
        """Remove a file."""
        where = self._path(path)
        if where.is_dir() and not where.is_symlink():
            raise IsDirectoryError(f"{where} is a directory; remove it with recursive=True")
        where.root.core.remove_one(where.inside)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with `recursive`, also directories with all their content."""
        if maxdepth is not None:
            for name in reversed(self.expand_path(path, recursive, maxdepth)):
                where = self._path(name)
                is_directory = recursive and where.is_dir() and not where.is_symlink()
                (self.rmdir if is_directory else self.rm_file)(name)
            return
        for name in self.expand_path(path):
            where = self._path(name)
            if recursive and where.is_dir() and not where.is_symlink():
                _refuse_root(where)
                where.root.volume.remove(where.inside)
            else:
                self.rm_file(name)

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **options: Any,
    ) -> None:
        """Rename a file or directory atomically. An existing file with the new name is replaced.

        If the target is a directory or ends with ``/``, the old name is kept inside it. Lists and
        patterns are moved one by one.
        """
        if isinstance(path1, list) and isinstance(path2, list):
            for old, new in zip(path1, path2, strict=True):
                self.mv(old, new)
            return
        names = self.expand_path(path1)
        into = len(names) > 1 or self.isdir(path2) or stringify_path(path2).endswith("/")
        target = self._path(path2)
        for name in names:
            old = self._path(name)
            new = target / old.name if into else target
            if old != new:
                _refuse_root(old)
                old.root.volume.rename(old.inside, new.inside)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Copy a file with its layout, in 16 MiB of memory; for a directory, make a new one."""
        source = self._path(path1)
        if source.is_dir():
            self.makedirs(path2, exist_ok=True)
        else:
            copy_whole(source, self._path(path2))

    # Content.

    def open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file; arguments are those of `fsspec.spec.AbstractFileSystem.open`.

        ``"rb"`` reads. ``"wb"`` writes a file that appears when it is closed, and ``"xb"`` does so
        for a name that must not exist. ``"ab"`` appends. ``"r+b"`` reads and writes in place.
        Without the ``b``, the file is a text file.
        """
        if mode[:1] == "r":
            return super().open(path, mode, block_size, cache_options, compression, **kwargs)
        if "b" not in mode:
            names = ("encoding", "errors", "newline")
            text = {name: kwargs.pop(name) for name in names if name in kwargs}
            binary = mode.replace("t", "") + "b"
            return TextFile(
                self.open(path, binary, block_size, cache_options, compression, **kwargs), **text
            )
        file = super().open(path, mode, block_size, cache_options, **kwargs)
        compression = get_compression(self._strip_protocol(path), compression)
        if compression is None:
            return file
        return CompressedFile(compr[compression](file, mode=mode[0]), file)

    def _open(
        self,
        path: Any,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        hints: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        where = self._path(path)
        if mode != "rb" and where.is_dir():
            raise IsDirectoryError(f"{where} is a directory; name a file")
        if mode in ("r+b", "rb+"):
            if not autocommit:
                raise InvalidError(
                    f"{where} would be written in place, which a transaction cannot take back; "
                    "open it outside of the transaction"
                )
            return io.BufferedRandom(where.open("r+"))
        hints = self._hints if hints is None else hints
        return PoolBufferedFile(
            self, where, path, mode, block_size, autocommit, cache_options, hints, **kwargs
        )

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **_: Any
    ) -> Any:
        """Read a file, or the bytes from `start` to `end`, which count as in slices."""
        return self._read_ranges(self._path(path), [(start, end)])[0]

    def cat_ranges(
        self,
        paths: list[Any],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Read ranges of files, with one request for all ranges of a file.

        `max_gap` has no effect, because the servers accept any number of ranges at once.
        """
        if not isinstance(paths, list):
            raise TypeError(f"need a list of paths, have {paths!r}")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise InvalidError(
                f"need as many starts and ends as paths, have {len(starts)} and {len(ends)} for "
                f"{len(paths)}"
            )
        of_file: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            of_file.setdefault(path, []).append(number)
        found: list[Any] = [None] * len(paths)
        for path, numbers in of_file.items():
            ranges = [(starts[number], ends[number]) for number in numbers]
            try:
                parts: list[Any] = self._read_ranges(self._path(path), ranges)
            except OutcoreError as error:
                if on_error == "raise":
                    raise
                parts = [error] * len(numbers)
            for number, part in zip(numbers, parts, strict=True):
                found[number] = part
        return found

    def _read_ranges(
        self, where: PoolPath, ranges: list[tuple[int | None, int | None]]
    ) -> list[bytes]:
        def read(file: PoolFile) -> list[bytes]:
            nbytes = file.nbytes
            bounds = [slice(*each).indices(nbytes)[:2] for each in ranges]
            return [part.tobytes() for part in read_ranges(file, bounds)]

        return read_one(where, read)

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file; with ``mode="create"`` the name must not exist."""
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
                file.write(value)
            return
        hints = kwargs.get("hints", self._hints)
        write_whole(self._path(path), value, hints, exclusive=mode == "create")

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        """Make an empty file; without `truncate`, only update the time of an existing one."""
        where = self._path(path)
        if truncate or not where.exists():
            super().touch(path, truncate=True, **kwargs)
            return
        where.root.core.touch(where.inside)


def _name(path: PoolPath) -> str:
    return f"/{path.inside}" if path.inside else ""


def _entry(path: PoolPath, found: PoolStat) -> dict[str, Any]:
    """Describe a name by its own attributes; a link also by those of its target.

    For a file that is being replaced, they are those of the old or the new one.
    """
    link: dict[str, Any] = {"islink": found.is_link}
    if found.is_link:
        link |= {"destination": found.target}
        try:
            found = steadily(path, path.stat)
        except (NotFoundError, LinkLoopError):
            return _of_broken(path, found) | link
    return _of_target(path, found) | link


def _listed(path: PoolPath, found: PoolStat) -> dict[str, Any]:
    """Describe an entry of a directory; of a link's target it gives only the size."""
    entry = _entry(path, found)
    if not found.is_link:
        return entry
    link = {"islink": True, "destination": found.target}
    return _of_broken(path, found) | {"size": entry["size"]} | link


def _of_broken(path: PoolPath, found: PoolStat) -> dict[str, Any]:
    return _of_target(path, found) | {
        "type": "other", "size": 0, "mode": stat.S_IFLNK | found.mode,
    }  # fmt: skip


def _of_target(path: PoolPath, found: PoolStat) -> dict[str, Any]:
    entry = {
        "name": _name(path),
        "size": found.nbytes,
        "type": "directory" if found.is_directory else "file",
        "mode": (stat.S_IFDIR if found.is_directory else stat.S_IFREG) | found.mode,
        "uid": found.owner,
        "gid": found.group,
        "mtime": found.modified_ns / 1e9,
        "ctime": found.changed_ns / 1e9,
    }
    if not found.is_directory and not found.is_link:
        entry |= {
            "stripe_unit_bytes": found.stripe_unit_bytes, "round_units": found.round_units,
            "servers": list(found.servers),
        }  # fmt: skip
    return entry


def _make_directory(path: PoolPath) -> None:
    if not path.inside:
        raise ExistsError(f"{path} is the pool itself; choose another name")
    make_way(path)
    path.root.core.make_directory(path.inside)


def _refuse_root(path: PoolPath) -> None:
    if not path.inside:
        raise InvalidError(f"{path} is the pool itself; name something in it")
