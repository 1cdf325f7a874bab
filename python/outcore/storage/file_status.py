"""Status of a file or directory, in a file system or a pool."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outcore.errors import DeniedError, DiskError, InvalidError, NotFoundError, OutcoreError
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat, Silent
from outcore.storage.volumes import AnyPath, without_links

Kind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True)
class FileStatus:
    """Status of a file or directory, in a file system or a pool.

    Attributes
    ----------
    path
        Its path.
    kind
        ``"file"``, ``"directory"``, ``"link"`` for one that is not followed, or ``"other"``.
    nbytes
        Length of a file in bytes; else 0.
    mode, owner, group
        Permission bits, user and group id.
    modified_ns, changed_ns
        Nanoseconds since 1970 of the last change of content, and of the attributes.
    disk_bytes
        Bytes that a plain file occupies on its disk; `None` in a pool.
    number
        Inode number of a plain file; 0 in a pool.
    stripe_unit_bytes, servers
        Stripe unit of a file in a pool, and the numbers of the servers that hold its units in turn.
    round_units
        Number of units that go round the servers; the last server holds the rest. `None`: all do.
    leads_to
        Path behind a followed link, which the other fields describe; else `None`.
    target
        Target of a link that is not followed, as its creator wrote it; else `None`.
    unknown
        Reason why `nbytes` of a file in a pool is unknown, if the caller accepts that; else `None`.
    """

    path: AnyPath
    kind: Kind
    nbytes: int
    mode: int
    owner: int
    group: int
    modified_ns: int
    changed_ns: int
    disk_bytes: int | None = None
    number: int = 0
    stripe_unit_bytes: int = 0
    servers: tuple[int, ...] = ()
    leads_to: AnyPath | None = None
    unknown: str | None = None
    round_units: int | None = None
    target: str | None = None

    @property
    def real_path(self) -> AnyPath:
        """The path after links are followed."""
        return self.path if self.leads_to is None else self.leads_to

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def content(self) -> list[int]:
        """Values that change with the content, as far as this is visible without reading it."""
        return [self.nbytes, self.modified_ns, self.changed_ns, self.number]


def status_of(path: AnyPath, *, follow: bool = False, silent: Silent | None = None) -> FileStatus:
    """Return the status of a path; follow links with `follow`.

    With `silent`, the length of a file in a pool may be unknown; see `PoolPath.stat`.

    Raises
    ------
    NotFoundError
        If nothing has this name.
    """
    if isinstance(path, PoolPath):
        return _of_pool(path, path.stat(follow_symlinks=follow, silent=silent))
    try:
        return _of_plain(path, path.stat(follow_symlinks=follow))
    except OSError as error:
        raise cannot(f"look at {path}", error) from None


def children_of(path: AnyPath, *, silent: Silent | None = None) -> Iterator[FileStatus]:
    """Yield the status of each entry of a directory, sorted by name. Links are not followed.

    The manager of a pool returns a thousand names per request. With `silent`, the lengths of files
    in a pool may be unknown.
    """
    if isinstance(path, PoolPath):
        for child, found in path.scandir(silent=silent):
            yield _of_pool(child, found)
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise cannot(f"list {path}", error) from None
    for name in names:
        try:
            yield _of_plain(path / name, os.lstat(path / name))
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            raise cannot(f"look at {path / name}", error) from None


def names_in(directory: AnyPath) -> list[tuple[AnyPath, bool]]:
    """List the entries of a directory, sorted by name, and whether each is a directory.

    In a pool this needs the manager only; links do not count as directories.
    """
    if isinstance(directory, PoolPath):
        found = directory.root.core.names(directory.inside)
        return [(directory / name, status[0]) for name, status in found]
    try:
        with os.scandir(directory) as entries:
            each = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError as error:
        raise cannot(f"list {directory}", error) from None
    return [(directory / name, is_directory) for name, is_directory in each]


def walk(top: FileStatus, *, follow: bool = False) -> Iterator[FileStatus]:
    """Yield the status of everything below a directory, each directory before its content.

    Raises
    ------
    NotFoundError
        If links are followed, and one is broken.
    InvalidError
        If a link leads to a directory that contains it.
    """
    pending = [children_of(top.path)]
    above = [without_links(top.path)] if follow else []
    while pending:
        child = next(pending[-1], None)
        if child is None:
            pending.pop()
            del above[len(pending) :]
            continue
        if follow and child.kind == "link":
            real = without_links(child.path)
            found = status_of(child.path, follow=True)
            child = replace(found, leads_to=real)
        yield child
        if child.is_directory:
            if follow:
                real = without_links(child.path)
                if real in above:
                    raise InvalidError(
                        f"{child.path} is a link to {child.leads_to}, which contains it; "
                        "remove the link"
                    )
                above.append(real)
            pending.append(children_of(child.path))


def cannot(what: str, error: OSError) -> OutcoreError:
    """Return outcore's error for an error of the operating system."""
    if isinstance(error, OutcoreError):
        return error
    text = f"cannot {what}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"{text}; check the path")
    if isinstance(error, PermissionError):
        return DeniedError(f"{text}; ask its owner for the right to")
    return DiskError(f"{text}; check the path and its disk")


def _of_pool(path: PoolPath, found: PoolStat) -> FileStatus:
    kind: Kind = "link" if found.is_link else "directory" if found.is_directory else "file"
    return FileStatus(
        path, kind, 0 if found.is_link else found.nbytes, found.mode, found.owner,
        found.group, found.modified_ns, found.changed_ns,
        stripe_unit_bytes=found.stripe_unit_bytes, servers=found.servers, unknown=found.unknown,
        round_units=found.round_units, target=found.target,
    )  # fmt: skip


def _of_plain(path: Path, found: os.stat_result) -> FileStatus:
    kind: Kind = "other"
    if stat.S_ISDIR(found.st_mode):
        kind = "directory"
    elif stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    return FileStatus(
        path, kind, found.st_size if kind == "file" else 0, stat.S_IMODE(found.st_mode),
        found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ctime_ns,
        disk_bytes=found.st_blocks * 512, number=found.st_ino,
        target=os.readlink(path) if kind == "link" else None,
    )  # fmt: skip
