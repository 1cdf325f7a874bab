"""How the right-hand sides of an iterative method are divided: as few groups as the budget has.

A sweep of each group is a pass over the matrix, so that all are worked on at once if they fit.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from outcore.errors import BudgetError
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.plan import (
    Demands,
    IterativeGeometry,
    MatrixLayout,
    iterative_geometry,
)
from outcore.linalg.systems.columns import ColumnRoom, fitted
from outcore.linalg.systems.right_hand_side import RightHandSide

Choices: TypeAlias = Callable[[MatrixLayout, int, int, bool], list[Demands]]
"""What a method may take of the budget, the best first: given the matrix, the columns that are
worked on at once, the budget, and whether these columns cannot be fewer."""


class Division(NamedTuple):
    """How a budget is divided, and right-hand sides into groups.

    Attributes
    ----------
    room
        Memory for columns on their way from and to the disk.
    geometry
        Memory for all else; its columns are those of a group.
    size, groups
        Right-hand sides of a group, and how many groups.
    holds_x
        Whether the solutions of a group are in the budget.
    """

    room: ColumnRoom
    geometry: IterativeGeometry
    size: int
    groups: int
    holds_x: bool

    def describe(self, omega: float) -> str:
        """How it will be done, for people."""
        parts = [self.geometry.describe()]
        if self.groups > 1:
            parts.append(f"right-hand sides in {self.groups} groups of {self.size}")
        if omega != 1:
            parts.append(f"ω = {omega:g}")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Divider:
    """All on which a division depends.

    Attributes
    ----------
    layout, source_slot_bytes
        The matrix that is read in each pass, and the tiles of the matrix itself, if that is a copy.
    rhs, x0
        Right-hand sides, and the solution to begin with.
    choices, setting
        What the method asks for, and its arguments.
    memory_bytes
        The budget.
    rank, processes
        Which of several processes it is.
    """

    layout: MatrixLayout
    source_slot_bytes: int | None
    rhs: RightHandSide
    x0: Any
    choices: Choices
    setting: Setting
    memory_bytes: int
    rank: int = 0
    processes: int = 1

    def divide(self, size: int | None = None, block: int | None = None) -> Division:
        """Divide the budget.

        Parameters
        ----------
        size
            Right-hand sides of a group; by default as many as fit.
        block
            Rows of a diagonal block; by default as the setting has it.

        Raises
        ------
        BudgetError
            If not even one column fits.
        """
        rhs, setting = self.rhs, self.setting
        # A solution in memory is the caller's, and the steps work on it where it is.
        holds_x = setting.out is not None or not rhs.is_alike
        block = setting.block if block is None else block

        def cut(room: ColumnRoom) -> tuple[int, IterativeGeometry]:
            def fit(size: int) -> IterativeGeometry:
                width, left = size * rhs.parts, self.memory_bytes - room.beside_bytes
                needs = [
                    dataclasses.replace(each, vectors=each.vectors + holds_x)
                    for each in self.choices(self.layout, width, left, size == 1)
                ]
                return iterative_geometry(
                    self.layout, needs, self.memory_bytes, width, block=block, pin=setting.pin,
                    source_slot_bytes=self.source_slot_bytes, beside_bytes=room.beside_bytes,
                    rank=self.rank, processes=self.processes,
                )  # fmt: skip

            return _fewest(fit, rhs.columns) if size is None else (size, fit(size))

        room, (found, geometry) = fitted(rhs, self.memory_bytes, cut, [self.x0])
        return Division(room, geometry, found, -(-rhs.columns // found), holds_x)


def _fewest(fit: Callable[[int], IterativeGeometry], count: int) -> tuple[int, IterativeGeometry]:
    """Find the size of as few groups as fit, as even as possible."""
    try:
        return count, fit(count)
    except BudgetError:
        fit(1)
    size, too_many = 1, count
    while too_many - size > 1:
        middle = (size + too_many) // 2
        try:
            fit(middle)
            size = middle
        except BudgetError:
            too_many = middle
    even = -(-count // -(-count // size))
    return even, fit(even)
