"""The rows of each process, if several processes read one matrix. Pure arithmetic.

Each process reads some adjacent rows, about as many as every other one, whatever its memory: a pass
over rows takes as long with little memory as with much.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from outcore.linalg._rows.plan import RowLayout


@dataclass(frozen=True)
class Shares:
    """The rows of each process.

    Attributes
    ----------
    edges
        First row of each process, and the end of the last one.
    rank
        Number of this process.
    """

    edges: tuple[int, ...]
    rank: int = 0

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.edges) - 1

    @property
    def busy(self) -> int:
        """Number of processes that have rows: the first ones."""
        return max(sum(1 for rank in range(self.size) if self.rows_of(rank)), 1)

    @property
    def own(self) -> slice:
        """The rows of this process."""
        return slice(self.edges[self.rank], self.edges[self.rank + 1])

    def rows_of(self, rank: int) -> int:
        """Return the number of rows of a process."""
        return self.edges[rank + 1] - self.edges[rank]

    @property
    def most(self) -> int:
        """Largest number of rows of a process."""
        return max(map(self.rows_of, range(self.size)))

    def sources(self) -> list[int]:
        """Return the processes whose results this one adds to its own, in their order.

        In step k, from 0 on, each process r divisible by 2^(k+1) takes the result of r + 2^k, until
        the first process has all.
        """
        if self.rank >= self.busy:
            return []
        distances = (1 << level for level in range(self.busy.bit_length()))
        before = self.rank & -self.rank or self.busy
        return [
            self.rank + distance
            for distance in distances
            if distance < before and self.rank + distance < self.busy
        ]

    def target(self) -> int | None:
        """Return the process that takes the result of this one; `None` for the first one."""
        return self.rank & (self.rank - 1) if 0 < self.rank < self.busy else None

    def rows_in(self, layout: RowLayout) -> RowLayout:
        """Return the layout of the rows of this process."""
        own = self.own
        return dataclasses.replace(layout, rows=own.stop - own.start)


ALONE = Shares((0, 0))
"""The shares of one process, which has all rows, however many there are."""


def shares_of(
    layouts: Sequence[RowLayout], processes: int, rank: int, least: int = 1, unit: int = 1
) -> Shares:
    """Divide the rows of matrices that are read side by side, in whole grains of each.

    Parameters
    ----------
    layouts
        The matrices.
    processes, rank
        Number of processes, and of this one.
    least
        Least number of rows for a process, so that adding its result is cheap. If there are too few
        rows, the last processes have none.
    unit
        Rows that belong to one process, beside those of each grain.
    """
    rows = next(layout.rows for layout in layouts if layout.rows is not None)
    unit = math.lcm(unit, *(layout.grains.rows for layout in layouts))
    units = -(-rows // unit)
    busy, edges = max(min(processes, units, rows // least), 1), [0]
    while True:
        edges = [min(units * i // busy * unit, rows) for i in range(busy + 1)]
        if busy == 1 or min(end - first for first, end in itertools.pairwise(edges)) >= least:
            return Shares((*edges, *[rows] * (processes - busy)), rank)
        busy -= 1
