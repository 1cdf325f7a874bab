"""The method of least squares within a budget, and its cost. Pure arithmetic.

Rows are streamed if the triangle fits into memory. Otherwise, columns of a wide matrix are streamed
if their triangle fits. Otherwise slabs are used, with factors on disk.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from outcore._util.budget import too_small
from outcore.errors import BudgetError
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._output.kept_state_plan import state_bytes
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.merge_plan import (
    Strips,
    merging_phases,
    planned_shares,
    sent,
    sent_to_merge,
    strip_bytes,
)
from outcore.linalg._rows.plan import Fit, Memory, RowLayout, RowPlan, blocks_bytes
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.tsqr_plan import (
    fit_tall,
    lanes_of,
    lstsq_bytes,
    state_sizes,
    stored_layout,
    tsqr_flops,
    tsqr_phase,
)
from outcore.linalg._slab_qr.loads import QrLoads
from outcore.linalg._slab_qr.plan import (
    PROBES,
    SlabQrGeometry,
    Tiles,
    by_slabs,
    factor_phase,
    slab_qr_geometry,
    solve_phase,
)
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.result_dtype import matrix_dtype, work_dtype

_COUNT_BYTES = 8

_FIX = (
    "raise memory=, or let A lie in columns, of which a few are read at once: "
    'oc.from_array(A, path, order="F")'
)


@dataclass(frozen=True)
class LeastNormGeometry:
    """The blocks in which an m x n matrix is read, m < n.

    Attributes
    ----------
    columns
        Blocks of columns of A, taken as rows of its transpose.
    b
        Blocks of rows of the right-hand sides.
    beside_bytes
        Memory for writes of a solution on disk.
    weights
        Blocks of the weights of the rows, if there are any.
    """

    columns: RowPlan
    b: RowPlan
    beside_bytes: int
    weights: RowPlan | None = None

    @property
    def m(self) -> int:
        """Rows of A."""
        return self.columns.layout.columns

    @property
    def n(self) -> int:
        """Columns of A."""
        assert self.columns.layout.rows is not None, "an array has a shape"
        return self.columns.layout.rows

    @property
    def blocks(self) -> int:
        """Number of blocks in a pass."""
        return -(-self.n // self.columns.height)

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        k, dtype = self.b.layout.columns, self.columns.dtype
        # b and its residual, x, and its scale.
        vectors = pages(self.m * k * dtype.itemsize) + pages(self.n * k * dtype.itemsize)
        vectors += pages(8)
        blocks = blocks_bytes([self.columns, self.b])
        if self.weights is not None:
            blocks += blocks_bytes([self.weights])
            vectors += pages(self.m * np.zeros((), dtype).real.itemsize)
        own = lstsq_bytes(self.m, k, dtype, lanes_of(self.columns))
        return own + vectors + blocks + self.beside_bytes

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        return (
            f"solution of least norm: QR of columns as they are read, {self.columns.height} at "
            "once, then a second pass over them"
        )

    @property
    def product_flops(self) -> float:
        """Operations of the second pass: x, and the residual of b."""
        return flop_weight(self.columns.dtype) * 4.0 * self.m * self.n * self.b.layout.columns

    @property
    def flops(self) -> float:
        """Operations of the whole call."""
        k, dtype = self.b.layout.columns, self.columns.dtype
        solving = flop_weight(dtype) * 2.0 * self.m**2 * k
        return tsqr_flops(self.n, self.m, 0, dtype) + solving + self.product_flops

    def bytes_read(self) -> int:
        """Return the bytes read: A twice, b, and the weights."""
        once = self.b.layout.bytes_read()
        if self.weights is not None:
            once += self.weights.layout.bytes_read()
        return 2 * self.columns.layout.bytes_read() + once


class Operands(NamedTuple):
    """The operands of least squares, as plans need them.

    Attributes
    ----------
    A, b, weights
        The matrix, its right-hand sides, and the weights of its rows, if there are any.
    dtype
        Type of the arithmetic.
    is_stored
        Whether the solution is stored on disk.
    processes
        Number of processes, each with some of the rows.
    """

    A: RowLayout
    b: RowLayout
    weights: RowLayout | None
    dtype: np.dtype[Any]
    is_stored: bool
    processes: int = 1

    @property
    def beside_bytes(self) -> int:
        """Memory for writes of a solution on disk, and for messages."""
        message = strip_bytes(self.strips, self.dtype, self.processes)
        return self.is_stored * TRANSFER_BYTES[0] + message

    @property
    def strips(self) -> Strips:
        """The messages with a triangle and its right-hand sides."""
        return Strips(self.A.columns, self.A.columns, self.b.columns)

    def sent(self, shares: Shares, *, keep_r: bool) -> tuple[int, int]:
        """Return the bytes and messages that this process sends.

        They are its triangle, and from the first process x, and R if it is kept.
        """
        if shares.rank:
            return sent_to_merge(self.strips, self.dtype, shares)
        n, k = self.A.columns, self.b.columns
        nbytes, messages = sent(Strips(n, n), self.dtype) if keep_r else (0, 0)
        return nbytes + n * k * self.dtype.itemsize, messages + 1

    def fit_rows(self, memory_bytes: int) -> Fit:
        """Choose blocks of rows of all operands."""
        k = self.b.columns
        return self._fit(self.A, memory_bytes, lambda p: rows_bytes(p, k) + self.beside_bytes, k)

    def fit_columns(self, memory_bytes: int) -> Fit:
        """Choose blocks of columns of A, and of rows of the other operands."""
        return self._fit(
            self.A.transposed(), memory_bytes, lambda plans: self.least_norm(plans).memory_bytes
        )

    def _fit(self, A: RowLayout, memory_bytes: int, memory: Memory, k: int = 0) -> Fit:
        layouts = [A, self.b, *([] if self.weights is None else [self.weights])]
        return fit_tall(layouts, self.dtype, memory_bytes, memory, k)

    def least_norm(self, plans: Sequence[RowPlan]) -> LeastNormGeometry:
        """Return the geometry for given blocks of columns of A, and of the other operands."""
        return LeastNormGeometry(plans[0], plans[1], self.beside_bytes, *plans[2:])

    def cut_columns(self, memory_bytes: int, instead: str | None) -> LeastNormGeometry:
        """Choose the blocks in which a wide matrix is read.

        `instead` is advice for the caller to need less memory.

        Raises
        ------
        BudgetError
            If not even small blocks fit.
        """
        m, n = self.A.rows, self.A.columns
        what = (
            f"least squares with {m} rows and {n} columns: triangles of {m} x {m} elements, x, and "
            "blocks of columns"
        )
        fix = _FIX + (f", or {instead}" if instead and self.A.is_stored else "")
        return self.least_norm(self.fit_columns(memory_bytes).required(memory_bytes, what, fix))


def rows_bytes(plans: Sequence[RowPlan], k: int) -> int:
    """Return the memory of least squares with streamed rows, and k right-hand sides."""
    A = plans[0]
    own = lstsq_bytes(A.layout.columns, k, A.dtype, lanes_of(A, k))
    # With weights there is a counter of those that are not zero.
    return own + blocks_bytes(plans) + pages(_COUNT_BYTES) * (len(plans) > 2)


def lstsq_way(
    operands: Operands, memory_bytes: int, instead: str | None = None, *, keep_r: bool = False
) -> list[RowPlan] | SlabQrGeometry | LeastNormGeometry:
    """Choose the blocks in which A and b are read, or the slabs of A.

    A matrix with more columns than rows is read by columns if blocks of rows need more memory;
    otherwise its transpose is cut into slabs.

    Parameters
    ----------
    operands
        The matrix and its right-hand sides.
    memory_bytes
        The budget.
    instead
        Advice for the caller that makes slabs possible; `None` if they are.
    keep_r
        Whether R is needed, which only streamed rows preserve.

    Raises
    ------
    BudgetError
        If no method fits.
    """
    A = operands.A
    found, need = operands.fit_rows(memory_bytes)
    if found:
        return found
    fix = "raise memory=" + (f", or {instead}" if instead and not keep_r else "")
    if operands.processes > 1:
        fix = "raise memory=, or leave out comm=: one process can do with less"
    elif keep_r:
        fix += ", or leave out keep_r="
    what = f"least squares with {A.columns} columns: triangles and blocks of rows"
    refused = too_small(need, memory_bytes, what, fix)
    if operands.processes > 1:
        raise refused
    ways: list[_Way] = []
    if A.rows is not None and A.rows < A.columns and not keep_r:
        ways.append(lambda budget: operands.cut_columns(budget, instead))
    if A.rows is not None and instead is None and not keep_r:
        shape, dtype = (A.rows, A.columns), matrix_dtype(operands.dtype, A.dtype)
        ways.append(lambda budget: slab_qr_geometry((max(shape), min(shape)), dtype, budget))
    for way in ways:
        with contextlib.suppress(BudgetError):
            return way(memory_bytes)
    # If several methods need more memory, the error names the smallest budget.
    cheapest = _cheapest(ways, memory_bytes, need)
    try:
        raise (cheapest and _refusal(cheapest, memory_bytes)) or refused
    finally:
        del refused  # it is in no cycle with this frame


def least_streaming_bytes(operands: Operands) -> int:
    """Return the least memory with which rows or columns can be streamed; see `lstsq_way`."""
    A, need = operands.A, operands.fit_rows(0).need
    if A.rows is not None and A.rows < A.columns:
        need = min(need, operands.fit_columns(0).need)
    return need


_Way: TypeAlias = Callable[[int], SlabQrGeometry | LeastNormGeometry]
"""Cuts a matrix for a budget, or raises `BudgetError`."""


def _cheapest(ways: list[_Way], memory_bytes: int, need: int) -> _Way | None:
    """Return the method that needs the least memory, if that is less than `need`."""
    cheapest = None
    while need - memory_bytes > 1:
        middle = (memory_bytes + need) // 2
        fitting = [way for way in ways if _refusal(way, middle) is None]
        if fitting:
            cheapest, need = fitting[0], middle
        else:
            memory_bytes = middle
    return cheapest


def _refusal(way: _Way, memory_bytes: int) -> BudgetError | None:
    try:
        way(memory_bytes)
    except BudgetError as error:
        return error
    return None


def use_slabs_if(A: RowLayout, dtype: np.dtype[Any]) -> str | None:
    """Return the condition for cutting a matrix into slabs, as advice; `None` if it can be cut."""
    if A.rows is None or not A.is_stored:
        return "copy A to disk with oc.from_array: slabs of columns need an array on disk"
    made_in = matrix_dtype(dtype, A.dtype)
    if not np.can_cast(A.dtype, made_in):
        return f"copy A to {made_in} with oc.from_array: slabs of columns are not rounded"
    return None


def least_norm_cost(g: LeastNormGeometry, x_bytes: int) -> Cost:
    """Plan both passes, with `x_bytes` of the solution on disk."""
    dtype, read = g.columns.dtype, g.columns.layout.bytes_read()
    first = tsqr_phase(g.n, g.m, 0, g.columns, dtype)
    solved = g.flops - tsqr_flops(g.n, g.m, 0, dtype)
    second = Phase(
        dtype=dtype, bytes_read=read, flops=solved, ends_read_bytes=first.ends_read_bytes,
        bytes_written=x_bytes, ends_written_bytes=x_bytes,
    )  # fmt: skip
    rest_bytes = g.m * g.b.layout.columns * dtype.itemsize
    sizes = [*state_sizes(g.m, 0, dtype, lanes=lanes_of(g.columns)), rest_bytes, x_bytes, 8]
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=x_bytes + state_bytes(*sizes) if x_bytes else 0,
        words_lower_bound=float(g.m * g.n),
        phases=(first, second),
    )


def lstsq_cost(problem: Problem) -> Cost:
    """Plan `lstsq`, with the right-hand sides in memory, and the solution in memory or on disk."""
    layout, k = stored_layout(problem), problem.rhs
    dtype = work_dtype("A", problem.dtype)
    m, n = problem.needed("m"), problem.n
    is_stored = bool(problem.option("out", False))
    weights = RowLayout(m, 1, dtype, by_row=False) if problem.option("weights", False) else None
    right = RowLayout(m, k, dtype, by_row=False)
    shares = planned_shares(problem, [layout, right], n)
    if shares.size > 1:
        layout, right = shares.rows_in(layout), shares.rows_in(right)
        weights = weights and shares.rows_in(weights)
    operands = Operands(layout, right, weights, dtype, is_stored, shares.size)
    instead = use_slabs_if(layout, dtype)
    for name in ("damp", "weights"):
        if problem.option(name, False) and instead is None:
            instead = f"leave out {name}=, which slabs of columns do not have"
    solution_bytes = n * k * dtype.itemsize
    x_bytes = solution_bytes * is_stored
    keep_r = bool(problem.option("keep_r", False))
    way = lstsq_way(operands, problem.memory_bytes, instead, keep_r=keep_r)
    if isinstance(way, SlabQrGeometry):
        tiles = Tiles(way.m, way.n, dtype, way.rows, way.columns)
        group = tiles.group(problem.memory_bytes, k, 1, 0, PROBES)
        is_wide, on_disk = m < n, layout_of(problem, (m, n), "C")
        loads = QrLoads(way, on_disk.transposed() if is_wide else on_disk, problem.disk())
        return Cost(
            method=by_slabs(loads.method(way.method), transposed=is_wide),
            peak_memory_bytes=max(
                loads.peak_bytes(way.memory_bytes),
                tiles.fixed_bytes(PROBES) + tiles.width_bytes(group),
            ),
            disk_bytes=way.factor_bytes_written() + x_bytes,
            words_lower_bound=float(m * n),
            phases=(*loads.phases(factor_phase(way)), solve_phase(tiles, k, group)),
        )
    if isinstance(way, LeastNormGeometry):
        return least_norm_cost(way, x_bytes)
    sizes = state_sizes(n, k, dtype, lanes=lanes_of(way[0], k))
    sizes += [_COUNT_BYTES] * (weights is not None)
    kept = shares.size * state_bytes(*sizes) if is_stored else 0
    phase = tsqr_phase(operands.A.rows or 0, n, k, way[0], dtype)
    own_bytes = 0 if shares.rank else x_bytes
    spread = solution_bytes + keep_r * sent(Strips(n, n), dtype)[0]
    merging = flop_weight(dtype) * (2 / 3 * n**3 + 2.0 * k * n**2)
    taken = sent(operands.strips, dtype)[0]
    return Cost(
        method=f"QR of rows as they are read, {way[0].height} at once",
        peak_memory_bytes=rows_bytes(way, k) + operands.beside_bytes,
        disk_bytes=x_bytes + kept,
        words_lower_bound=float(m * n) if shares.size == 1 else None,
        phases=(
            dataclasses.replace(phase, bytes_written=own_bytes, ends_written_bytes=own_bytes),
            *merging_phases(problem, shares, taken, spread, merging),
        ),
        processes=shares.size,
        bytes_sent=0 if shares.size == 1 else operands.sent(shares, keep_r=keep_r)[0],
    )
