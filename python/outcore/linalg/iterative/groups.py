"""The division of an iterative method's right-hand sides into as few groups as the budget allows.

A sweep for each group is a pass over the matrix. So all right-hand sides form one group if they
fit.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from outcore.errors import BudgetError
from outcore.linalg._rhs.columns import ColumnRoom, fitted
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.plan import (
    Demands,
    IterativeGeometry,
    MatrixLayout,
    iterative_geometry,
)

Choices: TypeAlias = Callable[[MatrixLayout, int, int, bool], list[Demands]]
"""Returns a method's possible memory demands, the best first. The arguments are the matrix, the
number of columns in a group, the budget, and whether this number cannot be smaller.
"""


class Division(NamedTuple):
    """The division of a budget, and of right-hand sides into groups.

    Attributes
    ----------
    room
        Memory for transfers of columns from and to the disk.
    geometry
        Memory for everything else; its columns are those of a group.
    size, groups
        Right-hand sides of a group, and number of groups.
    holds_x
        Whether the budget includes the solutions of a group.
    """

    room: ColumnRoom
    geometry: IterativeGeometry
    size: int
    groups: int
    holds_x: bool

    def describe(self, omega: float) -> str:
        """Return a description of the division, for users."""
        parts = [self.geometry.describe()]
        if self.groups > 1:
            parts.append(f"right-hand sides in {self.groups} groups of {self.size}")
        if omega != 1:
            parts.append(f"ω = {omega:g}")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Divider:
    """The inputs of a division.

    Attributes
    ----------
    layout, source_slot_bytes
        The matrix that each pass reads, and the tile bytes of the original if that is a copy.
    rhs, x0
        Right-hand sides, and the initial solution.
    choices, setting
        The memory demands of the method, and its arguments.
    memory_bytes
        The budget.
    rank, processes
        Number of this process, and number of processes.
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
            Rows of a diagonal block; by default the value of the setting.

        Raises
        ------
        BudgetError
            If one column does not fit.
        """
        rhs, setting = self.rhs, self.setting
        # A solution in memory belongs to the caller, and the steps use it in place.
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
    """Return the size of groups, for as few groups as possible, all of about equal size."""
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
