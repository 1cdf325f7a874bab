"""How QR of a tall matrix with Q on disk is cut for a memory budget. Pure arithmetic."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.errors import InvalidError
from outcore.linalg.cost import Cost, Problem
from outcore.linalg.grains import bounce_bytes, pages
from outcore.linalg.row_plan import RowLayout, RowPlan, blocks_bytes, plan_rows
from outcore.linalg.row_source import work_dtype
from outcore.linalg.tsqr_plan import (
    factor_rows,
    stored_layout,
    tsqr_bytes,
    tsqr_flops,
    tsqr_phase,
)
from outcore.zarr_format import MAX_TILE_BYTES, SLOT_ALIGN_BYTES

Q_COLUMNS = 64
"""Columns of the block reflections that build Q."""


def r_blocks(A: RowLayout, dtype: np.dtype[Any], memory_bytes: int) -> RowPlan:
    """Choose the blocks in which a matrix is read if only R is wanted."""
    fixed = tsqr_bytes(A.columns, 0, dtype)
    (plan,) = plan_rows(
        [A], dtype=dtype, order="F", budget_bytes=memory_bytes,
        memory=lambda plans: fixed + blocks_bytes(plans), what=_what(A.columns),
    )  # fmt: skip
    return plan


def _what(n: int) -> str:
    return (
        f"QR with {n} columns: its triangles of {n} x {n} elements, which stay in memory, and "
        "blocks of rows"
    )


@dataclass(frozen=True)
class QrGeometry:
    """How an m x n matrix is cut, m >= n.

    Attributes
    ----------
    m, n, dtype
        Rows, columns, element type.
    rows_plan
        Blocks in which A is read; Q is written in the same.
    """

    m: int
    n: int
    dtype: np.dtype[Any]
    rows_plan: RowPlan

    @property
    def step_rows(self) -> int:
        """Rows of a step, of which a block may have several."""
        return min(factor_rows(self.n, self.dtype), self.rows_plan.height)

    @property
    def steps(self) -> int:
        """Most steps that there can be."""
        height = self.rows_plan.height
        return -(-self.m // height) * -(-height // self.step_rows)

    @property
    def row_work(self) -> float:
        """Operations for a row in one pass."""
        return tsqr_flops(self.m, self.n, 0, self.dtype) / self.m

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of Q."""
        return pages(self.rows_plan.height * self.n * self.dtype.itemsize)

    @property
    def target_bounce_bytes(self) -> int:
        """Memory for writing blocks of Q, and reading them back."""
        rows, columns = self.chunk
        aligned = rows * columns * self.dtype.itemsize % SLOT_ALIGN_BYTES == 0
        return bounce_bytes(8 * self.block_bytes, is_aligned=aligned)

    @property
    def fixed_bytes(self) -> int:
        """Memory beside the blocks."""
        itemsize = self.dtype.itemsize
        columns = min(Q_COLUMNS, self.n)
        words = [self.n * self.steps, self.n**2, self.step_rows * columns, columns * self.n]
        words.append(columns**2)
        own = sum(pages(count * itemsize) for count in words)
        return tsqr_bytes(self.n, 0, self.dtype) + own + self.target_bounce_bytes

    @property
    def memory_bytes(self) -> int:
        """The most that is taken from the budget."""
        return self.fixed_bytes + max(self.rows_plan.memory_bytes, 3 * self.block_bytes)

    @property
    def chunk(self) -> tuple[int, int]:
        """Rows and columns of a chunk of Q: a block, or some columns of one."""
        height = self.rows_plan.height
        return height, min(self.n, max(MAX_TILE_BYTES // (height * self.dtype.itemsize), 1))

    @property
    def method(self) -> str:
        """How it is done, for people."""
        return f"reflections of {self.rows_plan.height} rows at once, then Q from the last ones up"

    def q_bytes(self) -> int:
        """Bytes of Q as it is written, in whole blocks. Exact if these are whole pages."""
        height = self.rows_plan.height
        return -(-self.m // height) * height * self.n * self.dtype.itemsize


def qr_geometry(A: RowLayout, dtype: np.dtype[Any], memory_bytes: int) -> QrGeometry:
    """Cut a matrix for QR with Q on disk.

    Raises
    ------
    BudgetError
        If two triangles and blocks of a few rows do not fit.
    InvalidError
        If there are fewer rows than columns, or it is not known how many.
    """
    if A.rows is None:
        raise InvalidError(
            "need the number of rows for Q on disk, have an iterator; copy it to disk with "
            'oc.from_array(blocks, path, shape=...), or take mode="r"'
        )
    if A.rows < A.columns:
        raise InvalidError(
            f"need at least as many rows as columns for Q, have {A.rows} x {A.columns}; "
            "factor the conjugate transpose, or the first columns"
        )
    m, n = A.rows, A.columns

    def memory(plans: Sequence[RowPlan]) -> int:
        return QrGeometry(m, n, dtype, plans[0]).memory_bytes

    (plan,) = plan_rows(
        [A], dtype=dtype, order="F", budget_bytes=memory_bytes, memory=memory, what=_what(n),
        buffers=3,
    )  # fmt: skip
    return QrGeometry(m, n, dtype, plan)


def qr_cost(problem: Problem) -> Cost:
    """Plan `qr`."""
    layout, dtype = stored_layout(problem), work_dtype("A", problem.dtype)
    m, n = problem.needed("m"), problem.n
    if problem.option("mode", "r") == "r":
        plan = r_blocks(layout, dtype, problem.memory_bytes)
        return Cost(
            method=f"R of rows as they are read, {plan.height} at once",
            peak_memory_bytes=tsqr_bytes(n, 0, dtype) + plan.memory_bytes,
            disk_bytes=0,
            words_lower_bound=float(m * n),
            phases=(tsqr_phase(m, n, 0, plan, dtype),),
        )
    g = qr_geometry(layout, dtype, problem.memory_bytes)
    first = tsqr_phase(m, n, 0, g.rows_plan, dtype)
    q_bytes = g.q_bytes()
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=q_bytes,
        words_lower_bound=2.0 * m * n,
        phases=(
            dataclasses.replace(first, bytes_written=q_bytes),
            dataclasses.replace(
                first, bytes_read=q_bytes, bytes_written=q_bytes, ends_written_bytes=g.block_bytes
            ),
        ),
    )
