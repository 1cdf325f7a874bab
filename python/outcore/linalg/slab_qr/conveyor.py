"""The conveyor of a QR by slabs: the memory of a slab.

Finished panels are written, and panels of the next slab are read into their memory.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from outcore._core import Ticket
from outcore.errors import OutcoreError
from outcore.linalg.factors.storage import FactorStorage
from outcore.linalg.lu.plan import Slab
from outcore.linalg.matrix import Matrix
from outcore.linalg.pitch import allocate_matrix
from outcore.linalg.slab_qr.plan import SlabQrGeometry
from outcore.linalg.widened import MatrixFile
from outcore.longcall import LongCall
from outcore.streams import Pending, wait


class Source(NamedTuple):
    """The source of slabs: a file, the number of rows to read, and of panels per read.

    The file may store the transpose.
    """

    file: MatrixFile
    rows: int
    at_once: int
    is_transposed: bool


class Conveyor:
    """Memory for one slab, between a matrix and its factors."""

    def __init__(
        self,
        g: SlabQrGeometry,
        storage: FactorStorage[SlabQrGeometry],
        call: LongCall,
        source: Source,
    ) -> None:
        self._g, self._storage, self._trace = g, storage, call.trace
        width = g.slab_panels * g.columns
        self._memory = allocate_matrix(call.arena, g.height, width, g.dtype)
        # Padding rows are written with their tiles. They must be zero, whatever the memory held
        # before.
        self._memory[g.m :] = 0
        self._source = source
        self._leaving: deque[Ticket] = deque()
        # Panels of memory whose write is pending.
        self._occupied = range(0)
        self._slab = Slab(0, 0)
        self._coming: deque[range] = deque()
        self._base = 0
        self._arriving: list[tuple[int, Pending]] = []
        self._awaited: list[tuple[int, Pending]] = []

    def load(self, slab: Slab | None) -> None:
        """Start to load the first slab into free memory."""
        if slab:
            self._base = slab.first
            width = slab.last - slab.first
            step = self._source.at_once
            self._coming = deque(range(i, min(i + step, width)) for i in range(0, width, step))
        self._fill()

    def begin(self, slab: Slab, following: Slab | None) -> Matrix:
        """Return the memory of a slab, (m, columns of the slab), column-major.

        The elements are valid once `arrivals` has yielded their columns. `following` is the slab to
        load behind this one.
        """
        self.drain()
        g = self._g
        self._slab = slab
        self._storage.place_slab(slab)
        self._awaited, self._arriving = self._arriving, []
        panels = slab.last - slab.first
        self._occupied = range(panels)
        width = g.extent(slab.last - 1)[1] - slab.first * g.columns
        self._memory[:, width : panels * g.columns] = 0
        # The first slab is narrow, so the second one can start to load beside it.
        self.load(following)
        return self._memory[: g.m, :width]

    def arrivals(self) -> Iterator[slice]:
        """Wait for the slab; yield its columns from the left, each panel as soon as it is whole."""
        base = self._slab.first * self._g.columns
        for panel in range(self._slab.first, self._slab.last):
            for first, ticket in self._awaited:
                if first == panel:
                    wait(ticket, self._trace)
            o, e = self._g.extent(panel)
            yield slice(o - base, e - base)
        self._awaited = []

    def panel_done(self, panel: int) -> None:
        """Write a panel of the slab, which is final."""
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        columns = self._g.columns
        first = (panel - self._slab.first) * columns
        ticket = self._storage.factors.submit_write(
            [0, self._storage.places[panel] * columns],
            [1, 1],
            self._memory[:, first : first + columns],
        )
        self._leaving.append(ticket)

    def poll(self) -> None:
        """Start to load into memory whose panels are written."""
        while self._leaving and self._leaving[0].done():
            self._leaving[0].wait()
            self._leaving.popleft()
            self._occupied = self._occupied[1:]
            self._fill()

    def drain(self) -> None:
        """Wait until every panel is written."""
        while self._leaving:
            wait(self._leaving[0], self._trace)
            self.poll()

    def abandon(self) -> bool:
        """Wait for all requests in flight, to free memory; return whether all succeeded."""
        well = True
        arriving = [ticket for _, ticket in (*self._arriving, *self._awaited)]
        for ticket in [*self._leaving, *arriving]:
            try:
                ticket.wait()
            except OutcoreError:
                well = False
        return well

    def _fill(self) -> None:
        """Start to load into memory that holds no panel with a pending write."""
        g, waiting = self._g, deque[range]()
        for panels in self._coming:
            if set(panels) & set(self._occupied):
                waiting.append(panels)
                continue
            left, right = panels[0] * g.columns, (panels[-1] + 1) * g.columns
            base = self._base * g.columns
            target = self._memory[: self._source.rows, left : min(right, g.n - base)]
            start = [0, base + left]
            if self._source.is_transposed:
                start, target = start[::-1], target.T
            ticket = self._source.file.submit_read(start, [1, 1], target)
            self._arriving.append((self._base + panels[0], ticket))
        self._coming = waiting
