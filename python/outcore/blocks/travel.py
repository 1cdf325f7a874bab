"""The direction in which superblocks are visited, and the next superblock."""

from collections import deque
from typing import Literal

import numpy as np

from outcore.layout.block_grid import Coordinates


class Travel:
    """The direction in which superblocks are visited.

    Two equal steps define a direction, forwards or backwards along any dimension. At the end of a
    line the direction continues with the next line, if superblocks were visited in row-major or
    column-major order.
    """

    def __init__(self, superblocks: Coordinates) -> None:
        self._counts = superblocks
        self._visited: deque[Coordinates] = deque(maxlen=3)

    def visit(self, at: Coordinates) -> Coordinates | None:
        """Record a visit; return the superblock to expect next, if there is a direction."""
        self._visited.append(at)
        if len(self._visited) < 3:
            return None
        positions = np.array(self._visited)
        before, step = np.diff(positions, axis=0)
        ahead = positions[-1] + step
        if (before == step).all() and (ahead >= 0).all() and (ahead < self._counts).all():
            return tuple(ahead.tolist())
        orders: tuple[Literal["C", "F"], ...] = ("C", "F")
        for order in orders:
            numbers = np.ravel_multi_index(tuple(positions.T), self._counts, order=order)
            one, again = np.diff(numbers).tolist()
            number = int(numbers[-1]) + again
            if one == again and abs(one) == 1 and 0 <= number < np.prod(self._counts):
                return tuple(int(i) for i in np.unravel_index(number, self._counts, order=order))
        return None
