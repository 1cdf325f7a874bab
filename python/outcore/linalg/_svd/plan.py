"""Blocks of a truncated SVD for a memory budget, and its cost. Pure arithmetic."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore._util.counts import count_of, is_count
from outcore.errors import InvalidError
from outcore.linalg._output.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg._rows.merge_plan import (
    Strips,
    merging_phases,
    planned_shares,
    q_sent,
    sent,
    vector_strips,
)
from outcore.linalg._rows.plan import Fit, RowLayout, RowPlan, fit_rows
from outcore.linalg._rows.shares import ALONE, Shares, shares_of
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
from outcore.linalg._tiles.grains import cut, pages
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
    m, n, k
        Rows of all processes, columns, and number of triplets.
    power
        Largest number of passes over A before the last one.
    blocks
        Largest number of blocks of vectors in the basis.
    q
        Blocks of the orthogonal factor of A Z, with l columns, for the rows of this process.
    rows
        Blocks of these rows of A, of the same height.
    is_stored
        Whether U is stored on disk.
    """

    m: int
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
        """Bytes on disk of the states of all processes for resuming."""
        if not self.is_stored:
            return 0
        q, columns = self.q, self.q.n * self.blocks
        basis = [self.n * (columns + q.n), self.n * q.k]
        square = columns**2 * np.result_type(q.dtype, "f8").itemsize
        own = [16, 8, self.n * q.n * q.dtype.itemsize, *q.state_sizes()]
        first = state_bytes(16, square, *(count * q.dtype.itemsize for count in basis), *own)
        return first + (q.processes - 1) * state_bytes(*own)

    @property
    def u_bytes(self) -> int:
        """Bytes of U on disk, in whole blocks."""
        q = self.q
        return q.blocks * q.height * self.k * q.dtype.itemsize if self.is_stored else 0

    @property
    def message_words(self) -> int:
        """Elements of the largest message between processes."""
        q = self.q
        widths = [(self.n, q.n), (self.n, q.k), (self.n, self.k), (q.n, self.k + q.k)]
        strips = [vector_strips(shape, q.dtype) for shape in widths]
        return max(each.most_words for each in (*strips, Strips(q.n, q.n)))

    @property
    def message_bytes(self) -> int:
        """Memory of a message; one process needs none."""
        words = self.message_words if self.q.processes > 1 else 0
        return pages(words * self.q.dtype.itemsize)

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        q, itemsize = self.q, self.q.dtype.itemsize
        out_block = pages(q.height * self.k * itemsize)
        vectors = basis_bytes(self.n, q.n, self.blocks, q.dtype)
        vectors += pages(self.n * q.k * itemsize) + pages(self.n * q.n * itemsize)
        vectors += pages(16) + pages(8) + q.fixed_bytes + STATE_MEMORY_BYTES * self.is_stored
        vectors += self.message_bytes
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
            building += pages(self.m * self.k * itemsize) if q.processes > 1 else 0
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

    def sent(self, shares: Shares) -> tuple[int, int]:
        """Return the bytes and messages that this process sends."""
        q, dtype = self.q, self.q.dtype
        if shares.size == 1:
            return 0, 0

        def vectors(rows: int, columns: int) -> tuple[int, int]:
            return sent(vector_strips((rows, columns), dtype), dtype)

        each = [q_sent(q.n, dtype, shares)]
        if shares.rank == 0 or shares.target() is not None:
            # The first process sends Z, the others W.
            each += [vectors(self.n, q.n)] * self.passes
        if shares.rank == 0:
            each += [vectors(self.n, q.k), vectors(q.n, self.k + q.k), vectors(self.n, self.k)]
        if not self.is_stored:
            each.append((q.m * self.k * dtype.itemsize, len(cut(0, q.m, q.height))))
        return sum(nbytes for nbytes, _ in each), sum(count for _, count in each)

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        return (
            f"block Krylov iteration with {self.q.n} vectors, {self.passes} passes over A, "
            f"{self.q.height} rows at once"
        )


