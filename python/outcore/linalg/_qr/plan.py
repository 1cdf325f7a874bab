"""Blocks for QR of a tall matrix with Q on disk, within a memory budget. Pure arithmetic."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.errors import InvalidError
from outcore.linalg._output.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.plan import RowLayout, RowPlan, blocks_bytes, fit_rows
from outcore.linalg._rows.tsqr_plan import (
    RING_BLOCKS,
    TallQGeometry,
    fit_tall,
    lanes_of,
    state_sizes,
    stored_layout,
    triangle_rows,
    tsqr_bytes,
    tsqr_flops,
    tsqr_phase,
)
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.result_dtype import work_dtype


def r_blocks(
    A: RowLayout, dtype: np.dtype[Any], memory_bytes: int, *, is_stored: bool = False
) -> RowPlan:
    """Choose the blocks in which a matrix is read for R only, in memory or on disk."""
    found = fit_tall([A], dtype, memory_bytes, lambda plans: r_bytes(plans[0], is_stored=is_stored))
    return found.required(memory_bytes, _what(A), _FIX)[0]


def r_bytes(plan: RowPlan, *, is_stored: bool) -> int:
    """Return the memory of a call for R only."""
    own = tsqr_bytes(plan.layout.columns, 0, plan.dtype, plan.layout.rows, lanes_of(plan))
    return own + plan.memory_bytes + is_stored * TRANSFER_BYTES[0]


_FIX = "raise memory=, or factor A on disk with qr_factor, and make Q with form_q"


def _what(A: RowLayout) -> str:
    n, rows = A.columns, triangle_rows(A.columns, A.rows)
    return (
        f"QR with {n} columns: its triangles of {rows} x {n} elements, which stay in memory, and "
        "blocks of rows"
    )


@dataclass(frozen=True)
class WideQrGeometry:
    """The blocks in which an m x n matrix is read, m < n, with R and Q in memory."""

    rows: RowPlan

    @property
    def m(self) -> int:
        """Rows."""
        assert self.rows.layout.rows is not None, "Q needs their number"
        return self.rows.layout.rows

    @property
    def n(self) -> int:
        """Columns."""
        return self.rows.layout.columns

    @property
    def q_bytes(self) -> int:
        """Bytes of Q, (m, m)."""
        return self.m**2 * self.rows.dtype.itemsize

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        fixed = tsqr_bytes(self.n, 0, self.rows.dtype, self.m) + pages(self.q_bytes)
        return fixed + blocks_bytes([self.rows]) + TRANSFER_BYTES[0]

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        return f"{self.rows.height} rows at once into memory, Q of the first {self.m} columns"

    @property
    def flops(self) -> float:
        """Operations: R, and Q from its reflections."""
        dtype = self.rows.dtype
        return tsqr_flops(self.m, self.n, 0, dtype) + flop_weight(dtype) * 2.0 * self.m**3


@dataclass(frozen=True)
class QrGeometry:
    """The blocks of an m x n matrix, m >= n.

    Attributes
    ----------
    q
        Blocks of Q.
    rows
        Blocks of A, of the same height.
    """

    q: TallQGeometry
    rows: RowPlan

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        blocks = max(self.rows.memory_bytes, RING_BLOCKS * self.q.block_bytes)
        moving = 2 * self.q.bounce_bytes + STATE_MEMORY_BYTES
        return self.q.fixed_bytes + moving + blocks

    @property
    def flops(self) -> float:
        """Operations: R, and the same number for Q."""
        return 2 * tsqr_flops(self.q.m, self.q.n, 0, self.q.dtype)

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        return f"reflections of {self.q.height} rows at once, then Q from the last ones up"


def qr_geometry(
    A: RowLayout, dtype: np.dtype[Any], memory_bytes: int
) -> QrGeometry | WideQrGeometry:
    """Choose the blocks for QR with Q on disk.

    Raises
    ------
    BudgetError
        If two triangles and blocks of a few rows do not fit.
    InvalidError
        If the number of rows is unknown.
    """
    if A.rows is None:
        raise InvalidError(
            "need the number of rows for Q on disk, have an iterator; copy it to disk with "
            'oc.from_array(blocks, path, shape=...), or take mode="r"'
        )
    m, n = A.rows, A.columns

    def geometry(rows: RowPlan) -> QrGeometry | WideQrGeometry:
        if m < n:
            return WideQrGeometry(rows)
        return QrGeometry(TallQGeometry(m, n, 0, dtype, rows.height), rows)

    found = fit_rows(
        [A], dtype=dtype, order="F", budget_bytes=memory_bytes,
        memory=lambda plans: geometry(plans[0]).memory_bytes, writes_back=m >= n,
    )  # fmt: skip
    return geometry(found.required(memory_bytes, _what(A), _FIX)[0])


def check_mode(mode: object) -> None:
    """Refuse a mode that `qr` does not have.

    Raises
    ------
    InvalidError
        If the mode is unknown.
    """
    if mode not in ("r", "economic"):
        raise InvalidError(f"mode must be 'r' or 'economic', have {mode!r}")


def qr_cost(problem: Problem) -> Cost:
    """Plan `qr`."""
    mode = problem.option("mode", "r")
    check_mode(mode)
    layout, dtype = stored_layout(problem), work_dtype("A", problem.dtype)
    m, n = problem.needed("m"), problem.n
    if mode == "r":
        is_stored = bool(problem.option("out", False))
        plan = r_blocks(layout, dtype, problem.memory_bytes, is_stored=is_stored)
        sizes = state_sizes(n, 0, dtype, m, lanes_of(plan))
        written = sizes[0] + state_bytes(*sizes) if is_stored else 0
        return Cost(
            method=f"R of rows as they are read, {plan.height} at once",
            peak_memory_bytes=r_bytes(plan, is_stored=is_stored),
            disk_bytes=written,
            words_lower_bound=float(m * n),
            phases=(
                dataclasses.replace(
                    tsqr_phase(m, n, 0, plan, dtype),
                    bytes_written=sizes[0] * is_stored,
                    ends_written_bytes=sizes[0] * is_stored,
                ),
            ),
        )
    g = qr_geometry(layout, dtype, problem.memory_bytes)
    first = tsqr_phase(m, n, 0, g.rows, dtype)
    if isinstance(g, WideQrGeometry):
        last = Phase(
            dtype, 0, g.q_bytes, g.flops - tsqr_flops(m, n, 0, dtype), ends_written_bytes=g.q_bytes
        )
        return Cost(
            method=g.method,
            peak_memory_bytes=g.memory_bytes,
            disk_bytes=g.q_bytes + state_bytes(*state_sizes(n, 0, dtype, m)),
            words_lower_bound=float(m * n + m * m),
            phases=(first, last),
        )
    q_bytes = g.q.q_bytes()
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=2 * q_bytes + state_bytes(*g.q.state_sizes()),
        words_lower_bound=2.0 * m * n,
        phases=(
            dataclasses.replace(first, bytes_written=q_bytes),
            dataclasses.replace(
                first, bytes_read=q_bytes, bytes_written=q_bytes, ends_written_bytes=g.q.block_bytes
            ),
        ),
    )
