"""The files of an LU in phases, each with its own open files and memory."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from outcore._core import ArrayFile, Grid
from outcore._util.streams import wait
from outcore.errors import NotFoundError
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._geometry.segments import SegmentedGeometry
from outcore.linalg._lu.slabs.storage import LuFiles
from outcore.linalg._output.factor import open_tiles
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall
from outcore.storage.volumes import Place

COPY = "rest-0"
"""A copy in segments of a matrix whose rows cannot be gathered: all but its first columns."""

G = TypeVar("G", bound=SegmentedGeometry)


class PhasedFiles(LuFiles[G]):
    """The files of one LU in phases. A phase frees its files and memory before the next one begins.

    Attributes
    ----------
    arrays
        The matrix, the factors, and the workspaces, as the report names them.
    """

    arrays: ClassVar[tuple[str, ...]]

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

    @abstractmethod
    def keep_only(self, k: int | None) -> None:
        """Remove all workspaces but those of number `k`."""

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
