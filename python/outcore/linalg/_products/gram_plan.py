"""Parts of AᴴA for a memory budget, and their cost. Pure arithmetic.

The lower triangle of AᴴA is computed in *parts*, one after the other, each of which is in memory
while the rows are streamed. If one part holds all of it, each row is read once. Otherwise a part is
a slab of columns from the diagonal down, or a square tile, whichever reads less. There may be
millions of tiles, but only a few kinds: sums over all tiles are computed from sums over groups of
columns.
"""

import dataclasses
import functools
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any, overload

import numpy as np

from outcore._util.budget import too_small
from outcore.errors import InvalidError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES, Metadata, tile_shape
from outcore.linalg._output.kept_state_plan import STATE_MEMORY_BYTES, state_bytes
from outcore.linalg._rows.merge_plan import (
    Strips,
    merging_phases,
    planned_shares,
    sent,
    strip_bytes,
)
from outcore.linalg._rows.plan import RowLayout, RowPlan, blocks_bytes, fit_rows
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.tsqr_plan import stored_layout
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import BOUNCE_BYTES, pages
from outcore.linalg._tiles.result_dtype import work_dtype


@dataclass(frozen=True)
class Part:
    """Rows and columns of AᴴA that are computed together."""

    rows: slice
    columns: slice

    @property
    def is_on_diagonal(self) -> bool:
        """Whether it begins on the diagonal; otherwise it lies below."""
        return bool(self.rows.start == self.columns.start)

    def shape(self, unit: int) -> tuple[int, int]:
        """Return its rows and columns, rounded up to whole units."""
        rows, columns = (s.stop - s.start for s in (self.rows, self.columns))
        return -(-rows // unit) * unit, -(-columns // unit) * unit

    def layouts(self, A: RowLayout) -> list[RowLayout]:
        """Return the layouts of the columns of A that it needs: one or two groups of columns."""
        groups = [self.rows] if self.is_on_diagonal else [self.rows, self.columns]
        return [A.narrowed(group.start, group.stop) for group in groups]


@dataclass(frozen=True)
class Parts(Sequence[Part]):
    """All parts, in the order of their computation.

    Attributes
    ----------
    edges
        First columns of the groups, and the end of the last group.
    is_tiled
        Whether a part has the rows of one group, with equal widths of all groups but the last.
        Otherwise a part has all rows from its first column down.
    """

    edges: tuple[int, ...]
    is_tiled: bool = False

    def __len__(self) -> int:
        groups = len(self.edges) - 1
        return groups * (groups + 1) // 2 if self.is_tiled else groups

    def __iter__(self) -> Iterator[Part]:
        for columns in self.groups:
            if not self.is_tiled:
                yield Part(slice(columns.start, self.edges[-1]), columns)
                continue
            for rows in islice(self.groups, columns.start // self.edges[1], None):
                yield Part(rows, columns)

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Part, ...]: ...
    def __getitem__(self, at: int | slice) -> Part | tuple[Part, ...]:
        if isinstance(at, slice):
            return tuple(islice(self, *at.indices(len(self))))
        return next(islice(self, range(len(self))[at], None))

    @functools.cached_property
    def groups(self) -> tuple[slice, ...]:
        """Groups of columns."""
        return tuple(slice(first, end) for first, end in pairwise(self.edges))

    @property
    def on_diagonal(self) -> Iterator[Part]:
        """The parts that begin on the diagonal."""
        for group in self.groups:
            yield Part(group if self.is_tiled else slice(group.start, self.edges[-1]), group)

    def words_below(self, down: int, across: int, *, is_full: bool) -> int:
        """Return the number of elements, in chunks of this shape, of the parts below the diagonal.

        With `is_full`, the elements of the triangle above are included.
        """
        if not self.is_tiled:
            return 0
        sizes = [group.stop - group.start for group in self.groups]
        high = [-(-group.stop // down) * down - group.start for group in self.groups]
        wide = [-(-group.stop // across) * across - group.start for group in self.groups]
        left = zip(accumulate(wide, initial=0), accumulate(sizes, initial=0), strict=True)
        return sum(
            below * columns + right * rows * is_full
            for (columns, rows), below, right in zip(left, high, wide, strict=False)
        )


@functools.lru_cache(maxsize=64)
def layouts_of(parts: Parts, A: RowLayout) -> dict[RowLayout, int]:
    """Return the columns of A that the parts on the diagonal need, with their counts.

    One layout represents all layouts of the same size.
    """
    kinds = Counter(
        (part.rows.stop - part.rows.start, part.rows.start % A.grains.columns)
        for part in parts.on_diagonal
    )
    found: dict[tuple[int, int], RowLayout] = {}
    counted: Counter[RowLayout] = Counter()
    for (columns, skip), count in kinds.items():
        layout = A.narrowed(skip, skip + columns)
        counted[found.setdefault((columns, layout.width), layout)] += count
    return counted


@functools.lru_cache(maxsize=64)
def largest_shape(parts: Parts, unit: int) -> tuple[int, int]:
    """Return rows and columns of the largest part, in whole units."""
    some = islice(parts.on_diagonal, 1) if parts.is_tiled else parts.on_diagonal
    return max((part.shape(unit) for part in some), key=math.prod)


def slabs(n: int, words: int, unit: int) -> Parts | None:
    """Return slabs of columns from the diagonal down; `None` if not even a narrow one fits."""
    edges = [0]
    while edges[-1] < n:
        height = -(-(n - edges[-1]) // unit) * unit
        width = words // height // unit * unit
        if width == 0:
            return None
        edges.append(min(edges[-1] + width, n))
    return Parts(tuple(edges))


def tiles(n: int, words: int, unit: int) -> Parts | None:
    """Return square tiles on and below the diagonal; `None` if not even small ones fit."""
    side = math.isqrt(words) // unit * unit
    return Parts((*range(0, n, side), n), is_tiled=side < n) if side else None


_SHARES = (15 / 16, 7 / 8, 3 / 4, 1 / 2, 1 / 4, 1 / 8)
"""Fractions of the budget to try for a part; the rest is for blocks of rows."""


@dataclass(frozen=True)
class GramGeometry:
    """The parts of G = AᴴA of order `n`.

    Attributes
    ----------
    n, dtype
        Order and element type of G.
    rows
        Blocks of the streamed matrix; most parts need only some of its columns.
    tile
        Chunk of G on disk; `None` if G stays in memory.
    parts
        The parts, in the order of their computation.
    budget_bytes
        The budget.
    processes
        Number of processes, which add up their products.
    """

    n: int
    dtype: np.dtype[Any]
    rows: RowPlan
    tile: tuple[int, int] | None
    parts: Parts
    budget_bytes: int
    processes: int = 1

    @property
    def A(self) -> RowLayout:  # noqa: N802  # its name everywhere else
        """The streamed matrix."""
        return self.rows.layout

    def metadata(self) -> Metadata:
        """Return the metadata of G on disk."""
        assert self.tile is not None, "the result is stored"
        return Metadata((self.n, self.n), self.dtype, self.tile, "F", "column-major")

    def plans(self, part: Part) -> list[RowPlan]:
        """Return the blocks in which a part reads A."""
        return [dataclasses.replace(self.rows, layout=one) for one in part.layouts(self.A)]

    def part_shape(self, part: Part) -> tuple[int, int]:
        """Return rows and columns of a part in memory: whole chunks of G, if G is on disk."""
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
        """Number of blocks of rows in the pass of a part; 0 if the number of rows is unknown."""
        return -(-(self.A.rows or 0) // self.rows.height)

    @property
    def steps(self) -> int:
        """Number of blocks of rows in all passes."""
        return len(self.parts) * self.blocks

    @property
    def state_bytes(self) -> int:
        """Bytes on disk of the state for resuming."""
        return state_bytes(self.part_words * self.dtype.itemsize) if self.tile else 0

    @property
    def memory_bytes(self) -> int:
        """Largest amount of memory that the call uses of the budget."""
        own = pages(self.part_words * self.dtype.itemsize)
        beside = STATE_MEMORY_BYTES if self.tile else 0
        beside += strip_bytes(self.messages, self.dtype, self.processes)
        return own + self._blocks_bytes() + self.target_bounce_bytes + beside

    @property
    def messages(self) -> Strips:
        """The largest messages between processes."""
        return Strips(self.n, self.parts[0].rows.stop)

    @staticmethod
    def strips(part: Part) -> Strips:
        """Return the messages with the columns of a part."""
        rows, columns = (s.stop - s.start for s in (part.rows, part.columns))
        return Strips(columns, rows, is_triangle=part.is_on_diagonal)

    def sent(self, shares: Shares) -> tuple[int, int]:
        """Return the bytes and messages that this process sends: sums, and G in memory to all."""
        if shares.target() is None and (self.tile or shares.size == 1 or shares.rank):
            return 0, 0
        each = [sent(self.strips(part), self.dtype) for part in self.parts]
        return sum(nbytes for nbytes, _ in each), sum(count for _, count in each)

    def _blocks_bytes(self) -> int:
        if not self.parts.is_tiled:
            # The first part has the most columns, and begins with whole grains of them.
            return blocks_bytes(self.plans(self.parts[0]))
        # Each pair of groups of columns is in memory together in some part.
        sizes: list[int] = []
        for layout, groups in layouts_of(self.parts, self.A).items():
            plan = dataclasses.replace(self.rows, layout=layout)
            sizes += [plan.memory_bytes] * min(groups, 2)
        return sum(heapq.nlargest(2, sizes))

    def bytes_read(self) -> int:
        """Return the bytes of A that all parts read. Exact if its chunks are whole pages."""
        # The number of parts that contain a tile's columns is the number of groups.
        times = len(self.parts.groups) if self.parts.is_tiled else 1
        layouts = layouts_of(self.parts, self.A)
        return times * sum(count * layout.bytes_read() for layout, count in layouts.items())

    def bytes_written(self, *, is_full: bool) -> int:
        """Return the exact bytes of G, in whole chunks."""
        if self.tile is None:
            return 0
        words = self.parts.words_below(*self.tile, is_full=is_full)
        for part in self.parts.on_diagonal:
            for _, rows, columns in self.boxes(part, is_full=is_full):
                words += (rows.stop - rows.start) * (columns.stop - columns.start)
        return words * self.dtype.itemsize

    def is_better_than(self, other: "GramGeometry") -> bool:
        """Whether it reads ahead, or reads less, or has higher blocks, in this order."""
        return self._merits() > other._merits()

    def _merits(self) -> tuple[bool, int, int]:
        reads_ahead = self.rows.buffers + self.rows.copies > 1
        return reads_ahead, -self.bytes_read(), self.rows.height

    def boxes(self, part: Part, *, is_full: bool) -> Iterator[tuple[bool, slice, slice]]:
        """Yield the whole chunks of G that a part fills: (whether transposed, rows, columns)."""
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
        """Return the real operations: n² for each row, four times that for complex types."""
        return gram_flops(rows, self.n, self.dtype)

    def part_flops(self, part: Part, rows: int | None = None) -> float:
        """Return the real operations of a part, or of some rows of A in it."""
        high, wide = (s.stop - s.start for s in (part.rows, part.columns))
        words = float(2 * high * wide - wide**2 * part.is_on_diagonal)
        return self.flops((self.A.rows or 0) if rows is None else rows) / self.n**2 * words

    def words_lower_bound(self, *, is_full: bool) -> float | None:
        """Return the words that must move: A, or n² m / √(2 M) (Beaumont et al. 2022), and G."""
        if self.A.rows is None:
            return None
        words = self.budget_bytes / self.dtype.itemsize
        reads = max(self.n**2 * self.A.rows / math.sqrt(2 * words), self.n * self.A.rows)
        return reads + (self.n**2 / (1 if is_full else 2) if self.tile else 0)

    @property
    def method(self) -> str:
        """Description of the method, as text."""
        if len(self.parts) == 1:
            return f"one pass, {self.rows.height} rows at once"
        kind = "tiles" if self.parts.is_tiled else "slabs"
        return f"{len(self.parts)} {kind}, a pass for each, {self.rows.height} rows at once"


def gram_flops(m: int, n: int, dtype: np.dtype[Any]) -> float:
    """Return the operations of AᴴA for A of m x n: m n², four times that for complex types."""
    return flop_weight(dtype) * float(m) * n**2


@dataclass(frozen=True)
class GramProblem:
    """The matrix and the result to plan.

    Attributes
    ----------
    A
        The streamed matrix.
    dtype
        Element type of AᴴA.
    is_stored
        Whether AᴴA is stored on disk.
    converts
        Whether blocks are converted regardless of their type.
    one_pass
        Reason why only one pass over A is possible; empty if there is none.
    processes
        Number of processes.
    """

    A: RowLayout
    dtype: np.dtype[Any]
    is_stored: bool
    converts: bool = False
    one_pass: str = ""
    processes: int = 1

    @property
    def can_be_cut(self) -> bool:
        """Whether there may be several parts."""
        return self.is_stored and not self.one_pass


def gram_geometry(problem: GramProblem, memory_bytes: int) -> GramGeometry:
    """Divide AᴴA into parts for a memory budget.

    Raises
    ------
    BudgetError
        If no division fits into the memory.
    """
    found, need = _cut(problem, memory_bytes)
    if found is not None:
        return found
    # With more memory the chunks of G may be larger: repeat until the stated need is sufficient.
    while found is None:
        found, need = _cut(problem, need)
    n, fix = problem.A.columns, "raise memory="
    if problem.one_pass:
        fix += f": all of the result must be in memory, because {problem.one_pass}"
    elif not problem.is_stored:
        fix += ", or give out= for a result on disk"
    raise too_small(need, memory_bytes, f"a product of order {n} and blocks of rows", fix)


def dealt_gram_geometry(problem: GramProblem, memory_bytes: int, shares: Shares) -> GramGeometry:
    """Divide AᴴA into parts, the same for all processes, with the rows of this process."""
    if shares.size == 1:
        return gram_geometry(problem, memory_bytes)
    most = dataclasses.replace(problem.A, rows=shares.most)
    g = gram_geometry(dataclasses.replace(problem, A=most), memory_bytes)
    return dataclasses.replace(
        g, rows=dataclasses.replace(g.rows, layout=shares.rows_in(problem.A))
    )  # fmt: skip


def _cut(problem: GramProblem, memory_bytes: int) -> tuple[GramGeometry | None, int]:
    """Return the division that reads least, if any fits, and the smallest need."""
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
    """Choose blocks of rows that fit beside these parts."""
    A, n = problem.A, problem.A.columns

    def geometry(plan: RowPlan) -> GramGeometry:
        rows = dataclasses.replace(plan, layout=A)
        return GramGeometry(
            n, problem.dtype, rows, tile, parts, memory_bytes, problem.processes
        )  # fmt: skip

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
    """Refuse arguments that `gram` does not support.

    Raises
    ------
    InvalidError
        If the side or the triangle is unknown.
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
    shares = planned_shares(problem, [A])
    given = GramProblem(A, dtype, is_stored, processes=shares.size)
    g = dealt_gram_geometry(given, problem.memory_bytes, shares)
    is_full = triangle == "both"
    on_disk = g.bytes_written(is_full=is_full)
    written = 0 if shares.rank else on_disk
    assert g.A.rows is not None, "a plan knows the shape"
    phase = Phase(
        dtype=dtype,
        bytes_read=g.bytes_read(),
        bytes_written=written,
        flops=gram_flops(g.A.rows, g.n, dtype),
        other_seconds=g.bytes_read() * SCAN_S_PER_BYTE,
        ends_read_bytes=min(g.rows.height * A.width * dtype.itemsize, g.bytes_read()),
        ends_written_bytes=written,
    )
    moved = sum(sent(g.strips(part), dtype)[0] for part in g.parts) if shares.size > 1 else 0
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=on_disk + shares.size * g.state_bytes,
        words_lower_bound=g.words_lower_bound(is_full=is_full) if shares.size == 1 else None,
        phases=(phase, *merging_phases(problem, shares, moved, moved * (not is_stored), 0.0)),
        processes=shares.size,
        bytes_sent=g.sent(shares)[0],
    )
