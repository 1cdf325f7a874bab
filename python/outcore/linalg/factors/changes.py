"""Whether a matrix is still what it was when its factorization began."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from outcore.array import read_generation, read_metadata
from outcore.volumes import Place


class Version(NamedTuple):
    """What differs when a matrix has changed.

    The generation counts openings for writing. It stays when an array open all the while is written
    to, and begins anew when the array is made anew; so the time of the last write to its files, in
    nanoseconds, is looked at as well.
    """

    generation: int
    modified_ns: int


def version_of(source: Place) -> Version:
    """Tell the version of a matrix. One whose files were given up was modified at 0."""
    times = [file.stat().st_mtime_ns for file in _files(source) if file.exists()]
    return Version(read_generation(source), max(times, default=0))


def settle(source: Place) -> None:
    """Make a matrix durable, and its version: both must be the same after a power loss."""
    for file in _files(source):
        # Where the disk is read-only or a file is missing, there is nothing to make durable.
        with contextlib.suppress(OSError):
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _files(source: Place) -> list[Path]:
    grid = read_metadata(source).grid()
    return [source.path / grid.shard_key(shard) for shard in range(grid.shards)]
