"""The conveyor of a Cholesky factorization: the memory of a slab, or of a part of one.

Finished panels are written, and panels of the next part are read into their memory. The next part
has another height and width, so its panels have other places.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import Ticket
from outcore.errors import OutcoreError
from outcore.linalg.cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg.cholesky.loads import TriangleLoads
from outcore.linalg.cholesky.pieces import Piece
from outcore.linalg.cholesky.storage import CholeskyStorage
from outcore.linalg.matrix import Matrix
from outcore.linalg.widened import MatrixFile
from outcore.longcall import LongCall
from outcore.streams import Pending, wait


@dataclass
class _Held:
    """A piece in memory: the panels that it still holds, and the words of memory up to its end."""

    piece: Piece
    panels: range
    panel_words: int
    stop: int

    @property
    def start(self) -> int:
        """Words of memory before the first panel that the piece still holds."""
        return self.stop - len(self.panels) * self.panel_words


class _Coming(NamedTuple):
    """Panels loaded together, the words of memory that they take, and the boxes to read."""

    panels: range
    start: int
    stop: int
    piece: Piece
    boxes: list[tuple[slice, slice]]


class Source(NamedTuple):
    """The source of slabs: a file, its loads, and whether it stores the transpose."""

    file: MatrixFile
    loads: TriangleLoads
    is_transposed: bool


class Conveyor:
    """Memory for one slab, or one part of it, between a matrix and its factor."""

    def __init__(
        self, g: CholeskyGeometry, storage: CholeskyStorage, call: LongCall, source: Source
    ) -> None:
        self._g, self._storage, self._trace = g, storage, call.trace
        memory = call.arena.allocate(g.slab_bytes)
        self._memory: npt.NDArray[Any] = np.frombuffer(memoryview(memory), g.dtype)
        self._source = source
        self._held: list[_Held] = []
        # Writes in flight, by panel, in their order.
        self._leaving: deque[tuple[int, list[Ticket]]] = deque()
        self._next: list[_Held] = []
        self._coming: list[_Coming] = []
        self._arriving: list[tuple[int, Pending]] = []
        self._awaited: list[tuple[int, Pending]] = []

    def load(self, part: Part | None) -> None:
        """Start to load the first part into free memory."""
        self._lay_out(part)
        self._fill()

    def begin(self, part: Part, following: Part | None) -> list[Piece]:
        """Return the memory of a part, in its pieces.

        The elements are valid once `arrivals` has yielded their panel. Until then, panels of the
        previous part may still be in their place. `following` is the part to load behind this one.
        """
        self._part, self._following = part, following
        self._pieces = [held.piece for held in self._next]
        if part.is_first:
            self._storage.place_slab(part.slab)
        # Panels of the first slab are written while later panels are still loading.
        self._is_alone = part.is_first and not part.slab.first
        if self._is_alone:
            self._let_follow()
        return self._pieces

    def arrivals(self) -> Iterator[int]:
        """Wait for the part, and yield its panels from the left, each as soon as it is whole."""
        panels = self._part.panels
        arriving = self._awaited if self._is_alone else self._arriving
        for panel in panels:
            while not self._is_alone and any(c.panels[0] <= panel for c in self._coming):
                self._wait_for_one()
            for first, ticket in arriving:
                if first == panel:
                    wait(ticket, self._trace)
            if not self._is_alone and panel == panels[-1]:
                self._let_follow()
            yield panel
        self._awaited = []

    def _let_follow(self) -> None:
        """Let the following part load behind this one, which now owns all of its memory."""
        self.drain()
        n = self._g.n
        self._held = self._next
        for piece in self._pieces:
            # Padding is written with its tiles. It must be zero, whatever the memory held before.
            piece.data[max(n - piece.top, 0) :] = 0
            piece.data[:, piece.end - piece.first :] = 0
        self._awaited, self._arriving = self._arriving, []
        self._lay_out(self._following)
        self._fill()

    def panel(self, panel: int) -> list[tuple[int, Matrix]]:
        """View a panel of the part from its diagonal down: (first row, matrix), from the top."""
        return self.panels(range(panel, panel + 1))

    def panels(self, panels: range) -> list[tuple[int, Matrix]]:
        """View adjacent panels, from the diagonal of the last one down."""
        first, end = self._g.extent(panels[0])[0], self._g.extent(panels[-1])[1]
        diagonal = self._g.extent(panels[-1])[0]
        found = []
        for piece in self._pieces_of(first):
            top, bottom = max(piece.top, diagonal), min(piece.bottom, self._g.n)
            found.append((top, piece.part(slice(top, bottom), slice(first, end))))
        return found

    def is_beside_next(self, panel: int) -> bool:
        """Whether the next panel of the part is next to this one in memory, in the same pieces."""
        first, end = self._g.extent(panel)
        beside = all(end < piece.end for piece in self._pieces_of(first))
        return beside and panel + 1 < self._part.slab.last

    def panel_done(self, panel: int) -> None:
        """Write a panel of the part, which is final."""
        g = self._g
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        first, end = g.extent(panel)
        place = self._storage.places[panel] * g.columns
        tickets = []
        for piece in self._pieces_of(first):
            top = max(g.first_tile(panel) * g.rows, piece.top)
            tiles = piece.part(slice(top, piece.bottom), slice(first, first + g.columns))
            if top <= first:
                _clear_above(tiles[:, : end - first], first - top)
            tickets.append(self._storage.factors.submit_write([top, place], [1, 1], tiles))
        self._leaving.append((panel, tickets))

    def poll(self) -> None:
        """Start to load into memory whose panels are written."""
        while self._leaving and all(ticket.done() for ticket in self._leaving[0][1]):
            for ticket in self._leaving[0][1]:
                ticket.wait()
            panel, _ = self._leaving.popleft()
            for held in self._held:
                if held.panels and held.panels[0] == panel:
                    held.panels = held.panels[1:]
            self._fill()

    def drain(self) -> None:
        """Wait until every panel is written."""
        while self._leaving:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        """Wait until the next panel is written."""
        for ticket in self._leaving[0][1]:
            wait(ticket, self._trace)
        self.poll()

    def abandon(self) -> bool:
        """Wait for all requests in flight, to free memory; return whether all succeeded."""
        well = True
        arriving = [ticket for _, ticket in (*self._arriving, *self._awaited)]
        leaving = [ticket for _, tickets in self._leaving for ticket in tickets]
        for ticket in [*leaving, *arriving]:
            try:
                ticket.wait()
            except OutcoreError:
                well = False
        return well

    def _lay_out(self, part: Part | None) -> None:
        """Divide the memory for a part, and list its loads."""
        g = self._g
        self._next = []
        self._coming = []
        if part is None:
            return
        at = 0
        loads = itertools.groupby(self._source.loads.of(part), lambda load: load.piece)
        for (panels, tiles), of_piece in loads:
            first, end = g.extent(panels[0])[0], g.extent(panels[-1])[1]
            height, width = len(tiles) * g.rows, len(panels) * g.columns
            data = self._memory[at : at + height * width].reshape((height, width), order="F")
            piece, panel_words = Piece(first, end, tiles.start * g.rows, data), height * g.columns
            for some, _, boxes in of_piece:
                start = at + (some[0] - panels[0]) * panel_words
                stop = start + len(some) * panel_words
                self._coming.append(_Coming(some, start, stop, piece, boxes))
            at += height * width
            self._next.append(_Held(piece, panels, panel_words, at))

    def _pieces_of(self, column: int) -> list[Piece]:
        """Return the pieces of the part that contain a column, from the top."""
        return [piece for piece in self._pieces if piece.first <= column < piece.end]

    def _fill(self) -> None:
        """Start to load into memory that holds no panel with a pending write."""
        taken = [(held.start, held.stop) for held in self._held if held.panels]
        waiting = []
        for coming in self._coming:
            if all(coming.stop <= start or coming.start >= stop for start, stop in taken):
                self._arrive(coming)
            else:
                waiting.append(coming)
        self._coming = waiting

    def _arrive(self, coming: _Coming) -> None:
        for rows, columns in coming.boxes:
            start, target = [rows.start, columns.start], coming.piece.part(rows, columns)
            if self._source.is_transposed:
                start, target = start[::-1], target.T
            ticket = self._source.file.submit_read(start, [1, 1], target)
            self._arriving.append((coming.panels[0], ticket))


def _clear_above(tiles: Matrix, rows: int) -> None:
    """Clear the elements above the diagonal, which begins in row `rows`."""
    for j in range(tiles.shape[1]):
        tiles[: rows + j, j] = 0
