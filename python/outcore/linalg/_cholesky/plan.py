"""The cuts of an out-of-core Cholesky factorization for a budget, and its cost."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore.layout.zarr_format import MAX_TILE_BYTES, MAX_TILES, SLOT_ALIGN_BYTES, tile_shape
from outcore.linalg._cholesky.cuts import Triangle, cut_slabs
from outcore.linalg._cholesky.geometry import ROUNDING_BYTES, CholeskyGeometry, Part
from outcore.linalg._cholesky.loads import TriangleLoads
from outcore.linalg._geometry.factor_plan import check_order
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight

MOST_BLOCK_ROWS = 4096
"""Products with taller blocks, or with wider groups, are no faster."""

RING_BLOCKS = (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Numbers of blocks in memory to try: those by the diagonal, one in use, one being read."""

_MORE_RING_BLOCKS = 6

# Factors by which more words may move, for the tallest blocks and widest groups, and for panels of
# twice the width.
_TALLER = 1.02
_WIDER = 1.10

_SLOWER_COPY = 4

_DEEP_COLUMNS = 128
"""Products with more inner columns are hardly faster."""

FEWER = 0.9
"""Largest share of the words for which slabs in parts justify their shorter products."""

_WORDS_IN_PARTS = 1.5
"""Slabs in parts move at least about this multiple of the lower bound. Their cuts take long to
find.
"""

_SECTOR_BYTES = 512

_BOUNCE_BYTES = (64 << 10, (1 << 20) + ROUNDING_BYTES)
"""Least and most memory for unaligned transfers: at the ragged edge of the matrix, and where its
chunks begin above the rows that are needed.
"""

# Shares of the speed of a large matrix product that the other steps reach, measured with OpenBLAS
# 0.3.30. The last constant is the time of a sum of absolute values, in seconds per byte.
_PANEL_SHARE = 0.5
_SUM_S_PER_BYTE = 0.15e-9


def flops(n: int, dtype: np.dtype[Any]) -> float:
    """Real floating-point operations of order `n`: n³/3, four times that for complex."""
    return flop_weight(dtype) * n**3 / 3


def panel_flops(g: CholeskyGeometry, panel: int, part: Part | None = None) -> float:
    """Operations that factor one panel of m rows and k columns: k³/3 + (m - k) k².

    A part below the diagonal does k² of them for each of its rows.
    """
    o, e = g.extent(panel)
    k, below = e - o, _rows_below(g, panel, part)
    square = k**3 / 3 if part is None or part.is_first else 0
    return flop_weight(g.dtype) * (square + below * k**2)


def update_flops(g: CholeskyGeometry, panel: int, part: Part | None = None) -> float:
    """Operations that apply one column of L to a panel of m rows: k² + 2 (m - k) k."""
    o, e = g.extent(panel)
    k, below = e - o, _rows_below(g, panel, part)
    square = k**2 if part is None or part.is_first else 0
    return flop_weight(g.dtype) * (square + 2 * below * k)


def _rows_below(g: CholeskyGeometry, panel: int, part: Part | None) -> int:
    """Rows of a panel, or of its part, below its diagonal block."""
    e = g.extent(panel)[1]
    rows = g.rows_of(part, panel) if part else slice(e, g.n)
    return rows.stop - max(rows.start, e)


@functools.lru_cache(maxsize=32)
def cholesky_geometry(
    n: int, dtype: np.dtype[Any], memory_bytes: int, tile: tuple[int, int] | None = None
) -> CholeskyGeometry:
    """Cut a matrix for a memory budget.

    Parameters
    ----------
    n, dtype
        Order and element type of the matrix.
    memory_bytes
        The budget.
    tile
        Tile shape of an existing factor; by default the budget determines it.

    Raises
    ------
    BudgetError
        If not even one panel of the narrowest tiles fits.
    InvalidError
        If Cholesky does not support this type.
    """
    check_order("Cholesky", n, dtype)
    shapes = [tile] if tile else _tile_shapes(n, dtype.itemsize)
    need = min(_least_bytes(n, dtype, shape) for shape in shapes)
    # A run with existing tiles may have started in parts, with less memory.
    best = _best(n, dtype, memory_bytes, shapes) if tile or memory_bytes >= need else None
    if best:
        return best
    what = f"one panel of a Cholesky factorization of order {n} in {dtype.name}"
    raise too_small(need, memory_bytes, what)


