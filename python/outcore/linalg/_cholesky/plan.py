"""The cuts of an out-of-core Cholesky factorization for a budget, and its cost."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore._util.counts import count_of
from outcore.layout.zarr_format import MAX_TILE_BYTES, MAX_TILES, SLOT_ALIGN_BYTES, tile_shape
from outcore.linalg._cholesky.cuts import Triangle, cut_slabs
from outcore.linalg._cholesky.geometry import ROUNDING_BYTES, CholeskyGeometry, Part
from outcore.linalg._cholesky.loads import TriangleLoads
from outcore.linalg._geometry.deal import ALONE, Deal, dealt
from outcore.linalg._geometry.factor_plan import check_order
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._lu.choice import refuse_for_several
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight, of_several

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
    return _geometry(n, dtype, (memory_bytes,), 0, tile)


@functools.lru_cache(maxsize=64)
def dealt_cholesky_geometry(
    n: int,
    dtype: np.dtype[Any],
    budgets: tuple[int, ...],
    rank: int,
    tile: tuple[int, int] | None = None,
    order: tuple[int, ...] = (),
) -> CholeskyGeometry:
    """Cut a matrix for several processes, as process `rank` sees it.

    Parameters
    ----------
    n, dtype, tile
        As for `cholesky_geometry`.
    budgets
        The budget of each process. All of them together hold a slab.
    order
        As for `Deal`.

    Raises
    ------
    BudgetError, InvalidError
        As for `cholesky_geometry`. All processes raise the same error.
    """
    return _geometry(n, dtype, budgets, rank, tile, order)


def _geometry(
    n: int,
    dtype: np.dtype[Any],
    budgets: tuple[int, ...],
    rank: int,
    tile: tuple[int, int] | None,
    order: tuple[int, ...] = (),
) -> CholeskyGeometry:
    check_order("Cholesky", n, dtype)
    shapes = [tile] if tile else _tile_shapes(n, dtype.itemsize)
    deal = Deal((1,) * len(budgets), budgets.index(min(budgets)))
    need = min(_least_bytes(n, dtype, shape, deal) for shape in shapes)
    least = budgets[deal.rank]
    # A run with existing tiles may have started in parts, with less memory.
    best = _best(n, dtype, budgets, rank, shapes, order) if tile or least >= need else None
    if best:
        return best
    where = f" on rank {deal.rank}" if deal.size > 1 else ""
    what = f"one panel of a Cholesky factorization of order {n} in {dtype.name}{where}"
    raise too_small(need, least, what)


def _best(
    n: int,
    dtype: np.dtype[Any],
    budgets: tuple[int, ...],
    rank: int,
    shapes: list[tuple[int, int]],
    order: tuple[int, ...],
) -> CholeskyGeometry | None:
    """Return the cuts with the widest tiles that move hardly more than narrower ones."""
    best = None
    for shape in shapes:
        g = _cut(n, dtype, budgets, rank, shape, order, in_parts=False)
        parts = None
        # Several processes have the memory for wide slabs.
        if len(budgets) == 1 and (
            not g or FEWER * _words(g) >= _WORDS_IN_PARTS * g.words_lower_bound()
        ):
            parts = _cut(n, dtype, budgets, rank, shape, order, in_parts=True)
        if parts and (not g or _words(parts) <= FEWER * _words(g)):
            g = parts
        # Parts are for calls that must move few words.
        wider = 1 if g and g is parts and shape[1] >= _DEEP_COLUMNS else _WIDER
        if best and (not g or _words(best) <= wider * _words(g)):
            return best
        best = g or best
    return best


def _words(g: CholeskyGeometry) -> int:
    """Words that all processes move."""
    return dataclasses.replace(g, deal=ALONE).words_moved()


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


def _least_bytes(n: int, dtype: np.dtype[Any], shape: tuple[int, int], deal: Deal) -> int:
    """Memory for slabs of one panel."""
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, RING_BLOCKS[0], (), 0, 0, 0, deal)
    fixed = bare.height * bare.columns * dtype.itemsize + bare.memory_bytes
    need = fixed
    while need < fixed + _bounce_bytes(need):
        need = fixed + _bounce_bytes(need)
    return need


@functools.lru_cache(maxsize=64)
def _cut(
    n: int,
    dtype: np.dtype[Any],
    budgets: tuple[int, ...],
    rank: int,
    shape: tuple[int, int],
    order: tuple[int, ...],
    *,
    in_parts: bool,
) -> CholeskyGeometry | None:
    """Cut for tiles of one shape: the fastest products among cuts that move hardly more."""
    bounce = _bounce_bytes(min(budgets))
    deal = Deal((1,) * len(budgets), rank, order)
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, 0, (), 0, bounce, budgets[rank], deal)
    if deal.size > 1:
        panel_bytes = bare.tiles * bare.tile_bytes
        capacities = [max(budget // panel_bytes, 1) for budget in budgets]
        counts = dealt(capacities, bare.panels, order)
        bare = dataclasses.replace(bare, deal=Deal(counts, rank, order))
    heights = [1]
    while 2 * heights[-1] * bare.rows <= min(MOST_BLOCK_ROWS, bare.height):
        heights.append(2 * heights[-1])
    widths = _part_widths(bare) if in_parts else []
    tried = [
        _fit(dataclasses.replace(bare, group_tiles=group, block_tiles=block), widths, budgets)
        for group, block in itertools.product(heights if deal.size == 1 else [1], heights)
        if group == block or (group < block and not in_parts)
    ]
    found = [g for g in tried if g]
    if not found:
        return None
    moved = {g: _words(g) for g in found}
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


def _fit(
    bare: CholeskyGeometry, widths: list[int], budgets: Sequence[int]
) -> CholeskyGeometry | None:
    """Divide the memory between slabs and blocks of L so that the fewest tiles are read."""
    t = Triangle(
        bare.panels, bare.tiles, bare.rows, bare.columns, bare.group_tiles, bare.block_tiles
    )
    best, least, over = None, 0, 0
    itemsize, kinds_of_block = bare.dtype.itemsize, 1 if bare.deal.size == 1 else 2
    for ring_blocks in RING_BLOCKS:
        g = dataclasses.replace(bare, ring_blocks=ring_blocks)
        words = [(budget - g.memory_bytes) // itemsize for budget in budgets]
        if min(words) <= 0:
            break
        cuts = cut_slabs(t, words, ring_blocks - 1, widths, _chunk_tiles(g), g.deal)
        if cuts is None:
            break
        if best is None or cuts.reads < least:
            slab_bytes = cuts.most_words[g.deal.rank] * itemsize
            best, least = dataclasses.replace(g, cuts=cuts.cuts, slab_bytes=slab_bytes), cuts.reads
            left = min(have - most for have, most in zip(words, cuts.most_words, strict=True))
            over = left * itemsize // (kinds_of_block * g.block_bytes)
        if not cuts.is_short_of_blocks:
            break
    if best is None:
        return None
    # Memory that slabs leave over extends the read-ahead.
    return dataclasses.replace(best, ring_blocks=best.ring_blocks + min(over, _MORE_RING_BLOCKS))


def cholesky_geometry_of(problem: Problem) -> CholeskyGeometry:
    """Cut as `cho_factor` does: a factor that takes the space of the matrix has its tiles."""
    overwrite_a = problem.option("overwrite_a", False)
    tile = tile_shape(problem.n, problem.dtype.itemsize) if overwrite_a else None
    return cholesky_geometry(problem.n, problem.dtype, problem.memory_bytes, tile)


def own_flops(g: CholeskyGeometry, first_panel: int = 0) -> float:
    """Operations that a process does in a run from `first_panel` on."""
    return sum(
        panel_flops(g, panel) + g.extent(panel)[0] * update_flops(g, panel)
        for panel in g.deal.held(first_panel, g.panels)
    )


def cholesky_cost(problem: Problem) -> Cost:
    """Plan `cho_factor`: of several processes, the cost of the one that moves most."""
    return of_several(cholesky_costs(problem)[0], problem.option("link", None))


def cholesky_costs(problem: Problem) -> tuple[list[Cost], tuple[int, int]]:
    """Plan `cho_factor`: the cost of each process, and the tile shape of the factor."""
    processes = count_of("processes", problem.option("processes", 1))
    cuts = [cholesky_geometry_of(problem)] if processes == 1 else []
    if processes > 1:
        refuse_for_several("slabs", overwrite_a=problem.option("overwrite_a", False))
        n, dtype, budgets = problem.n, problem.dtype, (problem.memory_bytes,) * processes
        cuts = [dealt_cholesky_geometry(n, dtype, budgets, at) for at in range(processes)]
    return [_cost(problem, g) for g in cuts], (cuts[0].rows, cuts[0].columns)


def _cost(problem: Problem, g: CholeskyGeometry) -> Cost:
    overwrite_a = problem.option("overwrite_a", False)
    # When the last panel of a slab or part is written and the next one loads, there is no
    # arithmetic to overlap.
    ends = sum((g.tiles - g.first_tile(slab.last - 1)) * g.tile_bytes for slab in g.slabs())
    layout = layout_of(problem)
    lower = problem.option("lower", default=True)
    loads = TriangleLoads(g, layout if lower else layout.transposed(), problem.disk())
    phase = Phase(
        dtype=g.dtype,
        bytes_read=g.factor_bytes_read(),
        bytes_written=g.factor_bytes_written(),
        flops=own_flops(g),
        gemm_flops=_gemm_flops(g),
        other_seconds=g.n * g.held_columns(0, g.panels) / 2 * g.dtype.itemsize * _SUM_S_PER_BYTE,
        ends_read_bytes=ends,
        ends_written_bytes=ends,
        bytes_sent=g.sent()[0],
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
    # All processes wait for a panel, also those that do not hold it.
    slow = sum(panel_flops(g, panel) for panel in range(g.panels))
    own = sum(panel_flops(g, panel) for panel in g.deal.held(0, g.panels))
    return own_flops(g) - own + slow / _PANEL_SHARE
