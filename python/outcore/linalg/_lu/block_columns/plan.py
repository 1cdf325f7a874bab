"""The plan of LU by block columns: it chooses the cuts that move the fewest words.

A word costs more in a gathered row, since each row is a short request.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError, InvalidError
from outcore.layout.zarr_format import MAX_TILE_BYTES, SLOT_ALIGN_BYTES, full_columns
from outcore.linalg._geometry.factor_plan import check_order, lu_geometry
from outcore.linalg._geometry.segments import Layout, unit_bytes
from outcore.linalg._lu.block_columns.geometry import BlockColumn, BlockColumnGeometry
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry

MOST_CUTS, LEAST_WIDTHS = 40, 8
"""Approximate number of places where block columns may be cut, and of widths to try."""

MOST_WIDTH = 2
"""Largest width to try, as a multiple of the width of a square block that fills the memory."""

ROW_BYTES = 1 << 10
"""Extra cost of each gathered row of a chunk, at most, as a number of bytes."""

LEAST_TILE_BYTES = 128 << 10
"""Smaller tiles are tried only if the budget requires them."""

MOST_TILES = 1 << 20
"""Most tiles in the file of the factors. Its index, 16 bytes each, is not part of the budget."""

G = TypeVar("G", bound=BlockColumnGeometry)


@functools.lru_cache(1 << 6)
def partial_geometry(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout
) -> PartialGeometry:
    """Cut for block columns with partial pivoting; for a single one if that moves least.

    Raises
    ------
    BudgetError, InvalidError
        As for `lu_geometry`.
    """
    whole = lu_geometry(n, dtype, memory_bytes)
    tile = whole.rows, whole.columns
    slabs = PartialGeometry(n, dtype, *tile, tile[0], (), layout, False, memory_bytes)
    best = _best(PartialGeometry, n, dtype, memory_bytes, layout)
    return best if best is not None and best.words_moved() < slabs.words_moved() else slabs


def tournament_geometry(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout
) -> TournamentGeometry:
    """Cut a matrix for block columns with tournament pivoting.

    Raises
    ------
    BudgetError
        If the budget is too small even for the narrowest block columns.
    InvalidError
        If LU does not support this type.
    """
    check_order("LU", n, dtype)
    if (g := _best(TournamentGeometry, n, dtype, memory_bytes, layout)) is not None:
        return g
    need = _enough(n, dtype, memory_bytes, layout)
    raise BudgetError(
        f"need about {need} bytes ({format_bytes(need)}) of memory for an LU of order {n} in "
        f"{dtype.name} with tournament pivoting, have {memory_bytes} "
        f"({format_bytes(memory_bytes)}); raise memory="
    )


def _best(
    kind: type[G], n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout
) -> G | None:
    best, best_score = None, math.inf
    for rows, columns, segment in _shapes(n, dtype, memory_bytes):
        bare = kind(
            n, dtype, rows, columns, segment, (), layout, not layout.has_rows(n, dtype),
            memory_bytes,
        )  # fmt: skip
        g = _cut(bare)
        if g is None and not bare.is_copied:
            g = _cut(dataclasses.replace(bare, is_copied=True))
        if g is not None and g.fits() and (score := g.words_moved() * g.slowness()) < best_score:
            best, best_score = g, score
    return best


def _enough(n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout) -> int:
    """Find a sufficient budget for tournaments, within one percent of the least."""
    low = high = max(memory_bytes, 1 << 14)
    while _best(TournamentGeometry, n, dtype, high, layout) is None:
        low, high = high, 2 * high
        if high > n * n * dtype.itemsize + (1 << 30):
            raise InvalidError(f"no tiles are large enough for an LU of order {n}")
    while high - low > high // 100:
        middle = (low + high) // 2
        if _best(TournamentGeometry, n, dtype, middle, layout) is None:
            low = middle
        else:
            high = middle
    return high


def _shapes(n: int, dtype: np.dtype[Any], memory_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield candidate shapes: rows and columns of tiles, and columns of segments."""
    itemsize = dtype.itemsize
    unit = max(unit_bytes(n, dtype) // itemsize, 1)
    most = max(memory_bytes // 24, SLOT_ALIGN_BYTES)
    least = min(most // 32, LEAST_TILE_BYTES)
    for times in (1, 2, 4):
        segment = times * unit
        # A small matrix has small tiles only.
        tile_bytes = segment * min(segment, full_columns(itemsize)) * itemsize
        least = max(min(least, tile_bytes), SLOT_ALIGN_BYTES)
        for rows, columns in itertools.product(_halves(1024), _halves(full_columns(itemsize))):
            if (
                columns <= rows
                and segment % rows == 0
                and least <= rows * columns * itemsize <= most
                and rows * segment * itemsize <= min(MAX_TILE_BYTES, memory_bytes // 16)
                and rows * columns * itemsize % SLOT_ALIGN_BYTES == 0
                and math.ceil(n / rows) * math.ceil(n / columns) <= MOST_TILES
            ):
                yield rows, columns, segment


def _halves(most: int) -> list[int]:
    return [most >> shift for shift in range(most.bit_length()) if most >> shift >= 8]


def _cut(bare: G) -> G | None:
    """Find the widths of least cost, by dynamic programming from the right."""
    n, unit = bare.n, bare.segment
    if not bare.is_copied and unit * bare.dtype.itemsize % SLOT_ALIGN_BYTES:
        # A read of part of a page would read the whole page.
        unit = math.lcm(unit, bare.layout.chunks[1])
    # The pivot rows limit the width.
    widest = math.isqrt(bare.budget_bytes // bare.dtype.itemsize)
    unit *= max(min(math.ceil(n / unit / MOST_CUTS), widest // unit // LEAST_WIDTHS), 1)
    row_words = min(ROW_BYTES / bare.dtype.itemsize, bare.segment / 4)
    found: dict[int, tuple[float, int]] = {n: (0.0, 0)}
    for origin in range((n - 1) // unit * unit, -1, -unit):
        found[origin] = (math.inf, 0)
        wide = range(origin + unit, min(n, origin + MOST_WIDTH * widest + 1), unit)
        # A single block column with partial pivoting is the algorithm by slabs.
        whole = [] if origin == 0 and isinstance(bare, PartialGeometry) else [n]
        for end in itertools.chain(wide, whole):
            s = BlockColumn(origin, n - origin, end - origin)
            if not bare.fits_column(s):
                continue
            total = bare.column_words(s) + row_words * _rows_gathered(bare, s) + found[end][0]
            if total < found[origin][0]:
                found[origin] = (total, end)
    if found[0][0] == math.inf:
        return None
    widths, origin = [], 0
    while (end := found[origin][1]) < n:
        widths.append(end - origin)
        origin = end
    return dataclasses.replace(bare, widths=tuple(widths))


def _rows_gathered(g: BlockColumnGeometry, s: BlockColumn) -> float:
    """Count the rows of A and L that an update gathers, separately in each chunk."""
    chunk = g.segment if g.is_copied else g.layout.chunks[1]
    chunks = math.ceil((s.origin + g.wide(s)) / chunk) - s.origin // chunk
    return g.n * chunks + s.origin * (g.n - s.origin / 2) / g.segment
