"""The slab in memory, as a conveyor.

Finished tiles are written, and the next slab's elements are read into their memory. The caller thus
waits neither for the load nor for the write of a slab.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from outcore._core import Ticket
from outcore.errors import OutcoreError
from outcore.linalg.factors.storage import FactorStorage
from outcore.linalg.lu.plan import LuGeometry, Slab
from outcore.linalg.lu.slab_loads import load_group
from outcore.linalg.matrix import Matrix
from outcore.linalg.pitch import allocate_matrix
from outcore.linalg.widened import MatrixFile
from outcore.longcall import LongCall
from outcore.streams import Pending, wait


class Source(NamedTuple):
    """The file from which slabs are loaded, the number of its rows to read, and its chunks.

    Its first element is the first element of the part that is factored.
    """

    file: MatrixFile
    rows: int
    chunks: tuple[int, ...]


class _Leaving(NamedTuple):
    """A write in flight: tile rows, and a panel counted from the slab's first."""

    ticket: Ticket
    tiles: range
    panel: int


class Conveyor:
    """Memory for one slab, between a matrix and its factors.

    The conveyor groups loads so that a slab reads no chunk of the matrix twice.
    """

    def __init__(
        self,
        geometry: LuGeometry,
        storage: FactorStorage[Any],
        call: LongCall,
        source: Source,
    ) -> None:
        g = geometry
        self._geometry, self._storage, self._trace = g, storage, call.trace
        self._source, self._origin_panel = source, g.origin // g.columns
        width = g.slab_panels * g.columns
        self._memory = allocate_matrix(call.arena, g.height, width, g.dtype)
        # Padding rows are written with their tiles. They must be zero, whatever the memory held
        # before.
        self._memory[g.n :] = 0
        chunk_rows, chunk_columns = source.chunks
        self._tile_group = load_group(chunk_rows, g.rows, g.tiles)
        self._panel_group = load_group(chunk_columns, g.columns, g.slab_panels)
        self._leaving: list[_Leaving] = []
        self._arriving: list[tuple[int, Pending]] = []
        self._awaited: list[tuple[int, Pending]] = []
        self._unwritten: Counter[tuple[int, int]] = Counter()
        # First the slab whose tiles are written and the slab that is read behind it. Then the slabs
        # that the last `begin` received. The first of those may still be loading.
        self._slab = self._current = Slab(0, 0)
        self._next: Slab | None = None
        self._following: Slab | None = None

    def load(self, slab: Slab | None) -> None:
        """Start to load the first slab into free memory."""
        self._next = slab
        self._fill_free()

    def begin(self, slab: Slab, following: Slab | None) -> Matrix:
        """Return the memory of a slab, (n, columns of the slab), column-major.

        The elements are valid once `arrivals` has yielded their columns. Until then, tiles of the
        previous slab may still be in their place. `following` is the slab to load behind this one.
        """
        p = self._origin_panel
        self._storage.place_slab(Slab(slab.first + p, slab.last + p))
        self._current, self._following = slab, following
        if not slab.first:
            # The panels of this slab are written while later panels are still loading.
            self._let_follow()
        return self._memory[: self._geometry.n, : self._width(slab)]

    def arrivals(self) -> Iterator[slice]:
        """Wait for the slab; yield its columns from the left, each panel as soon as it is whole."""
        g, slab = self._geometry, self._current
        coming = self._arriving if slab.first else self._awaited
        panels = slab.last - slab.first
        for panel in range(panels):
            while panel % self._panel_group == 0 and not self._is_coming(panel, coming):
                wait(self._leaving[0].ticket, self._trace)
                self.poll()
            for first_panel, ticket in coming:
                if first_panel == panel:
                    wait(ticket, self._trace)
            if slab.first and panel == panels - 1:
                self._let_follow()
            yield slice(panel * g.columns, min((panel + 1) * g.columns, self._width(slab)))
        self._awaited = []

    def _is_coming(self, panel: int, coming: list[tuple[int, Pending]]) -> bool:
        """Whether all reads of a panel have started: the previous slab has no tile left there."""
        groups = range(0, self._geometry.tiles, self._tile_group)
        return sum(first_panel == panel for first_panel, _ in coming) == len(groups)

    def _let_follow(self) -> None:
        """Let the following slab load behind the current one, which now owns all of its memory."""
        self.drain()
        slab = self._slab = self._current
        self._next = self._following
        self._unwritten = Counter(
            self._group_of(tile, panel)
            for tile in range(self._geometry.tiles)
            for panel in range(slab.last - slab.first)
        )
        self._awaited, self._arriving = self._arriving, []
        self._memory[:, self._width(slab) : (slab.last - slab.first) * self._geometry.columns] = 0
        # The first slab is narrow, so the second one can start to load beside it.
        self._fill_free()

    def _width(self, slab: Slab) -> int:
        """Columns of a slab."""
        g = self._geometry
        return min(slab.last * g.columns, g.n) - slab.first * g.columns

    def rows_done(self, end: int) -> None:
        """Write the tiles whose last row is ``end - 1``: rows above `end` are final."""
        g = self._geometry
        tile = end // g.rows - 1
        if end % g.rows == 0 and tile < g.tiles_below(self._slab.first).start:
            for panel in range(self._slab.last - self._slab.first):
                self._leave(range(tile, tile + 1), panel)
        self._storage.commit_if_durable()
        self.poll()

    def panel_done(self, panel: int) -> None:
        """Write the rest of a panel of the slab, which is final."""
        g = self._geometry
        self._leave(g.tiles_below(self._slab.first), panel - self._slab.first)

    def _leave(self, tiles: range, panel: int) -> None:
        g = self._geometry
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        rows = slice(tiles.start * g.rows, tiles.stop * g.rows)
        columns = slice(panel * g.columns, (panel + 1) * g.columns)
        place = self._storage.places[self._slab.first + self._origin_panel + panel]
        ticket = self._storage.factors.submit_write(
            [g.origin + rows.start, place * g.columns], [1, 1], self._memory[rows, columns]
        )
        self._leaving.append(_Leaving(ticket, tiles, panel))

    def poll(self) -> None:
        """Start to load into memory whose tiles are written."""
        self._leaving = [item for item in self._leaving if not self._has_left(item)]

    def drain(self) -> None:
        """Wait until every tile is written."""
        while self._leaving:
            wait(self._leaving[0].ticket, self._trace)
            self.poll()

    def held(self) -> tuple[Slab, Matrix]:
        """Return the last slab and its memory, after `drain`: whole tiles, no slab behind it."""
        return self._slab, self._memory

    def abandon(self) -> bool:
        """Wait for all requests in flight, to free memory; return whether all succeeded."""
        well = True
        arriving = [ticket for _, ticket in (*self._arriving, *self._awaited)]
        for ticket in [*(item.ticket for item in self._leaving), *arriving]:
            try:
                ticket.wait()
            except OutcoreError:
                well = False
        return well

    def _has_left(self, item: _Leaving) -> bool:
        if not item.ticket.done():
            return False
        item.ticket.wait()
        groups = Counter(self._group_of(tile, item.panel) for tile in item.tiles)
        self._unwritten -= groups
        for group in groups:
            if not self._unwritten[group]:
                self._arrive(*group)
        return True

    def _group_of(self, tile: int, panel: int) -> tuple[int, int]:
        return tile // self._tile_group, panel // self._panel_group

    def _fill_free(self) -> None:
        """Start to load into memory that holds no tile with a pending write."""
        for panels in range(0, self._geometry.slab_panels, self._panel_group):
            for tiles in range(0, self._geometry.tiles, self._tile_group):
                group = tiles // self._tile_group, panels // self._panel_group
                if not self._unwritten[group]:
                    self._arrive(*group)

    def _arrive(self, tile_group: int, panel_group: int) -> None:
        g, slab = self._geometry, self._next
        if slab is None:
            return
        base = slab.first * g.columns
        top = tile_group * self._tile_group * g.rows
        left = panel_group * self._panel_group * g.columns
        bottom = min(top + self._tile_group * g.rows, self._source.rows)
        right = min(left + self._panel_group * g.columns, slab.last * g.columns - base, g.n - base)
        if left < right:
            target = self._memory[top:bottom, left:right]
            ticket = self._source.file.submit_read([top, base + left], [1, 1], target)
            self._arriving.append((panel_group * self._panel_group, ticket))
