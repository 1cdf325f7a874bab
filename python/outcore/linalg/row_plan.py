"""In blocks of how many rows matrices are read: pure arithmetic."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from outcore.errors import BudgetError
from outcore.linalg.grains import BOUNCE_BYTES, Grains, bounce_bytes, pages
from outcore.sizes import format_bytes
from outcore.zarr_format import SLOT_ALIGN_BYTES

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
    skip
        Elements of a row that are read before those that are wanted, for whole grains.
    """

    rows: int | None
    columns: int
    dtype: np.dtype[Any]
    by_row: bool
    grains: Grains = dataclasses.field(default_factory=Grains)
    skip: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether it is on disk."""
        return self.grains.is_on_disk

    @property
    def width(self) -> int:
        """Elements of a row in whole grains."""
        return self.grains.covering(1, self.skip + self.columns)[1]

    def bytes_read(self) -> int:
        """Bytes that taking all rows reads. Exact if chunks are whole pages."""
        return self.grains.box_bytes(self.rows, self.width) if self.rows is not None else 0

    def transposed(self) -> "RowLayout":
        """Describe the transpose."""
        assert self.rows is not None, "the rows are counted"
        return RowLayout(
            self.columns, self.rows, self.dtype, not self.by_row, self.grains.transposed()
        )

    def narrowed(self, first: int, end: int) -> "RowLayout":
        """Describe its columns from `first` to ``end - 1``."""
        skip = first % self.grains.columns
        return dataclasses.replace(self, columns=end - first, skip=skip)


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


Memory: TypeAlias = Callable[[Sequence[RowPlan]], int]
"""Memory of a whole call, given its blocks."""


def plan_rows(
    layouts: Sequence[RowLayout],
    *,
    dtype: np.dtype[Any],
    order: str | None,
    budget_bytes: int,
    memory: Memory,
    what: str,
    buffers: int = 2,
) -> list[RowPlan]:
    """Choose the blocks in which matrices are read side by side, within a budget.

    Parameters
    ----------
    what
        What the call is, for the message.
    layouts, dtype, order, budget_bytes, memory, buffers
        As for `fit_rows`.

    Raises
    ------
    BudgetError
        If not even small blocks fit.
    """
    found, need = fit_rows(
        layouts, dtype=dtype, order=order, budget_bytes=budget_bytes, memory=memory,
        buffers=buffers,
    )  # fmt: skip
    if found is None:
        raise too_small(need, budget_bytes, what)
    return found


def too_small(need: int, budget_bytes: int, what: str, fix: str = "raise memory=") -> BudgetError:
    """Make the error of a call for which the budget does not suffice."""
    return BudgetError(
        f"need {need} bytes ({format_bytes(need)}) of memory for {what}, have {budget_bytes} "
        f"({format_bytes(budget_bytes)}); {fix}"
    )


def fit_rows(
    layouts: Sequence[RowLayout],
    *,
    dtype: np.dtype[Any],
    order: str | None,
    budget_bytes: int,
    memory: Memory,
    buffers: int = 2,
    converts: bool = False,
) -> tuple[list[RowPlan] | None, int]:
    """Choose blocks, if any fit, and tell how much memory the smallest would need.

    Parameters
    ----------
    layouts
        The matrices.
    dtype
        Type in which they are used.
    order
        In which order of elements; `None` for that in which they are read.
    budget_bytes
        Budget of the call.
    memory
        Memory of the whole call with such blocks.
    buffers
        Blocks of what is on disk that are in memory.
    converts
        Whether blocks are converted whatever their type.
    """

    def plan(layout: RowLayout, rows: int, buffers: int) -> RowPlan:
        grain = layout.grains.rows
        # Whole pages, so that a block can be written from where it is.
        row_bytes = layout.columns * dtype.itemsize
        paged = math.lcm(grain, SLOT_ALIGN_BYTES // math.gcd(SLOT_ALIGN_BYTES, row_bytes))
        grain = paged if paged <= rows else grain
        height = max(rows // grain, 1) * grain
        if layout.rows is not None:
            height = min(height, math.ceil(layout.rows / grain) * grain)
        own_order = "C" if layout.by_row else "F"
        return RowPlan(
            layout,
            height,
            buffers if layout.is_stored else 1,
            own_order if order is None else order,
            dtype if converts or layout.dtype != dtype else None,
        )

    def plans(rows: int, buffers: int) -> list[RowPlan]:
        return [plan(layout, rows, buffers) for layout in layouts]

    row_bytes = max(layout.columns for layout in layouts) * dtype.itemsize
    rows = max(BLOCK_BYTES // row_bytes, _LEAST_ROWS)
    while rows >= _LEAST_ROWS:
        found = plans(rows, buffers)
        if memory(found) <= budget_bytes:
            return found, memory(found)
        rows = rows * 7 // 8
    # One block less: reading waits for the arithmetic then.
    least = plans(_LEAST_ROWS, buffers - 1)
    need = memory(least)
    return (least if need <= budget_bytes else None), need


def blocks_bytes(plans: Sequence[RowPlan]) -> int:
    """Memory of all blocks."""
    return sum(plan.memory_bytes for plan in plans)
