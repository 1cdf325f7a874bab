"""Shard files that are to replace an array's: below the array, until all of them do at once.

They belong to whom those did, as if these had been written in place: owner, group, mode, extended
attributes, and on how many servers they lie.
"""

import contextlib
import re
import secrets

from outcore import growing
from outcore._core import ArrayFile, Grid
from outcore.array_metadata import read_metadata
from outcore.errors import BusyError, DeniedError, OutcoreError
from outcore.files.attributes import (
    attribute,
    attribute_names,
    remove_attribute,
    set_attribute,
    set_mode,
    set_owner,
)
from outcore.pool_path import PoolPath
from outcore.pool_stat import PoolStat
from outcore.volumes import Place
from outcore.zarr_format import Metadata

FRESH = re.compile(r"\.write_all-[0-9a-f]{8}")
"""Below the array: a directory with the shard files of a collective that is atomic."""


def make(where: Place, metadata: Metadata) -> Place:
    """Make the files for an array, in a directory of theirs; what killed writes left is removed.

    Raises
    ------
    DeniedError
        If they cannot have the rights of those that they are to replace.
    """
    assert isinstance(where.path, PoolPath)
    for each in left(where):
        each.volume.remove(each.name)
    fresh = where.below(f".write_all-{secrets.token_hex(4)}")
    assert isinstance(fresh.path, PoolPath)
    grid = metadata.grid()
    key = _replaced(grid)
    try:
        ArrayFile.create(
            fresh.volume, fresh.name, grid, reserve=True, stripe_count=_stripe_count(where, grid)
        )
        # Before there is anything in them to read.
        _keep_rights(fresh.path / key, where.path / key)
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
    key = _replaced(metadata.grid())
    with contextlib.ExitStack() as stack:
        if metadata.growing:
            stack.enter_context(growing.appending(where))
            _check_steps(where, metadata)
        assert isinstance(where.path, PoolPath)
        where.path.root.core.replace(fresh.inside(key), where.inside(key))
    # It counts: what cannot be removed now is removed by the next.
    with contextlib.suppress(OutcoreError):
        fresh.volume.remove(fresh.name)


def _replaced(grid: Grid) -> str:
    """Name what is replaced: a file, or the directory of several, which is one name.

    However many they are, no crash comes between.
    """
    return grid.shard_key(0) if grid.shards == 1 else "c"


def _stripe_count(where: Place, grid: Grid) -> int:
    """Count the servers of the files that there are; the most of any if they differ."""
    assert isinstance(where.path, PoolPath)
    names = (where.inside(grid.shard_key(shard)) for shard in range(grid.shards))
    core = where.path.root.core
    return max(len(PoolStat.of(core.stat(name), 0).servers) for name in names)


def _keep_rights(fresh: PoolPath, old: PoolPath) -> None:
    """Give what is to replace a file or a directory, and what is in it, the rights of that.

    The owner is kept by who has the pool's key. Else it is who writes, and may read and write.

    Raises
    ------
    DeniedError
        If it cannot have the group, and that matters.
    """
    core = fresh.root.core
    had, have = (PoolStat.of(core.stat(path.inside), 0) for path in (old, fresh))
    mode = had.mode
    if had.owner != have.owner:
        try:
            set_owner(fresh, had.owner, None)
        except DeniedError:
            mode |= 0o700 if had.is_directory else 0o600
    if had.group != have.group:
        try:
            set_owner(fresh, None, had.group)
        except DeniedError:
            if mode >> 3 & 7 != mode & 7:
                raise DeniedError(
                    f"need to be in group {had.group} to write {old} anew, which is of that group; "
                    "write it with atomic=False, or ask its owner to change the group"
                ) from None
    if mode != have.mode:
        set_mode(fresh, mode)
    kept = attribute_names(old)
    for name in kept:
        set_attribute(fresh, name, attribute(old, name))
    for name in set(attribute_names(fresh)).difference(kept):
        remove_attribute(fresh, name)
    if had.is_directory:
        for name, _ in core.names(fresh.inside):
            _keep_rights(fresh / name, old / name)


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
