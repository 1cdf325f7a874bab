"""Bytes that slab loads of a matrix read from the disk: exact, for any layout."""

import functools
from collections.abc import Iterable, Iterator

from outcore.linalg._geometry.box_reads import BoxReads, parts
from outcore.linalg._geometry.factor_plan import LuGeometry, Slab
from outcore.linalg._geometry.loads import Loads


class SlabLoads(Loads[LuGeometry]):
    """The loads of an LU's slabs."""

    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Bytes that the conveyor reads."""
        g = self.geometry
        return _load_bytes(g, reads, g.height if is_copy else g.n, first_panel)


def load_group(chunk: int, tile: int, most: int) -> int:
    """Return how many tiles to load together so that no chunk of the matrix is read twice."""
    if tile % chunk == 0:
        return 1
    return min(chunk // tile, most) if chunk % tile == 0 else most


@functools.lru_cache(1 << 10)
def _load_bytes(g: LuGeometry, reads: BoxReads, rows: int, first_panel: int) -> int:
    """Bytes that the conveyor reads of `rows` rows."""
    high, wide = reads.layout.chunks
    tiles, panels = load_group(high, g.rows, g.tiles), load_group(wide, g.columns, g.slab_panels)
    tops = range(0, g.tiles * g.rows, tiles * g.rows)
    across = parts(_column_boxes(g, g.slabs(first_panel), panels), wide)
    down = parts(((top, min(top + tops.step, rows)) for top in tops), high)
    return reads.bytes_of(down, across, g.height)


def _column_boxes(g: LuGeometry, slabs: Iterable[Slab], panels: int) -> Iterator[tuple[int, int]]:
    for slab in slabs:
        end = min(slab.last * g.columns, g.n)
        step = panels * g.columns
        for left in range(slab.first * g.columns, end, step):
            yield left, min(left + step, end)
