"""The memory shares of refinement: pure arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.factor_plan import RING_BLOCKS, TILE_BOUNCE_BYTES, tall_block
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._rhs.deflation import vectors_for
from outcore.linalg._systems.refine import KRYLOV, LEAST_KRYLOV
from outcore.linalg._tiles.grains import pages

_PRODUCT_RING_BYTES = 64 << 20
"""Largest read-ahead of blocks of A."""

_MOST_BOX_BYTES = 64 << 20
_MOST_BOUNCE_BYTES = 4 << 20


def copy_boxes(
    layout: Layout, dtype: np.dtype[Any], tile: tuple[int, int], memory_bytes: int
) -> tuple[int, int]:
    """Choose the boxes for a copy of a matrix to tiles of this shape in lower precision.

    Boxes are whole chunks on both sides, or whole runs of the matrix's chunks.
    """
    most = min(memory_bytes // 4, _MOST_BOX_BYTES) // dtype.itemsize
    box = [max(a, b, 1) for a, b in zip(layout.chunks, tile, strict=True)]
    for slow in (1, 0) if layout.order == "F" else (0, 1):
        box[slow] = max(min(box[slow], most // box[1 - slow]), 1)
    return box[0], box[1]


def copy_height(n: int, tile_rows: int, box_rows: int) -> int:
    """Rows of a copy that are written: to the end of its last tiles, if boxes hold whole tiles.

    Boxes lower than a tile do not, since there is no memory for whole tiles.
    """
    height = copy_tiles_height(n, tile_rows)
    last_box = (n - 1) // box_rows * box_rows
    is_held = box_rows >= tile_rows and last_box <= height - tile_rows
    return height if is_held else n


def copy_tiles_height(n: int, tile_rows: int) -> int:
    """Rows of a copy, rounded up to whole tiles."""
    return -(-n // tile_rows) * tile_rows


def copy_bounce_bytes(memory_bytes: int) -> int:
    """Memory of the copy for unaligned transfers."""
    return min(_MOST_BOUNCE_BYTES, memory_bytes // 16)


@dataclass(frozen=True)
class RefineGeometry:
    """The memory of a refinement of some columns.

    Attributes
    ----------
    block_tiles
        Tiles of the factors in one read.
    ring_bytes
        Memory for blocks of A and of the factors, in alternation.
    columns
        Right-hand sides in a group.
    deflated
        Number of vectors for deflation.
    vector_bytes
        Bytes of a column in the type of A.
    memory_bytes
        Total memory, with the least that GMRES needs.
    budget_bytes
        Memory that the call may use.
    group_bytes
        Memory of the columns of a group and of deflation's vectors.
    """

    block_tiles: int
    ring_bytes: int
    columns: int
    deflated: int
    vector_bytes: int
    group_bytes: int
    memory_bytes: int
    budget_bytes: int

    def krylov(self, columns: int) -> int:
        """Return the steps of GMRES that memory allows for some columns; 0 if they are too few."""
        left = self.budget_bytes - self.ring_bytes - self.group_bytes
        # A basis has one more vector than steps; one more vector is workspace.
        steps = min(left // pages(columns * self.vector_bytes) - 2, KRYLOV)
        return steps if steps >= LEAST_KRYLOV else 0


def refine_geometry(
    n: int,
    dtype: np.dtype[Any],
    low: np.dtype[Any],
    tile: tuple[int, int],
    memory_bytes: int,
    columns: int,
    *,
    parts: int = 1,
    beside_bytes: int = 0,
) -> RefineGeometry:
    """Divide a budget between blocks, columns, GMRES for one column, and deflation.

    Parameters
    ----------
    n, dtype, low
        Order and type of the matrix, and type of the factors.
    tile
        Shape of their tiles.
    columns, parts
        Number of right-hand sides, and of columns to solve for per right-hand side.
    beside_bytes
        Memory for the transfers of right-hand sides and solutions.

    Raises
    ------
    BudgetError
        If not even one right-hand side fits.
    """
    tile_bytes = tile[0] * tile[1] * low.itemsize
    vector = n * dtype.itemsize
    # X and R, which begin on pages.
    pair = 2 * vector
    column_bytes = parts * pair
    rounding = 2 * SLOT_ALIGN_BYTES + beside_bytes
    for block_tiles in (tall_block(tile_bytes, -(-n // tile[0]), memory_bytes), 1):
        # Two blocks of the factors, and one of them in the type of A, which takes twice the memory.
        sweep = (RING_BLOCKS + 2) * block_tiles * tile_bytes + TILE_BOUNCE_BYTES
        # A quarter is reserved for unaligned transfers of passes over A.
        sweep = pages(-(-sweep * 4 // 3))
        ring = max(sweep, min(_PRODUCT_RING_BYTES, memory_bytes // 4))
        for krylov in (KRYLOV, LEAST_KRYLOV, -2):
            reserve = pages(vector) * (krylov + 2)
            group = min((memory_bytes - ring - rounding - reserve) // column_bytes, max(columns, 1))
            if group >= 1:
                of_group = rounding + group * column_bytes
                # Deflation uses only memory that neither the columns nor GMRES for all of them
                # could use.
                gmres = max(reserve, pages(group * parts * vector) * (KRYLOV + 2))
                left = memory_bytes - ring - of_group - gmres
                deflated = vectors_for(n, left // pair)
                of_group += deflated * pair
                return RefineGeometry(
                    block_tiles, ring, group, deflated, vector, of_group,
                    ring + of_group + reserve, memory_bytes,
                )  # fmt: skip
    need = sweep + rounding + column_bytes
    need = max(need, (rounding + column_bytes) * 4 // 3 + SLOT_ALIGN_BYTES)
    what = f"the refinement of a solution of order {n} with tiles of {tile[0]} x {tile[1]}"
    raise too_small(need, memory_bytes, what)
