"""A shard file that is to replace an array's: below the array, until it is renamed to that."""

import re
import secrets

from outcore._core import ArrayFile
from outcore.volumes import Place
from outcore.zarr_format import Metadata

FRESH = re.compile(r"\.write_all-[0-9a-f]{8}")
"""Below the array: a directory with the shard file of a collective that is atomic."""


def make(where: Place, metadata: Metadata) -> Place:
    """Make the file for an array, in a directory of its own; what killed writes left is removed."""
    for each in left(where):
        each.volume.remove(each.name)
    fresh = where.below(f".write_all-{secrets.token_hex(4)}")
    stripe_count = metadata.stripe_count
    ArrayFile.create(
        fresh.volume, fresh.name, metadata.grid(), reserve=True, stripe_count=stripe_count
    )
    return fresh


def take_place(fresh: Place, where: Place, metadata: Metadata) -> None:
    """Make the file that of the array."""
    key = metadata.grid().shard_key(0)
    where.volume.rename(fresh.inside(key), where.inside(key))
    fresh.volume.remove(fresh.name)


def left(where: Place) -> list[Place]:
    """Find what writes of an array left that were killed, or are under way."""
    return [where.below(name) for name, _, _ in where.names() if FRESH.fullmatch(name)]
