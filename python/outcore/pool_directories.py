"""Directories of a pool on this machine: what they are, and whether they can be those of one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcore.errors import InvalidError


def check_directories(directories: Sequence[Path]) -> None:
    """Refuse directories that cannot be those of one pool, whose manager is in the first.

    The servers look at all of this too, each at its own; but by then the first would have been made
    a pool of its own, and could not become a part of another one any more.

    Raises
    ------
    InvalidError
        If one is there twice, is a file or an array, or is of another pool.
    """
    for number, directory in enumerate(directories):
        if directory in directories[:number]:
            raise InvalidError(
                f"{directory} is named twice; give a directory of its own for each server"
            )
        if directory.exists() and not directory.is_dir():
            raise InvalidError(f"{directory} is no directory; choose another place for the server")
        if (directory / "zarr.json").exists():
            raise InvalidError(
                f"{directory} is an array, a factor or a group, and no place for a pool; choose "
                "another directory"
            )
    first, *others = directories
    pool = _pool_of(first)
    if pool is not None and not (first / "manager").is_dir():
        raise InvalidError(
            f"{first} is of a pool, but not its first directory; name that one first"
        )
    for other in others:
        its_pool = _pool_of(other)
        is_known = pool is not None or not (first / "manager").is_dir()
        if its_pool is not None and is_known and its_pool != pool:
            raise InvalidError(
                f"{other} is of another pool; give an empty directory, or name the first "
                "directory of that pool first"
            )


def pool_directory_of(path: Path) -> Path | None:
    """Find the directory of a pool that a path is, or lies in; `None` if there is none."""
    found = next((each for each in (path, *path.parents) if _is_one(each)), None)
    is_below = found is not None and found.name == "manager" and _is_one(found.parent)
    return found.parent if found is not None and is_below else found


def about(directory: Path) -> dict[str, Any]:
    """Tell what a pool has in one of its directories, by name."""
    found: dict[str, Any] = {"pool": _pool_of(directory)}
    server = _mark_of(directory).get("server")
    if server is not None:
        found["I/O server"] = server
    if manager := _manager_in(directory):
        found["manager"] = str(manager)
    key = directory / "pool" / "key"
    if key.is_file():
        found["key"] = str(key)
    return found


def has_manager(directory: Path) -> bool:
    """Whether a directory of a pool has the files of its manager."""
    return _manager_in(directory) is not None


def _is_one(directory: Path) -> bool:
    mark = _mark_of(directory)
    return {"format", "pool", "server"} <= mark.keys() or _manager_in(directory) is not None


def _manager_in(directory: Path) -> Path | None:
    """Find the manager's files: below the first directory, or in one of its own."""
    for each in (directory / "manager", directory):
        if (each / "metadata.sqlite").is_file():
            return each
    return None


def _pool_of(directory: Path) -> object:
    """Say of which pool an I/O server's directory is; `None` if it is of none that is known."""
    return _mark_of(directory).get("pool")


def _mark_of(directory: Path) -> dict[str, Any]:
    """Read what an I/O server wrote of itself; nothing if that is not there."""
    try:
        mark = json.loads((directory / "server.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) else {}
