"""The cuts of a matrix for LU by block columns with partial pivoting, and the bytes they move.

Pure arithmetic, before any work. An updated block column is spilled in the tiles of the factors, so
that its slabs load whole tiles.
"""

import functools
import math
from typing import Any

import numpy as np

from outcore._core import Grid
from outcore.linalg._geometry.factor_plan import (
    TILE_BOUNCE_BYTES,
    LuGeometry,
    fit_slabs,
    lu_bounce_bytes,
    panel_flops,
    update_flops,
)
from outcore.linalg._lu.block_columns.geometry import LOWER_BLOCKS, BlockColumn, BlockColumnGeometry
from outcore.linalg._tiles.grains import pages

SOURCE_BOUNCE_BYTES = 64 << 10
"""Bounce memory for slabs of spilled rows, whose tiles are aligned."""


class PartialGeometry(BlockColumnGeometry):
    """Cuts of a matrix of order `n` for LU by block columns within a budget.

    If the matrix is copied, slabs load its first block column directly, without a copy.
    """

    method = "block-columns"

    @property
    def copied_from(self) -> int:
        """First column that is copied. Slabs load the first block column without a copy."""
        return self.widths[0] if self.widths else self.n

    @property
    def spill_bounce_bytes(self) -> int:
        """Memory for writes to the spilled rows, which are tiles."""
        return self.transpose_bytes

    def spill_columns(self, s: BlockColumn) -> int:
        """Columns of the spilled rows of a block column, padding included."""
        return self.tile_columns(s)

    def spill_grid(self, s: BlockColumn) -> Grid:
        """Lay out an updated block column, from the diagonal down."""
        return self.grid([self.whole_rows(s.order), self.tile_columns(s)], self.columns, "F")

    def is_loaded(self, s: BlockColumn) -> bool:
        """Whether slabs load the block column from A: the first, if A is copied or it is the last.

        If A is stored by rows, slabs would cut its rows, and read the gaps between them too.
        """
        return s.origin == 0 and (self.is_copied or self.is_last(s))

    def is_whole(self, s: BlockColumn) -> bool:
        """Whether an update keeps all rows from the diagonal down in memory, and spills none."""
        return not self.is_loaded(s) and super().is_whole(s)

    def is_spilled(self, s: BlockColumn) -> bool:
        """Whether an update writes the rows from the diagonal down to a file."""
        return not self.is_loaded(s) and not self.is_whole(s)

    def slabs_of(self, s: BlockColumn) -> LuGeometry:
        """Return the cuts of a block column into slabs; without slabs if no panel fits."""
        left = self.budget_bytes - self._kept_bounce_bytes(s)
        return _slabs_of(s, self.dtype, (self.rows, self.columns), left)

    def _kept_bounce_bytes(self, s: BlockColumn) -> int:
        """Memory for columns in memory that are written as rows of L."""
        return 0 if self.is_last(s) else self.transpose_bytes

    def kept_from(self, s: BlockColumn, first_panel: int = 0) -> int:
        """First column whose L is still in memory when the block column is factored.

        Columns and panels are counted from the block column's first, in whole segments.
        """
        if self.is_last(s):
            return s.width
        slabs = self.slabs_of(s).slabs(first_panel)
        return self.whole_segments(slabs[-1].first * self.columns) if slabs else s.width

    def lower_memory(self, s: BlockColumn) -> int:
        """Memory for the copy of L by rows: a segment of the top rows twice, and blocks."""
        segment_bytes = self.segment * self.dtype.itemsize
        top = 2 * pages(s.width * segment_bytes)
        blocks = LOWER_BLOCKS * pages(self.rows * segment_bytes)
        return top + blocks + self.transpose_bytes + TILE_BOUNCE_BYTES

    def fits_column(self, s: BlockColumn) -> bool:
        """Whether the budget suffices for a block column."""
        if not self.is_last(s) and self.lower_memory(s) > self.budget_bytes:
            return False
        if not self.is_loaded(s) and not self.block_rows(s):
            return False
        return self.is_whole(s) or self.slabs_of(s).slab_panels > 0

    def column_memory(self, s: BlockColumn) -> int:
        """Largest memory in bytes of any phase of a block column."""
        phases = [] if self.is_last(s) else [self.lower_memory(s)]
        if not self.is_loaded(s):
            phases.append(self.update_memory(s, self.block_rows(s)))
        if not self.is_whole(s):
            phases.append(self.slabs_of(s).memory_bytes + self._kept_bounce_bytes(s))
        return max(phases)

    def column_words(self, s: BlockColumn) -> float:
        """Words moved by a block column: an estimate that assumes whole chunks."""
        n, m, w = self.n, s.order, s.width
        total = 2.0 * n * w + self.streamed_words(s)
        if self.is_copied and not s.origin:
            total += 2 * n * (n - w)
        if self.is_whole(s):
            return total + (0 if self.is_last(s) else m * w)
        if not self.is_loaded(s):
            total += 2 * m * w
        lefts = [slab.first * self.columns for slab in self.slabs_of(s).slabs()]
        total += sum(m * left - left**2 / 2 for left in lefts)
        if not self.is_last(s):
            kept = self.kept_from(s)
            total += m * w - w**2 / 2 + m * kept - kept**2 / 2
        return total

    def bytes_moved(self, first_panel: int = 0, trailing: int | None = None) -> tuple[int, int]:
        """Bytes moved once block column `trailing` - 1 is updated; with 0, once A is copied."""
        moved = []
        if trailing is None and self.is_copied and self.widths:
            moved.append(self.copy_bytes())
        for k, s in enumerate(self.block_columns):
            begin = s.origin // self.columns
            first, panels = max(first_panel - begin, 0), self.tile_columns(s) // self.columns
            is_updated = self.is_loaded(s) or trailing == k + 1
            if self.is_done(k, first_panel, trailing):
                continue
            if first < panels and not is_updated:
                moved.append(self.update_bytes(k))
                if self.is_whole(s):
                    moved.append(self.whole_bytes(s))
                    continue
            moved += [self.slab_bytes(s, first), self.lower_bytes(s, first)]
        return sum(read for read, _ in moved), sum(written for _, written in moved)

    def is_done(self, k: int, panels_done: int, trailing: int | None) -> bool:
        """Whether a run that resumes from this state can skip block column `k`.

        Even if all its panels are factored, L by rows may be incomplete. Later progress shows that
        it is complete.
        """
        s = self.block_columns[k]
        end = math.ceil((s.origin + s.width) / self.columns)
        if self.is_last(s):
            return panels_done == end
        return panels_done > end or (trailing or 0) > k + 1

    def slab_bytes(self, s: BlockColumn, first: int = 0) -> tuple[int, int]:
        """Bytes moved to factor a block column by slabs, from its panel `first` on."""
        g = self.slabs_of(s)
        source = g.matrix_bytes_read(first)
        if self.is_loaded(s):
            source = source // self.dtype.itemsize * self.layout.itemsize(self.dtype)
        else:
            source = source // s.order * self.whole_rows(s.order)
        return source + g.factor_bytes_read(first), g.factor_bytes_written(first)

    def lower_bytes(self, s: BlockColumn, first: int = 0) -> tuple[int, int]:
        """Bytes moved to write L by rows, after slabs from panel `first` on."""
        if self.is_last(s):
            return 0, 0
        kept, high = self.kept_from(s, first), self.whole_rows(s.order)
        areas = [(high - left) * self.segment for left in range(0, s.width, self.segment)]
        itemsize = self.dtype.itemsize
        return sum(areas[: kept // self.segment]) * itemsize, sum(areas) * itemsize

    def flops_left(self, first_panel: int = 0, trailing: int | None = None) -> float:
        """Operations of a run that begins with a panel; block column `trailing` - 1 is updated."""
        total = 0.0
        for k, s in enumerate(self.block_columns):
            first = max(first_panel - s.origin // self.columns, 0)
            g = LuGeometry(s.order, self.dtype, self.rows, self.columns, 1, 1, 0, 0, 0, s.width)
            total += sum(panel_flops(g, K) for K in range(first, g.panels))
            for K in range(g.panels):
                total += update_flops(g, K) * max(s.width - max(K + 1, first) * g.columns, 0)
            if first == 0 and trailing != k + 1:
                total += self.update_flops(s)
        return total


@functools.lru_cache(1 << 14)
def _slabs_of(
    s: BlockColumn, dtype: np.dtype[Any], tile: tuple[int, int], memory_bytes: int
) -> LuGeometry:
    bounce = SOURCE_BOUNCE_BYTES if s.origin else lu_bounce_bytes(memory_bytes)
    factored = None if s.order == s.width else s.width
    bare = LuGeometry(s.order, dtype, *tile, 0, 1, bounce, memory_bytes, s.origin, factored)
    return fit_slabs(bare, memory_bytes)
