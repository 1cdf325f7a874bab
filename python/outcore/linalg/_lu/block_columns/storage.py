"""The files of an LU by block columns."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Grid
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.factor_plan import Slab
from outcore.linalg._lu.block_columns.cost import TITLE
from outcore.linalg._lu.block_columns.geometry import BlockColumn, BlockColumnGeometry
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._lu.slabs.phases import COPY, PhasedFiles, make_workspace
from outcore.linalg._output.journal import Record

LOWER = "lower"
"""L by rows, each block column after all its row swaps."""

SPILL = "spill"
"""The rows of an updated block column, from the diagonal down."""

G = TypeVar("G", bound=BlockColumnGeometry)


class BlockColumnStorage(PhasedFiles[G]):
    """The files of one LU by block columns.

    Journal note k + 1 says that block column k is updated and spilled. Note 0 says that the matrix
    is copied.
    """

    arrays = ("the matrix", "the factors", "rest", LOWER, SPILL)

    def open_spill(
        self, s: BlockColumn, *, anew: bool = False, bounce_bytes: int | None = None
    ) -> ArrayFile:
        """Open the spilled rows of a block column."""
        g = self.geometry
        if bounce_bytes is None:
            bounce_bytes = g.spill_bounce_bytes
        return self.open_beside(SPILL, SPILL, g.spill_grid(s), anew=anew, bounce_bytes=bounce_bytes)

    def make_lower(self) -> None:
        """Create the file of L by rows, before the first note: a resumed run relies on it."""
        # The file has the length of a square, but only the space of a triangle.
        make_workspace(self.target.below(LOWER), self.geometry.lower_grid(), reserve=False)

    def open_lower(self, bounce_bytes: int) -> ArrayFile:
        """Open L by rows."""
        grid: Grid = self.geometry.lower_grid()
        return self.open_beside(LOWER, LOWER, grid, bounce_bytes=bounce_bytes)

    def swaps_of(self, s: BlockColumn) -> npt.NDArray[np.int32]:
        """Row swaps of a complete block column, as row numbers of the whole matrix."""
        panels = self.panels_of(s)
        return np.concatenate([p for at, p in self._pivots() if panels.first <= at < panels.last])

    def panels_of(self, s: BlockColumn) -> Slab:
        """Panels of a block column."""
        columns = self.geometry.columns
        return Slab(s.origin // columns, -(-(s.origin + s.width) // columns))

    def commit_column(self, s: BlockColumn, piv: npt.NDArray[np.int32], extremes: Extremes) -> None:
        """Record a factored and durable block column in the journal."""
        panels = self.panels_of(s)
        self.place_slab(panels)
        self.sync()
        places = self.places_of(panels)
        swaps = piv + np.int32(s.origin)
        self.journal.append(Record(panels.first, panels.last, swaps, places, extremes.to_json()))

    def keep_only(self, k: int | None) -> None:
        """Remove the workspaces that a resume after note `k` does not need."""
        kept: tuple[str, ...] = ()
        if k is not None or self.journal.panels_done:
            kept = (COPY, LOWER, SPILL)
        if self.journal.panels_done == self.geometry.panels:
            kept = ()
        for name in self.kind.workspaces:
            if name not in kept:
                self._remove(name)


class PartialStorage(BlockColumnStorage[PartialGeometry]):
    """The files of one LU by block columns with partial pivoting."""

    method = "block-columns"


class TournamentStorage(BlockColumnStorage[TournamentGeometry]):
    """The files of one LU with tournament pivoting."""

    method = "tournament"

    @property
    def title(self) -> str:
        """Name of the method in the report."""
        g = self.geometry
        played = sum(s.width for s in g.block_columns if not g.is_whole(s))
        if not played:
            return "tournament pivoting, in memory throughout: partial pivoting"
        return f"{TITLE} of {played} of {g.n} columns"

    def notes(self, extremes: Extremes) -> list[str]:
        """Return the notes of the report."""
        largest = [f"largest element of L: {extremes.max_l:.3g}"] if extremes.max_l else []
        return super().notes(extremes) + largest
