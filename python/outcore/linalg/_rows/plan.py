"""Heights of the blocks in which matrices are read: pure arithmetic."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from outcore._util.budget import too_small
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._tiles.grains import Grains, bounce_bytes, pages

BLOCK_BYTES = 16 << 20
"""Largest size of a block if the budget allows it: a few disk requests."""

_LEAST_ROWS = 16


@dataclass(frozen=True)
class RowLayout:
    """The properties of a matrix that a plan of its rows needs.

    Attributes
    ----------
    rows
        Number of rows; `None` if unknown before the end.
    columns, dtype
        Elements of a row, and their delivered type.
    by_row
        Whether the elements of a row are contiguous.
    grains
        Parts for reads from disk.
    skip
        Elements of a row that are read before the wanted ones, because grains are whole.
    """

    rows: int | None
    columns: int
    dtype: np.dtype[Any]
    by_row: bool
    grains: Grains = dataclasses.field(default_factory=Grains)
    skip: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether the matrix is on disk."""
        return self.grains.is_on_disk

    @property
    def order(self) -> str:
        """Order of the elements."""
        return "C" if self.by_row else "F"

    @property
    def width(self) -> int:
        """Elements of a row in whole grains."""
        return self.grains.covering(1, self.skip + self.columns)[1]

    def bytes_read(self) -> int:
        """Return the bytes that reading all rows takes. Exact if chunks are whole pages."""
        return self.grains.box_bytes(self.rows, self.width) if self.rows is not None else 0

    def transposed(self) -> "RowLayout":
        """Return the layout of the transpose."""
        assert self.rows is not None, "the rows are counted"
        return RowLayout(
            self.columns, self.rows, self.dtype, not self.by_row, self.grains.transposed()
        )

    def narrowed(self, first: int, end: int) -> "RowLayout":
        """Return the layout of the columns from `first` to ``end - 1``."""
        skip = first % self.grains.columns
        return dataclasses.replace(self, columns=end - first, skip=skip)


@dataclass(frozen=True)
class RowPlan:
    """The blocks in which a matrix is read.

    Attributes
    ----------
    layout
        The matrix.
    height
        Rows of a block.
    dtype, order
        Type and order of the elements in a block as it is used.
    buffers
        Number of blocks in memory as they are read.
    copies
        Number of blocks in memory as they are used, if that differs.
    in_use
        Number of blocks in use at the same time.
    """

    layout: RowLayout
    height: int
    dtype: np.dtype[Any]
    order: str
    buffers: int
    copies: int = 0
    in_use: int = 1

    @property
    def read_order(self) -> str:
        """Order of the elements as they are read: from disk, the order that they have there."""
        return self.layout.order if self.layout.is_stored else self.order

    @property
    def buffer_bytes(self) -> int:
        """Memory of one block as it is read."""
        return pages(self.height * self.layout.width * self.layout.dtype.itemsize)

    @property
    def copy_bytes(self) -> int:
        """Memory of one block as it is used."""
        return pages(self.height * self.layout.columns * self.dtype.itemsize)

    @property
    def bounce_bytes(self) -> int:
        """Memory for transfers that the disk cannot do in place."""
        if not self.layout.is_stored:
            return 0
        is_aligned = self.layout.grains.is_aligned
        return bounce_bytes(8 * self.buffer_bytes, is_aligned=is_aligned)

    @property
    def memory_bytes(self) -> int:
        """Memory of all blocks and transfers."""
        blocks = self.buffers * self.buffer_bytes + self.copies * self.copy_bytes
        return blocks + self.bounce_bytes


Memory: TypeAlias = Callable[[Sequence[RowPlan]], int]
"""Memory of a whole call, given its blocks."""


class Fit(NamedTuple):
    """Blocks in which matrices are read, if any fit a budget, and the memory of the smallest."""

    plans: list[RowPlan] | None
    need: int

    def required(self, budget_bytes: int, what: str, fix: str = "raise memory=") -> list[RowPlan]:
        """Return the blocks.

        Raises
        ------
        BudgetError
            If none fit, with a description of the call, and the advice.
        """
        if self.plans is None:
            raise too_small(self.need, budget_bytes, what, fix)
        return self.plans


def fit_rows(
    layouts: Sequence[RowLayout],
    *,
    dtype: np.dtype[Any],
    order: str | None,
    budget_bytes: int,
    memory: Memory,
    writes_back: bool = False,
    converts: bool = False,
    in_use: int = 1,
) -> Fit:
    """Choose the blocks in which matrices are read side by side, within a budget.

    Parameters
    ----------
    layouts
        The matrices.
    dtype
        Type in which the elements are used.
    order
        Order in which the elements are used; `None` for the order in which they are read.
    budget_bytes
        Budget of the call.
    memory
        Function for the memory of the whole call with given blocks.
    writes_back
        Whether blocks are written after their use, which occupies their memory for longer.
    converts
        Whether blocks are converted regardless of their type.
    in_use
        Number of blocks in use at the same time.
    """

    def plan(layout: RowLayout, rows: int, spare: int) -> RowPlan:
        grain = layout.grains.rows
        # With whole pages, a block can be written directly from its memory.
        row_bytes = layout.columns * dtype.itemsize
        paged = math.lcm(grain, SLOT_ALIGN_BYTES // math.gcd(SLOT_ALIGN_BYTES, row_bytes))
        grain = paged if paged <= rows else grain
        height = max(rows // grain, 1) * grain
        if layout.rows is not None:
            # One of several processes may have no rows.
            height = min(height, math.ceil(max(layout.rows, 1) / grain) * grain)
        wanted = layout.order if order is None else order
        is_turned = layout.is_stored and wanted != layout.order and layout.width > 1
        # Blocks in use, one being read, and one being written.
        blocks = in_use + writes_back
        if converts or is_turned or layout.dtype != dtype:
            return RowPlan(layout, height, dtype, wanted, 1, blocks, in_use)
        buffers = blocks + spare * layout.is_stored
        return RowPlan(layout, height, dtype, wanted, buffers, in_use=in_use)

    def plans(rows: int, spare: int) -> list[RowPlan]:
        found = [plan(layout, rows, spare) for layout in layouts]
        # Matrices side by side advance in steps of the lowest block. So a vector's block is as high
        # as the matrix's, whose grains may be high, if memory allows it.
        tallest = max(found, key=lambda each: each.height).height
        level = [plan(layout, max(rows, tallest), spare) for layout in layouts]
        return level if memory(level) <= budget_bytes else found

    row_bytes = max(layout.columns for layout in layouts) * dtype.itemsize
    rows = max(BLOCK_BYTES // row_bytes, _LEAST_ROWS)
    while rows >= _LEAST_ROWS:
        found = plans(rows, 1)
        if memory(found) <= budget_bytes:
            return Fit(found, memory(found))
        rows = rows * 7 // 8
    # With one block less, reads do not overlap with the arithmetic.
    least = plans(_LEAST_ROWS, 0)
    need = memory(least)
    return Fit(least if need <= budget_bytes else None, need)


def blocks_bytes(plans: Sequence[RowPlan]) -> int:
    """Return the memory of all blocks."""
    return sum(plan.memory_bytes for plan in plans)
