"""Volumes and names on them, found by path."""

import contextlib
import errno
import fcntl
import os
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from outcore._core import Volume
from outcore.errors import (
    BusyError,
    DiskError,
    DiskFullError,
    ExistsError,
    InvalidError,
    NotFoundError,
    OutcoreError,
    ReadOnlyError,
)
from outcore.layout.elements import in_memory
from outcore.storage import pool_locks, rights
from outcore.storage.pool_locks import LOCK_FILE, held
from outcore.storage.pool_path import PoolPath, check_plain, is_url, named

PathLike: TypeAlias = str | os.PathLike[str]
AnyPath: TypeAlias = Path | PoolPath
"""A user's path, in a file system or in a pool."""

_FRESH = re.compile(r".+\.[0-9]+\.new")
"""Names of temporary files of small files, before they are renamed."""


_TRANSPOSE = "the transpose of "


class Place(NamedTuple):
    """A name on a volume, and the user's path of it.

    With ``is_transposed`` it means the transpose of the array there.
    """

    volume: Volume
    name: str
    path: AnyPath
    is_transposed: bool = False

    @property
    def source(self) -> str:
        """The path, or ``the transpose of`` it: the name of a matrix in records and messages."""
        return f"{_TRANSPOSE}{self.path}" if self.is_transposed else str(self.path)

    @property
    def stem(self) -> str:
        """The path to which suffixes of results are appended."""
        return f"{self.path}.T" if self.is_transposed else str(self.path)

    @property
    def title(self) -> str:
        """The last part of `stem`."""
        return f"{self.path.name}.T" if self.is_transposed else self.path.name

    def inside(self, name: str) -> str:
        """Return the name, on the volume, of an entry below this place."""
        return f"{self.name}/{name}"

    def below(self, name: str) -> "Place":
        """Return the place of an entry below this one."""
        return Place(self.volume, self.inside(name), self.path / name)

    def beside(self, name: str) -> "Place":
        """Return the place of a name in the same directory."""
        above, slash, _ = self.name.rpartition("/")
        return Place(self.volume, above + slash + name, self.path.with_name(name))

    def names(self) -> list[tuple[str, bool, int]]:
        """Return name, kind (whether a directory) and length of each entry, if any."""
        try:
            return self.volume.list(self.name)
        except NotFoundError:
            return []

    def exists(self, name: str = "zarr.json") -> bool:
        """Whether an entry of this name exists below this place."""
        return self.volume.exists(self.inside(name))

    def make_small(self, name: str, data: bytes) -> None:
        """Write a new small file below this place, atomically."""
        self.volume.replace_small(self.inside(name), data)

    def replace_small(self, name: str, data: bytes) -> None:
        """Replace a small file below this place, atomically; it keeps its owner, group and mode."""
        with rights.kept(self.path / name):
            self.volume.replace_small(self.inside(name), data)

    def remove_half_written(self) -> None:
        """Remove temporary files that a killed process left directly below this place."""
        for name, is_directory, _ in self.names():
            if not is_directory and _FRESH.fullmatch(name):
                self.volume.remove(self.inside(name))


def as_path(path: PathLike) -> AnyPath:
    """Return the absolute path; a URL of a pool becomes a path in it."""
    if isinstance(path, PoolPath):
        return path
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        if found := in_memory(path):
            raise InvalidError(
                f"need a path, have {found} in memory; give text or a pathlib.Path, such as that "
                "of an array that oc.from_array makes"
            )
        raise InvalidError(f"{reprlib.repr(path)} is not a path; give text or a pathlib.Path")
    return named(text) if is_url(text) else Path(os.path.abspath(check_plain(text)))


def local_path(path: PathLike, what: str) -> Path:
    """Return the absolute path; refuse one in a pool, where `what` is not supported.

    Raises
    ------
    InvalidError
        If it is a name in a pool.
    """
    full = as_path(path)
    if isinstance(full, PoolPath):
        raise InvalidError(f"{what} in plain directories only, have {full}; name one of these")
    return full


def place(path: PathLike) -> Place:
    """Return the volume and name of a path: its pool, or its nearest existing parent directory."""
    full = as_path(path)
    if isinstance(full, PoolPath):
        if not full.inside:
            raise InvalidError(f"{full} is the pool itself; name something in it")
        return Place(full.root.volume, full.inside, full)
    if full.parent == full:
        raise InvalidError(f"{full} is the root directory; name a directory below it")
    root = full.parent
    while not root.is_dir() and root.parent != root:
        root = root.parent
    return Place(Volume(str(root)), str(full.relative_to(root)), full)


def place_of_source(source: str) -> Place:
    """Return the place with the given `Place.source`."""
    found = place(source.removeprefix(_TRANSPOSE))
    return found._replace(is_transposed=source.startswith(_TRANSPOSE))


def on_one_disk(one: AnyPath, other: AnyPath) -> bool:
    """Whether renaming can move a file from one path to the other. Both exist."""
    if isinstance(one, PoolPath) or isinstance(other, PoolPath):
        return (
            isinstance(one, PoolPath)
            and isinstance(other, PoolPath)
            and one.root.is_alike(other.root)
        )
    return one.stat().st_dev == other.stat().st_dev


def is_there(path: AnyPath) -> bool:
    """Whether the path exists, even as a dangling link."""
    if isinstance(path, PoolPath):
        return path.exists(follow_symlinks=False)
    return os.path.lexists(path)


