"""How a matrix is cut for LU with tournament pivoting, and what that moves: pure arithmetic.

Left-looking by *block columns*: a block of rows of one stays in memory while L and U stream by. L
is kept a second time in row-major *segments*, of which any rows are read by a list.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

from outcore._core import Grid
from outcore.linalg.cost import flop_weight
from outcore.linalg.grains import pages
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES
from outcore.linalg.lu.row_panel import LEAF_COLUMNS
from outcore.linalg.lu.segments import SegmentedGeometry, file_bytes

U_PIECES = 2
"""Pieces of U in memory, each of a segment's rows: one in use and one being read."""

L_PIECES = 4
"""Pieces of L in memory, each of a tile's rows by a segment."""

LOWER_BLOCKS = 3
"""Blocks of rows in memory while L is made."""

_LEAST_STACK = 1.5
"""Rows that play at once, for each pivot: with fewer, rounds are many."""


class BlockColumn(NamedTuple):
    """`width` columns after `origin` others; `order` rows are not rows of U before."""

    origin: int
    order: int
    width: int


class TournamentGeometry(SegmentedGeometry):
    """How a matrix of order `n` is cut for LU with tournament pivoting within a budget.

    ``widths`` are those of all block columns but the last.
    """

    method = "tournament"

    def cuts(self) -> dict[str, Any]:
        """Give what a stopped run goes on with, whatever its budget; tiles are known anyway."""
        return {"method": self.method, **super().cuts()}

    @functools.cached_property
    def block_columns(self) -> tuple[BlockColumn, ...]:
        """All block columns."""
        origins = list(itertools.accumulate(self.widths, initial=0))
        widths = [*self.widths, self.n - origins[-1]]
        return tuple(BlockColumn(o, self.n - o, w) for o, w in zip(origins, widths, strict=True))

    @property
    def copied_from(self) -> int:
        """First column that is copied."""
        return 0

    @property
    def slab_panels(self) -> int:
        """Panels of the widest block column."""
        return max(math.ceil(s.width / self.columns) for s in self.block_columns)

    def wide(self, s: BlockColumn) -> int:
        """Columns of a block column in memory: whole segments."""
        return self.whole_segments(s.width)

    def tile_columns(self, s: BlockColumn) -> int:
        """Columns of a block column in the factors: whole tiles."""
        return math.ceil(s.width / self.columns) * self.columns

    def is_last(self, s: BlockColumn) -> bool:
        """Whether nothing is right of it."""
        return s.order == s.width

    def block_rows(self, s: BlockColumn) -> int:
        """Rows of a block in memory: as many as fit, whole segments; 0 if not one does."""
        return _block_rows(self, s)

    def is_whole(self, s: BlockColumn) -> bool:
        """Whether all rows from the diagonal down are in memory at once: without a tournament."""
        return s.order <= self.block_rows(s)

    def edges(self, s: BlockColumn) -> list[int]:
        """Cut the rows, counted in tiles, into blocks: as high as can be from below."""
        return [0, *self._inner_edges(s), self.tiles]

    def _inner_edges(self, s: BlockColumn) -> range:
        step, segment = self.block_rows(s) // self.rows, self.segment // self.rows
        last = max(math.ceil((self.tiles - step) / segment) * segment, 0)
        return range(last % step or step, last + 1, step)

    def update_memory(self, s: BlockColumn, rows: int) -> int:
        """Memory in which blocks of so many rows are updated, and factored if they are whole."""
        itemsize, wide = self.dtype.itemsize, self.wide(s)
        total = pages(rows * wide * itemsize) + self.norm_bytes(wide) + self.transpose_bytes
        if s.order <= rows:
            total += self.leaf_bytes(s.order)
        if s.origin:
            total += U_PIECES * pages(self.segment * wide * itemsize)
            total += L_PIECES * pages(self.rows * self.segment * itemsize)
        return total + 3 * TILE_BOUNCE_BYTES

    def leaf_bytes(self, rows: int) -> int:
        """Memory beside rows that are factored."""
        return pages(rows * LEAF_COLUMNS * self.dtype.itemsize)

    def stack_rows(self, s: BlockColumn) -> int:
        """Rows that play a round of the tournament: as many as fit, whole tiles."""
        itemsize, wide = self.dtype.itemsize, self.wide(s)
        left = self.budget_bytes - TILE_BOUNCE_BYTES
        rows = left // ((wide + LEAF_COLUMNS) * itemsize) // self.rows * self.rows
        while rows > 0 and self.stack_memory(s, rows) > self.budget_bytes:
            rows -= self.rows
        return min(rows, self.whole_rows(s.order))

    def stack_memory(self, s: BlockColumn, rows: int) -> int:
        """Memory of a round of so many rows."""
        stack = pages(rows * self.wide(s) * self.dtype.itemsize)
        return stack + self.leaf_bytes(rows) + TILE_BOUNCE_BYTES

    def lower_memory(self, s: BlockColumn) -> int:
        """Memory in which L is made once the pivots are known."""
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

    def fits(self) -> bool:
        """Whether the budget suffices."""
        copied = not self.is_copied or self.copy_block()[0] > 0
        return copied and all(map(self.fits_column, self.block_columns))

    @property
    def memory_bytes(self) -> int:
        """Bytes that the factorization takes from its arena at most."""
        phases = [self.copy_memory()] if self.is_copied else []
        for s in self.block_columns:
            phases.append(self.update_memory(s, self.block_rows(s)))
            if not self.is_whole(s):
                phases += [self.stack_memory(s, self.stack_rows(s)), self.lower_memory(s)]
        return max(phases)

    def lower_grid(self) -> Grid:
        """Lay out L by rows; what is above the diagonal has no room on disk."""
        across = self.whole_segments(sum(self.widths))
        return self.grid([self.whole_rows(self.n), across], self.segment, "C")

    def spill_grid(self, s: BlockColumn) -> Grid:
        """Lay out an updated block column, from the diagonal down."""
        return self.grid([self.whole_rows(self.n) - s.origin, self.wide(s)], self.segment, "C")

    def source_columns(self, k: int) -> int:
        """Columns that are read of the matrix, or of its copy, padding included."""
        s = self.block_columns[k]
        if self.is_copied:
            return self.wide(s)
        chunk = self.layout.chunks[1]
        return min(self.wide(s), math.ceil(self.n / chunk) * chunk - s.origin)

    def bytes_moved(self, first_panel: int = 0, trailing: int | None = None) -> tuple[int, int]:
        """Bytes moved; block column `trailing` - 1 is updated already; 0: A is copied."""
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

    def update_bytes(self, k: int) -> tuple[int, int]:
        """Bytes moved in updating block column `k`: A, L and U are read, U is written."""
        s, itemsize = self.block_columns[k], self.dtype.itemsize
        read = self.n * self.source_columns(k) + self.streamed_words(s)
        written = s.origin * self.tile_columns(s)
        if not self.is_whole(s):
            written += (self.whole_rows(self.n) - s.origin) * self.wide(s)
        return read * itemsize, written * itemsize

    def streamed_words(self, s: BlockColumn) -> int:
        """Words of L and U that stream by."""
        segments = s.origin // self.segment
        lower = self.segment * (segments * self.n - self.segment * segments * (segments - 1) // 2)
        # Blocks that begin among the rows of U need those above them, others all of them.
        tiles, edges = s.origin // self.rows, self._inner_edges(s)
        inside = range(edges.start, min(edges.stop, tiles), edges.step)
        upper = (len(edges) - len(inside)) * tiles
        if inside:
            upper += len(inside) * (inside[0] + inside[-1]) // 2
        return lower + upper * self.rows * self.tile_columns(s)

    def lower_bytes(self, s: BlockColumn, *, is_spilled: bool) -> tuple[int, int]:
        """Bytes moved in choosing pivots and making L: spilled rows are read twice."""
        high, wide, itemsize = self.whole_rows(self.n) - s.origin, self.wide(s), self.dtype.itemsize
        read = (high + s.width + s.order) * wide if is_spilled else 0
        copied = 0 if self.is_last(s) else wide
        return read * itemsize, high * (self.tile_columns(s) + copied) * itemsize

    def scratch_bytes(self) -> int:
        """Disk space of L by rows, the widest spilled block column, and a copy of the matrix."""
        high, itemsize = self.whole_rows(self.n), self.dtype.itemsize
        lower = sum((high - s.origin) * self.wide(s) for s in self.block_columns[:-1]) * itemsize
        spills = [
            file_bytes(self.spill_grid(s)) for s in self.block_columns if not self.is_whole(s)
        ]
        copy = file_bytes(self.copy_grid()) if self.is_copied else 0
        return lower + max(spills, default=0) + copy

    def update_flops(self, s: BlockColumn) -> float:
        """Operations of applying what is left of a block column."""
        return flop_weight(self.dtype) * s.width * (2.0 * self.n * s.origin - s.origin**2)

    def lower_flops(self, s: BlockColumn) -> float:
        """Operations of factoring a block column that is updated."""
        return flop_weight(self.dtype) * (s.order * s.width**2 - s.width**3 / 3)

    def tournament_flops(self, s: BlockColumn) -> float:
        """Operations of choosing its pivots, which partial pivoting would not do."""
        if self.is_whole(s):
            return 0.0
        w, high = s.width, self.stack_rows(s)
        rounds = max(math.ceil((s.order - high) / (high - w)), 0)
        each = high * w**2 - w**3 / 3
        return flop_weight(self.dtype) * (
            (rounds + 1) * each + rounds * 2 * w**3 / 3 + 2 * w**3 / 3
        )

    def flops_left(self, first_panel: int = 0, trailing: int | None = None) -> float:
        """Operations of a run that begins with a panel, those of the tournaments left out."""
        total = 0.0
        for k, s in enumerate(self.block_columns):
            if s.origin // self.columns >= first_panel:
                total += self.lower_flops(s)
                total += self.update_flops(s) if trailing != k + 1 else 0.0
        return total


@functools.lru_cache(1 << 14)
def _block_rows(g: TournamentGeometry, s: BlockColumn) -> int:
    itemsize, wide = g.dtype.itemsize, g.wide(s)
    most = g.whole_segments(g.n)
    # What is there with no rows at all, and no whole column.
    beside = g.update_memory(s._replace(order=g.n + 1), 0)
    rows = max(g.budget_bytes - beside, 0) // (wide * itemsize) // g.segment * g.segment
    rows = min(rows, most)
    while rows > 0 and g.update_memory(s, rows) > g.budget_bytes:
        rows -= g.segment
    return max(rows, 0)
