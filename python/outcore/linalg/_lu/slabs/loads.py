"""The loads of an LU's slabs of a matrix, for any layout."""

from outcore.linalg._geometry.factor_plan import LuGeometry
from outcore.linalg._geometry.loads import ColumnLoads


class SlabLoads(ColumnLoads[LuGeometry]):
    """The loads of an LU's slabs."""

    def groups(self, chunks: tuple[int, ...]) -> tuple[int, int]:
        """Return how many tiles and panels a read covers, so that it reads chunks whole."""
        return load_groups(self.geometry, chunks)


def load_groups(g: LuGeometry, chunks: tuple[int, ...]) -> tuple[int, int]:
    """Return how many tiles and panels to load together so that no chunk is read twice."""
    return _group(chunks[0], g.rows, g.tiles), _group(chunks[1], g.columns, g.slab_panels)


def _group(chunk: int, tile: int, most: int) -> int:
    if tile % chunk == 0:
        return 1
    return min(chunk // tile, most) if chunk % tile == 0 else most
