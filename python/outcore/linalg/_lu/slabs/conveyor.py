"""The conveyor of an LU by slabs: tiles leave from the top while the slab is updated."""

from typing import Any

from outcore.linalg._factors.conveyor import SlabConveyor
from outcore.linalg._factors.storage import FactorStorage, Source
from outcore.linalg._geometry.factor_plan import LuGeometry, Slab
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


class LuConveyor(SlabConveyor):
    """Memory for one slab."""

    def __init__(
        self, g: LuGeometry, storage: FactorStorage[Any], call: LongCall, source: Source
    ) -> None:
        super().__init__(g, storage, call, source, g.origin)
        self._tiles_below = g.tiles_below

    def rows_done(self, end: int) -> None:
        """Write the tiles whose last row is ``end - 1``: rows above `end` are final."""
        rows = self._g.rows
        tile = end // rows - 1
        if end % rows == 0 and tile < self._tiles_below(self.part.first).start:
            for panel in range(self.part.last - self.part.first):
                self._write(range(tile, tile + 1), panel)
        self._storage.commit_if_durable()
        self.poll()

    def panel_done(self, panel: int) -> None:
        """Write the rest of a panel of the slab, which is final."""
        self._write(self._tiles_below(self.part.first), panel - self.part.first)

    def held(self) -> tuple[Slab, Matrix]:
        """Return the last slab and its memory, after `drain`: whole tiles, no slab behind it."""
        return self.part, self._memory
