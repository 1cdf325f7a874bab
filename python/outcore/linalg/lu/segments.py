"""How a matrix is cut where rows are gathered by lists: tiles, and segments of rows.

Columns that rows are gathered from are kept in row-major chunks of a tile's rows by a *segment* of
columns: a row of a chunk is whole pages, and a list of rows reads each by itself.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from outcore._core import Grid
from outcore.errors import BudgetError
from outcore.linalg.factors.geometry import Tiled
from outcore.linalg.grains import pages
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES, LuGeometry, lu_bounce_bytes
from outcore.sizes import format_bytes
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata

TRANSPOSE_BYTES = (4 * SLOT_ALIGN_BYTES, 1 << 20)
"""Least and most memory in which rows become columns on their way to a file."""

LEAST_SEGMENTS = 16
"""Where pages would make fewer, segments are shorter, and go through the page cache."""

LEAST_SEGMENT_BYTES = 64

# What a step to smaller operands, or to shorter requests, must save in words.
_WORTH = 1.03
_FULL_ROWS, _FULL_COLUMNS, _FULL_SEGMENT_BYTES = 512, 128, 8 << 10


class Layout(NamedTuple):
    """What of the layout of a matrix on disk matters.

    Attributes
    ----------
    order, chunks
        As its metadata has them.
    stored
        Type of its elements, where it is not that of the arithmetic.
    """

    order: str
    chunks: tuple[int, ...]
    stored: "np.dtype[Any] | None" = None

    @classmethod
    def of(cls, metadata: Metadata, dtype: "np.dtype[Any] | None" = None) -> "Layout":
        """Take it from the metadata of a matrix that is computed with in some type."""
        is_same = dtype is None or dtype == metadata.dtype
        return cls(metadata.order, metadata.chunks, None if is_same else metadata.dtype)

    def itemsize(self, dtype: "np.dtype[Any]") -> int:
        """Bytes of an element on disk, of a matrix that is computed with in this type."""
        return dtype.itemsize if self.stored is None else self.stored.itemsize

    def transposed(self) -> "Layout":
        """Layout of the transpose."""
        return Layout("F" if self.order == "C" else "C", self.chunks[::-1], self.stored)

    def has_rows(self, n: int, dtype: np.dtype[Any]) -> bool:
        """Whether lists of its rows are read as well as those of segments."""
        across = self.chunks[1] * self.itemsize(dtype)
        return self.order == "C" and across % unit_bytes(n, dtype) == 0


def unit_bytes(n: int, dtype: np.dtype[Any]) -> int:
    """Bytes of which segments are multiples: pages, where these are short beside a row."""
    unit = SLOT_ALIGN_BYTES
    while unit > LEAST_SEGMENT_BYTES and n * dtype.itemsize < LEAST_SEGMENTS * unit:
        unit //= 2
    return unit


@dataclass(frozen=True)
class SegmentedGeometry(Tiled, ABC):
    """How a matrix of order `n` is cut within a budget.

    Attributes
    ----------
    rows, columns
        Of a tile of the factors; blocks of rows in an update are as high.
    segment
        Columns of a row-major chunk: a multiple of ``rows``.
    widths
        Columns that are factored at one level, but for the last: multiples of `segment`.
    layout
        Of the matrix.
    is_copied
        Whether its columns from number ``copied_from`` on are copied to segments first; otherwise
        its own rows are gathered.
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
        """Give what a stopped run goes on with, whatever its budget; tiles are known anyway."""
        return {
            "segment": self.segment, "widths": list(self.widths), "is_copied": self.is_copied,
        }  # fmt: skip

    @abstractmethod
    def fits(self) -> bool:
        """Whether the budget suffices."""

    @property
    @abstractmethod
    def slab_panels(self) -> int:
        """Panels that are factored together at most."""

    @property
    def bounce_bytes(self) -> int:
        """Memory for transfers of the matrix that are not aligned."""
        return lu_bounce_bytes(self.budget_bytes)

    @property
    def transpose_bytes(self) -> int:
        """Memory of each file that rows are written to as columns."""
        least, most = TRANSPOSE_BYTES
        return pages(min(max(self.budget_bytes // 64, least), most))

    @property
    @abstractmethod
    def copied_from(self) -> int:
        """First column that is copied, of a matrix that is."""

    def norm_bytes(self, columns: int) -> int:
        """Memory for sums over rows and over columns of A."""
        return pages(8 * columns) + pages(8 * self.rows)

    def copy_block(self) -> tuple[int, int]:
        """Rows and columns of the blocks in which the matrix is copied: whole chunks, if they fit.

        Two of them share the memory.
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
        """Memory in which the matrix is copied."""
        rows, columns = self.copy_block()
        blocks = 2 * pages(rows * columns * self.dtype.itemsize)
        return blocks + self.norm_bytes(columns) + self.bounce_bytes + TILE_BOUNCE_BYTES

    def copy_grid(self) -> Grid:
        """Lay out the copy."""
        rest = self.whole_segments(self.n - self.copied_from)
        return self.grid([self.height, rest], self.segment, "C")

    def copy_bytes(self) -> tuple[int, int]:
        """Bytes moved in copying the matrix to segments."""
        rest, itemsize = self.n - self.copied_from, self.layout.itemsize(self.dtype)
        rows, columns = (math.ceil(self.n / chunk) * chunk for chunk in self.layout.chunks)
        written = self.height * self.whole_segments(rest)
        read = rows * (columns - self.copied_from)
        return read * itemsize, written * self.dtype.itemsize

    def grid(self, shape: list[int], columns: int, order: str) -> Grid:
        """Lay out a workspace in chunks as high as tiles."""
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

        `trailing` is the last number that the journal has noted; `None`: a run from its beginning.
        """

    @abstractmethod
    def scratch_bytes(self) -> int:
        """Most disk space beside the factors, at one time."""

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes read back."""
        return self.bytes_moved(first_panel)[0] - self.n**2 * self.dtype.itemsize

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes written."""
        return self.bytes_moved(first_panel)[1]

    def words_moved(self) -> int:
        """Words read and written in all."""
        return sum(self.bytes_moved()) // self.dtype.itemsize

    def words_lower_bound(self) -> float:
        """Words that any LU must move."""
        tile = self.rows, self.columns
        return LuGeometry(self.n, self.dtype, *tile, 1, 1, 0, self.budget_bytes).words_lower_bound()

    def slowness(self) -> float:
        """How much slower smaller products and shorter requests make a word."""
        # In a small matrix everything is small.
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
    """Check that the cuts of a run before fit the budget of today.

    Raises
    ------
    BudgetError
        If they need more.
    """
    if g.fits():
        return g
    need = g.budget_bytes
    while not dataclasses.replace(g, budget_bytes=need).fits():
        need += need // 32
    raise BudgetError(
        f"the stopped run was begun with more memory: its cuts need {need} bytes "
        f"({format_bytes(need)}), have {g.budget_bytes} ({format_bytes(g.budget_bytes)}); raise "
        "memory=, or pass resume=False to begin anew"
    )
