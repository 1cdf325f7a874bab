"""Which cuts of a matrix two-level LU takes: those that move the fewest words."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore.linalg.cost import Cost, Phase
from outcore.linalg.lu.plan import (
    REQUEST_S,
    LuGeometry,
    flops,
    gemm_flops,
    lu_geometry,
    memory_seconds,
    update_flops,
)
from outcore.linalg.lu.segments import Layout, cut_again, unit_bytes
from outcore.linalg.lu.two_level_geometry import SuperSlab, TwoLevelGeometry
from outcore.zarr_format import MAX_TILE_BYTES, SLOT_ALIGN_BYTES, full_columns

MOST_SEGMENTS = 32
"""So many segments make a row of the matrix at most; super-slabs are whole segments."""

LEAST_TILE_BYTES = 256 << 10
"""Smaller tiles are looked at only where the budget wants them."""


def two_level_geometry(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout
) -> TwoLevelGeometry:
    """Cut a matrix for a memory budget.

    Raises
    ------
    BudgetError, InvalidError
        As `lu_geometry`.
    """
    whole = lu_geometry(n, dtype, memory_bytes)
    best = TwoLevelGeometry(n, dtype, whole.rows, whole.columns, 1, (), layout, False, memory_bytes)
    best_score = float(best.words_moved())
    for rows, columns, segment in _shapes(n, dtype, memory_bytes):
        bare = dataclasses.replace(
            best, rows=rows, columns=columns, segment=segment, widths=(),
            is_copied=not layout.has_rows(n, dtype),
        )  # fmt: skip
        g = _Search(bare).best()
        if not bare.is_copied and (g is None or not g.widths):
            g = _Search(dataclasses.replace(bare, is_copied=True)).best()
        if g is None or not g.widths or not g.fits():
            continue
        score = g.words_moved() * g.slowness()
        if score < best_score:
            best, best_score = g, score
    return best


def two_level_again(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout, tile: tuple[int, int],
    cuts: dict[str, Any],
) -> TwoLevelGeometry:  # fmt: skip
    """Cut a matrix as a run before did, for the budget of today.

    Raises
    ------
    BudgetError
        If that is too small for these cuts.
    """
    g = TwoLevelGeometry(
        n, dtype, *tile, cuts["segment"], tuple(cuts["widths"]), layout, cuts["is_copied"],
        memory_bytes,
    )  # fmt: skip
    return cut_again(g)


def _shapes(n: int, dtype: np.dtype[Any], memory_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Rows and columns of tiles, and columns of segments, that are worth a look."""
    itemsize = dtype.itemsize
    unit = max(unit_bytes(n, dtype) // itemsize, 1)
    least = max(math.ceil(n / MOST_SEGMENTS / unit), 1)
    most = max(memory_bytes // 24, SLOT_ALIGN_BYTES)
    full = full_columns(itemsize)
    for times in sorted({least * i for i in (1, 2, 3, 4, 6, 8)}):
        segment = times * unit
        for rows, columns in itertools.product(_halves(1024), _halves(full)):
            tile_bytes = rows * columns * itemsize
            if (
                columns <= rows
                and segment % rows == 0
                and min(most // 32, LEAST_TILE_BYTES) <= tile_bytes <= most
                and rows * segment * itemsize <= MAX_TILE_BYTES
                and segment < n
            ):
                yield rows, columns, segment


def _halves(most: int) -> list[int]:
    return [most >> shift for shift in range(most.bit_length()) if most >> shift >= 8]


def two_level_cost(g: TwoLevelGeometry) -> Cost:
    """Give the cost of a two-level LU."""
    phases = []
    if g.is_copied:
        phases.append(Phase(g.dtype, *g.copy_bytes()))
    whole = LuGeometry(g.n, g.dtype, g.rows, g.columns, 1, 1, 0, g.budget_bytes)
    all_flops = flops(g.n, g.dtype)
    slowdown, memory_s = gemm_flops(whole) / all_flops, memory_seconds(whole)
    for k, s in enumerate(g.super_slabs):
        slabs = g.slabs_of(k)
        update = sum(update_flops(slabs, K) for K in range(slabs.panels)) * s.rest
        own = g.flops_left(s.origin // g.columns, k) - update
        if k + 1 < len(g.super_slabs):
            own -= g.flops_left(g.super_slabs[k + 1].origin // g.columns, k + 1)
        panel = slabs.height * g.columns * g.dtype.itemsize
        phases.append(
            Phase(
                g.dtype,
                *g.slab_bytes(k),
                own,
                own * slowdown,
                memory_s * own / all_flops,
                panel * slabs.slab_panels,
                panel,
            )
        )
        if not s.rest:
            continue
        phases.append(Phase(g.dtype, *g.swap_bytes(k)))
        # Rows in their place lie between those that were swapped.
        lists = (2 * min(s.width, s.rest) + s.width) * math.ceil(s.rest / g.segment)
        phases.append(
            Phase(
                g.dtype,
                *g.trailing_bytes(k),
                update,
                update,
                lists * REQUEST_S + memory_s * update / all_flops,
            )
        )
    return Cost(
        method=f"two-level: {len(g.super_slabs)} super-slabs of at most "
        f"{max(s.width for s in g.super_slabs)} columns, tiles of {g.rows} x {g.columns}",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=g.tile_bytes * g.tiles * g.panels + g.scratch_bytes(),
        words_lower_bound=g.words_lower_bound(),
        phases=tuple(phases),
    )


class _Search:
    """Finds the widths of super-slabs by dynamic programming, from the right."""

    def __init__(self, bare: TwoLevelGeometry) -> None:
        self.bare = bare
        self.found: dict[int, tuple[float, int]] = {}

    def best(self) -> TwoLevelGeometry | None:
        """Find the widths that move the fewest words; `None` if there are none."""
        n, segment = self.bare.n, self.bare.segment
        for origin in range((n - 1) // segment * segment, -1, -segment):
            self.found[origin] = self._from(origin)
        widths, origin = [], 0
        while (width := self.found[origin][1]) < n - origin:
            widths.append(width)
            origin += width
        if self.found[0][0] == math.inf:
            return None
        return dataclasses.replace(self.bare, widths=tuple(widths))

    def _from(self, origin: int) -> tuple[float, int]:
        """Bytes moved from a column on, and the width of the super-slab there."""
        left = self.bare.n - origin
        best = (self._slab_bytes(SuperSlab(origin, left, left)), left)
        unit = self.bare.segment
        if origin == 0 and not self.bare.is_copied:
            unit = math.lcm(unit, self.bare.layout.chunks[1])
        for width in range(unit, left, unit):
            if not self.bare.block_bound(width, unit):
                break
            nbytes = self._step_bytes(SuperSlab(origin, left, width), unit)
            total = nbytes + self.found[origin + width][0]
            if total < best[0]:
                best = (total, width)
        return best

    def _slab_bytes(self, s: SuperSlab) -> float:
        g = self.bare.slabs_in(s, is_only=s.width == self.bare.n)
        if not g.slab_panels:
            return math.inf
        return float(g.matrix_bytes_read() + g.factor_bytes_read() + g.factor_bytes_written())

    def _step_bytes(self, s: SuperSlab, unit: int) -> float:
        """Bytes moved by a super-slab and the update by it, as if all were whole chunks."""
        g = self.bare
        columns = g.fitting_columns(s.width, s.rest, unit)
        slabs = self._slab_bytes(s)
        if not columns or slabs == math.inf:
            return math.inf
        cut = g.slabs_in(s, is_only=False)
        below = cut.tiles_below
        swapped = sum(len(below(K)) for K in range(cut.panels))
        again = sum(len(below(K)) for K in range(cut.slabs()[-1].first))
        blocks = math.ceil(s.rest / columns)
        triangle = sum(s.width // g.rows - below(K).start for K in range(cut.panels))
        square = math.ceil(s.rest / g.rows) * cut.panels
        tiles = swapped + again + blocks * (triangle + square)
        elements = s.order * s.rest + s.rest**2 + s.width * s.rest
        copied = 2 * g.n * s.rest if g.is_copied and s.origin == 0 else 0
        return slabs + tiles * g.tile_bytes + (elements + copied) * g.dtype.itemsize
