"""Directories of a pool on this machine: their contents, and whether they can form one pool."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcore import _core
from outcore.errors import InvalidError


def check_directories(directories: Sequence[Path]) -> None:
    """Refuse directories that cannot form one pool, whose manager is in the first.

    Each server checks its own directory as well. But by then the first directory would already be a
    new pool, and could no longer become a part of another one.

    Raises
    ------
    InvalidError
        If a directory is named twice, is a file or an array, or belongs to another pool.
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
    """Return the pool directory at or above a path; `None` if there is none."""
    return _core.pool_directory_of(path)


def about(directory: Path) -> dict[str, Any]:
    """Return the contents of a pool's directory, by name."""
    found: dict[str, Any] = {"pool": _pool_of(directory)}
    server = _mark_of(directory).get("server")
    if server is not None:
        found["I/O server"] = server
    if manager := _core.manager_in(directory):
        found["manager"] = str(manager)
    key = directory / "pool" / "key"
    if key.is_file():
        found["key"] = str(key)
    return found


def has_manager(directory: Path) -> bool:
    """Whether a directory of a pool contains the files of its manager."""
    return _core.manager_in(directory) is not None


def _pool_of(directory: Path) -> object:
    """Return the pool of an I/O server's directory; `None` if it is unknown."""
    return _mark_of(directory).get("pool")


def _mark_of(directory: Path) -> dict[str, Any]:
    """Read the identity file of an I/O server; the result is empty if there is none."""
    try:
        mark = json.loads((directory / "server.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) else {}
