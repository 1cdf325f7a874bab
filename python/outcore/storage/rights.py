"""Rights of a file that is replaced by a new one, which gets its owner, group and mode."""

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from outcore.errors import DeniedError, NotFoundError
from outcore.storage.modes import current_umask, pool_mode
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat


class Rights(NamedTuple):
    """Rights of a file or directory: permission bits, user and group id."""

    mode: int
    owner: int
    group: int
    is_directory: bool = False


def rights_of(path: Path | PoolPath) -> Rights | None:
    """Return the rights of a file or directory; `None` if it does not exist, or is a link."""
    if isinstance(path, PoolPath):
        try:
            there = PoolStat.of(path.root.core.stat(path.inside), 0)
        except (NotFoundError, DeniedError):
            return None
        if there.is_link:
            return None
        return Rights(there.mode, there.owner, there.group, there.is_directory)
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return None
    mode, is_directory = stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode)
    return Rights(mode, found.st_uid, found.st_gid, is_directory)


def give(path: Path | PoolPath, rights: Rights | None) -> None:
    """Give a new file or directory the rights of the one that it replaces.

    Nothing changes if `rights` is `None`, or if one is a file and the other a directory. The owner
    and the group are kept if the system allows that. Otherwise the members of the new group get no
    more rights than all other users.
    """
    have = None if rights is None else rights_of(path)
    if rights is None or have is None or rights.is_directory != have.is_directory:
        return
    if rights == have:
        return
    mode = rights.mode & pool_mode(is_directory=rights.is_directory)
    if rights.owner != have.owner:
        with contextlib.suppress(DeniedError, PermissionError):
            _set(path, owner=rights.owner)
    if rights.group != have.group:
        try:
            _set(path, group=rights.group)
        except (DeniedError, PermissionError):
            mode &= ~0o2070 | (mode & 0o007) << 3
    _set(path, mode=mode)


def _set(
    path: Path | PoolPath, *, mode: int | None = None, owner: int = -1, group: int = -1
) -> None:
    if isinstance(path, PoolPath):
        ids = [None if number < 0 else number for number in (owner, group)]
        path.root.core.set_attributes(path.inside, mode=mode, owner=ids[0], group=ids[1])
    elif mode is not None:
        os.chmod(path, mode)
    else:
        os.chown(path, owner, group)


@contextmanager
def kept(path: Path | PoolPath) -> Iterator[None]:
    """Keep the rights of a small file that the compiled module replaces in this block.

    The compiled module writes a plain file as ``NAME.PID.new`` before it renames it. An existing
    file of that name keeps its rights. So users who could not read the content before cannot read
    it during the replacement either.
    """
    rights = rights_of(path)
    if rights is None or isinstance(path, PoolPath):
        yield
        give(path, rights)
        return
    if rights == Rights(0o666 & ~current_umask(), os.geteuid(), os.getegid()):
        yield
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):  # the compiled module reports the error
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        give(fresh, rights._replace(mode=rights.mode | 0o200))
    yield
    give(path, rights)
