"""The geometry of an out-of-core LU: pure arithmetic, before any work."""

import dataclasses
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from outcore._util.budget import too_small
from outcore.errors import InvalidError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES, full_columns, tile_shape
from outcore.linalg._geometry.deal import ALONE, Deal, dealt
from outcore.linalg._geometry.geometry import Tiled
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.pitch import matrix_bytes

DTYPES = ("float32", "float64", "complex64", "complex128")

PIVOT_BYTES = 4
"""Bytes of a row swap in a message."""

RING_BLOCKS = 2
"""Blocks of read-ahead: one in use and one being read, large enough to smooth the disk."""


MOST_BLOCK_TILES = 8
"""Most tiles in one read and one product. Taller products are faster, up to a point."""

BOUNCE_BYTES = (64 << 10, 4 << 20)
"""Least and most memory for unaligned transfers (the ragged edge of a matrix)."""

WORTH_FINER = 1.2
"""Narrower panels must widen the slab by at least this factor."""

TILE_BOUNCE_BYTES = 4 * SLOT_ALIGN_BYTES
"""Memory for tiles that are smaller than the unit of direct I/O."""


def flops(n: int, dtype: np.dtype[Any]) -> float:
    """Real floating-point operations of LU of order `n`: 2n³/3, four times that for complex."""
    return flop_weight(dtype) * 2 * n**3 / 3


def panel_flops(g: "LuGeometry", panel: int) -> float:
    """Operations that factor one panel of m rows and k columns: m k² - k³/3."""
    o = panel * g.columns
    k = min(g.columns, g.n - o)
    return flop_weight(g.dtype) * ((g.n - o) * k**2 - k**3 / 3)


def update_flops(g: "LuGeometry", panel: int) -> float:
    """Operations that apply one panel to one column: k² + 2 (m - k) k."""
    o = panel * g.columns
    k = min(g.columns, g.n - o)
    return flop_weight(g.dtype) * (k**2 + 2 * (g.n - o - k) * k)


def own_flops(g: "LuGeometry", first_panel: int = 0) -> float:
    """Operations that a process does in a run from `first_panel` on."""
    panels = sum(panel_flops(g, K) for K in g.deal.held(first_panel, g.panels))
    return panels + sum(
        update_flops(g, K) * g.held_columns(max(K + 1, first_panel), g.panels)
        for K in range(g.panels)
    )


def stream_blocks(processes: int) -> int:
    """Blocks of read-ahead. One of several processes also sends a block meanwhile."""
    return RING_BLOCKS + (processes > 1)


def ring_blocks(processes: int) -> int:
    """All blocks in memory: those of read-ahead, and those of other processes."""
    return stream_blocks(processes) + (RING_BLOCKS if processes > 1 else 0)


class Slab(NamedTuple):
    """Panels ``first`` to ``last - 1``, factored together in memory."""

    first: int
    last: int


