"""The server of a pool that stores each chunk of an array, in figures and as a picture."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outcore._core import Stripes
from outcore.array_files.growing import step_metadata
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat
from outcore.storage.volumes import Place

MOST_CHARACTERS = 64
MOST_ROWS = 16
MOST_LINES = 48
MOST_PLANES = 1024
"""Limits of a picture: characters of a line, rows of a plane, lines in total, and planes."""

SEVERAL = -1
"""The server number of a chunk that lies on several servers."""


@dataclass(frozen=True)
class Placement:
    """The server of each chunk; for a growing array, of the chunks of its last step.

    Attributes
    ----------
    stripe_unit_bytes : int
        Bytes of a stripe unit of the array's file.
    servers : tuple of int
        Numbers of the servers of the file's stripe units, in round-robin order. The bytes after the
        blocks of a disk schema lie on the last server.
    chunk_counts : tuple of int
        Number of chunks that lie wholly on each server.
    parted_chunks : int
        Number of chunks that lie on several servers.
    picture : tuple of str
        Lines of text. A chunk is drawn as the number of its server, or ``+`` if it lies on several.
        Chunks along the last dimension stand side by side; the dimension before runs downwards.
        With more than two dimensions there are several such planes, each below its indices.
    """

    stripe_unit_bytes: int
    servers: tuple[int, ...]
    chunk_counts: tuple[int, ...]
    parted_chunks: int
    picture: tuple[str, ...]

    def __str__(self) -> str:
        each = zip(self.servers, self.chunk_counts, strict=True)
        counts = [f"{count} on {server}" for server, count in each]
        if self.parted_chunks:
            counts.append(f"{self.parted_chunks} on several")
        return "\n".join([f"chunks {', '.join(counts)}", *self.picture])


def placement_of(where: Place, metadata: Metadata) -> Placement | None:
    """Return the server of each chunk of an array.

    The result is `None` for an array on a plain path, and for a growing array without steps.
    """
    grid = metadata.grid()
    keys = [grid.shard_key(shard) for shard in range(grid.shards)]
    if metadata.growing:
        metadata = step_metadata(metadata)
        keys = keys[-metadata.grid().shards :]
    if not isinstance(where.path, PoolPath) or not keys:
        return None
    core, inside = where.path.root.core, where.path.inside
    layouts = [PoolStat.of(core.stat(f"{inside}/{key}"), 0) for key in keys]
    servers = tuple(dict.fromkeys(server for one in layouts for server in one.servers))
    of_chunk = _servers(layouts, metadata)
    return Placement(
        layouts[0].stripe_unit_bytes,
        servers,
        tuple(int(np.count_nonzero(of_chunk == server)) for server in servers),
        int(np.count_nonzero(of_chunk == SEVERAL)),
        tuple(draw(of_chunk)),
    )


def _servers(layouts: list[PoolStat], metadata: Metadata) -> npt.NDArray[np.int64]:
    """Return the server number of each chunk, in the shape of the grid of chunks."""
    grid = metadata.grid()
    per_shard = [n // c for n, c in zip(grid.shard_shape, metadata.chunks, strict=True)]
    # The index of a shard has the offset and the length of each of its chunks, then a checksum.
    index = np.frombuffer(grid.index()[:-4], "<u8").reshape(*per_shard, 2).astype(np.int64)
    first, last = index[..., 0], index.sum(-1) - 1
    found = np.empty(metadata.counts, np.int64)
    corners = itertools.product(
        *(range(0, n, per) for n, per in zip(metadata.counts, per_shard, strict=True))
    )
    # Most files of an array have the same layout.
    entries: dict[tuple[int, int, int | None], npt.NDArray[np.int64]] = {}
    for corner, layout in zip(corners, layouts, strict=True):
        cut = layout.stripe_unit_bytes, len(layout.servers), layout.round_units
        if cut not in entries:
            entries[cut] = _entries(layout.stripes, first, last)
        entry = entries[cut]
        each = np.where(entry == SEVERAL, SEVERAL, np.array(layout.servers)[entry])
        part = tuple(slice(c, c + per) for c, per in zip(corner, per_shard, strict=True))
        target = found[part]
        target[...] = each[tuple(slice(n) for n in target.shape)]
    return found


def _entries(
    stripes: Stripes, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the entry, in a file's list of servers, that holds each byte range, or `SEVERAL`."""
    entry, begin = np.array([stripes.locate(at) for at in first.ravel().tolist()]).T
    last_entry, end = np.array([stripes.locate(at) for at in last.ravel().tolist()]).T
    is_whole = (last_entry == entry) & (end - begin == (last - first).ravel())
    return np.where(is_whole, entry, SEVERAL).reshape(first.shape)


def draw(servers: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield the lines of a picture of a grid of chunks, cut to the limits above.

    Dimensions with a single chunk are left out. A plane shows the last two of the other dimensions;
    planes stand side by side.
    """
    width = len(str(servers.max(initial=0)))
    several = [dim for dim, count in enumerate(servers.shape) if count > 1]
    grid = servers.reshape([servers.shape[dim] for dim in several])
    if grid.ndim < 2:
        yield from _draw_line(grid.reshape(-1), width)
        return
    if grid.ndim > 2:
        across, down, *above = several[::-1]
        yield f"dimension {down} down, {across} across, above: {', '.join(map(str, above[::-1]))}"
    planes = [
        [", ".join(map(str, at)), *_draw_plane(grid[at], width)]
        for at in itertools.islice(np.ndindex(*grid.shape[:-2]), MOST_PLANES)
    ]
    widths = max(len(line) for plane in planes for line in plane)
    beside = max((MOST_CHARACTERS + 2) // (widths + 2), 1)
    bands = [planes[first : first + beside] for first in range(0, len(planes), beside)]
    for band in bands[: max(MOST_LINES // len(planes[0]), 1)]:
        lines = zip(*band, strict=True)
        for line in lines if grid.ndim > 2 else itertools.islice(lines, 1, None):
            yield "  ".join(cell.ljust(widths) for cell in line).rstrip()
    drawn = min(len(planes), beside * max(MOST_LINES // len(planes[0]), 1))
    left = math.prod(grid.shape[:-2]) - drawn
    if left:
        yield f"... and {left} more planes"


def _draw_line(servers: npt.NDArray[np.int64], width: int) -> Iterator[str]:
    """Draw the chunks along one dimension, broken into lines."""
    most = _cells(width)
    lines = servers[: most * MOST_ROWS]
    for start in range(0, len(lines), most):
        yield _text(lines[start : start + most], width)
    if len(servers) > len(lines):
        yield f"... and {len(servers) - len(lines)} more chunks"


def _draw_plane(plane: npt.NDArray[np.int64], width: int) -> Iterator[str]:
    most = _cells(width)
    more = " ..." if plane.shape[1] > most else ""
    for row in plane[:MOST_ROWS]:
        yield _text(row[:most], width) + more
    if plane.shape[0] > MOST_ROWS:
        yield f"... and {plane.shape[0] - MOST_ROWS} more lines"


def _cells(width: int) -> int:
    """Return the largest number of chunks in a line of a picture."""
    return MOST_CHARACTERS // (width + (width > 1))


def _text(servers: npt.NDArray[np.int64], width: int) -> str:
    cells = ["+" if server == SEVERAL else str(server) for server in servers]
    return (" " if width > 1 else "").join(cell.rjust(width) for cell in cells)
