"""How a tall matrix is factored while its rows go by, and what that costs. Pure arithmetic."""

from typing import Any

import numpy as np

from outcore.linalg.cost import SCAN_S_PER_BYTE, Phase, Problem, flop_weight
from outcore.linalg.grains import Grains, pages
from outcore.linalg.layouts import layout_of
from outcore.linalg.rows.plan import RowLayout, RowPlan

FACTOR_BYTES = 16 << 20
"""Rows are factored in blocks of about this size, which a cache of the processor holds."""

FACTOR_ROWS = (512, 8192)
"""Fewest and most rows of such a block."""

WIDE_COLUMNS = 256
"""From here on block reflections of more columns are faster."""

WORK_COLUMNS = 64
"""Columns of LAPACK's widest block reflection: what its workspaces are made for."""

# Share of the speed of a large matrix product that factoring a triangle with rows below it
# reaches, measured with OpenBLAS 0.3.30, and half of it at so many columns.
_QR_SHARE, _HALF_COLUMNS = 0.6, 120


def reflector_columns(n: int, dtype: np.dtype[Any]) -> int:
    """Columns of a block reflection: more make better products, and more work column by column."""
    few = 8 if n < WIDE_COLUMNS else 16
    return min(n, 2 * few if dtype.kind == "c" else few)


def factor_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Rows that are factored at once."""
    least, most = FACTOR_ROWS
    return min(max(FACTOR_BYTES // (n * dtype.itemsize), least), most)


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


def tsqr_bytes(n: int, k: int, dtype: np.dtype[Any], most: int | None = None) -> int:
    """Memory for R of so many rows at most, for k right-hand sides, and for workspaces."""
    block = reflector_columns(n, dtype)
    words = [triangle_rows(n, most) * n, n * k, n, block * n, WORK_COLUMNS * max(n, k)]
    return sum(pages(count * dtype.itemsize) for count in words) + pages(8 * k)


def state_sizes(n: int, k: int, dtype: np.dtype[Any], most: int | None = None) -> list[int]:
    """Bytes of each matrix that a stopped call needs to go on."""
    words = [triangle_rows(n, most) * n, n * k, n]
    return [count * dtype.itemsize for count in words] + [8 * k]


def lstsq_bytes(n: int, k: int, dtype: np.dtype[Any]) -> int:
    """Memory of least squares beside blocks of rows: R is copied if it must be factored again."""
    return tsqr_bytes(n, k, dtype) + pages(n * n * dtype.itemsize)


def tsqr_phase(m: int, n: int, k: int, plan: RowPlan, dtype: np.dtype[Any]) -> Phase:
    """Predict a pass over the rows."""
    work = tsqr_flops(m, n, k, dtype)
    first = plan.height * plan.layout.width * plan.layout.dtype.itemsize
    return Phase(
        dtype=dtype,
        bytes_read=plan.layout.bytes_read(),
        flops=work,
        gemm_flops=work / (_QR_SHARE * n / (n + _HALF_COLUMNS)),
        other_seconds=m * n * dtype.itemsize * SCAN_S_PER_BYTE,
        ends_read_bytes=min(first, plan.layout.bytes_read()),
    )


def stored_layout(problem: Problem) -> RowLayout:
    """Describe the matrix of a plan: on disk, in default chunks of the order that is asked for."""
    shape = problem.needed("m"), problem.n
    order, chunks = layout_of(problem, shape, "C")
    grains = Grains.of(chunks, order, problem.dtype.itemsize)
    return RowLayout(*shape, problem.dtype, order == "C", grains)
