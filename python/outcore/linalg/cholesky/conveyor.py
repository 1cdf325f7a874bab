"""The slab of a Cholesky factorization in memory, or a part of it, as a conveyor.

Finished panels leave for the disk, and panels of the next part come in where they were. That part
has another height and width, so its panels lie elsewhere than those of this one.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import Ticket
from outcore.errors import OutcoreError
from outcore.linalg.cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg.cholesky.group import Group
from outcore.linalg.cholesky.storage import CholeskyStorage
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall
from outcore.streams import wait


class _Coming(NamedTuple):
    """Panels that are loaded together, the words of memory that they take, and what is read."""

    panels: range
    start: int
    stop: int
    group: Group
    boxes: tuple[tuple[slice, slice], ...]


class Conveyor:
    """Memory for one slab, or one part of it, between a matrix and its factor."""

    def __init__(self, g: CholeskyGeometry, storage: CholeskyStorage, call: LongCall) -> None:
        self._g, self._storage, self._trace = g, storage, call.trace
        memory = call.arena.allocate(g.slab_bytes)
        self._memory: npt.NDArray[Any] = np.frombuffer(memoryview(memory), g.dtype)
        self._chunk_rows, chunk_columns = storage.chunk
        # Columns of a chunk that has them side by side are read together, lest the chunk be read
        # for each of them.
        self._at_once = 1
        if storage.metadata.order != ("F" if storage.lower else "C"):
            self._at_once = max(chunk_columns // g.columns, 1)
        self._groups: list[Group] = []
        self._leaving: deque[Ticket] = deque()
        # Words of memory before each panel of the slab that is still there, and after the last.
        self._occupied: deque[int] = deque()
        self._next: list[Group] = []
        self._coming: list[_Coming] = []
        self._arriving: list[tuple[int, Ticket]] = []
        self._awaited: list[Ticket] = []

    def load(self, part: Part | None) -> None:
        """Start loading a part into free memory: the first one."""
        self._lay_out(part)
        self._fill()

    def begin(self, part: Part, following: Part | None) -> list[Group]:
        """Return the memory of a part.

        Its elements are there once `arrivals` has said so. `following` is the part that will come
        in behind it.
        """
        self.drain()
        g = self._g
        self._groups, self._part = self._next, part
        if part.is_first:
            self._storage.place_slab(part.slab)
        self._occupied = deque([0])
        for group, panels in zip(self._groups, g.groups(part), strict=True):
            # Padding is written with its tiles: zeros, whatever the memory held before.
            group.data[max(g.n - group.top, 0) :] = 0
            group.data[:, group.end - group.first :] = 0
            for _ in panels:
                self._occupied.append(self._occupied[-1] + group.data.shape[0] * g.columns)
        self._awaited = [ticket for _, ticket in self._arriving]
        self._mine, self._arriving = self._arriving, []
        self._lay_out(following)
        self._fill()
        return self._groups

    def arrivals(self) -> Iterator[int]:
        """Wait for the part: its panels from the left, as soon as each is whole."""
        for panel in self._part.panels:
            for first, ticket in self._mine:
                if first == panel:
                    wait(ticket, self._trace)
            yield panel
        self._awaited = []

    def panel_done(self, panel: int) -> None:
        """Let go of a panel of the part: it is final."""
        g = self._g
        # A slab's note must be in the journal before later writes, or a crash could lose two slabs.
        self._storage.commit()
        first, end = g.extent(panel)
        group = self.group_of(panel)
        top = max(g.first_tile(panel), self._part.tiles.start) * g.rows
        columns = slice(first, first + g.columns)
        tiles = group.part(slice(top, self._part.tiles.stop * g.rows), columns)
        if self._part.is_first:
            _clear_above(tiles[:, : end - first], first - top)
        ticket = self._storage.factors.submit_write(
            [top, self._storage.places[panel] * g.columns], [1, 1], tiles
        )
        self._leaving.append(ticket)

    def group_of(self, panel: int) -> Group:
        """Find the group of a panel of the part."""
        column = panel * self._g.columns
        return next(group for group in self._groups if group.first <= column < group.end)

    def poll(self) -> None:
        """Start loading into memory whose panels have left."""
        while self._leaving and self._leaving[0].done():
            self._leaving[0].wait()
            self._leaving.popleft()
            self._occupied.popleft()
            self._fill()

    def drain(self) -> None:
        """Wait until every panel has left."""
        while self._leaving:
            wait(self._leaving[0], self._trace)
            self.poll()

    def abandon(self) -> bool:
        """Wait for whatever is in flight, so that its memory can go; tell whether all went well."""
        well = True
        arriving = [ticket for _, ticket in self._arriving]
        for ticket in [*self._leaving, *arriving, *self._awaited]:
            try:
                ticket.wait()
            except OutcoreError:
                well = False
        return well

    def _lay_out(self, part: Part | None) -> None:
        """Divide the memory for a part, and note what is to be loaded."""
        g = self._g
        self._next = []
        self._coming = []
        if part is None:
            return
        at = 0
        for panels in g.groups(part):
            first, end = g.extent(panels[0])[0], g.extent(panels[-1])[1]
            top = g.group_top(part, panels)
            height, width = (part.tiles.stop - top) * g.rows, len(panels) * g.columns
            data = self._memory[at : at + height * width].reshape((height, width), order="F")
            group = Group(first, end, top * g.rows, data)
            self._next.append(group)
            for i in range(0, len(panels), self._at_once):
                some = panels[i : i + self._at_once]
                start = at + i * height * g.columns
                stop = start + len(some) * height * g.columns
                boxes = tuple(g.matrix_boxes(part, some, self._chunk_rows))
                self._coming.append(_Coming(some, start, stop, group, boxes))
            at += height * width

    def _fill(self) -> None:
        """Start loading into memory that holds nothing which is still to leave."""
        low, high = (self._occupied[0], self._occupied[-1]) if self._occupied else (0, 0)
        waiting = []
        for coming in self._coming:
            if coming.stop <= low or coming.start >= high or low == high:
                self._arrive(coming)
            else:
                waiting.append(coming)
        self._coming = waiting

    def _arrive(self, coming: _Coming) -> None:
        for rows, columns in coming.boxes:
            start, target = [rows.start, columns.start], coming.group.part(rows, columns)
            if not self._storage.lower:
                start, target = start[::-1], target.T
            ticket = self._storage.matrix.submit_read(start, [1, 1], target)
            self._arriving.append((coming.panels[0], ticket))


def _clear_above(tiles: Matrix, rows: int) -> None:
    """Set what is above the diagonal to zero; it begins in row `rows`."""
    for j in range(tiles.shape[1]):
        tiles[: rows + j, j] = 0
