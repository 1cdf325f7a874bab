"""The method of least squares within a budget, and its cost. Pure arithmetic.

Rows are streamed if the triangle fits into memory. Otherwise, columns of a wide matrix are streamed
if their triangle fits. Otherwise slabs are used, with factors on disk.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from outcore.errors import BudgetError
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._lstsq.least_norm_plan import (
    LeastNormGeometry,
    fit_columns,
    least_norm_cost,
    least_norm_geometry,
)
from outcore.linalg._output.kept_state_plan import state_bytes
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.plan import RowLayout, RowPlan, blocks_bytes, too_small
from outcore.linalg._rows.tsqr_plan import (
    fit_tall,
    lanes_of,
    lstsq_bytes,
    state_sizes,
    stored_layout,
    tsqr_phase,
)
from outcore.linalg._slab_qr.loads import ColumnLoads
from outcore.linalg._slab_qr.plan import SlabQrGeometry, by_slabs, factor_phase, slab_qr_geometry
from outcore.linalg._slab_qr.solve_plan import PROBES, Tiles, solve_phase
from outcore.linalg._tiles.cost import Cost, Problem
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.result_dtype import matrix_dtype, work_dtype


def lstsq_way(
    A: RowLayout,
    b: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    instead: str | None = None,
    *,
    is_stored: bool = False,
    weights: RowLayout | None = None,
    keep_r: bool = False,
) -> list[RowPlan] | SlabQrGeometry | LeastNormGeometry:
    """Choose the blocks in which A and b are read, or the slabs of A.

    A matrix with more columns than rows is read by columns if blocks of rows need more memory;
    otherwise its transpose is cut into slabs.

    Parameters
    ----------
    A, b
        The matrix and its right-hand sides.
    dtype
        Type of the arithmetic.
    memory_bytes
        The budget.
    instead
        Advice for the caller that makes slabs possible; `None` if they are.
    is_stored
        Whether the solution is stored on disk.
    weights
        Weights of the rows, if there are any.
    keep_r
        Whether R is needed, which only streamed rows preserve.

    Raises
    ------
    BudgetError
        If no method fits.
    """
    beside = is_stored * TRANSFER_BYTES[0]
    found, need = _fit_rows(A, b, dtype, memory_bytes, beside, weights)
    if found:
        return found
    refused = too_small(
        need, memory_bytes, f"least squares with {A.columns} columns: triangles and blocks of rows",
        "raise memory=" + (f", or {instead}" if instead and not keep_r else "")
        + (", or leave out keep_r=" if keep_r else ""),
    )  # fmt: skip
    ways: list[_Way] = []
    if A.rows is not None and A.rows < A.columns and not keep_r:
        ways.append(
            lambda budget: least_norm_geometry(A, b, dtype, budget, beside, instead, weights)
        )
    if A.rows is not None and instead is None and not keep_r:
        shape = max(A.rows, A.columns), min(A.rows, A.columns)
        ways.append(lambda budget: slab_qr_geometry(shape, matrix_dtype(dtype, A.dtype), budget))
    for way in ways:
        with contextlib.suppress(BudgetError):
            return way(memory_bytes)
    # If several methods need more memory, the error names the smallest budget.
    cheapest = _cheapest(ways, memory_bytes, need)
    raise (cheapest and _refusal(cheapest, memory_bytes)) or refused


def least_bytes_going_by(
    A: RowLayout, b: RowLayout, dtype: np.dtype[Any], *, is_stored: bool
) -> int:
    """Return the least memory with which rows or columns can be streamed; see `lstsq_way`."""
    beside = is_stored * TRANSFER_BYTES[0]
    need = _fit_rows(A, b, dtype, 0, beside)[1]
    if A.rows is not None and A.rows < A.columns:
        need = min(need, fit_columns(A, b, dtype, 0, beside)[1])
    return need


def _fit_rows(
    A: RowLayout,
    b: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    beside_bytes: int,
    weights: RowLayout | None = None,
) -> tuple[list[RowPlan] | None, int]:
    """Return blocks of rows of all operands, if any fit, and the smallest need."""
    return fit_tall(
        [A, b, *([] if weights is None else [weights])], dtype, memory_bytes,
        lambda plans: going_by_bytes(plans, b.columns) + beside_bytes, b.columns,
    )  # fmt: skip


def going_by_bytes(plans: Sequence[RowPlan], k: int) -> int:
    """Return the memory of least squares with streamed rows, and k right-hand sides."""
    A = plans[0]
    own = lstsq_bytes(A.layout.columns, k, A.dtype, lanes_of(A, k))
    # With weights there is a counter of those that are not zero.
    return own + blocks_bytes(plans) + pages(_COUNT_BYTES) * (len(plans) > 2)


_COUNT_BYTES = 8

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


def lstsq_cost(problem: Problem) -> Cost:
    """Plan `lstsq`, with the right-hand sides in memory, and the solution in memory or on disk."""
    layout, k = stored_layout(problem), problem.rhs
    dtype = work_dtype("A", problem.dtype)
    m, n = problem.needed("m"), problem.n
    beside = RowLayout(m, k, dtype, by_row=False)
    is_stored = bool(problem.option("out", False))
    weights = RowLayout(m, 1, dtype, by_row=False) if problem.option("weights", False) else None
    instead = use_slabs_if(layout, dtype)
    for name in ("damp", "weights"):
        if problem.option(name, False) and instead is None:
            instead = f"leave out {name}=, which slabs of columns do not have"
    x_bytes = n * k * dtype.itemsize * is_stored
    way = lstsq_way(
        layout,
        beside,
        dtype,
        problem.memory_bytes,
        instead,
        is_stored=is_stored,
        weights=weights,
        keep_r=bool(problem.option("keep_r", False)),
    )
    if isinstance(way, SlabQrGeometry):
        tiles = Tiles((way.m, way.n), dtype, (way.rows, way.columns))
        group = tiles.group(problem.memory_bytes, k, 1, 0, PROBES)
        is_wide, on_disk = m < n, layout_of(problem, (m, n), "C")
        loads = ColumnLoads(way, on_disk.transposed() if is_wide else on_disk, problem.disk())
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
    kept = state_bytes(*sizes) if is_stored else 0
    phase = tsqr_phase(m, n, k, way[0], dtype)
    beside_bytes = is_stored * TRANSFER_BYTES[0]
    return Cost(
        method=f"QR of rows as they are read, {way[0].height} at once",
        peak_memory_bytes=going_by_bytes(way, k) + beside_bytes,
        disk_bytes=x_bytes + kept,
        words_lower_bound=float(m * n),
        phases=(dataclasses.replace(phase, bytes_written=x_bytes, ends_written_bytes=x_bytes),),
    )
