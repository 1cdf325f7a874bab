"""Several paths in one call: patterns, repeats, and the paths after an error."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

from outcore.errors import DeniedError, InvalidError, NotFoundError, OutcoreError
from outcore.storage.file_status import names_in
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath

_MAGIC = re.compile(r"[*?[]")

Failed: TypeAlias = Callable[[AnyPath, OutcoreError | OSError], None]
"""Function to call with a path that failed, and with the error; the call then continues."""


def expanded(paths: Iterable[AnyPath], failed: Failed | None = None) -> list[AnyPath]:
    """Replace each pattern in a pool by its sorted matches; keep other paths.

    If a pattern has no matches, `failed` is called with the pattern and the error.

    Raises
    ------
    NotFoundError
        If a pattern has no matches, and `failed` is `None`.
    """
    found: list[AnyPath] = []
    for path in paths:
        if not isinstance(path, PoolPath) or not _MAGIC.search(path.inside) or _is_there(path):
            found.append(path)
            continue
        with tried(path, failed):
            found += _matches(path)
    return found


def _matches(pattern: PoolPath) -> list[PoolPath]:
    matches = sorted(glob(pattern))
    if not matches:
        raise NotFoundError(f"nothing matches {pattern}; look with: outcore ls {pattern.root.url}")
    return matches


def glob(pattern: PoolPath) -> set[PoolPath]:
    """Return the paths in a pool that match a pattern; skip directories that may not be read."""
    root = PoolPath(pattern.root)
    parts = pattern.inside.split("/")
    return {path for path in _below(root, parts) if path.inside}


def _below(directory: PoolPath, parts: list[str]) -> Iterator[PoolPath]:
    first, rest = parts[0], parts[1:]
    if first == "**":
        for above in _directories(directory):
            if rest:
                yield from _below(above, rest)
            else:
                yield above
                for name, is_directory in _names(above):
                    if not is_directory and not name.startswith("."):
                        yield above / name
    elif not _MAGIC.search(first):
        path = directory / first
        if rest:
            yield from _below(path, rest)
        elif _is_there(path):
            yield path
    else:
        for name, is_directory in _names(directory):
            hidden = name.startswith(".") and not first.startswith(".")
            if hidden or not fnmatchcase(name, first):
                continue
            if not rest:
                yield directory / name
            elif is_directory:
                yield from _below(directory / name, rest)


def _directories(top: PoolPath) -> Iterator[PoolPath]:
    """Yield a directory and all directories below it, except hidden ones."""
    if not top.is_dir():
        return
    yield top
    for name, is_directory in _names(top):
        if is_directory and not name.startswith("."):
            yield from _directories(top / name)


def _names(directory: PoolPath) -> list[tuple[str, bool]]:
    try:
        return [(path.name, is_directory) for path, is_directory in names_in(directory)]
    except (NotFoundError, DeniedError, InvalidError):  # removed, not readable, or a file
        return []


def _is_there(path: PoolPath) -> bool:
    try:
        return path.exists()
    except DeniedError:
        return False


@contextmanager
def tried(path: AnyPath, failed: Failed | None) -> Iterator[None]:
    """Pass an error to `failed`, and continue; without `failed`, raise the error."""
    try:
        yield
    except (OutcoreError, OSError) as error:
        # The reader of the output is gone, so the whole command ends.
        if failed is None or isinstance(error, BrokenPipeError):
            raise
        failed(path, error)


def without_repeats(sources: list[AnyPath]) -> list[AnyPath]:
    """Remove repeated sources, as GNU ``cp`` does.

    Two names are the same if they are the same entry of the same directory.
    """
    first: dict[AnyPath, AnyPath] = {}
    for source in sources:
        first.setdefault(_entry(source), source)
    return list(first.values())


def _entry(path: AnyPath) -> AnyPath:
    if isinstance(path, PoolPath):
        return path
    return Path(os.path.realpath(path.parent), path.name)
