"""Hidden files of a pool that are not complete yet, including those that killed writers left.

A *part* is a file that `whole_file` writes. Its name identifies the process and the machine of its
writer, as a claim does (`pool_locks`), and no two parts ever have the same name. So removing the
part of a dead process never removes another process's part.
"""

import contextlib
import re
from collections.abc import Iterator

from outcore.errors import DeniedError, InvalidError, NotFoundError
from outcore.storage.pool_locks import OWNER, is_gone, new_owner, remove_left_claims
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat

_OF_OWNER = re.compile(rf"\..+\.{OWNER}\.part", re.DOTALL)
_OLDER = re.compile(r"\..+\.(?:[0-9a-f]{8}|new)\.part", re.DOTALL)
"""Parts of older versions, whose names do not identify their writers."""
_HELD = re.compile(r"\..+\.making\.part", re.DOTALL)
_NAME_BYTES = 255
"""Largest number of bytes in a name."""


def new_part(path: PoolPath) -> PoolPath:
    """Return a new name for the part of the future file `path`."""
    return _beside(path, f".{new_owner()}.part")


def held_name(path: PoolPath) -> PoolPath:
    """Return the directory that one call locks while it creates a file that must not exist yet."""
    return _beside(path, ".making.part")


def _beside(path: PoolPath, end: str) -> PoolPath:
    room = _NAME_BYTES - len(end.encode()) - 1
    kept = path.name.encode()[: max(room, 1)].decode(errors="ignore")
    return path.with_name(f".{kept}{end}")


def is_part(name: str) -> bool:
    """Whether a name is that of an incomplete file."""
    return any(pattern.fullmatch(name) for pattern in (_OF_OWNER, _OLDER, _HELD))


def is_left(path: PoolPath) -> bool:
    """Whether the writer of a part is known to have died.

    A process can be checked on its own machine only. In an embedded pool, only this process writes.
    """
    if found := _OF_OWNER.fullmatch(path.name):
        return is_gone(*found.groups(), is_alone=not path.root.is_shared)
    return not path.root.is_shared and _OLDER.fullmatch(path.name) is not None


def remove_left(directory: PoolPath) -> None:
    """Remove the parts of dead writers in a directory, as far as the caller may."""
    parts = [path for path, _ in _names_in(directory) if is_part(path.name)]
    for path in parts:
        with contextlib.suppress(NotFoundError, DeniedError):
            if _HELD.fullmatch(path.name):
                remove_left_claims(path)
            elif is_left(path):
                path.root.core.remove_one(path.inside)


def remove_left_once(directory: PoolPath) -> None:
    """Call `remove_left` when this process creates its first part in the directory."""
    if directory.root.is_first_look(directory.inside):
        remove_left(directory)


def parts_below(directory: PoolPath) -> Iterator[tuple[PoolPath, PoolStat]]:
    """Yield the parts below a directory, with their status."""
    directories = [directory]
    while directories:
        for path, status in _names_in(directories.pop()):
            if status.is_directory:
                directories.append(path)
            elif is_part(path.name):
                yield path, status


def _names_in(directory: PoolPath) -> list[tuple[PoolPath, PoolStat]]:
    try:
        names = directory.root.core.names(directory.inside)
    except (NotFoundError, DeniedError, InvalidError):  # removed, closed to the caller, or a file
        return []
    return [(directory / name, PoolStat.of(status, 0)) for name, status in names]
