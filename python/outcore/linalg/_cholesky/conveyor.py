"""The conveyor of a Cholesky factorization: the memory of a slab, or of a part of one.

The next part has another height and width, so its panels have other places in memory.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore.linalg._cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg._cholesky.loads import TriangleLoads
from outcore.linalg._cholesky.pieces import Piece
from outcore.linalg._cholesky.storage import CholeskyStorage
from outcore.linalg._factors.conveyor import Conveyor, Load
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall


@dataclass(frozen=True)
class _Held:
    """A piece in memory, its panels, the words of each, and the words of memory before it."""

    piece: Piece
    panels: range
    panel_words: int
    start: int

    def panels_in(self, start: int, stop: int) -> range:
        """Return the panels that hold words ``start`` to ``stop - 1`` of memory."""
        first = (start - self.start) // self.panel_words
        end = -(-(stop - self.start) // self.panel_words)
        return self.panels[max(first, 0) : max(end, 0)]


class Source(NamedTuple):
    """The source of slabs: a file, its loads, and whether it stores the transpose."""

    file: MatrixFile
    loads: TriangleLoads
    is_transposed: bool


class CholeskyConveyor(Conveyor[Part]):
    """Memory for one slab, or one part of it. A cell is a panel, with its number in the matrix."""

    def __init__(
        self, g: CholeskyGeometry, storage: CholeskyStorage, call: LongCall, source: Source
    ) -> None:
        super().__init__(source.file, call.trace)
        self._g, self._storage, self._source = g, storage, source
        memory = call.arena.allocate(g.slab_bytes)
        self._memory: npt.NDArray[Any] = np.frombuffer(memoryview(memory), g.dtype)
        # The pieces of the part that owns its memory, and of the part that loads behind it.
        self._held: list[_Held] = []
        self._next: list[_Held] = []

    def begin(self, part: Part, following: Part | None) -> list[Piece]:
        """Return the memory of a part, in its pieces.

        The elements are valid once `arrivals` has yielded their panel. Until then, panels of the
        previous part may still be in their place. `following` is the part to load behind this one.
        """
        self._pieces = [held.piece for held in self._next]
        self._begin(part, following)
        return self._pieces

    def panels_of(self, part: Part) -> Sequence[int]:
        """Return the panels of a part that this process holds."""
        return self._g.deal.held(*part.slab)

    def _place(self, part: Part) -> None:
        if part.is_first:
            self._storage.place_slab(part.slab)

    def _is_first(self) -> bool:
        # Parts below the diagonal need the whole of the first part.
        return self.part.is_first and self.part.panels.start == 0

    def _take_over(self) -> None:
        self._held = self._next
        for piece in self._pieces:
            piece.data[max(self._g.n - piece.top, 0) :] = 0
            piece.data[:, piece.end - piece.first :] = 0

    def _cells(self) -> Counter[Hashable]:
        return Counter(self.panels_of(self.part))

    def _loads_of(self, part: Part) -> Iterator[Load]:
        g, at = self._g, 0
        self._next = []
        loads = itertools.groupby(self._source.loads.of(part), lambda load: load.piece)
        for (panels, tiles), of_piece in loads:
            first, end = g.extent(panels[0])[0], g.extent(panels[-1])[1]
            height, width = len(tiles) * g.rows, len(panels) * g.columns
            data = self._memory[at : at + height * width].reshape((height, width), order="F")
            piece, panel_words = Piece(first, end, tiles.start * g.rows, data), height * g.columns
            self._next.append(_Held(piece, panels, panel_words, at))
            for some, _, boxes in of_piece:
                start = at + (some[0] - panels[0]) * panel_words
                stop = start + len(some) * panel_words
                cells = {panel for held in self._held for panel in held.panels_in(start, stop)}
                yield Load(some[0], cells, [self._box(piece, *box) for box in boxes])
            at += height * width

    def _box(self, piece: Piece, rows: slice, columns: slice) -> tuple[list[int], Matrix]:
        """Return a read: its first element in the file, and its memory."""
        start, target = [rows.start, columns.start], piece.part(rows, columns)
        return (start[::-1], target.T) if self._source.is_transposed else (start, target)

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

    def whole_panel(self, panel: int) -> tuple[int, Matrix]:
        """Return a panel in one piece, with whole tiles: (first row, matrix)."""
        first = self._g.extent(panel)[0]
        (piece,) = self._pieces_of(first)
        left = first - piece.first
        return piece.top, piece.data[:, left : left + self._g.columns]

    def is_beside_next(self, panel: int) -> bool:
        """Whether the next panel of the part is next to this one in memory, in the same pieces."""
        first, end = self._g.extent(panel)
        pieces = self._pieces_of(first)
        beside = bool(pieces) and all(end < piece.end for piece in pieces)
        return beside and panel + 1 < self.part.slab.last

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
        self._leave(tickets, Counter([panel]))

    def _pieces_of(self, column: int) -> list[Piece]:
        """Return the pieces of the part that contain a column, from the top."""
        return [piece for piece in self._pieces if piece.first <= column < piece.end]


def _clear_above(tiles: Matrix, rows: int) -> None:
    """Clear the elements above the diagonal, which begins in row `rows`."""
    for j in range(tiles.shape[1]):
        tiles[: rows + j, j] = 0
