"""Factorization of a tall matrix with streamed rows, and its Q: blocks and cost. Arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.layout.zarr_format import MAX_TILE_BYTES, SLOT_ALIGN_BYTES, Metadata
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._rows.merge_plan import STRIP_LINES, Strips, strip_bytes
from outcore.linalg._rows.plan import Fit, Memory, RowLayout, RowPlan, fit_rows
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import Grains, bounce_bytes, pages

FACTOR_BYTES = 16 << 20
"""Approximate size of the blocks of a factorization, which fits into a processor's cache."""

FACTOR_ROWS = (512, 8192)
"""Fewest and most rows of such a block."""

WIDE_COLUMNS = 256
"""Number of matrix columns from which wider block reflections are faster."""

LANES = 8
"""Largest number of concurrent triangles (`outcore.linalg._rows.tsqr.ParallelQR`)."""

_LANE_BYTES = 32 << 20
"""Largest memory for them."""

LANES_IN_USE = 4
"""Number of blocks in use at the same time with several triangles."""

_LANE_ROWS = 16
"""Least rows of the matrix per row of a triangle, so that merging triangles is cheap."""

WORK_COLUMNS = 64
"""Columns of LAPACK's widest block reflection, which determines its workspaces."""

Q_COLUMNS = 64
"""Columns of the block reflections that build Q."""

RING_BLOCKS = 3
"""Blocks in memory while Q is formed: one in use, one being read, one being written."""

# Speed of factoring a triangle with rows below it, as a share of a large matrix product, and the
# number of columns with half of that speed. Measured with OpenBLAS 0.3.30: with all BLAS threads,
# and in lanes, of real and of complex types.
_QR_SHARE, _LANES_SHARES = (0.6, 120), {"f": (0.58, 45), "c": (0.75, 22)}


def reflector_columns(n: int, dtype: np.dtype[Any]) -> int:
    """Return the columns of a block reflection.

    More columns make products faster, but need more work column by column.
    """
    few = 8 if n < WIDE_COLUMNS else 16
    return min(n, 2 * few if dtype.kind == "c" else few)


def factor_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Return the number of rows that are factored at a time."""
    least, most = FACTOR_ROWS
    return min(max(FACTOR_BYTES // (n * dtype.itemsize), least), most)


def lane_step_rows(plan: RowPlan) -> int:
    """Return the rows that each of several threads, which share caches, factors at a time."""
    most = factor_rows(plan.layout.columns, plan.dtype) // 2
    return min(max(most, FACTOR_ROWS[0]), plan.height)


def lanes_of(plan: RowPlan, k: int = 0) -> int:
    """Return the number of concurrent triangles for a matrix, with k right-hand sides.

    It is limited by their benefit and their memory.
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
) -> Fit:
    """Choose blocks of rows, with the matrix to factor first, as `fit_rows` does.

    With several threads, more blocks are in use at the same time. `k` is the number of right-hand
    sides.
    """
    for in_use in (LANES_IN_USE, 1):
        found = fit_rows(
            layouts, dtype=dtype, order="F", budget_bytes=budget_bytes, memory=memory,
            in_use=in_use,
        )  # fmt: skip
        if found.plans and lanes_of(found.plans[0], k) > 1:
            break
    return found


def tsqr_flops(m: int, n: int, k: int, dtype: np.dtype[Any]) -> float:
    """Return the real operations of QR of m x n, applied to k right-hand sides.

    2 n² (m - n/3) + 4 k n (m - n/2) for m >= n; four times that for complex types.
    """
    long, short = max(m, n), min(m, n)
    factoring = 2.0 * short**2 * (long - short / 3)
    return flop_weight(dtype) * (factoring + 4.0 * k * short * (m - short / 2))


def triangle_rows(n: int, most: int | None) -> int:
    """Return the rows of R, given an upper bound of the number of rows."""
    return n if most is None else min(most, n)


def tsqr_bytes(
    n: int, k: int, dtype: np.dtype[Any], most: int | None = None, lanes: int = 1
) -> int:
    """Return the memory for R, with at most `most` rows, k right-hand sides, and workspaces."""
    words = [reflector_columns(n, dtype) * n, WORK_COLUMNS * max(n, k)]
    sizes = state_sizes(n, k, dtype, most) + [count * dtype.itemsize for count in words]
    return lanes * sum(map(pages, sizes))


def state_sizes(
    n: int, k: int, dtype: np.dtype[Any], most: int | None = None, lanes: int = 1
) -> list[int]:
    """Return the bytes of each matrix in the state for resuming."""
    words = [triangle_rows(n, most) * n, n * k, n]
    return ([count * dtype.itemsize for count in words] + [8 * k]) * lanes


