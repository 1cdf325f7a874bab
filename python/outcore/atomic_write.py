"""Shard files that are to replace an array's: below the array, until all of them do at once."""

import contextlib
import re
import secrets

from outcore import growing
from outcore._core import ArrayFile
from outcore.array_metadata import read_metadata
from outcore.errors import BusyError, OutcoreError
from outcore.pool_path import PoolPath
from outcore.volumes import Place
from outcore.zarr_format import Metadata

FRESH = re.compile(r"\.write_all-[0-9a-f]{8}")
"""Below the array: a directory with the shard files of a collective that is atomic."""


def make(where: Place, metadata: Metadata) -> Place:
    """Make the files for an array, in a directory of theirs; what killed writes left is removed."""
    for each in left(where):
        each.volume.remove(each.name)
    fresh = where.below(f".write_all-{secrets.token_hex(4)}")
    stripe_count = metadata.stripe_count
    try:
        ArrayFile.create(
            fresh.volume, fresh.name, metadata.grid(), reserve=True, stripe_count=stripe_count
        )
    except BaseException:
        with contextlib.suppress(OutcoreError):
            fresh.volume.remove(fresh.name)
        raise
    return fresh


def take_place(fresh: Place, where: Place, metadata: Metadata) -> None:
    """Make the files those of the array, in one step.

    Raises
    ------
    BusyError
        If another call appends to the array, or has done so since.
    """
    grid = metadata.grid()
    # The directory of several goes as one name: however many they are, no crash comes between.
    key = grid.shard_key(0) if grid.shards == 1 else "c"
    with contextlib.ExitStack() as stack:
        if metadata.growing:
            stack.enter_context(growing.appending(where))
            _check_steps(where, metadata)
        assert isinstance(where.path, PoolPath)
        where.path.root.core.replace(fresh.inside(key), where.inside(key))
    # It counts: what cannot be removed now is removed by the next.
    with contextlib.suppress(OutcoreError):
        fresh.volume.remove(fresh.name)


def _check_steps(where: Place, metadata: Metadata) -> None:
    had, have = metadata.shape[0], read_metadata(where).shape[0]
    if have != had:
        raise BusyError(
            f"an atomic write of {where.path} wrote {had} steps, it has {have} by now and stays as "
            "it was; refresh it, and write all of it again"
        )


def left(where: Place) -> list[Place]:
    """Find what writes of an array left that were killed, or are under way."""
    return [where.below(name) for name, _, _ in where.names() if FRESH.fullmatch(name)]
