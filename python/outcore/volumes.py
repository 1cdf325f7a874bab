"""From a path to a volume and a name in it."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from outcore._core import Volume
from outcore.errors import BusyError, InvalidError, ReadOnlyError

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

    The lock is the kernel's (``flock``), so it goes with the process that held it.
    """
    name = directory / "lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise ReadOnlyError(
            f"cannot write to {directory}; check its permissions or choose another directory"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"{directory} is in use by another process or call, so it cannot be used "
                f"for {doing}; wait for the other to end, or give another out="
            ) from None
        if os.fstat(handle).st_nlink == 0:
            raise BusyError(f"{directory} was in use until this moment; call again")
        try:
            yield
        finally:
            name.unlink(missing_ok=True)
    finally:
        os.close(handle)
