"""The geometry of an out-of-core Cholesky factorization, and what it costs: pure arithmetic."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.errors import BudgetError, InvalidError
from outcore.linalg.cholesky.growing_slabs import Triangle, cut_slabs
from outcore.linalg.cost import Cost, Phase, Problem, flop_weight
from outcore.linalg.lu.plan import DTYPES, TILE_BOUNCE_BYTES, Slab
from outcore.sizes import format_bytes
from outcore.zarr_format import MAX_TILE_BYTES, MAX_TILES, SLOT_ALIGN_BYTES, tile_shape

MOST_BLOCK_ROWS = 4096
"""Products with taller blocks, or with groups as wide, are no faster."""

RING_BLOCKS = (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""Blocks in memory that are tried: those next to the diagonal, one in use and one being read."""

_MORE_RING_BLOCKS = 6

# How much more may be moved for the tallest blocks and widest groups, and for panels twice as wide.
_TALLER = 1.02
_WIDER = 1.10

# The largest gap that a read goes over, and what one takes more at the edges of the disk's blocks.
_MOST_GAP_BYTES = 128 << 10
_ROUNDING_BYTES = 8 << 10

_SECTOR_BYTES = 512

_BOUNCE_BYTES = (64 << 10, (1 << 20) + _ROUNDING_BYTES)
"""Least and most memory for transfers that are not aligned: where the matrix's chunks begin higher
than what is needed of them, and at its ragged edge."""

MOST_SCRATCH_BYTES = 256 << 10
"""Memory for absolute values, which the processor keeps near itself."""

# Shares of the speed of a large matrix product that the other steps reach, measured with OpenBLAS
# 0.3.30, and seconds for each byte whose absolute values are summed.
_PANEL_SHARE = 0.5
_SUM_S_PER_BYTE = 0.15e-9


def flops(n: int, dtype: np.dtype[Any]) -> float:
    """Real floating-point operations of order `n`: n³/3, four times that for complex."""
    return flop_weight(dtype) * n**3 / 3


def panel_flops(g: "CholeskyGeometry", panel: int) -> float:
    """Operations of factoring one panel of m rows and k columns: k³/3 + (m - k) k²."""
    o, e = g.extent(panel)
    k = e - o
    return flop_weight(g.dtype) * (k**3 / 3 + (g.n - e) * k**2)


def update_flops(g: "CholeskyGeometry", panel: int) -> float:
    """Operations of applying one column of L to a panel of m rows: k² + 2 (m - k) k."""
    o, e = g.extent(panel)
    k = e - o
    return flop_weight(g.dtype) * (k**2 + 2 * (g.n - e) * k)


