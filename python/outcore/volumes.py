"""From a path to a volume and a name in it."""

import contextlib
import errno
import fcntl
import os
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
    OutcoreError,
    ReadOnlyError,
)

PathLike: TypeAlias = str | os.PathLike[str]


class Place(NamedTuple):
    """A name on a volume, and the path that the user knows it by."""

    volume: Volume
    name: str
    path: Path

    def inside(self, name: str) -> str:
        """Name, on the volume, of something below this."""
        return f"{self.name}/{name}"

    def below(self, name: str) -> "Place":
        """Place of something below this."""
        return Place(self.volume, self.inside(name), self.path / name)

    def exists(self, name: str = "zarr.json") -> bool:
        """Whether there is something of this name below this."""
        return self.volume.exists(self.inside(name))


def place(path: PathLike) -> Place:
    """Find the volume of a path: its nearest directory that exists is the root."""
    try:
        full = Path(os.path.abspath(os.fspath(path)))
    except TypeError as error:
        raise InvalidError(f"{path!r} is not a path: {error}") from None
    if full.parent == full:
        raise InvalidError(f"{full} is the root directory; name a directory below it")
    root = full.parent
    while not root.is_dir() and root.parent != root:
        root = root.parent
    return Place(Volume(str(root)), str(full.relative_to(root)), full)


@contextmanager
def exclusive(directory: Path, doing: str) -> Iterator[None]:
    """Hold a directory for one writer: a second process or call is refused at once.

    The lock is the kernel's (``flock``), so it goes with the process that held it. A directory that
    is made here and left empty is removed again.
    """
    made = [above for above in (directory, *directory.parents) if not above.exists()]
    name = directory / "lock"
    try:
        handle = _lock(name, doing)
        try:
            for new in made:
                _sync(new.parent)
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(name.stat(), os.fstat(handle)):
                    name.unlink()
            os.close(handle)
    finally:
        for new in made:
            with contextlib.suppress(OSError):
                new.rmdir()


def _lock(name: Path, doing: str) -> int:
    directory = name.parent
    for _ in range(100):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # another call, on leaving, removed the directory
        except OSError as error:
            raise _cannot_lock(directory, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # another call, on leaving, removed the file
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise _cannot_lock(directory, error) from None
            break
    raise BusyError(
        f"{directory} is in use by another process or call, so it cannot be used "
        f"for {doing}; wait for the other to end, or give another out="
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


def _sync(directory: Path) -> None:
    """Make the names in a directory durable, where its file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
