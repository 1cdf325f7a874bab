"""The conveyor of an LU by slabs: tiles leave from the top while the slab is updated."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from outcore.linalg._factors.conveyor import Load, SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._geometry.factor_plan import LuGeometry, Slab
from outcore.linalg._lu.slabs.slab_loads import load_group
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall


class Source(NamedTuple):
    """The file from which slabs are loaded, the number of its rows to read, and its chunks.

    Its first element is the first element of the part that is factored.
    """

    file: MatrixFile
    rows: int
    chunks: tuple[int, ...]


class LuConveyor(SlabConveyor):
    """Memory for one slab.

    A cell is a group of tiles and panels that one load covers, so that a slab reads no chunk of the
    matrix twice.
    """

    def __init__(
        self,
        geometry: LuGeometry,
        storage: FactorStorage[Any],
        call: LongCall,
        source: Source,
    ) -> None:
        g = geometry
        super().__init__(source.file, call, g, rows=g.n, height=g.height)
        self._g, self._storage, self._source_rows = g, storage, source.rows
        self._origin_panel = g.origin // g.columns
        chunk_rows, chunk_columns = source.chunks
        self._tile_group = load_group(chunk_rows, g.rows, g.tiles)
        self._panel_group = load_group(chunk_columns, g.columns, g.slab_panels)

    def _place(self, slab: Slab) -> None:
        p = self._origin_panel
        self._storage.place_slab(Slab(slab.first + p, slab.last + p))

    def _loads_of(self, slab: Slab) -> Iterator[Load]:
        g, base = self._g, slab.first * self._g.columns
        for panel in range(0, slab.last - slab.first, self._panel_group):
            left = panel * g.columns
            right = min(left + self._panel_group * g.columns, self._width(slab))
            for tile in range(0, g.tiles, self._tile_group):
                top = tile * g.rows
                bottom = min(top + self._tile_group * g.rows, self._source_rows)
                box = [top, base + left], self._memory[top:bottom, left:right]
                yield Load(slab.first + panel, [self._cell(tile, panel)], [box])

    def _cell(self, tile: int, panel: int) -> Hashable:
        """Return the cell of a tile; its panel is counted from the slab's first."""
        return tile // self._tile_group, panel // self._panel_group

    def _cells(self) -> Counter[Hashable]:
        return Counter(
            self._cell(tile, panel)
            for tile in range(self._g.tiles)
            for panel in range(self.part.last - self.part.first)
        )

    def rows_done(self, end: int) -> None:
        """Write the tiles whose last row is ``end - 1``: rows above `end` are final."""
        g = self._g
        tile = end // g.rows - 1
        if end % g.rows == 0 and tile < g.tiles_below(self.part.first).start:
            for panel in range(self.part.last - self.part.first):
                self._write(range(tile, tile + 1), panel)
        self._storage.commit_if_durable()
        self.poll()

    def panel_done(self, panel: int) -> None:
        """Write the rest of a panel of the slab, which is final."""
        self._write(self._g.tiles_below(self.part.first), panel - self.part.first)

    def _write(self, tiles: range, panel: int) -> None:
        g = self._g
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        rows = slice(tiles.start * g.rows, tiles.stop * g.rows)
        columns = slice(panel * g.columns, (panel + 1) * g.columns)
        place = self._storage.places[self.part.first + self._origin_panel + panel]
        ticket = self._storage.factors.submit_write(
            [g.origin + rows.start, place * g.columns], [1, 1], self._memory[rows, columns]
        )
        self._leave([ticket], Counter(self._cell(tile, panel) for tile in tiles))

    def held(self) -> tuple[Slab, Matrix]:
        """Return the last slab and its memory, after `drain`: whole tiles, no slab behind it."""
        return self.part, self._memory
