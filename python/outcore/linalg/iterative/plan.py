"""Memory and reads of an iterative method: pure arithmetic."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.counts import count_of, is_number
from outcore._util.sizes import format_bytes
from outcore.errors import BudgetError, InvalidError
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._tiles.grains import pages
from outcore.linalg.iterative.strips import column_sums, tile_product
from outcore.linalg.iterative.strips.diagonal_blocks import BlocksLayout
from outcore.linalg.iterative.strips.pinned import choose_pins
from outcore.linalg.iterative.strips.strips import Chunk, Strips, Tile, way_through
from outcore.linalg.iterative.strips.tile_counts import (
    ABOVE,
    BELOW,
    INSIDE,
    KINDS,
    TileCounts,
    kind_of,
    tile_counts,
)

RING_TILES = (3, 8)
"""Fewest and most tiles of read-ahead: one in use, one that has arrived, the others in flight."""

DIAGONAL_SHARE = 1 / 8
"""Budget share of the diagonal blocks, if their size is not given."""

Pin: TypeAlias = float | Literal["auto"] | None
Pass: TypeAlias = Literal["setup", "lower", "upper", "sweep", "all"]


@dataclass(frozen=True)
class MatrixLayout:
    """A matrix in chunks of type `stored`, used in arithmetic of type `dtype`."""

    n: int
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    chunks: tuple[int, int]
    order: str

    @property
    def slot_bytes(self) -> int:
        """Bytes of a chunk on disk and in memory."""
        return pages(math.prod(self.chunks) * self.stored.itemsize)


@dataclass(frozen=True)
class Demands:
    """The memory demands of a method.

    Attributes
    ----------
    name
        Name of the method, for messages.
    vectors
        Number of matrices with a column for each right-hand side.
    has_blocks
        Whether it solves with the diagonal blocks.
    by_triangle
        Whether its passes read one triangle at a time.
    is_half
        Whether it reads only the blocks on and below the diagonal.
    restart
        Number of directions of GMRES, which are among the vectors.
    reserve_bytes
        Memory that is neither for vectors nor for blocks.
    way
        Variant of the method, for users.
    """

    name: str
    vectors: int
    has_blocks: bool = False
    by_triangle: bool = False
    is_half: bool = False
    restart: int = 0
    reserve_bytes: int = 0
    way: str = ""


@dataclass(frozen=True)
class IterativeGeometry:
    """The division of the budget, and the tiles that stay in memory."""

    layout: MatrixLayout
    source_slot_bytes: int | None
    demands: Demands
    columns: int
    strips: Strips
    blocks: BlocksLayout | None
    pinned_tiles: int
    ring_tiles: int
    budget_bytes: int

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector for each right-hand side."""
        return pages(self.layout.n * self.columns * self.layout.dtype.itemsize)

    @property
    def step_rows(self) -> int:
        """Rows of the largest diagonal block."""
        return min(self.strips.block, self.layout.n)

    @property
    def step_bytes(self) -> int:
        """Bytes of one vector for each right-hand side, with the rows of a diagonal block."""
        return pages(self.step_rows * self.columns * self.layout.dtype.itemsize)

    @property
    def ring_bytes(self) -> int:
        """Bytes for the read-ahead of tiles."""
        return self.ring_tiles * self.layout.slot_bytes

    @property
    def source_ring_bytes(self) -> int:
        """Bytes for tiles of the matrix itself, if the method uses a copy in a narrower type."""
        return RING_TILES[0] * (self.source_slot_bytes or 0)

    @property
    def first_line(self) -> int:
        """Row of the matrix's chunks at which a copy begins."""
        strips = self.strips
        return strips.lines.start // self.layout.chunks[0] if strips.processes > 1 else 0

    @property
    def message_bytes(self) -> int:
        """Bytes for the rows of x that processes exchange, as sent and as received by all."""
        count = self.strips.processes
        return 3 * (count + 1) * self.step_bytes if count > 1 else 0

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the method takes from its budget."""
        layout, tile = self.layout, self.layout.chunks
        wide = layout.dtype if self.source_slot_bytes else layout.stored
        sums = column_sums.scratch_bytes(layout.n, wide, layout.order, tile)
        scratch = tile_product.scratch_elements(
            layout.order, layout.stored, layout.dtype, tile, self.columns
        )
        return (
            self.demands.vectors * self.vector_bytes
            + sum(map(pages, sums))
            + sum(pages(count * layout.dtype.itemsize) for count in scratch)
            + (2 * self.step_bytes + self.blocks.memory_bytes if self.blocks else 0)
            + self.pinned_tiles * layout.slot_bytes
            + self.ring_bytes
            + self.source_ring_bytes
            + self.message_bytes
            + self.demands.reserve_bytes
        )

    @functools.cached_property
    def _pinned(self) -> npt.NDArray[np.intp]:
        """Numbers in `Strips.all_tiles` of the tiles that stay in memory."""
        levels = [
            [np.flatnonzero(np.isin(self.counts.kinds, list(group))) for group in level]
            for level in _levels(self.demands)
        ]
        return choose_pins(levels, self.pinned_tiles)

    @functools.cached_property
    def pins(self) -> frozenset[Chunk]:
        """Chunks that stay in memory."""
        return frozenset(self.strips.all_tiles[number].chunk for number in self._pinned)

    @functools.cached_property
    def pinned_kinds(self) -> npt.NDArray[np.uint8]:
        """Kinds of the chunks that stay in memory."""
        return self.counts.kinds[self._pinned]

    @functools.cached_property
    def counts(self) -> TileCounts:
        """Tiles of each kind."""
        return tile_counts(self.strips)

    def tiles_of(self, kind: Pass) -> list[Tile]:
        """Tiles that a pass reads, in any order."""
        return [tile for tile in self.strips.all_tiles if self.is_in(kind_of(tile), kind)]

    def is_in(self, tile: int, kind: Pass) -> bool:
        """Whether a pass reads tiles of a kind of `tile_counts`."""
        is_half = self.demands.is_half
        is_below, is_inside, is_above = (bool(tile & bit) for bit in (BELOW, INSIDE, ABOVE))
        if kind == "setup":
            return is_inside
        if kind == "lower" or (kind == "upper" and is_half):
            return is_below
        if kind == "upper":
            return is_above
        if kind == "sweep":
            return is_below or is_above
        return is_below or is_inside or not is_half

    def bytes_read(self, times: Mapping[Pass, int]) -> int:
        """Bytes of the matrix that these numbers of passes read. Exact."""
        made = [kind for kind, count in times.items() if count]
        read = [tile for tile in KINDS if any(self.is_in(tile, kind) for kind in made)]
        kept = int(np.isin(self.pinned_kinds, read).sum())
        tiles = kept + sum(times[kind] * self.unpinned(kind) for kind in made)
        return tiles * self.layout.slot_bytes

    def tiles_in(self, kind: Pass) -> int:
        """Return the number of tiles of a pass, in memory or not."""
        return self.counts.count(frozenset(tile for tile in KINDS if self.is_in(tile, kind)))

    def elements(self, kind: Pass) -> int:
        """Elements that take part in the products of a pass."""
        if kind == "setup":
            return 0
        below, inside, above = self.counts.elements
        if self.demands.is_half and kind in ("upper", "all"):
            above = below
        return below * (kind != "upper") + inside * (kind == "all") + above * (kind != "lower")

    def words_lower_bound(self, times: Mapping[Pass, int]) -> float:
        """Words of A that these passes must read, in the type of the arithmetic.

        Each pass reads its elements outside memory, and all elements are read at least once.
        """
        below, inside, _ = self.counts.elements
        layout, is_half = self.layout, self.demands.is_half
        kept_elements = layout.slot_bytes / layout.stored.itemsize
        once = below + inside if is_half else layout.n * self._lines
        least = 0.0
        for kind, count in times.items():
            needed = self.elements(kind)
            if is_half and kind in ("upper", "all"):
                needed = below + inside * (kind == "all")
            kept = (self.tiles_in(kind) - self.unpinned(kind)) * kept_elements
            least += count * max(needed - kept, 0.0)
        return max(least, float(once)) * layout.stored.itemsize / layout.dtype.itemsize

    @property
    def _lines(self) -> int:
        lines = self.strips.lines
        return int(lines.stop - lines.start)

    def unpinned(self, kind: Pass) -> int:
        """Return the number of tiles that each run of a pass reads from disk."""
        tiles = [tile for tile in KINDS if self.is_in(tile, kind)]
        return self.tiles_in(kind) - int(np.isin(self.pinned_kinds, tiles).sum())

    def describe(self) -> str:
        """Return a description of the method, for users."""
        tiles = max(len(self.counts.kinds), 1)
        parts = [self.demands.way] if self.demands.way else []
        parts.append(f"tiles of {self.layout.chunks[0]} x {self.layout.chunks[1]}")
        if self.blocks:
            where = "a file" if self.blocks.is_in_file else "memory"
            parts.append(f"diagonal blocks of {self.step_rows} in {where}")
        whole = (
            "the matrix" if self.strips.processes == 1 else f"its {self._lines} {self.strips.by}"
        )
        parts.append(f"{self.pinned_tiles / tiles:.0%} of {whole} kept in memory")
        return ", ".join(parts)


def iterative_geometry(
    layout: MatrixLayout,
    choices: Sequence[Demands],
    memory_bytes: int,
    columns: int,
    *,
    block: int | None = None,
    pin: Pin = "auto",
    source_slot_bytes: int | None = None,
    beside_bytes: int = 0,
    rank: int = 0,
    processes: int = 1,
) -> IterativeGeometry:
    """Divide a budget.

    Parameters
    ----------
    layout
        Layout of the matrix that each pass reads.
    choices
        Possible memory demands of the method: the best first, those with the least memory last.
    memory_bytes, columns
        The budget, and the number of right-hand sides.
    block
        Rows of a diagonal block; by default the blocks take an eighth of the budget.
    pin
        Fraction of the matrix to keep in memory; ``"auto"`` for as much as fits.
    source_slot_bytes
        Bytes of a tile of the matrix itself, if `layout` is that of a copy.
    beside_bytes
        Part of the budget that is used for other purposes.
    rank, processes
        Number of this process, and number of processes; each has its own budget.

    Raises
    ------
    BudgetError
        If the budget does not suffice.
    """
    by, unit = way_through(layout.chunks, layout.order)
    if processes > 1 and by == "columns":
        raise InvalidError(
            f"{processes} processes need a matrix whose strips are rows, have chunks of "
            f"{layout.chunks[0]} x {layout.chunks[1]} in order {layout.order!r}; make a copy by "
            "oc.from_array(A, path, order='C')"
        )
    _check_block(block, unit, by, layout.n)
    _check_pin(pin)
    least, memory_bytes = math.inf, memory_bytes - beside_bytes
    for demands in choices:
        for rows, is_in_file in _ways_to_keep_blocks(
            layout, demands, memory_bytes, block, unit, processes
        ):
            strips = Strips(layout.n, layout.chunks, by, rows, rank, processes)
            wanted = _tiles_to_pin(pin, strips)
            blocks = BlocksLayout(strips, layout.dtype, is_in_file) if demands.has_blocks else None
            pinned = min(wanted, _useful(strips, demands)) if wanted else 0
            g = IterativeGeometry(
                layout, source_slot_bytes, demands, columns, strips, blocks, pinned,
                RING_TILES[0], memory_bytes,
            )  # fmt: skip
            if g.memory_bytes <= memory_bytes:
                return _with_spare(g, is_auto=wanted is None)
            least = min(least, g.memory_bytes)
    kept = f" with {pin:.0%} of the matrix kept in memory" if pin and pin != "auto" else ""
    least, have = least + beside_bytes, memory_bytes + beside_bytes
    raise BudgetError(
        f"need {least} bytes ({format_bytes(least)}) of memory for {demands.name} of order "
        f"{layout.n} with {columns} column{'s' * (columns != 1)}{kept}, have {have} "
        f"({format_bytes(have)}); raise memory="
    )


def _with_spare(g: IterativeGeometry, *, is_auto: bool) -> IterativeGeometry:
    """Use the rest of the budget for read-ahead, and to keep tiles."""
    spare = (g.budget_bytes - g.memory_bytes) // g.layout.slot_bytes
    ahead = min(spare // 8 if is_auto else spare, RING_TILES[1] - RING_TILES[0])
    pinned = min(spare - ahead, _useful(g.strips, g.demands)) if is_auto else g.pinned_tiles
    return dataclasses.replace(g, ring_tiles=g.ring_tiles + ahead, pinned_tiles=pinned)


def _useful(strips: Strips, demands: Demands) -> int:
    """Return the number of tiles that any pass reads."""
    counts = tile_counts(strips)
    return sum(counts.count(group) for level in _levels(demands) for group in level)


def _ways_to_keep_blocks(
    layout: MatrixLayout,
    demands: Demands,
    memory_bytes: int,
    block: int | None,
    unit: int,
    processes: int,
) -> Iterator[tuple[int, bool]]:
    """Yield sizes of diagonal blocks, and whether they are in a file: the best first."""
    if block is None and demands.has_blocks:
        share = int(memory_bytes * DIAGONAL_SHARE)
        rows = share * processes // (layout.n * layout.dtype.itemsize) // unit * unit
        if rows > unit:
            yield min(rows, _largest_block(layout.n, unit, processes)), False
    rows = block or unit
    yield rows, False
    if demands.has_blocks:
        yield rows, True


def _largest_block(n: int, unit: int, processes: int) -> int:
    """Return the rows of the largest diagonal blocks of which each process has one, if possible."""
    rows = -(-n // processes // unit) * unit
    return rows if -(-n // rows) >= processes else max(rows - unit, unit)


def _check_block(block: int | None, unit: int, by: str, n: int) -> None:
    if block is None:
        return
    count_of("block", block)
    if block % unit and block < n:
        raise InvalidError(
            f"block must be a multiple of {unit}, the {by} of a chunk, have {block}; try "
            f"block={-(-block // unit) * unit}"
        )


def _check_pin(pin: Any) -> None:
    if pin is None or (isinstance(pin, str) and pin == "auto"):
        return
    if not (is_number(pin) and 0 <= pin <= 1):
        raise InvalidError(f"pin must be 'auto', None or a fraction from 0 to 1, have {pin!r}")


def _tiles_to_pin(pin: Pin, strips: Strips) -> int | None:
    """Return how many tiles must be kept; `None` stands for as many as fit."""
    if pin == "auto":
        return None
    return math.ceil((pin or 0) * len(tile_counts(strips).kinds) - 1e-9)


def _levels(demands: Demands) -> list[list[frozenset[int]]]:
    """Group kinds of tiles by the reads that keeping them saves, most first."""
    is_half = demands.is_half
    if not demands.has_blocks:
        return [[_kinds(lambda below, inside, above: below or inside or not is_half)]]
    # Tiles within a diagonal block are read only before the first sweep and after the last.
    rare = [_kinds(lambda below, inside, above: not below and not above)]
    if is_half:
        return [[_kinds(lambda below, inside, above: below)], rare]
    if not demands.by_triangle:
        return [[_kinds(lambda below, inside, above: below or above)], rare]
    return [
        [_kinds(lambda below, inside, above: below and above)],
        [
            _kinds(lambda below, inside, above: below and not above),
            _kinds(lambda below, inside, above: above and not below),
        ],
        rare,
    ]


def _kinds(holds: Callable[[bool, bool, bool], bool]) -> frozenset[int]:
    """Return the kinds that satisfy a condition."""
    bits = BELOW, INSIDE, ABOVE
    return frozenset(kind for kind in KINDS if kind and holds(*(bool(kind & bit) for bit in bits)))


def check_dtype(stored: np.dtype[Any], dtype: np.dtype[Any]) -> None:
    """Raise for a matrix whose type the BLAS does not support, or that would be rounded."""
    if stored.name not in DTYPES:
        raise InvalidError(
            f"iterative methods work in {', '.join(DTYPES)}, have {stored}; convert with "
            "oc.from_array"
        )
    if not np.can_cast(stored, dtype):
        raise InvalidError(
            f"an iteration in {dtype} would round a matrix of {stored}; use storage='f4', or copy "
            "the matrix with oc.from_array and dtype="
        )


def working_dtype(dtype: np.dtype[Any], storage: str | None) -> np.dtype[Any]:
    """Return the type of the arithmetic: the matrix's, or double for single-precision storage."""
    return dtype if storage is None else np.result_type(dtype, np.float64)


def narrow_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of single precision: float32 or complex64."""
    return np.dtype(np.complex64 if dtype.kind == "c" else np.float32)