def _best(
    n: int, dtype: np.dtype[Any], memory_bytes: int, shapes: list[tuple[int, int]]
) -> CholeskyGeometry | None:
    """Return the cuts with the widest tiles that move hardly more than narrower ones."""
    best = None
    for shape in shapes:
        g = _cut(n, dtype, memory_bytes, shape, in_parts=False)
        parts = None
        if not g or FEWER * g.words_moved() >= _WORDS_IN_PARTS * g.words_lower_bound():
            parts = _cut(n, dtype, memory_bytes, shape, in_parts=True)
        if parts and (not g or parts.words_moved() <= FEWER * g.words_moved()):
            g = parts
        # Parts are for calls that must move few words.
        wider = 1 if g is parts and shape[1] >= _DEEP_COLUMNS else _WIDER
        if best and (not g or best.words_moved() <= wider * g.words_moved()):
            return best
        best = g or best
    return best


def _tile_shapes(n: int, itemsize: int) -> list[tuple[int, int]]:
    """Candidate shapes of tiles, wide ones first.

    Tiles are low, so that little is stored and read above the diagonal. Their columns are whole
    pages, or whole sectors of most disks if pages would be a large part of the matrix.
    """
    widest = tile_shape(n, itemsize)[1]
    shapes = []
    for columns in (widest >> shift for shift in range(widest.bit_length() - 3)):
        rows = max(columns, SLOT_ALIGN_BYTES // itemsize)
        if rows > n // 8:
            rows = max(columns, SLOT_ALIGN_BYTES // (columns * itemsize), _SECTOR_BYTES // itemsize)
        while (
            math.ceil(n / rows) * math.ceil(n / columns) > MAX_TILES
            and rows * columns * itemsize < MAX_TILE_BYTES
        ):
            rows *= 2
        shapes.append((rows, columns))
    return shapes


def _bounce_bytes(memory_bytes: int) -> int:
    least, most = _BOUNCE_BYTES
    pages = -(-memory_bytes // 32 // SLOT_ALIGN_BYTES)
    return min(most, max(least, pages * SLOT_ALIGN_BYTES))


def _least_bytes(n: int, dtype: np.dtype[Any], shape: tuple[int, int]) -> int:
    """Memory for slabs of one panel."""
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, RING_BLOCKS[0], (), 0, 0, 0)
    fixed = bare.height * bare.columns * dtype.itemsize + bare.memory_bytes
    need = fixed
    while need < fixed + _bounce_bytes(need):
        need = fixed + _bounce_bytes(need)
    return need


@functools.lru_cache(maxsize=64)
def _cut(
    n: int, dtype: np.dtype[Any], memory_bytes: int, shape: tuple[int, int], *, in_parts: bool
) -> CholeskyGeometry | None:
    """Cut for tiles of one shape: the fastest products among cuts that move hardly more."""
    bounce = _bounce_bytes(memory_bytes)
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, 0, (), 0, bounce, memory_bytes)
    heights = [1]
    while 2 * heights[-1] * bare.rows <= min(MOST_BLOCK_ROWS, bare.height):
        heights.append(2 * heights[-1])
    widths = _part_widths(bare) if in_parts else []
    tried = [
        _fit(dataclasses.replace(bare, group_tiles=group, block_tiles=block), widths)
        for group, block in itertools.product(heights, heights)
        if group == block or (group < block and not in_parts)
    ]
    found = [g for g in tried if g]
    if not found:
        return None
    moved = {g: g.words_moved() for g in found}
    most = _TALLER * min(moved.values())
    # The BLAS copies both factors of a product. It uses each element as often as the other factor
    # has rows or columns. The factor with columns is copied four times as slowly.
    return min(
        (g for g in found if moved[g] <= most),
        key=lambda g: _SLOWER_COPY / g.block_tiles + 1 / g.group_tiles,
    )


def _part_widths(bare: CholeskyGeometry) -> list[int]:
    """Widths in tiles to try for slabs in parts, so that parts are roughly square."""
    side = math.sqrt(bare.budget_bytes / bare.dtype.itemsize) / bare.rows
    least, most = max(math.floor(side / 2), 1), math.ceil(1.5 * side)
    return [*range(least, min(most, bare.tiles) + 1, max((most - least) // 8, 1))]


def _chunk_tiles(g: CholeskyGeometry) -> int:
    """Height of a default chunk of the matrix, in tiles."""
    return math.ceil(tile_shape(g.n, g.dtype.itemsize)[0] / g.rows)


def _fit(bare: CholeskyGeometry, widths: list[int]) -> CholeskyGeometry | None:
    """Divide the memory between slabs and blocks of L so that the fewest tiles are read."""
    t = Triangle(
        bare.panels, bare.tiles, bare.rows, bare.columns, bare.group_tiles, bare.block_tiles
    )
    best, least = None, 0
    for ring_blocks in RING_BLOCKS:
        g = dataclasses.replace(bare, ring_blocks=ring_blocks)
        words = (g.budget_bytes - g.memory_bytes) // g.dtype.itemsize
        cuts = cut_slabs(t, words, ring_blocks - 1, widths, _chunk_tiles(g)) if words > 0 else None
        if cuts is None:
            break
        if best is None or cuts.reads < least:
            slab_bytes = cuts.most_words * g.dtype.itemsize
            best, least = dataclasses.replace(g, cuts=cuts.cuts, slab_bytes=slab_bytes), cuts.reads
        if not cuts.is_short_of_blocks:
            break
    if best is None:
        return None
    # Memory that slabs leave over extends the read-ahead.
    over = (best.budget_bytes - best.memory_bytes) // best.block_bytes
    return dataclasses.replace(best, ring_blocks=best.ring_blocks + min(over, _MORE_RING_BLOCKS))


def cholesky_geometry_of(problem: Problem) -> CholeskyGeometry:
    """Cut as `cho_factor` does: a factor that takes the space of the matrix has its tiles."""
    overwrite_a = problem.option("overwrite_a", False)
    tile = tile_shape(problem.n, problem.dtype.itemsize) if overwrite_a else None
    return cholesky_geometry(problem.n, problem.dtype, problem.memory_bytes, tile)


def cholesky_cost(problem: Problem) -> Cost:
    """Plan `cho_factor`."""
    n, dtype = problem.n, problem.dtype
    overwrite_a = problem.option("overwrite_a", False)
    g = cholesky_geometry_of(problem)
    # When the last panel of a slab or part is written and the next one loads, there is no
    # arithmetic to overlap.
    ends = sum((g.tiles - g.first_tile(slab.last - 1)) * g.tile_bytes for slab in g.slabs())
    layout = layout_of(problem)
    lower = problem.option("lower", default=True)
    loads = TriangleLoads(g, layout if lower else layout.transposed(), problem.disk())
    phase = Phase(
        dtype=dtype,
        bytes_read=g.factor_bytes_read(),
        bytes_written=g.factor_bytes_written(),
        flops=flops(n, dtype),
        gemm_flops=_gemm_flops(g),
        other_seconds=n**2 / 2 * dtype.itemsize * _SUM_S_PER_BYTE,
        ends_read_bytes=ends,
        ends_written_bytes=ends,
    )
    spare = g.slab_panels * g.tiles
    return Cost(
        method=loads.method(g.method),
        peak_memory_bytes=loads.peak_bytes(g.memory_bytes),
        disk_bytes=(spare if overwrite_a else g.stored_tiles()) * g.tile_bytes,
        words_lower_bound=g.words_lower_bound(),
        phases=loads.phases(phase),
    )


def _gemm_flops(g: CholeskyGeometry) -> float:
    """Operations, slow ones weighted by their speed relative to products."""
    slow = sum(panel_flops(g, panel) for panel in range(g.panels))
    return flops(g.n, g.dtype) + slow * (1 / _PANEL_SHARE - 1)
