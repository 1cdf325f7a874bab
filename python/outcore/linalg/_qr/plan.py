"""Blocks for QR of a tall matrix with Q on disk, within a memory budget. Pure arithmetic."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore.errors import InvalidError
from outcore.linalg._output.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.merge_plan import (
    Strips,
    merging_phases,
    planned_shares,
    q_sent,
    r_sent,
    sent,
    strip_bytes,
)
from outcore.linalg._rows.plan import RowLayout, RowPlan, blocks_bytes, fit_rows
from outcore.linalg._rows.shares import Shares, shares_of
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
    A: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    *,
    is_stored: bool = False,
    processes: int = 1,
) -> RowPlan:
    """Choose the blocks in which a matrix is read for R only, in memory or on disk."""
    found = fit_tall(
        [A], dtype, memory_bytes,
        lambda plans: r_bytes(plans[0], is_stored=is_stored, processes=processes),
    )  # fmt: skip
    fix = _FIX if processes == 1 else f"{_FIX}, by one process"
    return found.required(memory_bytes, _what(A, processes), fix)[0]


def r_bytes(plan: RowPlan, *, is_stored: bool, processes: int = 1) -> int:
    """Return the memory of a call for R only."""
    n = plan.layout.columns
    # Processes with different numbers of rows merge triangles of the same size.
    most = plan.layout.rows if processes == 1 else None
    own = tsqr_bytes(n, 0, plan.dtype, most, lanes_of(plan))
    message = strip_bytes(Strips(n, n), plan.dtype, processes)
    return own + plan.memory_bytes + is_stored * TRANSFER_BYTES[0] + message


_FIX = "raise memory=, or factor A on disk with qr_factor, and make Q with form_q"


def _what(A: RowLayout, processes: int = 1) -> str:
    n = A.columns
    rows = triangle_rows(n, A.rows if processes == 1 else None)
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


def dealt_qr_geometry(
    A: RowLayout, dtype: np.dtype[Any], memory_bytes: int, processes: int, rank: int
) -> tuple[Shares, QrGeometry]:
    """Divide the rows between processes, in blocks of the same height, for Q on disk.

    Parameters
    ----------
    memory_bytes
        The smallest of their budgets.

    Raises
    ------
    BudgetError
        If the triangles and blocks of a few rows do not fit.
    InvalidError
        If there are fewer rows than columns.
    """
    assert A.rows is not None, "the processes agreed on an array"
    m, n = A.rows, A.columns
    if m < n:
        raise InvalidError(
            f"need as many rows as columns for Q by several processes, have {m} x {n}; leave out "
            'comm=, or pass mode="r"'
        )

    def geometry(rows: RowPlan, shares: Shares) -> QrGeometry:
        q = TallQGeometry(shares.most, n, 0, dtype, rows.height, processes)
        return QrGeometry(q, rows)

    rough = shares_of([A], processes, rank, n)
    most = dataclasses.replace(A, rows=rough.most)
    found = fit_rows(
        [most], dtype=dtype, order="F", budget_bytes=memory_bytes,
        memory=lambda plans: geometry(plans[0], rough).memory_bytes, writes_back=True,
    )  # fmt: skip
    what, fix = _what(A, processes), f"{_FIX}, by one process"
    rows = found.required(memory_bytes, what, fix)[0]
    shares = shares_of([A], processes, rank, n, rows.height)
    need = geometry(rows, shares).memory_bytes
    if need > memory_bytes:
        raise too_small(need, memory_bytes, what, fix)
    own = dataclasses.replace(rows, layout=shares.rows_in(A))
    q = TallQGeometry(own.layout.rows or 0, n, 0, dtype, rows.height, processes)
    return shares, QrGeometry(q, own)


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
        shares = planned_shares(problem, [layout], n)
        is_alone = shares.size == 1
        own = layout if is_alone else shares.rows_in(layout)
        plan = r_blocks(
            own, dtype, problem.memory_bytes, is_stored=is_stored, processes=shares.size
        )
        sizes = state_sizes(n, 0, dtype, m if is_alone else None, lanes_of(plan))
        r_written = min(m, n) * n * dtype.itemsize * is_stored * (shares.rank == 0)
        message = sent(Strips(n, n), dtype)[0]
        merging = flop_weight(dtype) * 2 / 3 * n**3
        return Cost(
            method=f"R of rows as they are read, {plan.height} at once",
            peak_memory_bytes=r_bytes(plan, is_stored=is_stored, processes=shares.size),
            disk_bytes=sizes[0] + shares.size * state_bytes(*sizes) if is_stored else 0,
            words_lower_bound=float(m * n) if is_alone else None,
            phases=(
                dataclasses.replace(
                    tsqr_phase(own.rows or 0, n, 0, plan, dtype),
                    bytes_written=r_written,
                    ends_written_bytes=r_written,
                ),
                *merging_phases(problem, shares, message, message, merging),
            ),
            processes=shares.size,
            bytes_sent=r_sent(n, dtype, shares)[0],
        )
    shares = planned_shares(problem, [layout], n)
    g: QrGeometry | WideQrGeometry
    if shares.size > 1:
        memory_bytes = problem.memory_bytes
        shares, g = dealt_qr_geometry(layout, dtype, memory_bytes, shares.size, shares.rank)
        m = g.q.m
    else:
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
    q_bytes, size = g.q.q_bytes(), shares.size
    message = sent(Strips(n, n), dtype)[0]
    merging = flop_weight(dtype) * 4.0 * n**3
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=size * (2 * q_bytes + state_bytes(*g.q.state_sizes())),
        words_lower_bound=2.0 * m * n if size == 1 else None,
        phases=(
            dataclasses.replace(first, bytes_written=q_bytes),
            *merging_phases(problem, shares, 2 * message, message, merging),
            dataclasses.replace(
                first, bytes_read=q_bytes, bytes_written=q_bytes, ends_written_bytes=g.q.block_bytes
            ),
        ),
        processes=size,
        bytes_sent=0 if size == 1 else q_sent(n, dtype, shares)[0],
    )
