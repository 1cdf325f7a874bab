"""Blocks of a truncated SVD for a memory budget, and its cost. Pure arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.counts import count_of, is_count
from outcore.errors import InvalidError
from outcore.linalg._output.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg._rows.plan import Fit, RowLayout, RowPlan, fit_rows
from outcore.linalg._rows.tsqr_plan import (
    RING_BLOCKS,
    WORK_COLUMNS,
    TallQGeometry,
    block_bounce_bytes,
    stored_layout,
    tsqr_flops,
)
from outcore.linalg._svd.krylov_basis import MOST_COLUMNS, basis_bytes
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.result_dtype import work_dtype

PROBES = 10
"""Number of random vectors for the error estimate.

The bound fails with probability 10 to minus this power.
"""


MOST_PASSES = 20
"""Default limit of passes before the last one."""


@dataclass(frozen=True)
class SvdGeometry:
    """The computation of k singular triplets of an m x n matrix.

    Attributes
    ----------
    n, k
        Columns, and number of triplets.
    power
        Largest number of passes over A before the last one.
    blocks
        Largest number of blocks of vectors in the basis.
    q
        Blocks of the orthogonal factor of A Z, with l columns.
    rows
        Blocks of A, of the same height.
    is_stored
        Whether U is stored on disk.
    """

    n: int
    k: int
    power: int
    blocks: int
    q: TallQGeometry
    rows: RowPlan
    is_stored: bool

    @property
    def passes(self) -> int:
        """Largest number of passes over A."""
        return self.power + 1

    @property
    def steps(self) -> int:
        """Number of blocks of rows, in all passes and of U."""
        return (self.passes + 1) * self.q.blocks

    @property
    def state_bytes(self) -> int:
        """Bytes on disk of the state for resuming."""
        if not self.is_stored:
            return 0
        q, columns = self.q, self.q.n * self.blocks
        words = [self.n * (columns + q.n), self.n * q.k, self.n * q.n]
        own = [count * q.dtype.itemsize for count in words]
        square = columns**2 * np.result_type(q.dtype, "f8").itemsize
        return state_bytes(16, 8, *own, square, 16, *q.state_sizes())

    @property
    def u_bytes(self) -> int:
        """Bytes of U on disk, in whole blocks."""
        q = self.q
        return q.blocks * q.height * self.k * q.dtype.itemsize if self.is_stored else 0

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        q, itemsize = self.q, self.q.dtype.itemsize
        out_block = pages(q.height * self.k * itemsize)
        vectors = basis_bytes(self.n, q.n, self.blocks, q.dtype)
        vectors += pages(self.n * q.k * itemsize) + pages(self.n * q.n * itemsize)
        vectors += pages(16) + pages(8) + q.fixed_bytes + STATE_MEMORY_BYTES * self.is_stored
        iterating = self.rows.memory_bytes + q.block_bytes
        iterating += pages((WORK_COLUMNS + 1) * q.n * itemsize)
        last = self.rows.memory_bytes + pages(q.height * q.k * itemsize) + q.block_bytes
        if self.is_stored:
            last += 2 * q.block_bytes + q.bounce_bytes
            building = RING_BLOCKS * q.block_bytes + 2 * out_block + q.bounce_bytes
            building += block_bounce_bytes(q.height, self.k, q.dtype)
        else:
            last += pages(q.m * q.n * itemsize)
            building = pages(q.m * q.n * itemsize) + out_block
        return vectors + max(iterating, last, building)

    @property
    def iteration_flops(self) -> float:
        """Operations of a pass before the last one: two products with A."""
        return flop_weight(self.q.dtype) * 4.0 * self.q.m * self.n * self.q.n

    @property
    def last_flops(self) -> float:
        """Operations of the last pass: two products with A, QR of the first, and U."""
        q = self.q
        products = 2.0 * q.m * self.n * (2 * q.n + q.k) + 2.0 * q.m * q.n * self.k
        qr = tsqr_flops(q.m, q.n, q.k, q.dtype) + tsqr_flops(q.m, q.n, 0, q.dtype)
        return flop_weight(q.dtype) * products + qr

    @property
    def flops(self) -> float:
        """Operations of all passes."""
        return self.power * self.iteration_flops + self.last_flops

    def bytes_moved(self) -> tuple[int, int]:
        """Return bytes read and written. Exact if chunks are whole pages."""
        q_bytes = self.q.q_bytes() if self.is_stored else 0
        return self.passes * self.rows.layout.bytes_read() + q_bytes, q_bytes + self.u_bytes

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        return (
            f"block Krylov iteration with {self.q.n} vectors, {self.passes} passes over A, "
            f"{self.q.height} rows at once"
        )


def svd_geometry(
    A: RowLayout,
    k: int,
    dtype: np.dtype[Any],
    memory_bytes: int,
    *,
    oversample: int,
    power: int,
    is_stored: bool,
) -> SvdGeometry:
    """Choose the blocks of a truncated SVD.

    Raises
    ------
    BudgetError
        If the vectors and blocks of a few rows do not fit.
    InvalidError
        If `k`, `oversample` or `power` is invalid.
    """
    if A.rows is None:
        raise InvalidError(
            f"the rows of an iterator pass only once, and svd needs {power + 1} passes; copy them "
            "to disk with oc.from_array"
        )
    m, n = A.rows, A.columns
    if not is_count(k) or k > min(m, n):
        raise InvalidError(f"k must be an integer from 1 to {min(m, n)}, have {k!r}")
    for name, number, least in (("oversample", oversample, 0), ("power", power, 1)):
        count_of(name, number, least)
    # With more than half of all possible vectors convergence is slow; with all, immediate.
    vectors = int(k) + int(oversample)
    vectors = min(m, n) if 2 * vectors > min(m, n) else vectors

    def geometry(rows: RowPlan, blocks: int) -> SvdGeometry:
        q = TallQGeometry(m, vectors, PROBES, dtype, rows.height)
        return SvdGeometry(n, int(k), int(power), blocks, q, rows, is_stored)

    def fit(blocks: int) -> Fit:
        return fit_rows(
            [A], dtype=dtype, order=None, budget_bytes=memory_bytes,
            memory=lambda plans: geometry(plans[0], blocks).memory_bytes,
        )  # fmt: skip

    blocks = min(int(power), n // vectors, MOST_COLUMNS // vectors)
    while blocks > 1 and basis_bytes(n, vectors, blocks, dtype) > memory_bytes / 2:
        blocks -= 1
    blocks = max(blocks, 1)
    found = fit(blocks)
    if found.plans is None and blocks > 1:
        blocks = 1
        found = fit(blocks)
    what = f"svd: {3 * vectors + PROBES} vectors of {n} elements, blocks of rows"
    fix = "raise memory="
    if not is_stored:
        what, fix = f"{what}, and {vectors} vectors of {m}", f"{fix}, or give out= for U on disk"
    return geometry(found.required(memory_bytes, what, fix)[0], blocks)


def svd_cost(problem: Problem) -> Cost:
    """Plan `svd`."""
    layout, dtype = stored_layout(problem), work_dtype("A", problem.dtype)
    g = svd_geometry(
        layout, problem.needed("k"), dtype, problem.memory_bytes,
        oversample=problem.option("oversample", 10), power=problem.option("power", MOST_PASSES),
        is_stored=bool(problem.option("out", False)),
    )  # fmt: skip
    a_bytes, q_bytes = layout.bytes_read(), g.q.q_bytes() if g.is_stored else 0
    first = min(g.q.height * layout.width * layout.dtype.itemsize, a_bytes)
    scan = a_bytes * SCAN_S_PER_BYTE
    iterating = Phase(
        dtype=dtype, bytes_read=a_bytes, flops=g.iteration_flops, other_seconds=scan,
        ends_read_bytes=first,
    )  # fmt: skip
    last = Phase(
        dtype=dtype, bytes_read=a_bytes + q_bytes, bytes_written=q_bytes + g.u_bytes,
        flops=g.last_flops, other_seconds=scan, ends_read_bytes=first,
    )  # fmt: skip
    return Cost(
        method=f"{g.method}; fewer if it converges earlier",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=q_bytes + g.u_bytes + g.state_bytes,
        words_lower_bound=float(g.q.m * g.n),
        phases=(*[iterating] * g.power, last),
    )
