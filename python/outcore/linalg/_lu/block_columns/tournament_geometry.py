"""The cuts of a matrix for LU with tournament pivoting, and the bytes they move."""

import math

from outcore._core import Grid
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._lu.block_columns.geometry import LOWER_BLOCKS, BlockColumn, BlockColumnGeometry
from outcore.linalg._lu.block_columns.row_panel import LEAF_COLUMNS
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import pages

_LEAST_STACK = 1.5
"""Least number of rows in a round per pivot. With fewer rows there are many rounds."""


class TournamentGeometry(BlockColumnGeometry):
    """Cuts of a matrix of order `n` for LU with tournament pivoting within a budget."""

    method = "tournament"

    @property
    def copied_from(self) -> int:
        """First column that is copied."""
        return 0

    @property
    def spill_bounce_bytes(self) -> int:
        """Memory for writes to the spilled rows, which are segments as well."""
        return TILE_BOUNCE_BYTES

    def spill_columns(self, s: BlockColumn) -> int:
        """Columns of the spilled rows of a block column, padding included."""
        return self.wide(s)

    def spill_grid(self, s: BlockColumn) -> Grid:
        """Lay out an updated block column, from the diagonal down."""
        return self.grid([self.height - s.origin, self.wide(s)], self.segment, "C")

    def stack_rows(self, s: BlockColumn) -> int:
        """Rows in a round of the tournament: as many as fit, in whole tiles."""
        itemsize, wide = self.dtype.itemsize, self.wide(s)
        left = self.budget_bytes - TILE_BOUNCE_BYTES
        rows = left // ((wide + LEAF_COLUMNS) * itemsize) // self.rows * self.rows
        while rows > 0 and self.stack_memory(s, rows) > self.budget_bytes:
            rows -= self.rows
        return min(rows, self.whole_rows(s.order))

    def stack_memory(self, s: BlockColumn, rows: int) -> int:
        """Memory of a round of `rows` rows."""
        stack = pages(rows * self.wide(s) * self.dtype.itemsize)
        return stack + self.leaf_bytes(rows) + TILE_BOUNCE_BYTES

    def lower_memory(self, s: BlockColumn) -> int:
        """Memory in which L is computed once the pivots are known."""
        itemsize, wide = self.dtype.itemsize, self.wide(s)
        pivots = pages(s.width * wide * itemsize) + self.leaf_bytes(s.width)
        blocks = LOWER_BLOCKS * pages(self.rows * wide * itemsize)
        return pivots + blocks + 2 * TILE_BOUNCE_BYTES + self.transpose_bytes

    def fits_column(self, s: BlockColumn) -> bool:
        """Whether the budget suffices for a block column."""
        rows = self.block_rows(s)
        if not rows or s.order <= rows:
            return rows > 0
        if self.is_last(s) or self.lower_memory(s) > self.budget_bytes:
            return False
        return self.stack_rows(s) >= _LEAST_STACK * s.width

    def column_memory(self, s: BlockColumn) -> int:
        """Largest memory in bytes of any phase of a block column."""
        update = self.update_memory(s, self.block_rows(s))
        if self.is_whole(s):
            return update
        return max(update, self.stack_memory(s, self.stack_rows(s)), self.lower_memory(s))

    def column_words(self, s: BlockColumn) -> float:
        """Words moved by a block column: an estimate that assumes whole chunks."""
        below = s.order * s.width
        total = self.streamed_words(s) + 2 * self.n * s.width + (0 if self.is_last(s) else below)
        if not self.is_whole(s):
            total += 3 * below + s.width**2
        if self.is_copied and s.origin == 0:
            total += 2 * self.n**2
        return total

    def bytes_moved(self, first_panel: int = 0, trailing: int | None = None) -> tuple[int, int]:
        """Bytes moved once block column `trailing` - 1 is updated; with 0, once A is copied."""
        moved = []
        if trailing is None and self.is_copied:
            moved.append(self.copy_bytes())
        for k, s in enumerate(self.block_columns):
            if s.origin // self.columns < first_panel:
                continue
            is_spilled = trailing == k + 1
            if not is_spilled:
                moved.append(self.update_bytes(k))
            moved.append(self.lower_bytes(s, is_spilled=is_spilled or not self.is_whole(s)))
        return sum(read for read, _ in moved), sum(written for _, written in moved)

    def lower_bytes(self, s: BlockColumn, *, is_spilled: bool) -> tuple[int, int]:
        """Bytes moved to choose pivots and compute L: spilled rows are read twice."""
        high, wide = self.height - s.origin, self.wide(s)
        read = (high + s.width + s.order) * wide if is_spilled else 0
        return read * self.dtype.itemsize, self.whole_bytes(s)[1]

    def tournament_flops(self, s: BlockColumn) -> float:
        """Operations of the tournament beyond those of partial pivoting."""
        if self.is_whole(s):
            return 0.0
        w, high = s.width, self.stack_rows(s)
        rounds = max(math.ceil((s.order - high) / (high - w)), 0)
        each = high * w**2 - w**3 / 3
        return flop_weight(self.dtype) * (
            (rounds + 1) * each + rounds * 2 * w**3 / 3 + 2 * w**3 / 3
        )

    def flops_left(self, first_panel: int = 0, trailing: int | None = None) -> float:
        """Operations of a run that begins with a panel, without those of the tournaments."""
        total = 0.0
        for k, s in enumerate(self.block_columns):
            if s.origin // self.columns >= first_panel:
                total += self.lower_flops(s)
                total += self.update_flops(s) if trailing != k + 1 else 0.0
        return total
