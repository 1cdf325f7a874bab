"""The cuts of a matrix into block columns, and the bytes that their updates move.

Pure arithmetic. The algorithm is left-looking by *block columns*: a block of rows of one block
column stays in memory while L and U stream by. A second copy of L is kept in row-major *segments*,
from which a list of rows can be read.
"""

import functools
import itertools
import math
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from outcore._core import Grid
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._geometry.segments import SegmentedGeometry, file_bytes
from outcore.linalg._lu.block_columns.row_panel import LEAF_COLUMNS
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import pages

L_PIECES = 5
"""Pieces of L in memory, each of a tile's rows by a segment."""

LOWER_BLOCKS = 3
"""Blocks of rows in memory during the copy of L by rows."""


class BlockColumn(NamedTuple):
    """`width` columns, after the first `origin`; `order` rows are not yet rows of U."""

    origin: int
    order: int
    width: int


class BlockColumnGeometry(SegmentedGeometry):
    """Cuts of a matrix of order `n` for LU by block columns within a budget.

    ``widths`` lists the widths of all block columns but the last.
    """

    method: ClassVar[str]

    def cuts(self) -> dict[str, Any]:
        """Return the cuts that a resumed run keeps at any budget, without the tiles."""
        return {"method": self.method, **super().cuts()}

    @functools.cached_property
    def block_columns(self) -> tuple[BlockColumn, ...]:
        """All block columns."""
        origins = list(itertools.accumulate(self.widths, initial=0))
        widths = [*self.widths, self.n - origins[-1]]
        return tuple(BlockColumn(o, self.n - o, w) for o, w in zip(origins, widths, strict=True))

    @property
    def slab_panels(self) -> int:
        """Panels of the widest block column."""
        return max(math.ceil(s.width / self.columns) for s in self.block_columns)

    @property
    def depth(self) -> int:
        """Rows of a piece of U: half a segment's, or those of a tile."""
        return max(self.segment // 2, self.rows)

    @property
    def u_pieces(self) -> int:
        """Pieces of U in memory: those of a segment, and one that is being read."""
        return self.segment // self.depth + 1

    def wide(self, s: BlockColumn) -> int:
        """Columns of a block column in memory: whole segments."""
        return self.whole_segments(s.width)

    def tile_columns(self, s: BlockColumn) -> int:
        """Columns of a block column in the factors: whole tiles."""
        return math.ceil(s.width / self.columns) * self.columns

    def is_last(self, s: BlockColumn) -> bool:
        """Whether the block column is the last one."""
        return s.order == s.width

    def block_rows(self, s: BlockColumn) -> int:
        """Rows of a block in memory: as many as fit, whole pieces of U; 0 if not one does."""
        return _block_rows(self, s)

    def is_whole(self, s: BlockColumn) -> bool:
        """Whether an update keeps all rows from the diagonal down in memory, and spills none."""
        return s.order <= self.block_rows(s)

    def is_spilled(self, s: BlockColumn) -> bool:
        """Whether an update writes the rows from the diagonal down to a file."""
        return not self.is_whole(s)

    def edges(self, s: BlockColumn) -> list[int]:
        """Cut the rows, counted in tiles, into blocks as high as possible, from below."""
        return [0, *self._inner_edges(s), self.tiles]

    def _inner_edges(self, s: BlockColumn) -> range:
        step, piece = self.block_rows(s) // self.rows, self.depth // self.rows
        last = max(math.ceil((self.tiles - step) / piece) * piece, 0)
        return range(last % step or step, last + 1, step)

    def update_memory(self, s: BlockColumn, rows: int) -> int:
        """Memory to update blocks of `rows` rows, and to factor them if they are whole."""
        itemsize, wide = self.dtype.itemsize, self.wide(s)
        total = pages(rows * wide * itemsize) + self.norm_bytes(wide)
        total += self.transpose_bytes + self.spill_bounce_bytes + 2 * TILE_BOUNCE_BYTES
        if s.order <= rows:
            total += self.leaf_bytes(s.order)
        if s.origin:
            total += self.u_pieces * pages(self.depth * wide * itemsize)
            total += pages(L_PIECES * self.rows * self.segment * itemsize)
        return total

    def leaf_bytes(self, rows: int) -> int:
        """Memory that factoring needs beside the rows themselves."""
        return pages(rows * LEAF_COLUMNS * self.dtype.itemsize)

    @property
    @abstractmethod
    def spill_bounce_bytes(self) -> int:
        """Memory for writes to the spilled rows."""

    @abstractmethod
    def spill_columns(self, s: BlockColumn) -> int:
        """Columns of the spilled rows of a block column, padding included."""

    @abstractmethod
    def spill_grid(self, s: BlockColumn) -> Grid:
        """Lay out an updated block column, from the diagonal down."""

    @abstractmethod
    def fits_column(self, s: BlockColumn) -> bool:
        """Whether the budget suffices for a block column."""

    @abstractmethod
    def column_memory(self, s: BlockColumn) -> int:
        """Largest memory in bytes of any phase of a block column."""

    @abstractmethod
    def column_words(self, s: BlockColumn) -> float:
        """Words moved by a block column: an estimate that assumes whole chunks."""

    def fits(self) -> bool:
        """Whether the budget suffices."""
        copied = not self.is_copied or self.copy_block()[0] > 0
        return copied and all(map(self.fits_column, self.block_columns))

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the factorization takes from its arena."""
        copy = self.copy_memory() if self.is_copied else 0
        return max(copy, *map(self.column_memory, self.block_columns))

    def lower_grid(self) -> Grid:
        """Lay out L by rows. The part above the diagonal takes no space on disk."""
        across = self.whole_segments(sum(self.widths))
        return self.grid([self.height, across], self.segment, "C")

    def source_columns(self, k: int) -> int:
        """Columns read of the matrix or of its copy, padding included."""
        s = self.block_columns[k]
        if self.is_copied:
            return self.wide(s)
        chunk = self.layout.chunks[1]
        return min(self.wide(s), math.ceil(self.n / chunk) * chunk - s.origin)

    def update_bytes(self, k: int) -> tuple[int, int]:
        """Bytes moved by the update of block column `k`: A, L and U are read, U is written."""
        s, itemsize = self.block_columns[k], self.dtype.itemsize
        of_source = itemsize if self.is_copied else self.layout.itemsize(self.dtype)
        source = self.n * self.source_columns(k) * of_source
        written = s.origin * self.tile_columns(s)
        if self.is_spilled(s):
            written += (self.height - s.origin) * self.spill_columns(s)
        return source + self.streamed_words(s) * itemsize, written * itemsize

    def streamed_words(self, s: BlockColumn) -> int:
        """Words of L and U that stream by in an update."""
        if not s.origin:
            return 0
        segments = s.origin // self.segment
        lower = self.segment * (segments * self.n - self.segment * segments * (segments - 1) // 2)
        # A block that begins among the rows of U needs only the rows above it. Other blocks need
        # all rows of U.
        tiles, edges = s.origin // self.rows, self._inner_edges(s)
        inside = range(edges.start, min(edges.stop, tiles), edges.step)
        upper = (len(edges) - len(inside)) * tiles
        if inside:
            upper += len(inside) * (inside[0] + inside[-1]) // 2
        return lower + upper * self.rows * self.tile_columns(s)

    def whole_bytes(self, s: BlockColumn) -> tuple[int, int]:
        """Bytes moved to write the L of a block column that is wholly in memory."""
        copied = 0 if self.is_last(s) else self.wide(s)
        high = self.height - s.origin
        return 0, high * (self.tile_columns(s) + copied) * self.dtype.itemsize

    def scratch_bytes(self) -> int:
        """Disk space of L by rows, the widest spilled block column, and a copy of the matrix."""
        high, itemsize = self.height, self.dtype.itemsize
        lower = sum((high - s.origin) * self.wide(s) for s in self.block_columns[:-1]) * itemsize
        spills = [file_bytes(self.spill_grid(s)) for s in self.block_columns if self.is_spilled(s)]
        copy = file_bytes(self.copy_grid()) if self.is_copied else 0
        return lower + max(spills, default=0) + copy

    def update_flops(self, s: BlockColumn) -> float:
        """Operations that apply all earlier columns to a block column."""
        return flop_weight(self.dtype) * s.width * (2.0 * self.n * s.origin - s.origin**2)

    def lower_flops(self, s: BlockColumn) -> float:
        """Operations that factor an updated block column."""
        return flop_weight(self.dtype) * (s.order * s.width**2 - s.width**3 / 3)

    @abstractmethod
    def flops_left(self, first_panel: int = 0, trailing: int | None = None) -> float:
        """Operations of a run that begins with a panel; block column `trailing` - 1 is updated."""


@functools.lru_cache(1 << 14)
def _block_rows(g: BlockColumnGeometry, s: BlockColumn) -> int:
    itemsize, wide = g.dtype.itemsize, g.wide(s)
    most = g.whole_segments(g.n)
    # The memory without any rows, for a block column that is not whole.
    beside = g.update_memory(s._replace(order=g.n + 1), 0)
    rows = max(g.budget_bytes - beside, 0) // (wide * itemsize) // g.depth * g.depth
    rows = min(rows, most)
    while rows > 0 and g.update_memory(s, rows) > g.budget_bytes:
        rows -= g.depth
    return max(rows, 0)
