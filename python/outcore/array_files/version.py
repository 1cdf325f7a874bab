"""Detect whether an array has changed since a call began to read it."""

from typing import NamedTuple

from outcore.array_files.metadata import read_generation, read_metadata
from outcore.errors import LostError, OutcoreError
from outcore.storage.volumes import Place


class Version(NamedTuple):
    """Two numbers of which at least one changes when an array changes.

    The generation counts openings that wrote. It does not change when a program writes again
    through an array that it wrote to before and still has open. It restarts when the array is
    created again. So the version also contains the time of the last write to the files, in
    nanoseconds.
    """

    generation: int
    modified_ns: int


def version_of(source: Place) -> Version:
    """Return the version of an array. If its files were removed, the modification time is 0."""
    volume = source.volume
    times = [volume.modified_ns(file) for file in _files(source) if volume.exists(file)]
    return Version(read_generation(source), max(times, default=0))


def settle(source: Place) -> None:
    """Make an array and its version durable: both must be the same after a power loss.

    Raises
    ------
    LostError
        If some earlier writes to the array may be lost.
    """
    for file in _files(source):
        try:
            source.volume.settle(file)
        except LostError:
            raise
        except OutcoreError:
            # On a read-only disk, or if a file is missing, there is nothing to make durable.
            continue


def _files(source: Place) -> list[str]:
    grid = read_metadata(source).grid()
    return [source.inside(grid.shard_key(shard)) for shard in range(grid.shards)]
