"""Whether an array is still what it was when what reads it began."""

from typing import NamedTuple

from outcore.array_metadata import read_generation, read_metadata
from outcore.errors import LostError, OutcoreError
from outcore.volumes import Place


class Version(NamedTuple):
    """What differs when an array has changed.

    The generation counts openings that wrote. It stays when an array that was written to before,
    and is still open, is written to again, and begins anew when the array is made anew; so the time
    of the last write to its files, in nanoseconds, is looked at as well.
    """

    generation: int
    modified_ns: int


def version_of(source: Place) -> Version:
    """Tell the version of an array. One whose files were given up was modified at 0."""
    volume = source.volume
    times = [volume.modified_ns(file) for file in _files(source) if volume.exists(file)]
    return Version(read_generation(source), max(times, default=0))


def settle(source: Place) -> None:
    """Make an array durable, and its version: both must be the same after a power loss.

    Raises
    ------
    LostError
        If some of what was written to it may be gone.
    """
    for file in _files(source):
        try:
            source.volume.settle(file)
        except LostError:
            raise
        except OutcoreError:
            # Where the disk is read-only or a file is missing, there is nothing to make durable.
            continue


def _files(source: Place) -> list[str]:
    grid = read_metadata(source).grid()
    return [source.inside(grid.shard_key(shard)) for shard in range(grid.shards)]
