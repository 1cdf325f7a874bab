"""Solves with factors for right-hand sides in groups of as many columns as fit in memory."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from outcore.linalg._geometry.factor_plan import solve_flops
from outcore.linalg._output.factor import Factor
from outcore.linalg._rhs.columns import ColumnRoom, Columns
from outcore.linalg._rhs.residual import matrix_in
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._rhs.solutions import Solution
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.sharing import seconds_for
from outcore.processes.team import Team, alone
from outcore.report.longcall import LongCall
from outcore.report.report import Report

MOST_FLOPS = 3e13
LEAST_COLUMNS = 512
"""Limits of a group on disk. A group is some minutes of work, the most that a stopped call repeats.
It has enough columns for the arithmetic to take longer than reading the factors.
"""

Solve: TypeAlias = Callable[[Matrix, slice], None]
"""Solves in place for some columns; the slice is their place in b."""


@dataclass(frozen=True)
class Groups:
    """The division of right-hand sides into groups.

    Attributes
    ----------
    size
        Columns of a group.
    columns
        Total number of columns.
    first
        Columns that an earlier call solved for.
    cut
        A column at which a group must begin.
    """

    size: int
    columns: int
    first: int = 0
    cut: int = 0

    @classmethod
    def of(cls, rhs: RightHandSide, most: int, first: int = 0) -> "Groups":
        """Divide right-hand sides into groups of at most `most` columns, as evenly as possible."""
        if rhs.out is not None:
            flops = flop_weight(rhs.dtype) * 2.0 * rhs.n * rhs.height * rhs.parts
            most = min(most, max(int(MOST_FLOPS / flops), LEAST_COLUMNS))
        count = -(-rhs.columns // max(most, 1))
        return cls(-(-rhs.columns // max(count, 1)), rhs.columns, first)

    def __len__(self) -> int:
        return len(self._starts())

    def slices(self) -> list[slice]:
        """Columns of each pending group."""
        edges = [*self._starts(), self.columns]
        return [slice(*both) for both in itertools.pairwise(edges)]

    def _starts(self) -> list[int]:
        cut, size = min(max(self.cut, self.first), self.columns), max(self.size, 1)
        return [*range(self.first, cut, size), *range(cut, self.columns, size)]


def solve_groups(
    rhs: RightHandSide,
    into: Solution,
    groups: Groups,
    solve: Solve,
    call: LongCall,
    room: ColumnRoom,
    team: Team | None = None,
) -> Columns:
    """Solve group by group, and write each solution to its place.

    Several processes divide the columns of each group.

    Returns
    -------
    Columns
        The transfers, with counts of the bytes moved.
    """
    team, moved = team or alone(), Columns(rhs, call, room)
    width = -(-min(groups.size, groups.columns) // team.size) * rhs.parts
    is_in_place = not room.column_bytes and rhs.is_alike
    if is_in_place:
        room_of_all = into.x if into.x.ndim == 2 else into.x[:, None]
    elif room.column_bytes:
        room_of_all = matrix_in(call, rhs.height, width, rhs.dtype)
    else:
        room_of_all = np.empty((rhs.height, width), rhs.dtype, order="F")
    for group in groups.slices():
        columns = team.part_of(group)
        count = columns.stop - columns.start
        X = room_of_all[:, columns] if is_in_place else room_of_all[:, : count * rhs.parts]
        if count:
            moved.load(rhs.b, columns, X[: rhs.n])
        rhs.refuse_non_finite(X[: rhs.n])
        solve(X, columns)
        if count and not is_in_place:
            moved.store(into.x, columns, X[: rhs.solution_shape[0]])
        if rhs.out is not None:
            moved.sync()
            team.exchange(None, seconds_for(2 * room_of_all.nbytes))
            into.note(group.stop)
        else:
            team.fill_columns(into.x, group)
    return moved


def gone_on_at(first: int, columns: int) -> str:
    """Return the note for the report on a resumed solution."""
    return f"resumed at column {first} of {columns}; the figures are of the rest"


def report_on(
    verb: str,
    factor: Factor,
    rhs: RightHandSide,
    groups: Groups,
    swept_bytes: tuple[int, int],
    planned_bytes: int,
    moved: Columns,
    call: LongCall,
    **more: Any,
) -> Report:
    """Return the report of a solve: passes over the factors, and the bytes moved of b and x.

    `more` are further figures of a `Report`.
    """
    left = groups.columns - groups.first
    read, written = moved.counters()
    planned_read, planned_written = moved.asked
    notes = []
    if groups.first:
        notes.append(gone_on_at(groups.first, groups.columns))
    if rhs.dtype != factor.dtype:
        notes.append(f"factors in {factor.dtype}, solved with in {rhs.dtype}")
    figures = {"flops": solve_flops(factor.n, rhs.dtype, left * rhs.parts), **more}
    # A call that resumed within its columns has the same bound.
    words = factor.kind.words(*factor.shape)
    return call.report(
        Report, verb, factor.n, rhs.dtype, moved=(swept_bytes[0] + read, swept_bytes[1] + written),
        planned=(planned_bytes + planned_read, planned_written), words_lower_bound=words,
        notes=notes, **figures,
    )  # fmt: skip