def lstsq_bytes(n: int, k: int, dtype: np.dtype[Any], lanes: int = 1) -> int:
    """Return the memory of least squares besides blocks of rows.

    It includes a copy of R for a second factorization.
    """
    return tsqr_bytes(n, k, dtype, lanes=lanes) + pages(n * n * dtype.itemsize)


@dataclass(frozen=True)
class TallQGeometry:
    """The blocks of Q of an m x n matrix, m >= n.

    Attributes
    ----------
    m, n, dtype
        Rows, columns, element type.
    k
        Columns of the right-hand sides that Qᴴ is applied to.
    height
        Rows of a block.
    processes
        Number of processes, each with m rows of its own.
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    height: int
    processes: int = 1

    @property
    def step_rows(self) -> int:
        """Rows of a step; a block may have several steps."""
        return min(factor_rows(self.n, self.dtype), self.height)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.m // self.height)

    @property
    def steps(self) -> int:
        """Largest number of steps."""
        return self.blocks * -(-self.height // self.step_rows)

    @property
    def row_work(self) -> float:
        """Operations for a row in one pass."""
        return tsqr_flops(self.m, self.n, self.k, self.dtype) / max(self.m, 1)

    @property
    def panel_rows(self) -> int:
        """Most rows to which reflections are applied at once: of a step, or of a message."""
        lines = min(STRIP_LINES, self.n) if self.processes > 1 else 1
        return max(self.step_rows, lines)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of Q."""
        return pages(self.height * self.n * self.dtype.itemsize)

    @property
    def chunk(self) -> tuple[int, int]:
        """Rows and columns of a chunk of Q: a block, or some columns of one."""
        return block_chunk(self.height, self.n, self.dtype)

    @property
    def bounce_bytes(self) -> int:
        """Memory for writing blocks of Q, and reading them back."""
        return block_bounce_bytes(self.height, self.n, self.dtype)

    @property
    def fixed_bytes(self) -> int:
        """Memory besides the blocks: triangles, the factors tau, workspaces."""
        columns = min(Q_COLUMNS, self.n)
        words = [self.n * self.steps, self.n**2, self.panel_rows * columns, columns * self.n]
        words.append(columns**2)
        own = sum(pages(count * self.dtype.itemsize) for count in words)
        return tsqr_bytes(self.n, self.k, self.dtype) + own + self.tree_bytes

    @property
    def tree_bytes(self) -> int:
        """Memory for the triangles of other processes, and their reflections."""
        if self.processes == 1:
            return 0
        strips = Strips(self.n, self.n)
        square = pages(self.n**2 * self.dtype.itemsize)
        merge = square + pages(self.n * len(strips.parts) * self.dtype.itemsize)
        merges = (self.processes - 1).bit_length()
        message = strip_bytes(strips, self.dtype, self.processes)
        return tsqr_bytes(self.n, 0, self.dtype) + square + merges * merge + message

    def metadata(self, rows: int | None = None) -> Metadata:
        """Return the metadata of an array of blocks of Q, or of reflections.

        `rows` is the number of rows of Q, if that is of several processes.
        """
        shape = self.m if rows is None else rows, self.n
        return Metadata(shape, self.dtype, self.chunk, "F", "row-major")

    def state_sizes(self) -> list[int]:
        """Return the bytes of each matrix in the state for resuming."""
        own = [self.n * self.steps, self.n**2]
        return [
            *state_sizes(self.n, self.k, self.dtype),
            *(count * self.dtype.itemsize for count in own),
        ]

    def q_bytes(self) -> int:
        """Return the bytes of Q on disk, in whole blocks. Exact if these are whole pages."""
        return self.blocks * self.height * self.n * self.dtype.itemsize


def block_chunk(height: int, n: int, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Choose the chunk of an array that is written in blocks of whole rows."""
    return height, min(n, max(MAX_TILE_BYTES // (height * dtype.itemsize), 1))


def block_bounce_bytes(height: int, n: int, dtype: np.dtype[Any]) -> int:
    """Return the memory for moving such blocks."""
    rows, columns = block_chunk(height, n, dtype)
    is_aligned = rows * columns * dtype.itemsize % SLOT_ALIGN_BYTES == 0
    return bounce_bytes(8 * height * n * dtype.itemsize, is_aligned=is_aligned)


def tsqr_phase(m: int, n: int, k: int, plan: RowPlan, dtype: np.dtype[Any]) -> Phase:
    """Return the predicted phase of a pass over the rows."""
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
    """Return the layout of the matrix of a plan on disk, in default chunks of its order."""
    shape = problem.needed("m"), problem.n
    order, chunks, _ = layout_of(problem, shape, "C")
    grains = Grains.of(chunks, order, problem.on_disk.itemsize)
    return RowLayout(*shape, problem.on_disk, order == "C", grains)