def is_same(one: AnyPath, other: AnyPath) -> bool:
    """Whether two paths mean the same file or directory, after following links."""
    return without_links(one) == without_links(other)


def without_links(path: AnyPath) -> AnyPath:
    """Return the path without links; it need not exist."""
    return path.resolve() if isinstance(path, PoolPath) else Path(os.path.realpath(path))


def without_links_above(path: AnyPath) -> AnyPath:
    """Return the path of the name itself: links in the directories above it are followed."""
    if path.name in ("", ".."):
        return without_links(path)
    return without_links(path.parent) / path.name


def holds(directory: AnyPath, path: AnyPath) -> bool:
    """Whether a path is this directory or below it, links followed, and is removed with it."""
    whole, real = without_links(directory), without_links(path)
    return whole == real or whole in real.parents


SAME = "is"
INSIDE = "lies in"


def how_they_meet(target: AnyPath, needed: AnyPath) -> str | None:
    """Return a verb for the overlap of a target with needed data; `None` if they are apart."""
    if holds(target, needed):
        return SAME if is_same(target, needed) else "holds"
    return INSIDE if holds(needed, target) else None


def bytes_on_disk(path: AnyPath) -> int:
    """Return the bytes on disk of a file, or of a directory and its contents.

    In a pool they are the lengths of the files.
    """
    if isinstance(path, PoolPath):
        return 0 if path.is_symlink() else path.nbytes()
    total = os.lstat(path).st_blocks * 512
    for above, _, names in os.walk(path):
        for name in names:
            total += os.lstat(Path(above) / name).st_blocks * 512
    return total


def room_at(where: Place, *, is_replaced: bool) -> int:
    """Return the bytes free for a new object, with those of the one that it replaces."""
    free = where.volume.free_bytes()
    return free + bytes_on_disk(where.path) if is_replaced and where.exists() else free


def move(old: Place, new: Place) -> None:
    """Rename a file or directory to a name on the same disk, or in the same pool."""
    if isinstance(old.path, PoolPath) or isinstance(new.path, PoolPath):
        old.volume.rename(old.name, new.name)
        return
    above = Path(os.path.commonpath([old.path, new.path]))
    Volume(str(above)).rename(str(old.path.relative_to(above)), str(new.path.relative_to(above)))


@contextmanager
def being_made(where: Place, doing: str) -> Iterator[None]:
    """Lock the name of an array for one writer, in a directory beside the array.

    ``outcore info`` looks for the lock there.
    """
    with exclusive(filling(where), doing):
        yield


def filling(where: Place) -> Place:
    """Return the directory of the lock of an array that a call is creating."""
    return where.beside(f".{where.path.name}.filling")


def refuse_being_made(where: Place) -> None:
    """Refuse to replace an array, or factors, that another call is creating.

    Raises
    ------
    BusyError
        If another call is creating it.
    """
    if is_held(filling(where).path) or is_held(where.path):
        raise BusyError(
            f"{where.path} is being made by another process or call, so it cannot be replaced; "
            "wait for that to end, or choose another name"
        )


@contextmanager
def exclusive(where: Place, doing: str, *, keep: bool = False) -> Iterator[None]:
    """Lock a directory for one writer: a second process or call is refused at once.

    The lock is the kernel's (``flock``), which releases it with its process. At the end the
    directory is removed if it is empty, and so are its parents that this call created. With `keep`,
    a directory stays that existed before, which may be the user's. For pools see
    `outcore.storage.pool_locks.held`.
    """
    if isinstance(where.path, PoolPath):
        with held(where.path, doing):
            yield
        return
    directory = where.path
    made = [above for above in (directory, *directory.parents) if not above.exists()]
    removed, name = made, directory / LOCK_FILE
    try:
        handle = _lock(name, doing)
        if not keep:  # an existing directory was left by a killed call
            removed = list(dict.fromkeys([directory, *made]))
        try:
            for new in made:
                sync_names(new.parent)
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(name.stat(), os.fstat(handle)):
                    name.unlink()
            os.close(handle)
    finally:
        for each in removed:
            with contextlib.suppress(OSError):
                each.rmdir()


def is_held(directory: AnyPath) -> bool:
    """Whether a call of any process holds a directory by `exclusive`."""
    if isinstance(directory, PoolPath):
        return pool_locks.is_held(directory)
    try:
        handle = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _lock(name: Path, doing: str) -> int:
    directory = name.parent
    for _ in range(100):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # another call removed the directory at its end
        except OSError as error:
            raise _cannot_lock(directory, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # another call removed the file at its end
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise _cannot_lock(directory, error) from None
            break
    raise BusyError(
        f"{directory} is in use by another process or call, so it cannot be used "
        f"for {doing}; wait for the other to end, or choose another name"
    )


def _cannot_lock(directory: Path, error: OSError) -> OutcoreError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyError(
            f"cannot write to {directory}; check its permissions or choose another directory"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        return ExistsError(f"{directory} is or lies below a file; choose another name")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"no room on disk for the directory {directory}; free some room")
    return DiskError(
        f"cannot lock {directory}: {error.strerror}; choose a directory on another file system"
    )


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable, if its file system supports it."""
    with contextlib.suppress(OSError):
        sync_file(directory)


def sync_file(path: Path) -> None:
    """Make a file or directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
