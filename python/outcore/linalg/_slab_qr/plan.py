"""The geometry of an out-of-core QR by slabs, and of solves with it: pure arithmetic."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore._util.streams import Box
from outcore.errors import InvalidError
from outcore.layout.zarr_format import (
    MAX_TILE_BYTES,
    MAX_TILES,
    SLOT_ALIGN_BYTES,
    TILE_BYTES,
    full_columns,
)
from outcore.linalg._geometry.factor_plan import (
    BOUNCE_BYTES,
    DTYPES,
    TILE_BOUNCE_BYTES,
    WORTH_FINER,
    Slabbed,
)
from outcore.linalg._geometry.geometry import Tiled
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Phase, flop_weight
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.pitch import matrix_bytes

LEAF_COLUMNS = 32
"""Columns factored in one LAPACK call."""

FEW_PANELS = 4
"""With fewer panels in a slab, narrower panels may pay off, since the ring holds one."""

TILES_OF_BUDGET = 48
"""A tile takes at most this part of the budget, unless even the smallest tile is larger."""

AHEAD_TILES = 2
"""Tiles of the ring beyond one panel: one in use and one being read."""

PROBES = 8
"""Random vectors solved for along with b, to estimate the condition of R."""

# Shares of the speed of a large matrix product that other steps reach.
_PANEL_SHARE = 0.35
_GRAM_SHARE = 0.6


class QrTiles(Tiled):
    """Quantities that follow from the tiles of QR factors of an (m, n) matrix."""

    m: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.m, self.n

    @property
    def ring_bytes(self) -> int:
        """Bytes of the read-ahead and of the panel in use."""
        return (self.tiles + AHEAD_TILES) * self.tile_bytes

    def reflections(self, panel: int) -> int:
        """Reflections of a panel."""
        return min(max(min(self.shape) - panel * self.columns, 0), self.columns)

    def box(self, place: int, tile: int) -> Box:
        """Rows and columns of a tile of a panel at this place of its file."""
        return (
            slice(tile * self.rows, (tile + 1) * self.rows),
            slice(place * self.columns, (place + 1) * self.columns),
        )

    def blocks(self, panel: int, take: Callable[[], Matrix]) -> Iterator[tuple[int, Matrix]]:
        """Take a panel of reflections: (row counted from the panel's first, tile)."""
        o, k = panel * self.columns, self.reflections(panel)
        for tile in self.tiles_below(panel):
            first = tile * self.rows
            top = max(o, first)
            # No variable here keeps the tile, so its memory is freed after its second use.
            yield top - o, take()[top - first : self.m - first, :k]


@dataclass(frozen=True)
class SlabQrGeometry(QrTiles, Slabbed):
    """Cuts of an m x n matrix for QR by slabs within a budget.

    The factors are stored in tiles of ``rows`` x ``columns`` elements. A *panel* is a column of
    tiles. A *slab* is as many panels as fit in memory beside a *ring*. The ring holds a whole panel
    from the disk, since its reflections are used twice, and two more tiles.
    """

    m: int
    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    slab_panels: int
    bounce_bytes: int
    budget_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the factorization takes from its arena."""
        width = self.slab_panels * self.columns
        slab = matrix_bytes(self.height, width, self.dtype.itemsize)
        scratch = scratch_bytes(self.columns, width, self.dtype)
        return slab + self.ring_bytes + scratch + self.bounce_bytes + TILE_BOUNCE_BYTES

    def words_lower_bound(self) -> float:
        """Words that any QR must move: it reads A, and writes its factors.

        No bound with a sharp constant is known for QR in little memory.
        """
        return 2.0 * self.m * self.n


def by_slabs(method: str, *, transposed: bool) -> str:
    """Describe least squares with factors from this method, for users."""
    return f"solution of least norm: QR of Aᵀ by {method}" if transposed else f"QR by {method}"


def scratch_bytes(columns: int, width: int, dtype: np.dtype[Any]) -> int:
    """Memory to factor a panel, and to apply its reflections to `width` columns."""
    words = [columns * width, columns**2, columns**2, min(columns, LEAF_COLUMNS) * LEAF_COLUMNS]
    return sum(pages(count * dtype.itemsize) for count in words)


def flops(m: int, n: int, dtype: np.dtype[Any]) -> float:
    """Real operations of QR: 2n²(m - n/3) for m >= n, four times that for complex types."""
    return tsqr_flops(m, n, 0, dtype)


def panel_flops(g: SlabQrGeometry, panel: int) -> float:
    """Operations that factor a panel of h rows and k reflections: 2k²(h - k/3)."""
    h, k = g.m - panel * g.columns, g.reflections(panel)
    return flop_weight(g.dtype) * 2 * k**2 * (h - k / 3)


def update_flops(g: SlabQrGeometry, panel: int) -> float:
    """Operations that apply a panel to one column: 4hk - 2k²."""
    h, k = g.m - panel * g.columns, g.reflections(panel)
    return flop_weight(g.dtype) * (4 * h * k - 2 * k**2)


def slab_qr_geometry(
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    memory_bytes: int,
    tile: tuple[int, int] | None = None,
) -> SlabQrGeometry:
    """Cut a matrix for a memory budget.

    Parameters
    ----------
    shape, dtype
        Rows and columns, and element type, of the matrix.
    memory_bytes
        The budget.
    tile
        Tile shape of existing factors; by default the budget determines it.

    Raises
    ------
    BudgetError
        If not even one panel of the narrowest tiles fits.
    InvalidError
        If QR does not support this type.
    """
    if dtype.name not in DTYPES:
        raise InvalidError(
            f"QR by slabs works in {', '.join(DTYPES)}, have {dtype}; convert with oc.from_array"
        )
    if min(shape) < 1:
        raise InvalidError(f"a matrix has at least one row and column, have {shape}")
    geometry, need = _cut(shape, dtype, memory_bytes, tile)
    if geometry is not None:
        return geometry
    # The buffers grow with the memory: repeat until the needed memory suffices.
    while geometry is None:
        geometry, need = _cut(shape, dtype, need, tile)
    what = f"two panels of a QR of {shape[0]} x {shape[1]} in {dtype.name}"
    raise too_small(need, memory_bytes, what)


def _cut(
    shape: tuple[int, int], dtype: np.dtype[Any], memory_bytes: int, tile: tuple[int, int] | None
) -> tuple[SlabQrGeometry | None, int]:
    """Return the cuts for the largest tiles that fit, or `None`, and the memory for one panel."""
    if tile:
        geometry = _fit(shape, dtype, memory_bytes, tile)
        need = dataclasses.replace(geometry, slab_panels=1).memory_bytes
        return (geometry if geometry.slab_panels else None), need
    # Half as wide as LU's panels: the ring holds a whole panel, and factoring a panel costs more.
    columns = min(full_columns(dtype.itemsize) // 2, max(8, 1 << (shape[1] - 1).bit_length()))
    found: SlabQrGeometry | None = None
    while columns >= 8:
        geometry = _fit(shape, dtype, memory_bytes, _tile(shape, dtype, memory_bytes, columns))
        if not found or _is_worth_it(geometry, found):
            found = geometry
        elif found.slab_panels:
            break
        columns //= 2
    need = dataclasses.replace(geometry, slab_panels=1).memory_bytes
    return (found if found and found.slab_panels else None), need


def _tile(
    shape: tuple[int, int], dtype: np.dtype[Any], memory_bytes: int, columns: int
) -> tuple[int, int]:
    """Rows and columns of a tile: as high as a tile of LU, but a small part of the budget.

    A diagonal block lies in one tile, and tiles are whole pages.
    """
    itemsize = dtype.itemsize
    tile_bytes = TILE_BYTES * columns // full_columns(itemsize)
    while math.prod(shape) * itemsize // tile_bytes > MAX_TILES and tile_bytes < MAX_TILE_BYTES:
        tile_bytes *= 2
    tile_bytes = min(tile_bytes, memory_bytes // TILES_OF_BUDGET)
    unit = max(columns, SLOT_ALIGN_BYTES // (columns * itemsize))
    most = max(tile_bytes // (itemsize * columns) // unit, 1) * unit
    tiles = math.ceil(shape[0] / most)
    # Among this count of tiles and up to twice as many, choose the one with the least padding.
    heights = (math.ceil(shape[0] / count / unit) * unit for count in range(tiles, 2 * tiles + 1))
    return min(heights, key=lambda rows: math.ceil(shape[0] / rows) * rows), columns


def _is_worth_it(finer: SlabQrGeometry, g: SlabQrGeometry) -> bool:
    """Whether narrower panels allow a much wider slab."""
    width, finer_width = g.slab_panels * g.columns, finer.slab_panels * finer.columns
    return finer_width >= max(WORTH_FINER * width, 1) and g.slab_panels < min(g.panels, FEW_PANELS)


def _fit(
    shape: tuple[int, int], dtype: np.dtype[Any], memory_bytes: int, tile: tuple[int, int]
) -> SlabQrGeometry:
    """Allot the shares of the ring, scratch and bounce buffers, and the rest to the slab."""
    least, most = BOUNCE_BYTES
    bounce = pages(min(most, max(least, memory_bytes // 32)))
    bare = SlabQrGeometry(*shape, dtype, *tile, 0, bounce, memory_bytes)
    panel_bytes = bare.pitch * bare.columns * dtype.itemsize
    most_panels = min((memory_bytes - bare.memory_bytes) // panel_bytes, bare.panels)
    for panels in range(most_panels, 0, -1):
        g = dataclasses.replace(bare, slab_panels=panels)
        if g.memory_bytes <= memory_bytes:
            return g
    return bare


def factor_phase(g: SlabQrGeometry) -> Phase:
    """Predict a factorization, without the loads of the matrix."""
    # The first panel is read before everything else, and the last is written after it.
    panel = g.height * g.columns * g.dtype.itemsize
    return Phase(
        dtype=g.dtype,
        bytes_read=g.factor_bytes_read(),
        bytes_written=g.factor_bytes_written(),
        flops=flops(g.m, g.n, g.dtype),
        gemm_flops=_gemm_flops(g),
        other_seconds=g.m * g.n * g.dtype.itemsize * SCAN_S_PER_BYTE,
        ends_read_bytes=panel,
        ends_written_bytes=panel,
    )


def _gemm_flops(g: SlabQrGeometry) -> float:
    """Operations of a QR, slow ones weighted by their speed relative to products."""
    weight = flop_weight(g.dtype)
    panels = grams = products = 0.0
    for K in range(g.applied):
        h, k = g.m - K * g.columns, g.reflections(K)
        panels += panel_flops(g, K)
        products += update_flops(g, K) * (g.n - K * g.columns - k)
        # T is recomputed for each slab to which the panel is applied.
        slabs_right = math.ceil((g.panels - K) / g.slab_panels)
        grams += weight * h * k**2 * slabs_right
    return panels / _PANEL_SHARE + grams / _GRAM_SHARE + products


@dataclass(frozen=True)
class Tiles(QrTiles):
    """The tiles of QR factors, m >= n.

    Attributes
    ----------
    m, n
        Shape of the matrix.
    dtype
        Type of the arithmetic.
    rows, columns
        Shape of a tile.
    stored
        Type of the factors, if it differs.
    """

    m: int
    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    stored: np.dtype[Any] | None = None

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile on disk."""
        return pages(self.rows * self.columns * (self.stored or self.dtype).itemsize)

    @property
    def converted_bytes(self) -> int:
        """Memory of as many tiles in the type of the arithmetic, if it differs."""
        if self.stored is None or self.stored == self.dtype:
            return 0
        return dataclasses.replace(self, stored=None).ring_bytes

    def above(self, panel: int) -> range:
        """Tiles of a panel with its part of R, from the bottom."""
        return range(panel * self.columns // self.rows, -1, -1)

    def pass_bytes(self) -> int:
        """Bytes that a solve for one group of columns reads. Exact."""
        both = (len(self.tiles_below(K)) + len(self.above(K)) for K in range(self.panels))
        return sum(both) * self.tile_bytes

    def fixed_bytes(self, probes: int) -> int:
        """Memory of a pass beside its columns."""
        return (
            self.ring_bytes
            + self.converted_bytes
            + TILE_BOUNCE_BYTES
            + scratch_bytes(self.columns, 0, self.dtype)
            + pages(self.n * probes * self.dtype.itemsize)
        )

    def width_bytes(self, columns: int) -> int:
        """Memory that `columns` columns take in a pass, beside themselves."""
        return pages(columns * self.columns * self.dtype.itemsize)

    def group(
        self,
        memory_bytes: int,
        columns: int,
        parts: int,
        column_bytes: int,
        probes: int,
        beside_bytes: int = 0,
    ) -> int:
        """Return how many right-hand sides can be solved for in one pass.

        Parameters
        ----------
        memory_bytes
            Budget.
        columns, parts
            Number of right-hand sides, and of columns to solve for per right-hand side.
        column_bytes
            Memory that each right-hand side itself takes from the budget.
        probes
            Number of random vectors solved for along with them.
        beside_bytes
            Memory needed for other purposes.

        Raises
        ------
        BudgetError
            If not even one fits.
        """

        def bytes_of(count: int) -> int:
            columns_bytes = self.width_bytes(count * parts) + count * column_bytes
            return self.fixed_bytes(probes) + beside_bytes + columns_bytes

        each = column_bytes + parts * self.columns * self.dtype.itemsize
        group = min((memory_bytes - bytes_of(0)) // each, columns)
        while group > 0 and bytes_of(group) > memory_bytes:
            group -= 1
        if group <= 0 and (columns or memory_bytes < bytes_of(0)):
            what = f"a solve with panels of {self.m} x {self.columns}"
            raise too_small(bytes_of(min(columns, 1)), memory_bytes, what)
        return group


def solve_flops(shape: tuple[int, int], dtype: np.dtype[Any], columns: int) -> float:
    """Real operations of a solve: 4mn - n² per column, four times that for complex types."""
    m, n = shape
    return flop_weight(dtype) * (4.0 * m * n - n**2) * columns


def solve_phase(tiles: Tiles, columns: int, group: int) -> Phase:
    """Predict a solve for `columns` columns in groups of `group`."""
    passes = max(-(-columns // max(group, 1)), 1)
    return Phase(
        dtype=tiles.dtype,
        bytes_read=passes * tiles.pass_bytes(),
        flops=solve_flops(tiles.shape, tiles.dtype, columns),
    )
