"""The files of an LU by block columns, which runs in phases."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Grid
from outcore._util.streams import wait
from outcore.errors import NotFoundError
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES, Slab
from outcore.linalg._lu.block_columns.cost import TITLE
from outcore.linalg._lu.block_columns.geometry import BlockColumn, BlockColumnGeometry
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._lu.slabs.storage import LuFiles
from outcore.linalg._output.factor import open_tiles
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall
from outcore.storage.volumes import Place

COPY = "rest-0"
"""A copy in segments of a matrix whose rows cannot be gathered: all but its first columns."""

LOWER = "lower"
"""L by rows, each block column after all its row swaps."""

SPILL = "spill"
"""The rows of an updated block column, from the diagonal down."""

G = TypeVar("G", bound=BlockColumnGeometry)


class BlockColumnStorage(LuFiles[G]):
    """The files of one LU by block columns.

    It runs in phases, each with its own open files and memory. A phase frees them before the next
    one begins. Journal note k + 1 says that block column k is updated and spilled. Note 0 says that
    the matrix is copied.
    """

    arrays = ("the matrix", "the factors", "rest", LOWER, SPILL)
    """The matrix, the factors, and the workspaces, as the report names them."""

    def open(self, call: LongCall) -> None:
        """Remember the call. Each phase opens its own files."""
        self._call, self._trace = call, call.trace
        self._opened: list[ArrayFile] = []
        self._moved = (0, 0)
        self._began_with = self.journal.trailing

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Close all files at the end, and wait until all memory has come back."""
        try:
            yield
        finally:
            self._moved = self.bytes_moved()
            self._opened.clear()
            self._matrix = self._factors = None
        self._call.wait_for_memory()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes read and written by this call so far."""
        counted = [file.counters() for file in self._opened]
        read, written = self._moved
        return read + sum(c[0] for c in counted), written + sum(c[1] for c in counted)

    def open_factors(self, bounce_bytes: int = TILE_BOUNCE_BYTES) -> ArrayFile:
        """Open the factors as whole tiles."""
        grid = self._grid(range(self.geometry.panels))
        self._factors = open_tiles(
            self.target, self.kind, grid, self._call.arena, self._trace, writable=True,
            bounce_bytes=bounce_bytes,
        )  # fmt: skip
        self._opened.append(self._factors)
        return self._factors

    def open_matrix(self, *, whole_chunks: bool, bounce_bytes: int) -> MatrixFile:
        """Open the matrix in the type of the factors, with the padding of its chunks or without."""
        metadata = self.metadata
        if whole_chunks:
            shape = zip(metadata.shape, metadata.chunks, strict=True)
            metadata = replace(metadata, shape=tuple(-(-n // chunk) * chunk for n, chunk in shape))
        file = ArrayFile(
            self._source.volume, self._source.name, metadata.grid(), False, self._call.arena,
            bounce_bytes, self._trace, 0,
        )  # fmt: skip
        self._opened.append(file)
        return self._widened(file)

    def open_beside(
        self,
        name: str,
        what: str,
        grid: Grid,
        *,
        bounce_bytes: int = TILE_BOUNCE_BYTES,
        anew: bool = False,
    ) -> ArrayFile:
        """Open a workspace, one of `arrays`; `anew` creates it and reserves its disk space."""
        where = self.target.below(name)
        if anew:
            make_workspace(where, grid)
        file = ArrayFile(
            where.volume, where.name, grid, True, self._call.arena, bounce_bytes, self._trace,
            self.arrays.index(what),
        )  # fmt: skip
        self._opened.append(file)
        return file

    def sync(self) -> None:
        """Wait until everything that this phase wrote is durable."""
        for ticket in [file.submit_sync() for file in self._opened if file is not self._matrix]:
            wait(ticket, self._trace)

    def commit_trailing(self, k: int, extremes: Extremes) -> None:
        """Record in the journal that trailing matrix `k` and the rows of U above it are durable."""
        self.sync()
        done = self.journal.panels_done
        self.journal.append(Record(done, done, None, [], extremes.to_json(), k))

    def _remove(self, name: str) -> None:
        if self.target.volume.exists(self.target.inside(name)):
            self.target.volume.remove_soon(self.target.inside(name))

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

    def planned_bytes(self) -> tuple[int, int]:
        """Return the bytes that this call reads and writes according to the plan."""
        return self.geometry.bytes_moved(self.first_panel, self._began_with)

    def further_figures(self) -> dict[str, Any]:
        """Return further figures for the report."""
        return {"arrays": list(self.arrays)}


def make_workspace(where: Place, grid: Grid, *, reserve: bool = True) -> None:
    """Make a workspace, in the file of an earlier one if any: freeing disk space takes time."""
    try:
        ArrayFile.adopt(where.volume, where.name, grid)
    except NotFoundError:
        if where.volume.exists(where.name):
            where.volume.remove(where.name)
        ArrayFile.create(where.volume, where.name, grid, reserve)


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
