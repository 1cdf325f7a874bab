"""How AᴴA is cut for a memory budget, and what it costs. Pure arithmetic.

Its lower triangle is computed in *parts*, one after the other, each of which is in memory while the
rows go by. One part holds all of it where it fits: then each row is read once. Otherwise a part is
a slab of columns from the diagonal down, or a square tile, whichever reads less.
"""

import dataclasses
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.errors import InvalidError
from outcore.linalg.cost import SCAN_S_PER_BYTE, Cost, Phase, Problem, flop_weight
from outcore.linalg.grains import BOUNCE_BYTES, pages
from outcore.linalg.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg.result_dtype import work_dtype
from outcore.linalg.rows.gram_parts import Part, Parts, largest_shape, layouts_of, slabs, tiles
from outcore.linalg.rows.plan import RowLayout, RowPlan, blocks_bytes, fit_rows, too_small
from outcore.linalg.rows.tsqr_plan import stored_layout
from outcore.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES, tile_shape

_SHARES = (15 / 16, 7 / 8, 3 / 4, 1 / 2, 1 / 4, 1 / 8)
"""Shares of the budget that are tried for a part: the rest is for blocks of rows."""


@dataclass(frozen=True)
class GramGeometry:
    """How G = AᴴA of order `n` is cut.

    Attributes
    ----------
    n, dtype
        Order and element type of G.
    rows
        Blocks of the matrix whose rows go by: of some of its columns, for most parts.
    tile
        Chunk of G on disk; `None` if it stays in memory.
    parts
        In the order in which they are computed.
    budget_bytes
        The budget.
    """

    n: int
    dtype: np.dtype[Any]
    rows: RowPlan
    tile: tuple[int, int] | None
    parts: Parts
    budget_bytes: int

    @property
    def A(self) -> RowLayout:  # noqa: N802  # its name everywhere else
        """The matrix whose rows go by."""
        return self.rows.layout

    def plans(self, part: Part) -> list[RowPlan]:
        """Blocks in which a part reads A."""
        return [dataclasses.replace(self.rows, layout=one) for one in part.layouts(self.A)]

    def part_shape(self, part: Part) -> tuple[int, int]:
        """Rows and columns of a part in memory: whole chunks of G, if it goes to the disk."""
        return part.shape(self._unit)

    @property
    def _unit(self) -> int:
        return self.tile[0] if self.tile else 1

    @property
    def part_words(self) -> int:
        """Elements of the largest part in memory."""
        return math.prod(largest_shape(self.parts, self._unit))

    @property
    def target_bounce_bytes(self) -> int:
        """Memory for writing G."""
        if self.tile is None:
            return 0
        least, most = BOUNCE_BYTES
        return pages(max(min(self.budget_bytes // 32, 4 * most), least))

    @property
    def blocks(self) -> int:
        """Blocks of rows in the pass for a part; 0 if the rows are not counted."""
        return -(-(self.A.rows or 0) // self.rows.height)

    @property
    def steps(self) -> int:
        """Blocks of rows in all passes."""
        return len(self.parts) * self.blocks

    @property
    def state_bytes(self) -> int:
        """Bytes on disk of what is kept there to go on from."""
        return state_bytes(self.part_words * self.dtype.itemsize) if self.tile else 0

    @property
    def memory_bytes(self) -> int:
        """The most that is taken from the budget."""
        own = pages(self.part_words * self.dtype.itemsize)
        beside = STATE_MEMORY_BYTES if self.tile else 0
        return own + self._blocks_bytes() + self.target_bounce_bytes + beside

    def _blocks_bytes(self) -> int:
        if not self.parts.is_tiled:
            # The first part has the most columns, and begins with whole grains of them.
            return blocks_bytes(self.plans(self.parts[0]))
        # Each two groups of columns are side by side in some part.
        sizes: list[int] = []
        for layout, groups in layouts_of(self.parts, self.A).items():
            plan = dataclasses.replace(self.rows, layout=layout)
            sizes += [plan.memory_bytes] * min(groups, 2)
        return sum(heapq.nlargest(2, sizes))

    def bytes_read(self) -> int:
        """Bytes of A that all parts read. Exact if its chunks are whole pages."""
        # The columns of a tile are in as many parts as there are groups of them.
        times = len(self.parts.groups) if self.parts.is_tiled else 1
        layouts = layouts_of(self.parts, self.A)
        return times * sum(count * layout.bytes_read() for layout, count in layouts.items())

    def bytes_written(self, *, is_full: bool) -> int:
        """Bytes of G, in whole chunks. Exact."""
        if self.tile is None:
            return 0
        words = self.parts.words_below(*self.tile, is_full=is_full)
        for part in self.parts.on_diagonal:
            for _, rows, columns in self.boxes(part, is_full=is_full):
                words += (rows.stop - rows.start) * (columns.stop - columns.start)
        return words * self.dtype.itemsize

    def is_better_than(self, other: "GramGeometry") -> bool:
        """Whether it reads ahead, or else less, or else in higher blocks."""
        return self._merits() > other._merits()

    def _merits(self) -> tuple[bool, int, int]:
        reads_ahead = self.rows.buffers + self.rows.copies > 1
        return reads_ahead, -self.bytes_read(), self.rows.height

    def boxes(self, part: Part, *, is_full: bool) -> Iterator[tuple[bool, slice, slice]]:
        """Whole chunks of G that a part fills: (whether transposed, rows, columns)."""
        assert self.tile is not None, "G goes to the disk"
        down, across = self.tile
        high = -(-part.rows.stop // down) * down
        wide = -(-part.columns.stop // across) * across
        yield False, slice(part.rows.start, high), slice(part.columns.start, wide)
        below = part.columns.stop if part.is_on_diagonal else part.rows.start
        if is_full and below < part.rows.stop:
            right = -(-part.rows.stop // across) * across
            yield True, slice(part.columns.start, part.columns.stop), slice(below, right)

    def flops(self, rows: int) -> float:
        """Real operations: n² for each row, four times that for complex types."""
        return gram_flops(rows, self.n, self.dtype)

    def part_flops(self, part: Part, rows: int | None = None) -> float:
        """Real operations for a part, or for some rows of A in it."""
        high, wide = (s.stop - s.start for s in (part.rows, part.columns))
        words = float(2 * high * wide - wide**2 * part.is_on_diagonal)
        return self.flops((self.A.rows or 0) if rows is None else rows) / self.n**2 * words

    def words_lower_bound(self, *, is_full: bool) -> float | None:
        """Words that must move: A, or n² m / √(2 M) (Beaumont et al. 2022), and G written."""
        if self.A.rows is None:
            return None
        words = self.budget_bytes / self.dtype.itemsize
        reads = max(self.n**2 * self.A.rows / math.sqrt(2 * words), self.n * self.A.rows)
        return reads + (self.n**2 / (1 if is_full else 2) if self.tile else 0)

    @property
    def method(self) -> str:
        """How it is done, for people."""
        if len(self.parts) == 1:
            return f"one pass, {self.rows.height} rows at once"
        kind = "tiles" if self.parts.is_tiled else "slabs"
        return f"{len(self.parts)} {kind}, a pass for each, {self.rows.height} rows at once"


def gram_flops(m: int, n: int, dtype: np.dtype[Any]) -> float:
    """Real operations of AᴴA for A of m x n: one triangle, m n²; four times that for complex."""
    return flop_weight(dtype) * float(m) * n**2


@dataclass(frozen=True)
class GramProblem:
    """What is to be cut.

    Attributes
    ----------
    A
        The matrix whose rows go by.
    dtype
        Element type of AᴴA.
    is_stored
        Whether AᴴA goes to the disk.
    converts
        Whether blocks are converted whatever their type.
    one_pass
        Why there can be one pass over A only; empty if there can be more.
    """

    A: RowLayout
    dtype: np.dtype[Any]
    is_stored: bool
    converts: bool = False
    one_pass: str = ""

    @property
    def can_be_cut(self) -> bool:
        """Whether there can be several parts."""
        return self.is_stored and not self.one_pass


def gram_geometry(problem: GramProblem, memory_bytes: int) -> GramGeometry:
    """Cut AᴴA for a memory budget.

    Raises
    ------
    BudgetError
        If it cannot be done with so much memory.
    """
    found, need = _cut(problem, memory_bytes)
    if found is not None:
        return found
    # With more memory chunks of G may be larger: ask until what is asked for is enough.
    while found is None:
        found, need = _cut(problem, need)
    n, fix = problem.A.columns, "raise memory="
    if problem.one_pass:
        fix += f": all of the result must be in memory, because {problem.one_pass}"
    elif not problem.is_stored:
        fix += ", or give out= for a result on disk"
    raise too_small(need, memory_bytes, f"a product of order {n} and blocks of rows", fix)


def _cut(problem: GramProblem, memory_bytes: int) -> tuple[GramGeometry | None, int]:
    """Cut so that least is read, if any parts fit, and tell what the smallest need."""
    n, itemsize = problem.A.columns, problem.dtype.itemsize
    tile = _tile(n, problem.dtype, memory_bytes) if problem.is_stored else None
    whole = Parts((0, n))
    found, need = _fit(problem, whole, tile, memory_bytes)
    if found is not None or tile is None or not problem.can_be_cut:
        return found, need
    ways: list[tuple[Parts, int]] = [(whole, need)]
    best: GramGeometry | None = None
    for words in [int(memory_bytes * share) // itemsize for share in _SHARES] + [tile[0] ** 2]:
        for parts in (slabs(n, words, tile[0]), tiles(n, words, tile[0])):
            if parts and parts not in [way for way, _ in ways]:
                found, need = _fit(problem, parts, tile, memory_bytes)
                ways.append((parts, need))
                if found and (best is None or found.is_better_than(best)):
                    best = found
    return best, min(need for _, need in ways)


def _fit(
    problem: GramProblem,
    parts: Parts,
    tile: tuple[int, int] | None,
    memory_bytes: int,
) -> tuple[GramGeometry | None, int]:
    """Choose blocks of rows beside such parts."""
    A, n = problem.A, problem.A.columns

    def geometry(plan: RowPlan) -> GramGeometry:
        rows = dataclasses.replace(plan, layout=A)
        return GramGeometry(n, problem.dtype, rows, tile, parts, memory_bytes)

    widest = parts[0].rows.stop
    found, need = fit_rows(
        [A.narrowed(n - widest, n)], dtype=problem.dtype, order=None, budget_bytes=memory_bytes,
        memory=lambda plans: geometry(plans[0]).memory_bytes, converts=problem.converts,
    )  # fmt: skip
    return (geometry(found[0]) if found else None), need


def _tile(n: int, dtype: np.dtype[Any], memory_bytes: int) -> tuple[int, int]:
    """Choose the chunk of G: the default one, or a smaller one for a small budget."""
    sizes = [TILE_BYTES >> shift for shift in range(11)]
    fits = [size for size in sizes if size <= max(memory_bytes // 24, SLOT_ALIGN_BYTES)]
    return tile_shape(n, dtype.itemsize, fits[0])


def check_arguments(side: object, triangle: object) -> None:
    """Refuse what `gram` does not have.

    Raises
    ------
    InvalidError
        If there is no such side, or triangle.
    """
    if side not in ("left", "right"):
        raise InvalidError(f"side must be 'left' or 'right', have {side!r}")
    if triangle not in ("both", "lower"):
        raise InvalidError(f"triangle must be 'both' or 'lower', have {triangle!r}")


def gram_cost(problem: Problem) -> Cost:
    """Plan `gram`."""
    side, triangle = problem.option("side", "left"), problem.option("triangle", "both")
    check_arguments(side, triangle)
    is_stored = bool(problem.option("out", False))
    stored = stored_layout(problem)
    A = stored if side == "left" else stored.transposed()
    dtype = work_dtype("A", problem.dtype)
    g = gram_geometry(GramProblem(A, dtype, is_stored), problem.memory_bytes)
    is_full = triangle == "both"
    written = g.bytes_written(is_full=is_full)
    assert A.rows is not None, "a plan knows the shape"
    phase = Phase(
        dtype=dtype,
        bytes_read=g.bytes_read(),
        bytes_written=written,
        flops=gram_flops(A.rows, g.n, dtype),
        other_seconds=g.bytes_read() * SCAN_S_PER_BYTE,
        ends_read_bytes=min(g.rows.height * A.width * dtype.itemsize, g.bytes_read()),
        ends_written_bytes=written,
    )
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=written + g.state_bytes,
        words_lower_bound=g.words_lower_bound(is_full=is_full),
        phases=(phase,),
    )
