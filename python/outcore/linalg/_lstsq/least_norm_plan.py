"""The blocks for the solution of least norm of a wide system, and its cost. Pure arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.linalg._output.kept_state_plan import state_bytes
from outcore.linalg._rows.plan import RowLayout, RowPlan, blocks_bytes, too_small
from outcore.linalg._rows.tsqr_plan import (
    fit_tall,
    lanes_of,
    lstsq_bytes,
    state_sizes,
    tsqr_flops,
    tsqr_phase,
)
from outcore.linalg._tiles.cost import Cost, Phase, flop_weight
from outcore.linalg._tiles.grains import pages

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


def fit_columns(
    A: RowLayout,
    b: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    beside_bytes: int,
    weights: RowLayout | None = None,
) -> tuple[list[RowPlan] | None, int]:
    """Return blocks of columns of A and of rows of b, if any fit, and the smallest need."""
    return fit_tall(
        [A.transposed(), b, *([] if weights is None else [weights])], dtype, memory_bytes,
        lambda plans: LeastNormGeometry(plans[0], plans[1], beside_bytes, *plans[2:]).memory_bytes,
    )  # fmt: skip


def least_norm_geometry(
    A: RowLayout,
    b: RowLayout,
    dtype: np.dtype[Any],
    memory_bytes: int,
    beside_bytes: int = 0,
    instead: str | None = None,
    weights: RowLayout | None = None,
) -> LeastNormGeometry:
    """Choose the blocks in which a wide matrix is read.

    `instead` is advice for the caller to need less memory.

    Raises
    ------
    BudgetError
        If not even small blocks fit.
    """
    found, need = fit_columns(A, b, dtype, memory_bytes, beside_bytes, weights)
    if found is None:
        m, n = A.rows, A.columns
        raise too_small(
            need, memory_bytes, f"least squares with {m} rows and {n} columns: triangles of "
            f"{m} x {m} elements, x, and blocks of columns",
            _FIX + (f", or {instead}" if instead and A.is_stored else ""),
        )  # fmt: skip
    return LeastNormGeometry(found[0], found[1], beside_bytes, *found[2:])


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
