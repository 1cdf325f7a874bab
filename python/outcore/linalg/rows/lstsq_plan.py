"""How least squares is solved within a budget, and what that costs. Pure arithmetic.

By rows as they go by where the triangle fits into memory; else by slabs of columns, with factors on
disk.
"""

from typing import Any

import numpy as np

from outcore.errors import BudgetError
from outcore.linalg.cost import Cost, Problem
from outcore.linalg.layouts import layout_of
from outcore.linalg.lu.plan import DTYPES
from outcore.linalg.rows.least_norm_plan import (
    LeastNormGeometry,
    least_norm_cost,
    least_norm_geometry,
)
from outcore.linalg.rows.plan import RowLayout, RowPlan, blocks_bytes, fit_rows, too_small
from outcore.linalg.rows.source import work_dtype
from outcore.linalg.rows.tsqr_plan import lstsq_bytes, stored_layout, tsqr_phase
from outcore.linalg.slab_qr.loads import ColumnLoads
from outcore.linalg.slab_qr.plan import SlabQrGeometry, factor_phase, slab_qr_geometry
from outcore.linalg.slab_qr.solve_plan import PROBES, Tiles, solve_phase
from outcore.linalg.systems.columns import TRANSFER_BYTES


def lstsq_way(
    A: RowLayout,
    b: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    instead: str | None = None,
    *,
    is_stored: bool = False,
) -> list[RowPlan] | SlabQrGeometry | LeastNormGeometry:
    """Choose the blocks in which A and b are read, or else the slabs into which A is cut.

    Of a matrix with more columns than rows blocks of columns are read, if those of rows need more.

    Parameters
    ----------
    A, b
        The matrix and its right-hand sides.
    dtype
        Type of the arithmetic.
    memory_bytes
        Budget.
    instead
        What the caller is to do so that slabs can be used; `None` if they can.
    is_stored
        Whether the solution goes to disk.

    Raises
    ------
    BudgetError
        If neither fits.
    """
    beside = is_stored * TRANSFER_BYTES[0]
    fixed = lstsq_bytes(A.columns, b.columns, dtype) + beside
    found, need = fit_rows(
        [A, b], dtype=dtype, order="F", budget_bytes=memory_bytes,
        memory=lambda plans: fixed + blocks_bytes(plans),
    )  # fmt: skip
    if found:
        return found
    is_wide = A.rows is not None and A.rows < A.columns
    refused = too_small(
        need, memory_bytes, f"least squares with {A.columns} columns: triangles and blocks of rows",
        "raise memory=" + (f", or {instead}" if instead and not is_wide else ""),
    )  # fmt: skip

    def otherwise(budget_bytes: int) -> SlabQrGeometry | LeastNormGeometry:
        assert A.rows is not None, "iterators were refused"
        if is_wide:
            return least_norm_geometry(A, b, dtype, budget_bytes, beside)
        return slab_qr_geometry((A.rows, A.columns), A.dtype, budget_bytes)

    if A.rows is None or (instead is not None and not is_wide):
        raise refused
    try:
        return otherwise(memory_bytes)
    except BudgetError as too_little:
        # Of two budgets that are too small the smaller one is named.
        try:
            otherwise(need)
        except BudgetError:
            raise refused from None
        raise too_little from None


def use_slabs_if(A: RowLayout) -> str | None:
    """Say what must be done before a matrix can be cut into slabs; `None` if nothing."""
    if A.rows is None or not A.is_stored:
        return "copy A to disk with oc.from_array: of arrays on disk slabs of columns are read"
    if A.dtype.name not in DTYPES:
        return f"convert A to floating point: of {A.dtype} no slabs of columns can be factored"
    return None


def lstsq_cost(problem: Problem) -> Cost:
    """Plan `lstsq`, with the right-hand sides in memory."""
    layout, k = stored_layout(problem), problem.rhs
    dtype = work_dtype("A", problem.dtype)
    m, n = problem.needed("m"), problem.n
    beside = RowLayout(m, k, dtype, by_row=False)
    way = lstsq_way(layout, beside, dtype, problem.memory_bytes, use_slabs_if(layout))
    if isinstance(way, SlabQrGeometry):
        tiles = Tiles((m, n), dtype, (way.rows, way.columns))
        group = tiles.group(problem.memory_bytes, k, 1, 0, PROBES)
        loads = ColumnLoads(way, layout_of(problem, (m, n), "C"), problem.disk())
        return Cost(
            method=f"QR by {loads.method(way.method)}",
            peak_memory_bytes=max(
                loads.peak_bytes(way.memory_bytes),
                tiles.fixed_bytes(PROBES) + tiles.width_bytes(group),
            ),
            disk_bytes=way.factor_bytes_written(),
            words_lower_bound=float(m * n),
            phases=(*loads.phases(factor_phase(way)), solve_phase(tiles, k, group)),
        )
    if isinstance(way, LeastNormGeometry):
        return least_norm_cost(way)
    return Cost(
        method=f"QR of rows as they are read, {way[0].height} at once",
        peak_memory_bytes=lstsq_bytes(n, k, dtype) + blocks_bytes(way),
        disk_bytes=0,
        words_lower_bound=float(m * n),
        phases=(tsqr_phase(m, n, k, way[0], dtype),),
    )
