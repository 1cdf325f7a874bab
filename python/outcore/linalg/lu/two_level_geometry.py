"""How a matrix is cut for two-level LU, and what that moves: pure arithmetic, before any work.

Right-looking over *super-slabs* of W columns, each factored by slabs. Of each trailing matrix the
columns of the next super-slab are kept in the tiles of the factors, so that slabs are loaded whole,
and the others in row-major chunks of *segments*: rows of a chunk, which a list of rows reads each
by itself.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from outcore._core import Grid
from outcore.linalg.grains import pages
from outcore.linalg.lu.plan import (
    TILE_BOUNCE_BYTES,
    LuGeometry,
    fit_slabs,
    lu_bounce_bytes,
    panel_flops,
    update_flops,
)
from outcore.linalg.lu.segments import SegmentedGeometry, file_bytes

RING_TILES = 4
"""Tiles of L read ahead in an update: one in use, and enough on their way."""

SOURCE_BOUNCE_BYTES = 64 << 10
"""For slabs that come from a trailing matrix, whose tiles are aligned as they are."""


class SuperSlab(NamedTuple):
    """The first `width` columns of what is left, of order `order`, after `origin` columns."""

    origin: int
    order: int
    width: int

    @property
    def rest(self) -> int:
        """Order of the next trailing matrix."""
        return self.order - self.width


class TwoLevelGeometry(SegmentedGeometry):
    """How a matrix of order `n` is cut for two-level LU within a budget.

    ``widths`` are those of all super-slabs but the last. A matrix that is not copied is the first
    trailing matrix itself.
    """

    @functools.cached_property
    def super_slabs(self) -> tuple[SuperSlab, ...]:
        """All super-slabs."""
        origins = list(itertools.accumulate(self.widths, initial=0))
        widths = [*self.widths, self.n - origins[-1]]
        return tuple(SuperSlab(o, self.n - o, w) for o, w in zip(origins, widths, strict=True))

    @property
    def copied_from(self) -> int:
        """First column that is copied: those of the first super-slab are loaded as they are."""
        return self.widths[0] if self.widths else self.n

    @property
    def slab_panels(self) -> int:
        """Panels of the widest slab."""
        return max(self.slabs_of(k).slab_panels for k in range(len(self.super_slabs)))

    @property
    def bounce_bytes(self) -> int:
        """Memory for transfers of the matrix that are not aligned."""
        return self.slabs_of(0).bounce_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of L read ahead in an update."""
        return RING_TILES * self.tile_bytes

    def slabs_of(self, k: int) -> LuGeometry:
        """How super-slab `k` is cut into slabs; none, if not one panel fits."""
        return self.slabs_in(self.super_slabs[k], is_only=not self.widths)

    def slabs_in(self, s: SuperSlab, *, is_only: bool) -> LuGeometry:
        """How a super-slab is cut into slabs; none, if not one panel fits."""
        left_bytes = self.budget_bytes - (0 if is_only else TILE_BOUNCE_BYTES)
        return _slabs_in(s, self.dtype, (self.rows, self.columns), left_bytes)

    def unit_of(self, k: int) -> int:
        """Columns that are read whole in update `k`: segments, or chunks of the matrix."""
        if k == 0 and not self.is_copied:
            return math.lcm(self.segment, self.layout.chunks[1])
        return self.segment

    def block_columns(self, k: int) -> int:
        """Columns of a block of update `k`: as many as fit; 0 if none do."""
        s = self.super_slabs[k]
        return self.fitting_columns(s.width, s.rest, self.unit_of(k))

    def fitting_columns(self, width: int, rest: int, unit: int) -> int:
        """As many columns as fit in a block, with U of `width` rows: a multiple of `unit`."""
        most = min(self.block_bound(width, unit), math.ceil(rest / unit) * unit)
        for columns in range(most, 0, -unit):
            if self.update_bytes(width, columns) <= self.budget_bytes:
                return columns
        return 0

    def block_bound(self, width: int, unit: int) -> int:
        """Columns of a block that memory cannot exceed."""
        row_bytes = self.dtype.itemsize * (width + 2 * self.rows)
        return self.budget_bytes // row_bytes // unit * unit

    def update_bytes(self, width: int, columns: int) -> int:
        """Memory of an update: U, two blocks of C, and buffers."""
        itemsize = self.dtype.itemsize
        u, c = pages(width * columns * itemsize), pages(self.rows * columns * itemsize)
        return u + 2 * c + self.norm_bytes(columns) + self._update_buffers

    @property
    def _update_buffers(self) -> int:
        # A tile that was used may leave a moment after the next one has come.
        ring = self.ring_bytes + self.tile_bytes
        return ring + 2 * self.transpose_bytes + 3 * TILE_BOUNCE_BYTES

    @property
    def memory_bytes(self) -> int:
        """Bytes that the factorization takes from its arena at most."""
        updates = [
            self.update_bytes(self.super_slabs[k].width, self.block_columns(k))
            for k in range(len(self.widths))
        ]
        slabs = [
            self.slabs_of(k).memory_bytes + (TILE_BOUNCE_BYTES if self.widths else 0)
            for k in range(len(self.super_slabs))
        ]
        copy = [self.copy_memory()] if self.is_copied else []
        return max([*updates, *slabs, *copy])

    def fits(self) -> bool:
        """Whether the budget suffices."""
        slabs = all(self.slabs_of(k).slab_panels for k in range(len(self.super_slabs)))
        blocks = all(self.block_columns(k) for k in range(len(self.widths)))
        return slabs and blocks and (not self.is_copied or self.copy_block()[0] > 0)

    def next_grid(self, k: int) -> Grid:
        """Lay out the columns of trailing matrix `k` that are super-slab `k`; its L as well."""
        s = self.super_slabs[k]
        width = math.ceil(s.width / self.columns) * self.columns
        return self.grid([self.whole_rows(s.order), width], self.columns, "F")

    def rest_grid(self, k: int) -> Grid:
        """Lay out its other columns."""
        s = self.super_slabs[k]
        across = self.whole_segments(s.rest)
        return self.grid([self.whole_rows(s.order), across], self.segment, "C")

    def source_columns(self, k: int) -> int:
        """Columns of the file that update `k` reads, padding included."""
        s, unit = self.super_slabs[k], self.segment
        if k == 0 and not self.is_copied:
            unit = self.layout.chunks[1]
        return math.ceil(s.rest / unit) * unit

    def bytes_moved(self, first_panel: int = 0, trailing: int | None = None) -> tuple[int, int]:
        """Bytes moved; `trailing` is the number of the trailing matrix that is there."""
        moved = [self.copy_bytes()] if trailing is None and self.is_copied else []
        for k in range(trailing or 0, len(self.super_slabs)):
            first = max(first_panel - self.super_slabs[k].origin // self.columns, 0)
            moved += [
                self.slab_bytes(k, first), self.swap_bytes(k, first), self.trailing_bytes(k),
            ]  # fmt: skip
        return sum(read for read, _ in moved), sum(written for _, written in moved)

    def slab_bytes(self, k: int, first: int = 0) -> tuple[int, int]:
        """Bytes moved in factoring super-slab `k` from its panel `first` on."""
        g, s = self.slabs_of(k), self.super_slabs[k]
        elements = g.matrix_bytes_read(first)
        if k:
            elements = elements // s.order * self.whole_rows(s.order)
        return elements + g.factor_bytes_read(first), g.factor_bytes_written(first)

    def swap_bytes(self, k: int, first: int = 0) -> tuple[int, int]:
        """Bytes moved in writing L of super-slab `k` with all its swaps."""
        if not self.super_slabs[k].rest:
            return 0, 0
        g = self.slabs_of(k)
        below = [len(g.tiles_below(K)) for K in range(g.panels)]
        read = sum(below[: self.kept_panels(k, first).start])
        return read * self.tile_bytes, sum(below) * self.tile_bytes

    def trailing_bytes(self, k: int) -> tuple[int, int]:
        """Bytes moved in making trailing matrix ``k + 1``."""
        s, itemsize = self.super_slabs[k], self.dtype.itemsize
        if not s.rest:
            return 0, 0
        g = self.slabs_of(k)
        triangle = sum(s.width // self.rows - g.tiles_below(K).start for K in range(g.panels))
        square = math.ceil(s.rest / self.rows) * g.panels
        blocks = math.ceil(s.rest / self.block_columns(k))
        again = blocks * (triangle + square) * self.tile_bytes
        u = s.width * math.ceil(s.rest / self.columns) * self.columns
        ahead = self.super_slabs[k + 1]
        across = math.ceil(ahead.width / self.columns) * self.columns
        if ahead.rest:
            across += self.whole_segments(ahead.rest)
        c = self.whole_rows(s.rest) * across
        return s.order * self.source_columns(k) * itemsize + again, (u + c) * itemsize

    def kept_panels(self, k: int, first: int) -> range:
        """Panels of super-slab `k` that are still in memory when it is factored."""
        slabs = self.slabs_of(k).slabs(first)
        panels = self.slabs_of(k).panels
        return range(slabs[-1].first if slabs else panels, panels)

    def scratch_bytes(self) -> int:
        """Most disk space of trailing matrices and of L with all its row swaps, at one time."""
        most = 0
        for k in range(len(self.widths)):
            here = self._workspace_bytes(k) + self._workspace_bytes(k + 1)
            most = max(most, here + file_bytes(self.next_grid(k)))
        return most

    def _workspace_bytes(self, k: int) -> int:
        nbytes = file_bytes(self.next_grid(k)) if k else 0
        if self.super_slabs[k].rest and (k or self.is_copied):
            nbytes += file_bytes(self.rest_grid(k))
        return nbytes

    def flops_left(self, first_panel: int = 0, trailing: int | None = None) -> float:
        """Operations of a run that begins with a panel."""
        total = 0.0
        for k in range(trailing or 0, len(self.super_slabs)):
            g, s = self.slabs_of(k), self.super_slabs[k]
            first = max(first_panel - s.origin // self.columns, 0)
            total += sum(panel_flops(g, K) for K in range(first, g.panels))
            for K in range(g.panels):
                in_slab = max(s.width - max(K + 1, first) * g.columns, 0)
                total += update_flops(g, K) * (in_slab + s.rest)
        return total


@functools.lru_cache(4096)
def _slabs_in(
    s: SuperSlab, dtype: np.dtype[Any], tile: tuple[int, int], memory_bytes: int
) -> LuGeometry:
    """Cut a super-slab into slabs; none, if not one panel fits."""
    bounce = SOURCE_BOUNCE_BYTES if s.origin else lu_bounce_bytes(memory_bytes)
    factored = s.width if s.rest else None
    bare = LuGeometry(s.order, dtype, *tile, 0, 1, bounce, memory_bytes, s.origin, factored)
    return fit_slabs(bare, memory_bytes)
