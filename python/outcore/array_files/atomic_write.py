"""Shard files that replace those of an array at once; until then they are stored below the array.

They keep the rights of the replaced files, as if the write were in place: owner, group, mode,
extended attributes, and the number of servers.
"""

import contextlib
import re
import secrets

from outcore._core import ArrayFile, Grid
from outcore.array_files import growing
from outcore.array_files.metadata import read_metadata
from outcore.errors import BusyError, DeniedError, OutcoreError
from outcore.layout.zarr_format import Metadata
from outcore.storage.file_attributes import (
    attribute,
    attribute_names,
    remove_attribute,
    set_attribute,
    set_mode,
    set_owner,
)
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat
from outcore.storage.volumes import Place

FRESH = re.compile(r"\.write_all-[0-9a-f]{8}")
"""Name of a directory below the array, for the shard files of an atomic collective."""


def make(where: Place, metadata: Metadata) -> Place:
    """Create the new files in a directory below the array; remove the files of killed writes.

    Raises
    ------
    DeniedError
        If the new files cannot get the rights of the old ones.
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
        # Set the rights before the files contain data.
        _keep_rights(fresh.path / key, where.path / key)
    except BaseException:
        with contextlib.suppress(OutcoreError):
            fresh.volume.remove(fresh.name)
        raise
    return fresh


def take_place(fresh: Place, where: Place, metadata: Metadata) -> None:
    """Replace the array's files by the new ones, in one step.

    Raises
    ------
    BusyError
        If another call is appending to the array, or has appended to it since.
    """
    key = _replaced(metadata.grid())
    with contextlib.ExitStack() as stack:
        if metadata.growing:
            stack.enter_context(growing.appending(where))
            _check_steps(where, metadata)
        assert isinstance(where.path, PoolPath)
        where.path.root.core.replace(fresh.inside(key), where.inside(key))
    # The write counts now. The next call removes what this one cannot.
    with contextlib.suppress(OutcoreError):
        fresh.volume.remove(fresh.name)


def _replaced(grid: Grid) -> str:
    """Return the name to replace: the only shard file, or the directory of all shard files.

    It is a single name in both cases, so a crash cannot leave a mixture.
    """
    return grid.shard_key(0) if grid.shards == 1 else "c"


def _stripe_count(where: Place, grid: Grid) -> int:
    """Return the number of servers of the existing files; the largest if they differ."""
    assert isinstance(where.path, PoolPath)
    names = (where.inside(grid.shard_key(shard)) for shard in range(grid.shards))
    core = where.path.root.core
    return max(len(PoolStat.of(core.stat(name), 0).servers) for name in names)


def _keep_rights(fresh: PoolPath, old: PoolPath) -> None:
    """Give the new file or directory, and everything in it, the rights of the old one.

    Only a client with the pool's key can keep the owner. Otherwise the writer becomes the owner,
    and gets permission to read and write.

    Raises
    ------
    DeniedError
        If the new file cannot get the group, and the group's permissions differ from others'.
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
                    f"need to be in group {had.group} to replace {old}, which is of that group; "
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
    """List the directories of atomic writes that were killed or are in flight."""
    return [where.below(name) for name, _, _ in where.names() if FRESH.fullmatch(name)]
