"""In blocks of how many rows matrices are read: pure arithmetic."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.errors import BudgetError
from outcore.linalg.grains import BOUNCE_BYTES, Grains, bounce_bytes, pages
from outcore.sizes import format_bytes

BLOCK_BYTES = 16 << 20
"""Blocks grow to this size where the budget allows: a few of the disk's requests."""

_LEAST_ROWS = 16


@dataclass(frozen=True)
class RowLayout:
    """What a plan knows of a matrix whose rows are read.

    Attributes
    ----------
    rows
        Rows; `None` where they are counted as they come.
    columns, dtype
        Elements of a row, and their type as they are delivered.
    by_row
        Whether the elements of a row lie next to each other.
    grains
        Parts in which it is read from disk.
    """

    rows: int | None
    columns: int
    dtype: np.dtype[Any]
    by_row: bool
    grains: Grains = dataclasses.field(default_factory=Grains)

    @property
    def is_stored(self) -> bool:
        """Whether it is on disk."""
        return self.grains.is_on_disk

    @property
    def width(self) -> int:
        """Elements of a row in whole grains."""
        return self.grains.covering(1, self.columns)[1]

    def bytes_read(self) -> int:
        """Bytes that taking all rows reads. Exact if chunks are whole pages."""
        return self.grains.box_bytes(self.rows, self.columns) if self.rows is not None else 0


@dataclass(frozen=True)
class RowPlan:
    """Blocks in which a matrix is read.

    Attributes
    ----------
    layout
        The matrix.
    height
        Rows of a block.
    buffers
        Blocks in memory: one in use, and one being read.
    order
        Of the elements in a block.
    copy_dtype
        Type to which each block is converted, or `None` if it is used as it is read.
    """

    layout: RowLayout
    height: int
    buffers: int
    order: str
    copy_dtype: np.dtype[Any] | None = None

    @property
    def buffer_bytes(self) -> int:
        """Memory of one block as it is read."""
        return pages(self.height * self.layout.width * self.layout.dtype.itemsize)

    @property
    def copy_bytes(self) -> int:
        """Memory of one block as it is used, if it is converted."""
        itemsize = 0 if self.copy_dtype is None else self.copy_dtype.itemsize
        return pages(self.height * self.layout.columns * itemsize)

    @property
    def bounce_bytes(self) -> int:
        """Memory for transfers that the disk cannot do in place, of four at once if it may be."""
        layout = self.layout
        if not layout.is_stored:
            return 0
        in_order = layout.by_row == (self.order == "C") or layout.columns == 1
        if in_order and layout.grains.is_aligned:
            return bounce_bytes(0, is_aligned=True)
        least, most = BOUNCE_BYTES
        return max(min(self.buffer_bytes, 4 * most), least)

    @property
    def memory_bytes(self) -> int:
        """All of that."""
        return self.buffers * self.buffer_bytes + self.copy_bytes + self.bounce_bytes


def plan_rows(
    layouts: Sequence[RowLayout],
    *,
    dtype: np.dtype[Any],
    order: str | None,
    room_bytes: int,
    fixed_bytes: int,
    what: str,
    buffers: int = 2,
    converts: bool = False,
    least_rows: int = 1,
) -> list[RowPlan]:
    """Choose the blocks in which matrices are read side by side, within a budget.

    Parameters
    ----------
    layouts
        The matrices.
    dtype
        Type in which they are used.
    order
        In which order of elements; `None` for that in which they are read.
    room_bytes, fixed_bytes
        Budget of the call, and what it needs for other things.
    what
        What the call is, for the message.
    buffers
        Blocks of what is on disk that are in memory.
    converts
        Whether blocks are converted whatever their type.
    least_rows
        Rows of a block at least.

    Raises
    ------
    BudgetError
        If not even small blocks fit.
    """

    def plan(layout: RowLayout, rows: int, buffers: int) -> RowPlan:
        grain = layout.grains.rows
        height = max(rows // grain, 1) * grain
        if layout.rows is not None:
            height = min(height, math.ceil(layout.rows / grain) * grain)
        copies = converts or layout.dtype != dtype
        own_order = "C" if layout.by_row else "F"
        return RowPlan(
            layout,
            height,
            buffers if layout.is_stored else 1,
            own_order if order is None else order,
            dtype if copies else None,
        )

    def plans(rows: int, buffers: int) -> list[RowPlan]:
        return [plan(layout, max(rows, least_rows), buffers) for layout in layouts]

    def memory(found: list[RowPlan]) -> int:
        return fixed_bytes + sum(one.memory_bytes for one in found)

    row_bytes = max(layout.columns for layout in layouts) * dtype.itemsize
    rows = max(BLOCK_BYTES // row_bytes, _LEAST_ROWS)
    while rows >= _LEAST_ROWS:
        if memory(plans(rows, buffers)) <= room_bytes:
            return plans(rows, buffers)
        rows = rows * 7 // 8
    # One block less: reading waits for the arithmetic then.
    last = plans(_LEAST_ROWS, buffers - 1)
    if memory(last) <= room_bytes:
        return last
    need = memory(last)
    raise BudgetError(
        f"need {need} bytes ({format_bytes(need)}) of memory for {what}, have {room_bytes} "
        f"({format_bytes(room_bytes)}); raise memory="
    )
