"""The file of a lower triangle: full length, but disk space for its tiles only.

Tiles above the diagonal are holes, which read as zeros.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from outcore._core import ArrayFile
from outcore.errors import DiskFullError
from outcore.layout.zarr_format import Metadata
from outcore.storage.file_room import Extent, give_back_room, take_room
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place


def create_lower(
    where: Place,
    metadata: Metadata,
    stripe_unit_bytes: int | None = None,
    base: int | None = None,
) -> None:
    """Create the files of an array of tiles, with space for tiles on and below the diagonal.

    Parameters
    ----------
    stripe_unit_bytes, base
        In a pool, bytes of a stripe unit, and the first server; by default those of the pool.

    Raises
    ------
    DiskFullError
        If the disk has too little space.
    """
    grid = metadata.grid()
    extents = defaultdict(list)
    tiles = grid.counts[0]
    for column, first in enumerate(_first_tiles(metadata)):
        shard, offset = grid.locate([first, column])
        extents[shard].append(Extent(offset, (tiles - first) * grid.slot_bytes))
    need = sum(extent.length for each in extents.values() for extent in each)
    free = where.volume.free_bytes()
    if need > free:
        raise DiskFullError(
            f"need {need} bytes on disk for {where.path}; {free} are free; free some room or "
            "choose another directory"
        )
    ArrayFile.create(
        where.volume, where.name, grid, False, stripe_unit_bytes=stripe_unit_bytes, base=base
    )
    if isinstance(where.path, PoolPath):
        # A pool reserves only whole files, so this file gets its space when it is written.
        return
    for shard, each in extents.items():
        take_room(where.path / grid.shard_key(shard), each)


def keep_lower(where: Place, metadata: Metadata) -> None:
    """Free the space of all tiles above the diagonal, in a single shard file."""
    grid = metadata.grid()
    tiles, columns = grid.counts
    path = where.path / grid.shard_key(0)
    places = metadata.column_places or range(columns)
    column_bytes = tiles * grid.slot_bytes
    above = dict(zip(places, _first_tiles(metadata), strict=True))
    holes = [
        # A place without a column is wholly a hole.
        Extent(place * column_bytes, above.get(place, tiles) * grid.slot_bytes)
        for place in range(max(places) + 1)
    ]
    if isinstance(path, PoolPath):
        _write_zeros(path, holes)
    else:
        give_back_room(path, holes)


def _write_zeros(path: PoolPath, extents: Iterable[Extent]) -> None:
    """Write zeros durably in a pool, which has no holes."""
    zeros = bytes(1 << 20)
    with path.open("r+") as file:
        for offset, length in extents:
            for at in range(offset, offset + length, len(zeros)):
                file.write_at(at, zeros[: offset + length - at])
        file.sync()


def _first_tiles(metadata: Metadata) -> Iterator[int]:
    """Yield the diagonal tile of each column of tiles."""
    rows, columns = metadata.chunks
    for first in range(0, metadata.shape[1], columns):
        yield first // rows
