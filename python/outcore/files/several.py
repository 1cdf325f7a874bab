"""Several paths of one call: what becomes of the others after an error."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from outcore.errors import OutcoreError
from outcore.pool_path import PoolPath
from outcore.volumes import AnyPath

Failed: TypeAlias = Callable[[AnyPath, OutcoreError | OSError], None]
"""Called with a path that a call could not deal with, and with the error; the call goes on."""


@contextmanager
def tried(path: AnyPath, failed: Failed | None) -> Iterator[None]:
    """Pass an error to `failed`, and go on; without `failed`, raise it."""
    try:
        yield
    except (OutcoreError, OSError) as error:
        # Nobody reads the output any more, so the whole command ends.
        if failed is None or isinstance(error, BrokenPipeError):
            raise
        failed(path, error)


def without_repeats(sources: list[AnyPath]) -> list[AnyPath]:
    """Leave out names that were given before, as GNU ``cp`` does.

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
