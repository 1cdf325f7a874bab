"""Panels of reflections read from the disk, tile by tile."""

from collections.abc import Iterator

from outcore._util.streams import BlockStream
from outcore.linalg._slab_qr.plan import SlabQrGeometry
from outcore.linalg._tiles.matrix import Matrix


def schedule_panel(stream: BlockStream, g: SlabQrGeometry, K: int, place: int) -> None:
    """Schedule reads of panel K, at `place` in its file: tiles from the diagonal block down."""
    columns = slice(place * g.columns, (place + 1) * g.columns)
    stream.extend((slice(tile * g.rows, (tile + 1) * g.rows), columns) for tile in g.tiles_below(K))


def tiles_of(stream: BlockStream, g: SlabQrGeometry, K: int) -> Iterator[tuple[int, Matrix]]:
    """Take panel K from the stream: (row counted from the panel's first, tile)."""
    o, k = K * g.columns, g.reflections(K)
    for tile in g.tiles_below(K):
        first = tile * g.rows
        top = max(o, first)
        # No variable here keeps the tile, so its memory is freed after its second use.
        yield top - o, stream.take().data[top - first : g.m - first, :k]
