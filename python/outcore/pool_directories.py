"""Directories of a pool on this machine, looked at before anything is written to them."""

import json
from collections.abc import Sequence
from pathlib import Path

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


def _pool_of(directory: Path) -> object:
    """Say of which pool an I/O server's directory is; `None` if it is of none that is known."""
    try:
        return json.loads((directory / "server.json").read_bytes())["pool"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