@dataclass(frozen=True)
class CholeskyGeometry:
    """How a matrix of order `n` is cut for the left-looking order within a budget.

    L is stored in tiles of ``rows`` x ``columns`` elements, those on and below the diagonal only.
    A *panel* is a column of tiles. ``block_tiles`` tiles below each other are a *block*: rows of L
    are read block by block. A *slab* is as many panels as fit in memory, the further right, the
    more. In memory the panels of a slab that begin in the same ``group_tiles`` tiles are a *group*:
    a matrix of all rows from the first of these tiles down. A block holds whole groups of tiles.

    Attributes
    ----------
    ring_blocks
        Blocks of L in memory.
    ends
        For each panel, where a slab that begins with it ends.
    slab_bytes
        Of the largest of those slabs.
    """

    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    group_tiles: int
    block_tiles: int
    ring_blocks: int
    ends: tuple[int, ...]
    slab_bytes: int
    bounce_bytes: int
    budget_bytes: int

    @property
    def tiles(self) -> int:
        """Tiles in the first panel."""
        return math.ceil(self.n / self.rows)

    @property
    def panels(self) -> int:
        """Panels in the matrix."""
        return math.ceil(self.n / self.columns)

    @property
    def height(self) -> int:
        """Rows of the matrix, rounded up to whole tiles."""
        return self.tiles * self.rows

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile on disk: whole pages."""
        return self.rows * self.columns * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.block_tiles * self.tile_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of the blocks of L in memory."""
        return self.ring_blocks * self.block_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes for the absolute values of some columns of a tile."""
        return min(self.tile_bytes, max(MOST_SCRATCH_BYTES, self.rows * self.dtype.itemsize))

    @property
    def memory_bytes(self) -> int:
        """Bytes that the factorization takes from its arena at most."""
        beside = self.scratch_bytes + self.bounce_bytes + TILE_BOUNCE_BYTES
        return self.slab_bytes + self.ring_bytes + beside

    @property
    def slab_panels(self) -> int:
        """Panels of the widest slab."""
        return max(end - first for first, end in enumerate(self.ends))

    def extent(self, panel: int) -> tuple[int, int]:
        """First column of a panel, and the one after its last."""
        return panel * self.columns, min((panel + 1) * self.columns, self.n)

    def first_tile(self, panel: int) -> int:
        """Tile of a panel that holds its diagonal block."""
        return panel * self.columns // self.rows

    def slabs(self, first_panel: int = 0) -> list[Slab]:
        """Cut the panels from `first_panel` on into slabs.

        From where one of these begins on, a resumed run cuts as an undisturbed one would have done.
        """
        found = []
        while first_panel < self.panels:
            found.append(Slab(first_panel, self.ends[first_panel]))
            first_panel = self.ends[first_panel]
        return found

    def groups(self, slab: Slab) -> list[range]:
        """Cut a slab's panels into groups."""
        step = self.group_tiles * self.rows // self.columns
        edges = [slab.first, *range((slab.first // step + 1) * step, slab.last, step), slab.last]
        return [range(a, b) for a, b in itertools.pairwise(edges)]

    def blocks(self, slab: Slab) -> list[range]:
        """Cut the tiles of an earlier panel that a slab needs into blocks."""
        first, step = self.first_tile(slab.first), self.block_tiles
        edges = [first, *range((first // step + 1) * step, self.tiles, step), self.tiles]
        return [range(a, b) for a, b in itertools.pairwise(edges)]

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of L read back while factoring from `first_panel` on. Exact."""
        tiles = sum(
            slab.first * (self.tiles - self.first_tile(slab.first))
            for slab in self.slabs(first_panel)
        )
        return tiles * self.tile_bytes

    def stored_tiles(self, first_panel: int = 0) -> int:
        """Tiles of L from `first_panel` on."""
        panels = range(first_panel, self.panels)
        return sum(self.tiles - self.first_tile(panel) for panel in panels)

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes of L written while factoring from `first_panel` on. Exact."""
        return self.stored_tiles(first_panel) * self.tile_bytes

    def matrix_boxes(self, panels: range, chunk_rows: int) -> Iterator[tuple[slice, slice]]:
        """Cut what panels need of the matrix into boxes, each to be read at once.

        Of chunks of which not all rows are read, the columns are read with gaps between them, in
        boxes that fit a bounce buffer.
        """
        left, right = self.extent(panels[0])[0], self.extent(panels[-1])[1]
        for rows, step in self._matrix_rows(panels, chunk_rows):
            for at in range(left, right, step):
                yield rows, slice(at, min(at + step, right))

    def _matrix_rows(self, panels: range, chunk_rows: int) -> Iterator[tuple[slice, int]]:
        """Rows that panels need of the matrix, and how many of their columns a box has."""
        top = self.first_tile(panels[0]) * self.rows
        most = self.bounce_bytes - _ROUNDING_BYTES
        step = max(most // (chunk_rows * self.dtype.itemsize), 1)
        whole = min(-(-top // chunk_rows) * chunk_rows, self.n)
        ragged = max(self.n // chunk_rows * chunk_rows, whole)
        if whole < ragged:
            yield slice(whole, ragged), self.n
        for rows in (slice(top, whole), slice(ragged, self.n)):
            if rows.start < rows.stop:
                yield rows, step

    def matrix_bytes_read(self, first_panel: int = 0, chunk_rows: int = 0) -> int:
        """Bytes of A read in factoring from `first_panel` on.

        Exact for an A in ``order="F"``, in chunks of `chunk_rows` (if 0, those it gets by default)
        whose order is such that columns end with a block of the disk; else a few more.
        """
        itemsize = self.dtype.itemsize
        chunk_rows = chunk_rows or tile_shape(self.n, itemsize)[0]
        total = 0
        for panel in range(first_panel, self.panels):
            left, right = self.extent(panel)
            k = right - left
            for rows, step in self._matrix_rows(range(panel, panel + 1), chunk_rows):
                gap = -(rows.stop - rows.start) % chunk_rows
                # In each box, what lies between its columns.
                gaps = k - math.ceil(k / step) if gap * itemsize <= _MOST_GAP_BYTES else 0
                total += ((rows.stop - rows.start) * k + gap * gaps) * itemsize
        return total

    def words_moved(self) -> int:
        """Words read and written in all."""
        total = self.matrix_bytes_read() + self.factor_bytes_read() + self.factor_bytes_written()
        return total // self.dtype.itemsize

    def words_lower_bound(self) -> float:
        """Words that any algorithm must move.

        n³/(3√2 √M) read (Beaumont et al. 2022), and n²/2 at the least; n²/2 written.
        """
        memory_words = self.budget_bytes / self.dtype.itemsize
        reads = max(self.n**3 / (3 * math.sqrt(2 * memory_words)), self.n**2 / 2)
        return reads + self.n**2 / 2


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
        Tile shape of factors that exist already; otherwise it is chosen for the budget.

    Raises
    ------
    BudgetError
        If not even the narrowest panel fits.
    InvalidError
        If there is no Cholesky factorization of this type.
    """
    if dtype.name not in DTYPES:
        raise InvalidError(
            f"Cholesky works in {', '.join(DTYPES)}, have {dtype}; convert with oc.from_array"
        )
    if n < 1:
        raise InvalidError(f"the order of a matrix is at least 1, have {n}")
    best = None
    shapes = [tile] if tile else _tile_shapes(n, dtype.itemsize)
    for shape in shapes:
        g = _cut(n, dtype, memory_bytes, shape)
        if best and (not g or best.words_moved() <= _WIDER * g.words_moved()):
            return best
        best = g or best
    if best:
        return best
    need = min(_least_bytes(n, dtype, shape) for shape in shapes)
    raise BudgetError(
        f"need {need} bytes ({format_bytes(need)}) of memory for one panel of a Cholesky "
        f"factorization of order {n} in {dtype.name}, have {memory_bytes} "
        f"({format_bytes(memory_bytes)}); raise memory="
    )


def _tile_shapes(n: int, itemsize: int) -> list[tuple[int, int]]:
    """Shapes of tiles, wide ones first.

    Tiles are low, so that little is stored and read above the diagonal, but their columns are
    whole pages, or whole blocks of most disks where pages would be a large part of the matrix.
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


def _least_bytes(n: int, dtype: np.dtype[Any], shape: tuple[int, int]) -> int:
    """Memory for slabs of one panel."""
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, RING_BLOCKS[0], (), 0, 0, 0)
    fixed = bare.height * bare.columns * dtype.itemsize + bare.memory_bytes
    need = fixed
    while need < fixed + _bounce_bytes(need):
        need = fixed + _bounce_bytes(need)
    return need


def _cut(
    n: int, dtype: np.dtype[Any], memory_bytes: int, shape: tuple[int, int]
) -> CholeskyGeometry | None:
    """Cut for tiles of one shape: for the fastest products among those that move hardly more."""
    bounce = _bounce_bytes(memory_bytes)
    bare = CholeskyGeometry(n, dtype, *shape, 1, 1, 0, (), 0, bounce, memory_bytes)
    heights = [1]
    while 2 * heights[-1] * bare.rows <= min(MOST_BLOCK_ROWS, bare.height):
        heights.append(2 * heights[-1])
    tried = [
        _fit(dataclasses.replace(bare, group_tiles=group, block_tiles=block))
        for group, block in itertools.product(heights, heights)
        if group <= block
    ]
    found = [g for g in tried if g]
    if not found:
        return None
    moved = {g: g.factor_bytes_read() for g in found}
    beside = bare.matrix_bytes_read() + bare.factor_bytes_written()
    most = _TALLER * (min(moved.values()) + beside)
    # The BLAS copies both factors of a product, and each element is used as often as the other
    # factor has rows or columns.
    return min(
        (g for g in found if moved[g] + beside <= most),
        key=lambda g: 1 / g.block_tiles + 1 / g.group_tiles,
    )


def _fit(bare: CholeskyGeometry) -> CholeskyGeometry | None:
    """Share the memory between slabs and blocks of L so that least is read."""
    t = Triangle(
        bare.panels, bare.tiles, bare.rows, bare.columns, bare.group_tiles, bare.block_tiles
    )
    best = None
    for ring_blocks in RING_BLOCKS:
        g = dataclasses.replace(bare, ring_blocks=ring_blocks)
        words = (g.budget_bytes - g.memory_bytes) // g.dtype.itemsize
        cuts = cut_slabs(t, words, ring_blocks - 1) if words > 0 else None
        if cuts is None:
            break
        slab_bytes = cuts.most_words * g.dtype.itemsize
        g = dataclasses.replace(g, ends=cuts.ends, slab_bytes=slab_bytes)
        if best is None or g.factor_bytes_read() < best.factor_bytes_read():
            best = g
        if not cuts.is_short_of_blocks:
            break
    if best is None:
        return None
    # What slabs do not use is for reading further ahead.
    over = (best.budget_bytes - best.memory_bytes) // best.block_bytes
    return dataclasses.replace(best, ring_blocks=best.ring_blocks + min(over, _MORE_RING_BLOCKS))


def cholesky_solve_bytes_read(n: int, dtype: np.dtype[Any], tile: tuple[int, int]) -> int:
    """Bytes of L read by one pass forward and one backward. Exact."""
    rows, columns = tile
    tiles = math.ceil(n / rows)
    stored = sum(tiles - first // rows for first in range(0, n, columns))
    return 2 * stored * rows * columns * dtype.itemsize


def cholesky_geometry_of(problem: Problem) -> CholeskyGeometry:
    """Cut a matrix as `cho_factor` does: what takes the space of the matrix has its tiles."""
    overwrite_a = problem.option("overwrite_a", False)
    tile = tile_shape(problem.n, problem.dtype.itemsize) if overwrite_a else None
    return cholesky_geometry(problem.n, problem.dtype, problem.memory_bytes, tile)


def cholesky_cost(problem: Problem) -> Cost:
    """Plan `cho_factor`."""
    n, dtype = problem.n, problem.dtype
    overwrite_a = problem.option("overwrite_a", False)
    g = cholesky_geometry_of(problem)
    slabs = g.slabs()
    # A slab's last panel leaves, and the next one's comes in, with nothing to do meanwhile.
    ends = sum((g.tiles - g.first_tile(slab.last - 1)) * g.tile_bytes for slab in slabs)
    phase = Phase(
        dtype=dtype,
        bytes_read=g.matrix_bytes_read() + g.factor_bytes_read(),
        bytes_written=g.factor_bytes_written(),
        flops=flops(n, dtype),
        gemm_flops=_gemm_flops(g),
        other_seconds=n**2 / 2 * dtype.itemsize * _SUM_S_PER_BYTE,
        ends_read_bytes=ends,
        ends_written_bytes=ends,
    )
    columns = max(slab.last - slab.first for slab in slabs) * g.columns
    spare = g.slab_panels * g.tiles
    return Cost(
        method=f"{len(slabs)} slabs of up to {columns} columns, tiles of {g.rows} x {g.columns}",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=(spare if overwrite_a else g.stored_tiles()) * g.tile_bytes,
        words_lower_bound=g.words_lower_bound(),
        phases=(phase,),
    )


def _gemm_flops(g: CholeskyGeometry) -> float:
    """Operations, the slow ones weighted by how much slower than products they are."""
    slow = sum(panel_flops(g, panel) for panel in range(g.panels))
    return flops(g.n, g.dtype) + slow * (1 / _PANEL_SHARE - 1)
