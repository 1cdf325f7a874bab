"""The conveyor of a left-looking factorization: memory for one slab, or one part of a slab.

Finished elements are written, and those of the next part are read into their memory. The caller
thus waits neither for the load nor for the write of a slab. A subclass for each factorization says
how a part lies in memory.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from outcore._core import Ticket, Trace
from outcore._util.streams import Pending, wait
from outcore.errors import OutcoreError
from outcore.linalg._factors.storage import FactorStorage, Source
from outcore.linalg._geometry.factor_plan import Slab, Slabbed
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.pitch import allocate_matrix
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall

P = TypeVar("P")
"""A slab, or a part of one."""


class Load(NamedTuple):
    """Reads that start together, once the memory that they fill is free.

    Attributes
    ----------
    panel
        The first panel that they cover.
    cells
        The cells of the current part in that memory.
    boxes
        For each read, its first element in the file, and the memory to fill.
    """

    panel: int
    cells: Iterable[Hashable]
    boxes: list[tuple[list[int], Matrix]]


@dataclass
class _Waiting:
    """A load, and the number of cells that it waits for."""

    load: Load
    cells: int


class _Leaving(NamedTuple):
    """Writes in flight, and how many writes of each cell they end."""

    tickets: Sequence[Ticket]
    cells: Counter[Hashable]


class Conveyor(ABC, Generic[P]):
    """Memory for one part of a matrix, between the matrix and its factors.

    The memory of a part consists of *cells*, the units in which it becomes free: a subclass names
    them, and counts the writes that free each. A part that begins at the first panel is updated by
    no other panels: its panels are factored, written and replaced while later ones are still
    loading.

    Attributes
    ----------
    part
        The last part that `begin` received. It may still be loading.
    """

    part: P

    def __init__(self, file: MatrixFile, trace: Trace) -> None:
        self._file, self._trace = file, trace
        self._following: P | None = None
        self._leaving: list[_Leaving] = []
        # For each cell, the writes until it is free, and the loads that wait for it. For each
        # panel, the loads that have not started.
        self._writes: Counter[Hashable] = Counter()
        self._waiting: defaultdict[Hashable, list[_Waiting]] = defaultdict(list)
        self._unstarted: Counter[int] = Counter()
        # Reads in flight, by their first panel: of the next part, and of a current first part.
        self._arriving: list[tuple[int, Pending]] = []
        self._awaited: list[tuple[int, Pending]] = []

    @abstractmethod
    def panels_of(self, part: P) -> Sequence[int]:
        """Return the panels of a part that this process holds."""

    @abstractmethod
    def _is_first(self) -> bool:
        """Whether the current part begins at the first panel."""

    @abstractmethod
    def _place(self, part: P) -> None:
        """Choose places on disk for the factors of a part."""

    @abstractmethod
    def _loads_of(self, part: P) -> Iterable[Load]:
        """Lay out a part in memory, beside the current one; return its loads in their order."""

    @abstractmethod
    def _cells(self) -> Counter[Hashable]:
        """Return the cells of the current part, and the writes that free each."""

    @abstractmethod
    def _take_over(self) -> None:
        """Give the current part all of the memory, and clear the padding that is written there."""

    def load(self, part: P | None) -> None:
        """Start to load a part into free memory; the rest follows as memory becomes free."""
        if part is None:
            return
        for load in self._loads_of(part):
            self._unstarted[load.panel] += 1
            cells = {cell for cell in load.cells if self._writes[cell] > 0}
            waiting = _Waiting(load, len(cells))
            for cell in cells:
                self._waiting[cell].append(waiting)
            if not cells:
                self._start(load)

    def _begin(self, part: P, following: P | None) -> None:
        """Make a part the current one. `following` is the part to load behind it.

        The elements are valid once `arrivals` has yielded their panel. Until then, elements of the
        previous part may still be in their place.
        """
        self.part, self._following = part, following
        self._place(part)
        if self._is_first():
            self._let_follow()

    def arrivals(self) -> Iterator[int]:
        """Wait for the part; yield its panels from the left, each as soon as it is whole."""
        panels, is_first = self.panels_of(self.part), self._is_first()
        coming = self._awaited if is_first else self._arriving
        for panel in panels:
            while not is_first and self._is_unstarted(panel):
                self._wait_for_one()
            for first, ticket in coming:
                if first == panel:
                    wait(ticket, self._trace)
            if not is_first and panel == panels[-1]:
                self._let_follow()
            yield panel
        if not (is_first or panels):
            self._let_follow()
        self._awaited = []

    def _is_unstarted(self, panel: int) -> bool:
        """Whether a read up to a panel has not started: the previous part still lies there."""
        return any(first <= panel and count for first, count in self._unstarted.items())

    def _let_follow(self) -> None:
        """Let the following part load behind the current one, which now owns all of its memory."""
        self.drain()
        self._take_over()
        self._awaited, self._arriving = self._arriving, []
        self._writes = self._cells()
        self._unstarted.clear()
        # A first slab is narrow, so the second one can start to load beside it.
        self.load(self._following)

    def _leave(self, tickets: Sequence[Ticket], cells: Counter[Hashable]) -> None:
        """Free memory once it is written."""
        self._leaving.append(_Leaving(tickets, cells))

    def poll(self) -> None:
        """Start to load into memory that is written."""
        self._leaving = [item for item in self._leaving if not self._has_left(item)]

    def _has_left(self, item: _Leaving) -> bool:
        if not all(ticket.done() for ticket in item.tickets):
            return False
        for ticket in item.tickets:
            ticket.wait()
        for cell, count in item.cells.items():
            self._writes[cell] -= count
            if not self._writes[cell]:
                self._free(cell)
        return True

    def _free(self, cell: Hashable) -> None:
        """Start the loads that waited for this cell last."""
        for waiting in self._waiting.pop(cell, []):
            waiting.cells -= 1
            if not waiting.cells:
                self._start(waiting.load)

    def _start(self, load: Load) -> None:
        self._unstarted[load.panel] -= 1
        for start, target in load.boxes:
            ticket = self._file.submit_read(start, [1, 1], target)
            self._arriving.append((load.panel, ticket))

    def drain(self) -> None:
        """Wait until everything is written."""
        while self._leaving:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        """Wait for the oldest write."""
        for ticket in self._leaving[0].tickets:
            wait(ticket, self._trace)
        self.poll()

    def abandon(self) -> bool:
        """Wait for all requests in flight, to free memory; return whether all succeeded."""
        well = True
        arriving = [ticket for _, ticket in (*self._arriving, *self._awaited)]
        leaving = [ticket for item in self._leaving for ticket in item.tickets]
        for ticket in [*leaving, *arriving]:
            try:
                ticket.wait()
            except OutcoreError:
                well = False
        return well


class SlabConveyor(Conveyor[Slab]):
    """Memory for one slab of whole columns, as a column-major matrix.

    A cell is a group of tiles and panels that one load covers, so that a slab reads no chunk of the
    matrix twice. Its panel is counted from the slab's first.

    Parameters
    ----------
    g
        Cuts of the matrix, or of the part that is factored. Rows below the matrix, up to whole
        tiles, are zero: they are written as padding.
    storage
        The files.
    source
        The source of slabs.
    origin
        First row and column of the part.
    """

    def __init__(
        self,
        g: Slabbed,
        storage: FactorStorage[Any],
        call: LongCall,
        source: Source,
        origin: int = 0,
    ) -> None:
        super().__init__(source.file, call.trace)
        self._g, self._storage, self._source, self._origin = g, storage, source, origin
        self._before = origin // g.columns
        height = g.tiles * g.rows
        self._memory = allocate_matrix(call.arena, height, g.held_panels * g.columns, g.dtype)
        self._memory[g.shape[0] :] = 0

    def begin(self, slab: Slab, following: Slab | None) -> Matrix:
        """Return the memory of a slab, (rows, columns of the slab that this process holds).

        The elements are valid once `arrivals` has yielded their panel. Until then, elements of the
        previous slab may still be in their place. `following` is the slab to load behind this one.
        """
        self._begin(slab, following)
        return self._memory[: self._g.shape[0], : self._width(slab)]

    def panel_done(self, panel: int) -> None:
        """Write a panel of the slab, which is final."""
        self._write(range(self._g.tiles), self.place_in_slab(panel))

    def panels_of(self, part: Slab) -> Sequence[int]:
        """Return the panels of a slab that this process holds."""
        return self._g.deal.held(*part)

    def place_in_slab(self, panel: int) -> int:
        """Return how many panels of the slab lie before a panel in memory."""
        return self._g.deal.number(self.part.first, panel)

    def whole_panel(self, panel: int) -> Matrix:
        """Return the memory of a panel of the slab, in whole tiles."""
        left = self.place_in_slab(panel) * self._g.columns
        return self._memory[:, left : left + self._g.columns]

    def _is_first(self) -> bool:
        return self.part.first == 0

    def _width(self, slab: Slab) -> int:
        """Columns of a slab that this process holds."""
        return self._g.held_columns(*slab)

    def _take_over(self) -> None:
        end = len(self.panels_of(self.part)) * self._g.columns
        self._memory[:, self._width(self.part) : end] = 0

    def _place(self, slab: Slab) -> None:
        self._storage.place_slab(Slab(slab.first + self._before, slab.last + self._before))

    def _loads_of(self, slab: Slab) -> Iterator[Load]:
        g, source, (tiles, panels) = self._g, self._source, self._source.groups
        held = self.panels_of(slab)
        for panel in range(0, len(held), panels):
            left = panel * g.columns
            right = min(left + panels * g.columns, self._width(slab))
            for tile in range(0, g.tiles, tiles):
                top, bottom = tile * g.rows, min((tile + tiles) * g.rows, source.rows)
                start = [top, held[panel] * g.columns]
                target = self._memory[top:bottom, left:right]
                box = (start[::-1], target.T) if source.is_transposed else (start, target)
                yield Load(held[panel], [self._cell(tile, panel)], [box])

    def _cell(self, tile: int, panel: int) -> Hashable:
        tiles, panels = self._source.groups
        return tile // tiles, panel // panels

    def _cells(self) -> Counter[Hashable]:
        return Counter(
            self._cell(tile, panel)
            for tile in range(self._g.tiles)
            for panel in range(len(self.panels_of(self.part)))
        )

    def _write(self, tiles: range, panel: int) -> None:
        """Write tiles of a panel, counted from the first that this process holds."""
        g = self._g
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        rows = slice(tiles.start * g.rows, tiles.stop * g.rows)
        columns = slice(panel * g.columns, (panel + 1) * g.columns)
        place = self._storage.places[self.panels_of(self.part)[panel] + self._before]
        ticket = self._storage.factors.submit_write(
            [self._origin + rows.start, place * g.columns], [1, 1], self._memory[rows, columns]
        )
        self._leave([ticket], Counter(self._cell(tile, panel) for tile in tiles))
