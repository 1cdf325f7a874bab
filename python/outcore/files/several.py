"""Several paths in one call: treatment of the other paths after an error."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from outcore.errors import OutcoreError
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath

Failed: TypeAlias = Callable[[AnyPath, OutcoreError | OSError], None]
"""Function to call with a path that failed, and with the error; the call then continues."""


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
