"""How a tall matrix is factored while its rows go by, and what that costs. Pure arithmetic."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcore.linalg.cost import SCAN_S_PER_BYTE, Phase, Problem, flop_weight
from outcore.linalg.grains import Grains, pages
from outcore.linalg.layouts import layout_of
from outcore.linalg.rows.plan import Memory, RowLayout, RowPlan, fit_rows

FACTOR_BYTES = 16 << 20
"""Rows are factored in blocks of about this size, which a cache of the processor holds."""

FACTOR_ROWS = (512, 8192)
"""Fewest and most rows of such a block."""

WIDE_COLUMNS = 256
"""From here on block reflections of more columns are faster."""

LANES = 8
"""Most triangles that are made at once (`outcore.linalg.rows.parallel_qr`)."""

_LANE_BYTES = 32 << 20
"""Most memory for them."""

LANES_IN_USE = 4
"""Blocks that are in use at once then."""

_LANE_ROWS = 16
"""Rows of the matrix for each of a triangle's, so that putting triangles together is little."""

WORK_COLUMNS = 64
"""Columns of LAPACK's widest block reflection: what its workspaces are made for."""

# Share of the speed of a large matrix product that factoring a triangle with rows below it
# reaches, measured with OpenBLAS 0.3.30, and half of it at so many columns: with all threads of the
# BLAS, and in lanes, of real and of complex types.
_QR_SHARE, _LANES_SHARES = (0.6, 120), {"f": (0.58, 45), "c": (0.75, 22)}


def reflector_columns(n: int, dtype: np.dtype[Any]) -> int:
    """Columns of a block reflection: more make better products, and more work column by column."""
    few = 8 if n < WIDE_COLUMNS else 16
    return min(n, 2 * few if dtype.kind == "c" else few)


def factor_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Rows that are factored at once."""
    least, most = FACTOR_ROWS
    return min(max(FACTOR_BYTES // (n * dtype.itemsize), least), most)


def lane_step_rows(plan: RowPlan) -> int:
    """Rows that are factored at once by each of several threads, which share caches."""
    most = factor_rows(plan.layout.columns, plan.dtype) // 2
    return min(max(most, FACTOR_ROWS[0]), plan.height)


def lanes_of(plan: RowPlan, k: int = 0) -> int:
    """Triangles that are made at once of the rows of a matrix, with k right-hand sides.

    As many as pay, and take little memory.
    """
    n, rows = plan.layout.columns, plan.layout.rows
    if plan.in_use == 1 or plan.height < max(n, FACTOR_ROWS[0]):
        return 1
    by_memory = _LANE_BYTES // tsqr_bytes(n, k, plan.dtype)
    by_rows = LANES if rows is None else rows // (_LANE_ROWS * n)
    return max(min(LANES, by_memory, by_rows), 1)


def fit_tall(
    layouts: Sequence[RowLayout],
    dtype: np.dtype[Any],
    budget_bytes: int,
    memory: Memory,
    k: int = 0,
) -> tuple[list[RowPlan] | None, int]:
    """Choose blocks of rows, of the first matrix to be factored, as `fit_rows` does.

    More of them are in use at once where threads can share them. With k right-hand sides.
    """
    for in_use in (LANES_IN_USE, 1):
        found, need = fit_rows(
            layouts, dtype=dtype, order="F", budget_bytes=budget_bytes, memory=memory,
            in_use=in_use,
        )  # fmt: skip
        if found and lanes_of(found[0], k) > 1:
            break
    return found, need


def tsqr_flops(m: int, n: int, k: int, dtype: np.dtype[Any]) -> float:
    """Real operations of QR of m x n, applied to k right-hand sides.

    2 n² (m - n/3) + 4 k n (m - n/2) for m >= n; four times that for complex types.
    """
    long, short = max(m, n), min(m, n)
    factoring = 2.0 * short**2 * (long - short / 3)
    return flop_weight(dtype) * (factoring + 4.0 * k * short * (m - short / 2))


def triangle_rows(n: int, most: int | None) -> int:
    """Rows of R, if so many rows come at most."""
    return n if most is None else min(most, n)


def tsqr_bytes(
    n: int, k: int, dtype: np.dtype[Any], most: int | None = None, lanes: int = 1
) -> int:
    """Memory for R of so many rows at most, for k right-hand sides, and for workspaces."""
    block = reflector_columns(n, dtype)
    words = [triangle_rows(n, most) * n, n * k, n, block * n, WORK_COLUMNS * max(n, k)]
    own = sum(pages(count * dtype.itemsize) for count in words) + pages(8 * k)
    return lanes * own


def state_sizes(
    n: int, k: int, dtype: np.dtype[Any], most: int | None = None, lanes: int = 1
) -> list[int]:
    """Bytes of each matrix that a stopped call needs to go on."""
    words = [triangle_rows(n, most) * n, n * k, n]
    return ([count * dtype.itemsize for count in words] + [8 * k]) * lanes


def lstsq_bytes(n: int, k: int, dtype: np.dtype[Any], lanes: int = 1) -> int:
    """Memory of least squares beside blocks of rows: R is copied if it must be factored again."""
    return tsqr_bytes(n, k, dtype, lanes=lanes) + pages(n * n * dtype.itemsize)


def tsqr_phase(m: int, n: int, k: int, plan: RowPlan, dtype: np.dtype[Any]) -> Phase:
    """Predict a pass over the rows."""
    work = tsqr_flops(m, n, k, dtype)
    first = plan.height * plan.layout.width * plan.layout.dtype.itemsize
    lanes = lanes_of(plan, k)
    share, half = _LANES_SHARES[dtype.kind] if lanes > 1 else _QR_SHARE
    return Phase(
        dtype=dtype,
        bytes_read=plan.layout.bytes_read(),
        flops=work,
        gemm_flops=work / (share * n / (n + half)),
        other_seconds=m * n * dtype.itemsize * SCAN_S_PER_BYTE,
        ends_read_bytes=min(first, plan.layout.bytes_read()),
        workers=lanes if lanes > 1 else None,
    )


def stored_layout(problem: Problem) -> RowLayout:
    """Describe the matrix of a plan: on disk, in default chunks of the order that is asked for."""
    shape = problem.needed("m"), problem.n
    order, chunks, _ = layout_of(problem, shape, "C")
    grains = Grains.of(chunks, order, problem.on_disk.itemsize)
    return RowLayout(*shape, problem.on_disk, order == "C", grains)
