"""The cuts of a matrix whose rows are gathered by lists: tiles, and segments of rows.

Columns from which rows are gathered are kept in row-major chunks, of a tile's rows by a *segment*
of columns. A row of a chunk is whole pages, and a list of rows reads each row separately.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from outcore._core import Grid
from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, Metadata
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES, LuGeometry, lu_bounce_bytes
from outcore.linalg._geometry.geometry import Tiled
from outcore.linalg._tiles.grains import pages

TRANSPOSE_BYTES = (4 * SLOT_ALIGN_BYTES, 1 << 20)
"""Least and most memory that turns rows into columns before they are written."""

LEAST_SEGMENTS = 16
"""If page-sized segments were fewer, segments are shorter, and use the page cache."""

LEAST_SEGMENT_BYTES = 64

# Factor in words that smaller operands or shorter requests must save to be worth it.
_WORTH = 1.03
_FULL_ROWS, _FULL_COLUMNS, _FULL_SEGMENT_BYTES = 512, 128, 8 << 10


class Layout(NamedTuple):
    """The relevant parts of a matrix's layout on disk.

    Attributes
    ----------
    order, chunks
        As in its metadata.
    stored
        Type of its elements, if the arithmetic uses another type.
    """

    order: str
    chunks: tuple[int, ...]
    stored: "np.dtype[Any] | None" = None

    @classmethod
    def of(cls, metadata: Metadata, dtype: "np.dtype[Any] | None" = None) -> "Layout":
        """Take the layout from the metadata of a matrix, for arithmetic in `dtype`."""
        is_same = dtype is None or dtype == metadata.dtype
        return cls(metadata.order, metadata.chunks, None if is_same else metadata.dtype)

    def itemsize(self, dtype: "np.dtype[Any]") -> int:
        """Bytes of an element on disk, for arithmetic in `dtype`."""
        return dtype.itemsize if self.stored is None else self.stored.itemsize

    def transposed(self) -> "Layout":
        """Layout of the transpose."""
        return Layout("F" if self.order == "C" else "C", self.chunks[::-1], self.stored)

    def has_rows(self, n: int, dtype: np.dtype[Any]) -> bool:
        """Whether lists of its rows are read as efficiently as those of segments."""
        across = self.chunks[1] * self.itemsize(dtype)
        return self.order == "C" and across % unit_bytes(n, dtype) == 0


def unit_bytes(n: int, dtype: np.dtype[Any]) -> int:
    """Return the unit of segment lengths in bytes: a page, or less for a small matrix."""
    unit = SLOT_ALIGN_BYTES
    while unit > LEAST_SEGMENT_BYTES and n * dtype.itemsize < LEAST_SEGMENTS * unit:
        unit //= 2
    return unit


@dataclass(frozen=True)
class SegmentedGeometry(Tiled, ABC):
    """Cuts of a matrix of order `n` within a budget.

    Attributes
    ----------
    rows, columns
        Shape of a tile of the factors. Blocks of rows in an update have the same height.
    segment
        Columns of a row-major chunk, a multiple of ``rows``.
    widths
        Columns factored at each level except the last: multiples of `segment`.
    layout
        Layout of the matrix.
    is_copied
        Whether its columns from ``copied_from`` on are first copied to segments. Otherwise its own
        rows are gathered.
    """

    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    segment: int
    widths: tuple[int, ...]
    layout: Layout
    is_copied: bool
    budget_bytes: int

    def cuts(self) -> dict[str, Any]:
        """Return the cuts that a resumed run keeps at any budget, without the tiles."""
        return {
            "segment": self.segment, "widths": list(self.widths), "is_copied": self.is_copied,
        }  # fmt: skip

    @abstractmethod
    def fits(self) -> bool:
        """Whether the budget suffices."""

    @property
    @abstractmethod
    def slab_panels(self) -> int:
        """Most panels factored together."""

    @property
    def bounce_bytes(self) -> int:
        """Memory for unaligned transfers of the matrix."""
        return lu_bounce_bytes(self.budget_bytes)

    @property
    def transpose_bytes(self) -> int:
        """Memory of each file whose rows are written as columns."""
        least, most = TRANSPOSE_BYTES
        return pages(min(max(self.budget_bytes // 64, least), most))

    @property
    @abstractmethod
    def copied_from(self) -> int:
        """First column that is copied, if the matrix is copied."""

    def norm_bytes(self, columns: int) -> int:
        """Memory for sums over rows and over columns of A."""
        return pages(8 * columns) + pages(8 * self.rows)

    def copy_block(self) -> tuple[int, int]:
        """Rows and columns of the blocks in which the matrix is copied: whole chunks if they fit.

        Two blocks share the memory.
        """
        rows, columns = self.layout.chunks
        wide = math.lcm(self.segment, columns)
        if self._copy_rows(wide) < self.rows:
            wide = self.segment
        most = self._copy_rows(wide)
        if (high := math.lcm(self.rows, rows)) <= most:
            return most // high * high, wide
        return most // self.rows * self.rows, wide

    def _copy_rows(self, columns: int) -> int:
        bounce = self.bounce_bytes + TILE_BOUNCE_BYTES
        left = self.budget_bytes - self.norm_bytes(columns) - bounce
        return min(left // (2 * columns * self.dtype.itemsize), self.height)

    def copy_memory(self) -> int:
        """Memory for the copy of the matrix."""
        rows, columns = self.copy_block()
        blocks = 2 * pages(rows * columns * self.dtype.itemsize)
        return blocks + self.norm_bytes(columns) + self.bounce_bytes + TILE_BOUNCE_BYTES

    def copy_grid(self) -> Grid:
        """Grid of the copy."""
        rest = self.whole_segments(self.n - self.copied_from)
        return self.grid([self.height, rest], self.segment, "C")

    def copy_bytes(self) -> tuple[int, int]:
        """Bytes moved by the copy of the matrix to segments."""
        rest, itemsize = self.n - self.copied_from, self.layout.itemsize(self.dtype)
        rows, columns = (math.ceil(self.n / chunk) * chunk for chunk in self.layout.chunks)
        written = self.height * self.whole_segments(rest)
        read = rows * (columns - self.copied_from)
        return read * itemsize, written * self.dtype.itemsize

    def grid(self, shape: list[int], columns: int, order: str) -> Grid:
        """Grid of a workspace, in chunks as high as tiles."""
        chunk = [self.rows, columns]
        return Grid(shape, chunk, self.dtype.itemsize, order, "column-major", SLOT_ALIGN_BYTES)

    def whole_rows(self, rows: int) -> int:
        """Round up to whole tiles."""
        return math.ceil(rows / self.rows) * self.rows

    def whole_segments(self, columns: int) -> int:
        """Round up to whole segments."""
        return math.ceil(columns / self.segment) * self.segment

    @abstractmethod
    def bytes_moved(self, first_panel: int = 0, trailing: int | None = None) -> tuple[int, int]:
        """Bytes read and written by a run that begins with a panel, exact for whole chunks.

        `trailing` is the last number in the journal; `None` stands for a run from its beginning.
        """

    @abstractmethod
    def scratch_bytes(self) -> int:
        """Peak disk space beside the factors."""

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes read back."""
        return self.bytes_moved(first_panel)[0] - self.n**2 * self.dtype.itemsize

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes written."""
        return self.bytes_moved(first_panel)[1]

    def words_moved(self) -> int:
        """Total words read and written."""
        return sum(self.bytes_moved()) // self.dtype.itemsize

    def words_lower_bound(self) -> float:
        """Words that any LU must move."""
        tile = self.rows, self.columns
        return LuGeometry(self.n, self.dtype, *tile, 1, 1, 0, self.budget_bytes).words_lower_bound()

    def slowness(self) -> float:
        """Factor by which smaller products and shorter requests slow down each word."""
        # The full sizes are smaller for a small matrix.
        rows, columns = min(_FULL_ROWS, self.n // 16), min(_FULL_COLUMNS, self.n // 32)
        segment_bytes = min(_FULL_SEGMENT_BYTES, self.n // 16 * self.dtype.itemsize)
        steps = max(rows / self.rows, 1) * max(columns / self.columns, 1)
        steps *= max(segment_bytes / (self.segment * self.dtype.itemsize), 1)
        return float(_WORTH ** math.log2(steps))


def file_bytes(grid: Grid) -> int:
    """Length of the files of a grid."""
    return grid.shards * grid.shard_bytes


G = TypeVar("G", bound=SegmentedGeometry)


def cut_again(g: G) -> G:
    """Return the cuts of an earlier run, if they fit the present budget.

    Raises
    ------
    BudgetError
        If they need more memory.
    """
    if g.fits():
        return g
    need = g.budget_bytes
    while not dataclasses.replace(g, budget_bytes=need).fits():
        need += need // 32
    raise BudgetError(
        f"the stopped run was begun with more memory: its cuts need {need} bytes "
        f"({format_bytes(need)}), have {g.budget_bytes} ({format_bytes(g.budget_bytes)}); raise "
        "memory=, or pass resume=False to restart"
    )
