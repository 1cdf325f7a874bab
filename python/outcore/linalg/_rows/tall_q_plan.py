"""The blocks in which the orthogonal factor of a tall matrix is formed. Pure arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.layout.zarr_format import MAX_TILE_BYTES, SLOT_ALIGN_BYTES, Metadata
from outcore.linalg._rows.tsqr_plan import factor_rows, state_sizes, tsqr_bytes, tsqr_flops
from outcore.linalg._tiles.grains import bounce_bytes, pages

Q_COLUMNS = 64
"""Columns of the block reflections that build Q."""

RING_BLOCKS = 3
"""Blocks in memory while Q is formed: one in use, one being read, one being written."""


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
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    height: int

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
        return tsqr_flops(self.m, self.n, self.k, self.dtype) / self.m

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
        words = [self.n * self.steps, self.n**2, self.step_rows * columns, columns * self.n]
        words.append(columns**2)
        own = sum(pages(count * self.dtype.itemsize) for count in words)
        return tsqr_bytes(self.n, self.k, self.dtype) + own

    def metadata(self) -> Metadata:
        """Return the metadata of an array of blocks of Q, or of reflections."""
        return Metadata((self.m, self.n), self.dtype, self.chunk, "F", "row-major")

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