def vectors_of(A: RowLayout, k: int, oversample: int, power: int) -> int:
    """Return the number of vectors in the iteration.

    Raises
    ------
    InvalidError
        If `k`, `oversample` or `power` is invalid.
    """
    if A.rows is None:
        raise InvalidError(
            f"the rows of an iterator pass only once, and svd needs {power + 1} passes; copy them "
            "to disk with oc.from_array"
        )
    most = min(A.rows, A.columns)
    if not is_count(k) or k > most:
        raise InvalidError(f"k must be an integer from 1 to {most}, have {k!r}")
    for name, number, least in (("oversample", oversample, 0), ("power", power, 1)):
        count_of(name, number, least)
    # With more than half of all possible vectors convergence is slow; with all, immediate.
    vectors = int(k) + int(oversample)
    return most if 2 * vectors > most else vectors


def svd_geometry(
    A: RowLayout,
    k: int,
    dtype: np.dtype[Any],
    memory_bytes: int,
    *,
    oversample: int,
    power: int,
    is_stored: bool,
    processes: int = 1,
    rank: int = 0,
) -> tuple[Shares, SvdGeometry]:
    """Divide the rows between processes, and choose the blocks of a truncated SVD.

    The blocks of all processes have one height, of the smallest budget, `memory_bytes`.

    Raises
    ------
    BudgetError
        If the vectors and blocks of a few rows do not fit.
    InvalidError
        If `k`, `oversample` or `power` is invalid.
    """
    vectors = vectors_of(A, k, oversample, power)
    assert A.rows is not None, "vectors_of has checked it"
    m, n = A.rows, A.columns

    def geometry(rows: RowPlan, blocks: int, count: int) -> SvdGeometry:
        q = TallQGeometry(count, vectors, PROBES, dtype, rows.height, processes)
        return SvdGeometry(m, n, int(k), int(power), blocks, q, rows, is_stored)

    def shares_in(unit: int) -> Shares:
        return ALONE if processes == 1 else shares_of([A], processes, rank, vectors, unit)

    def most_of(shares: Shares) -> int:
        return m if processes == 1 else shares.most

    most = most_of(shares_in(1))

    def fit(blocks: int) -> Fit:
        return fit_rows(
            [dataclasses.replace(A, rows=most)], dtype=dtype, order=None,
            budget_bytes=memory_bytes,
            memory=lambda plans: geometry(plans[0], blocks, most).memory_bytes,
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
    rows = found.required(memory_bytes, what, fix)[0]
    shares = shares_in(rows.height)
    need = geometry(rows, blocks, most_of(shares)).memory_bytes
    if need > memory_bytes:
        raise too_small(need, memory_bytes, what, fix)
    if processes == 1:
        return shares, geometry(rows, blocks, m)
    own = shares.rows_in(A)
    return shares, geometry(dataclasses.replace(rows, layout=own), blocks, own.rows or 0)


def svd_cost(problem: Problem) -> Cost:
    """Plan `svd`."""
    layout, dtype = stored_layout(problem), work_dtype("A", problem.dtype)
    k, power = problem.needed("k"), problem.option("power", MOST_PASSES)
    oversample = problem.option("oversample", 10)
    shares = planned_shares(problem, [layout], vectors_of(layout, k, oversample, power))
    shares, g = svd_geometry(
        layout, k, dtype, problem.memory_bytes, oversample=oversample, power=power,
        is_stored=bool(problem.option("out", False)), processes=shares.size, rank=shares.rank,
    )  # fmt: skip
    a_bytes, q_bytes = g.rows.layout.bytes_read(), g.q.q_bytes() if g.is_stored else 0
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
    products, triangle = g.passes * g.n * g.q.n * dtype.itemsize, sent(Strips(g.q.n, g.q.n), dtype)
    spread = (g.n * (g.q.k + g.k) + g.q.n * (g.k + g.q.k)) * dtype.itemsize
    spread += 0 if g.is_stored else g.m * g.k * dtype.itemsize
    return Cost(
        method=f"{g.method}; fewer if it converges earlier",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=shares.size * (q_bytes + g.u_bytes) + g.state_bytes,
        words_lower_bound=float(g.m * g.n) if shares.size == 1 else None,
        phases=(
            *[iterating] * g.power,
            last,
            *merging_phases(
                problem, shares, products + 2 * triangle[0], products + triangle[0] + spread,
                flop_weight(dtype) * 4.0 * g.q.n**3,
            ),
        ),
        processes=shares.size,
        bytes_sent=g.sent(shares)[0],
    )  # fmt: skip