class Slabbed(Tiled, ABC):
    """Quantities of a matrix that is factored by slabs of whole columns."""

    slab_panels: int
    bounce_bytes: int
    budget_bytes: int

    @abstractmethod
    def words_lower_bound(self) -> float:
        """Words that any algorithm must move."""

    @property
    def method(self) -> str:
        """Description of the method, for users."""
        dealt = f", dealt to {self.deal.size} processes" if self.deal.size > 1 else ""
        return (
            f"slabs of {self.slab_panels * self.columns} columns ({len(self.slabs())} of them), "
            f"tiles of {self.rows} x {self.columns}{dealt}"
        )

    @property
    def held_panels(self) -> int:
        """Panels of the widest slab that this process holds."""
        return self.slab_panels if self.deal.size == 1 else self.deal.counts[self.deal.rank]

    @property
    def applied(self) -> int:
        """Panels that are applied to others: of a matrix with few rows, not the last ones."""
        return min(self.panels, math.ceil(self.shape[0] / self.columns))

    def slabs(self, first_panel: int = 0) -> list[Slab]:
        """Cut the panels from `first_panel` on into slabs, narrow ones first.

        If the whole matrix has a cut at `first_panel`, the slabs are those of the whole matrix. A
        resumed run is then identical to an undisturbed one.
        """
        whole = _cut_slabs(0, self.panels, self.slab_panels)
        if any(slab.first == first_panel for slab in whole) or first_panel == self.panels:
            return [slab for slab in whole if slab.first >= first_panel]
        return _cut_slabs(first_panel, self.panels, self.slab_panels)

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of factors that a run from `first_panel` on reads back. Exact."""
        # There may be thousands of slabs and panels, so the sum does not visit all pairs.
        deal = self.deal
        below = (
            len(self.tiles_below(panel)) if deal.owner(panel) == deal.rank else 0
            for panel in range(self.applied)
        )  # fmt: skip
        left_of = list(itertools.accumulate(below, initial=0))
        slabs = self.slabs(first_panel)
        return sum(left_of[min(slab.first, self.applied)] for slab in slabs) * self.tile_bytes


@dataclass(frozen=True)
class LuGeometry(Slabbed):
    """Cuts of a matrix of order `n` for algorithm A within a budget.

    The factors are stored in tiles of ``rows`` x ``columns`` elements. A *panel* is a column of
    tiles. A *slab* is as many panels as fit in memory. Its leading dimension is a multiple of the
    tile height, so every tile has the same layout in memory and on disk.

    The geometry may describe a part of a larger matrix: order `n`, below and right of the first
    ``origin`` rows and columns. Only the first ``factored`` columns of the part are factored
    (`None`: all of them). Rows, panels and tiles are counted from its first.
    """

    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    slab_panels: int
    block_tiles: int
    bounce_bytes: int
    budget_bytes: int
    origin: int = 0
    factored: int | None = None
    deal: Deal = ALONE

    @property
    def width(self) -> int:
        """Columns that are factored."""
        return self.n if self.factored is None else self.factored

    @property
    def ring_bytes(self) -> int:
        """Bytes of read-ahead. One of several processes also sends a block meanwhile."""
        return stream_blocks(self.deal.size) * self.block_tiles * self.tile_bytes

    @property
    def ring_blocks(self) -> int:
        """Blocks of L in memory: those that are read ahead, and those of other processes."""
        return ring_blocks(self.deal.size)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a block that this process receives from another; 0 for one process."""
        return self.block_tiles * self.tile_bytes if self.deal.size > 1 else 0

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the factorization takes from its arena."""
        return self.memory_for(self.held_panels, self.block_tiles)

    def memory_for(self, slab_panels: int, block_tiles: int) -> int:
        """Peak bytes with slabs and blocks of other sizes."""
        slab = matrix_bytes(self.height, slab_panels * self.columns, self.dtype.itemsize)
        ring = self.ring_blocks * block_tiles * self.tile_bytes
        return slab + ring + self.bounce_bytes + TILE_BOUNCE_BYTES

    def sent(self, first_panel: int = 0) -> tuple[int, int]:
        """Bytes and messages that this process sends in a run from `first_panel` on. Exact."""
        deal, block_bytes = self.deal, self.rows * self.columns * self.dtype.itemsize
        nbytes = messages = 0
        for slab in self.slabs(first_panel) if deal.size > 1 else []:
            for panel in (K for K in range(slab.last) if deal.owner(K) == deal.rank):
                if panel >= slab.first:
                    o, e = self.extent(panel)
                    nbytes, messages = nbytes + (e - o) * PIVOT_BYTES, messages + 1
                if panel != slab.last - 1:
                    tiles = len(self.tiles_below(panel))
                    nbytes += tiles * block_bytes
                    messages += math.ceil(tiles / self.block_tiles)
        return nbytes, messages

    def blocks_below(self, panel: int) -> Iterator[range]:
        """Cut the tiles that an update needs into blocks for one read each, as even as possible."""
        return even_blocks(self.tiles_below(panel), self.block_tiles)

    def words_lower_bound(self) -> float:
        """Words that any LU must move: 2n³/(3√M) read (Kwasniewski et al. 2020), n² written."""
        memory_words = self.budget_bytes / self.dtype.itemsize
        reads = max(2 * self.n**3 / (3 * math.sqrt(memory_words)), float(self.n**2))
        return reads + self.n**2


def _cut_slabs(first: int, panels: int, most: int) -> list[Slab]:
    """Cut the panels into slabs of full width, except for the first two.

    A slab reads the L to its left, so cuts further left mean fewer reads. The narrow slab therefore
    comes first. It shares its width with the next slab, which loads meanwhile.
    """
    wide, rest = divmod(panels - first, most)
    shared = most + rest if wide and rest else rest
    ends = [first + shared // 2, first + shared, *range(first + shared + most, panels + 1, most)]
    if shared <= most:
        del ends[0 if shared else slice(0, 2)]
    return [Slab(a, b) for a, b in zip([first, *ends], ends, strict=False)]


def even_blocks(tiles: range, most: int) -> Iterator[range]:
    """Cut tiles into blocks for one read each, at most `most` tiles and as even as possible."""
    first = 0
    for left in range(math.ceil(len(tiles) / most), 0, -1):
        height = math.ceil((len(tiles) - first) / left)
        yield tiles[first : first + height]
        first += height


def tall_block(tile_bytes: int, tiles: int, memory_bytes: int) -> int:
    """Tiles of a block before leftover memory is distributed: the ring takes a 32nd of the memory.

    A block has at least two tiles, even if the ring then takes more.
    """
    tall = max(memory_bytes // 32 // (RING_BLOCKS * tile_bytes), 2)
    return min(tall, MOST_BLOCK_TILES, tiles)


def taller_block(block_tiles: int, tile_bytes: int, tiles: int, left_bytes: int) -> int:
    """Tiles of a block that also takes the leftover memory."""
    return min(block_tiles + left_bytes // (RING_BLOCKS * tile_bytes), MOST_BLOCK_TILES, tiles)


def check_order(title: str, n: int, dtype: np.dtype[Any]) -> None:
    """Raise for a type or an order that factorizations do not have."""
    if dtype.name not in DTYPES:
        raise InvalidError(
            f"{title} works in {', '.join(DTYPES)}, have {dtype}; convert with oc.from_array"
        )
    if n < 1:
        raise InvalidError(f"the order of a matrix is at least 1, have {n}")


@functools.lru_cache(maxsize=64)
def lu_geometry(
    n: int,
    dtype: np.dtype[Any],
    memory_bytes: int,
    tile: tuple[int, int] | None = None,
    deal: Deal = ALONE,
) -> LuGeometry:
    """Cut a matrix for a memory budget.

    Parameters
    ----------
    n, dtype
        Order and element type of the matrix.
    memory_bytes
        The budget.
    tile
        Tile shape of existing factors; by default the budget determines it.
    deal
        The process, if several work together: the slab then has the panels that fit in its own
        memory.

    Raises
    ------
    BudgetError
        If not even one panel of the narrowest tiles fits.
    InvalidError
        If LU does not support this type.
    """
    check_order("LU", n, dtype)
    geometry, need = _cut(n, dtype, memory_bytes, tile, deal)
    if geometry is not None:
        return geometry
    # The buffers grow with the memory: repeat until the needed memory suffices.
    while geometry is None:
        geometry, need = _cut(n, dtype, need, tile, deal)
    where = f" on rank {deal.rank}" if deal.size > 1 else ""
    raise too_small(need, memory_bytes, f"one panel of an LU of order {n} in {dtype.name}{where}")


@functools.lru_cache(maxsize=64)
def dealt_lu_geometry(
    n: int,
    dtype: np.dtype[Any],
    budgets: tuple[int, ...],
    rank: int,
    tile: tuple[int, int] | None = None,
    order: tuple[int, ...] = (),
) -> LuGeometry:
    """Cut a matrix for several processes, as process `rank` sees it.

    Parameters
    ----------
    n, dtype, tile
        As for `lu_geometry`. The smallest budget determines the tiles.
    budgets
        The budget of each process. All of them together hold a slab.
    order
        As for `Deal`.

    Raises
    ------
    BudgetError, InvalidError
        As for `lu_geometry`. All processes raise the same error.
    """
    if len(budgets) == 1:
        return lu_geometry(n, dtype, budgets[0], tile)
    alike = (1,) * len(budgets)
    if tile is None:
        least = budgets.index(min(budgets))
        narrowest = lu_geometry(n, dtype, budgets[least], None, Deal(alike, least))
        tile = narrowest.rows, narrowest.columns
    cuts = [
        lu_geometry(n, dtype, budget, tile, Deal(alike, at)) for at, budget in enumerate(budgets)
    ]
    counts = dealt([g.slab_panels for g in cuts], cuts[0].panels, order)
    return dataclasses.replace(
        cuts[rank],
        slab_panels=sum(counts),
        block_tiles=min(g.block_tiles for g in cuts),
        deal=Deal(counts, rank, order),
    )


def _cut(
    n: int,
    dtype: np.dtype[Any],
    memory_bytes: int,
    tile: tuple[int, int] | None,
    deal: Deal,
) -> tuple[LuGeometry | None, int]:
    """Return the cuts for the largest tiles that fit, or `None`, and the memory for one panel."""
    if tile:
        geometry = _fit(n, dtype, memory_bytes, tile, deal)
        need = geometry.memory_for(1, geometry.block_tiles)
        return (geometry if geometry.slab_panels else None), need
    need = memory_bytes
    full = full_columns(dtype.itemsize)
    for tile_bytes in [TILE_BYTES >> shift for shift in range(16)]:
        found: LuGeometry | None = None
        for columns in (full, full // 2, full // 4):
            shape = tile_shape(n, dtype.itemsize, tile_bytes, columns)
            if tile_bytes > max(memory_bytes // 24, 4096) and shape[1] > 8:
                break
            geometry = _fit(n, dtype, memory_bytes, shape, deal)
            need = geometry.memory_for(1, geometry.block_tiles)
            if not found or _is_worth_it(geometry, found):
                found = geometry
        if found and found.slab_panels:
            return found, memory_bytes
    return None, need


def _is_worth_it(finer: LuGeometry, g: LuGeometry) -> bool:
    """Whether narrower panels allow a much wider slab, when memory holds few panels.

    Products with half as many inner columns are a little slower.
    """
    width, finer_width = g.slab_panels * g.columns, finer.slab_panels * finer.columns
    return finer_width >= max(WORTH_FINER * width, 1) and g.slab_panels < g.panels


def _fit(
    n: int, dtype: np.dtype[Any], memory_bytes: int, shape: tuple[int, int], deal: Deal
) -> LuGeometry:
    """Allot the shares of the ring and the bounce buffers, and the rest to the slab."""
    bounce = lu_bounce_bytes(memory_bytes)
    bare = LuGeometry(n, dtype, *shape, 0, 1, bounce, memory_bytes, deal=deal)
    return fit_slabs(bare, memory_bytes)


def lu_bounce_bytes(memory_bytes: int) -> int:
    """Memory for unaligned transfers of the matrix."""
    least, most = BOUNCE_BYTES
    return pages(min(most, max(least, memory_bytes // 32)))


def fit_slabs(bare: LuGeometry, memory_bytes: int) -> LuGeometry:
    """Allot the share of the ring, and the rest to the slab: no panels if none fits."""
    dtype = bare.dtype
    tall = tall_block(bare.tile_bytes, bare.tiles, memory_bytes)
    panel_bytes = bare.pitch * bare.columns * dtype.itemsize
    for block_tiles in (tall, 1):
        most = (memory_bytes - bare.memory_for(0, block_tiles)) // panel_bytes
        for panels in range(min(most, bare.panels), 0, -1):
            left = memory_bytes - bare.memory_for(panels, block_tiles)
            if left >= 0:
                # Memory that the slab leaves over makes the blocks taller.
                left = left * RING_BLOCKS // bare.ring_blocks
                taller = taller_block(block_tiles, bare.tile_bytes, bare.tiles, left)
                return dataclasses.replace(bare, slab_panels=panels, block_tiles=taller)
    return bare


def solve_bytes_read(n: int, dtype: np.dtype[Any], tile: tuple[int, int]) -> int:
    """Bytes of factors read by one pass over L and one over U; the diagonal tiles twice. Exact."""
    rows, columns = tile
    tile_bytes = pages(rows * columns * dtype.itemsize)
    return -(-n // columns) * (-(-n // rows) + 1) * tile_bytes


def solve_flops(n: int, dtype: np.dtype[Any], columns: int) -> float:
    """Real operations of solving for some columns: 2n² each, four times that for complex."""
    return 2.0 * n**2 * columns * flop_weight(dtype)
