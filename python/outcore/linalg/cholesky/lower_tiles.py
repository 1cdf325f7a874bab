"""The file of a lower triangle: whole by its length, but with room for its tiles only.

Tiles above the diagonal are holes, which read as zeros.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from outcore._core import ArrayFile
from outcore.errors import DiskFullError
from outcore.file_room import Extent, give_back_room, take_room
from outcore.volumes import Place
from outcore.zarr_format import Metadata


def create_lower(where: Place, metadata: Metadata) -> None:
    """Make the file, or files, of an array of tiles, with room for those on and below the diagonal.

    Raises
    ------
    DiskFullError
        If there is not so much room.
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
    ArrayFile.create(where.volume, where.name, grid, False)
    for shard, each in extents.items():
        take_room(where.path / grid.shard_key(shard), each)


def keep_lower(where: Place, metadata: Metadata) -> None:
    """Make holes of everything but the tiles on and below the diagonal, in a single shard file."""
    grid = metadata.grid()
    tiles, columns = grid.counts
    path: Path = where.path / grid.shard_key(0)
    places = metadata.column_places or range(columns)
    column_bytes = tiles * grid.slot_bytes
    above = dict(zip(places, _first_tiles(metadata), strict=True))
    give_back_room(
        path,
        [
            # Of a place that no column has, everything.
            Extent(place * column_bytes, above.get(place, tiles) * grid.slot_bytes)
            for place in range(max(places) + 1)
        ],
    )


def _first_tiles(metadata: Metadata) -> Iterator[int]:
    """Of each column of tiles, the tile on the diagonal."""
    rows, columns = metadata.chunks
    for first in range(0, metadata.shape[1], columns):
        yield first // rows
