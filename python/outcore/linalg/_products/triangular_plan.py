"""The cuts of a triangular system for a memory budget, and its cost. Pure arithmetic."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.budget import too_small
from outcore._util.counts import count_of
from outcore._util.sizes import parse_rate
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, default_chunks
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._output.result_chunks import result_chunks, result_metadata
from outcore.linalg._products.matmul_geometry import Extent
from outcore.linalg._products.matmul_plan import FLAT, THIN, piece_shapes, planned_grains
from outcore.linalg._products.piece_counts import (
    RING_PIECES,
    dealt_bytes,
    pieces_in_memory,
    shared_bytes,
)
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import Grains, bounce_bytes, cut
from outcore.linalg._tiles.pitch import matrix_bytes, pitch
from outcore.linalg._tiles.transposes import read_trans


def flops(n: int, rhs: int, dtype: np.dtype[Any]) -> float:
    """Real operations for `rhs` right-hand sides: n² each, four times that for complex types."""
    return flop_weight(dtype) * float(n) ** 2 * rhs


@dataclass(frozen=True)
class TriangularSystem:
    """op(T) X = B for the plan: T of order n, B of n x rhs.

    Attributes
    ----------
    n, rhs, dtype
        Sizes and element type.
    t, b
        Grains of op(T) and B.
    is_lower
        Whether op(T) is lower triangular.
    shape
        Shape of X: (n,) or (n, rhs).
    is_stored
        Whether X is written to disk.
    copy_bytes
        Memory for a copy of a T that the BLAS cannot use directly.
    """

    n: int
    rhs: int
    dtype: np.dtype[Any]
    t: Grains
    b: Grains
    is_lower: bool
    shape: tuple[int, ...]
    is_stored: bool
    copy_bytes: int = 0


@dataclass(frozen=True)
class TriangularGeometry:
    """Cuts of a triangular system.

    X is solved for in *groups* of columns that fit in memory as a whole. The matrix op(T) is cut
    into *strips* of rows, in the order of substitution, and each strip into *pieces*. B is read in
    boxes.

    Attributes
    ----------
    columns
        Columns of a group.
    strip, depth
        Rows of a strip, and columns of a piece.
    load
        Rows and columns of a box of B.
    chunk
        Chunk of X on disk; (1, 1) if X is a vector or in memory.
    size, rank
        Number of processes, and the one whose groups these are. The processes divide the columns of
        X, use the same pieces of T at the same time, and each reads some of these.
    """

    system: TriangularSystem
    columns: int
    strip: int
    depth: int
    load: tuple[int, int]
    chunk: tuple[int, int]
    budget_bytes: int
    size: int = 1
    rank: int = 0

    def _edge(self, rank: int) -> int:
        """Return the first column of X that a process solves for."""
        unit, rhs = self.system.b.columns, self.system.rhs
        if -(-rhs // unit) < self.size:
            unit = 1
        units = -(-rhs // unit)
        return min(-(-units * rank // self.size) * unit, rhs)

    @property
    def own(self) -> slice:
        """Columns of X that this process solves for."""
        return self.own_of(self.rank)

    def own_of(self, rank: int) -> slice:
        """Columns of X that a process solves for."""
        return slice(self._edge(rank), self._edge(rank + 1))

    @property
    def most(self) -> int:
        """The largest number of columns that a process solves for."""
        return self._edge(1)

    @property
    def passes(self) -> int:
        """Number of passes over T."""
        return -(-self.most // self.columns)

    def groups(self) -> list[slice]:
        """Columns of X that are solved for together.

        All processes have as many groups; the last ones may be empty.
        """
        own = self.own
        groups = cut(own.start, own.stop, self.columns)
        return groups + [slice(own.stop, own.stop)] * (self.passes - len(groups))

    def strips(self) -> list[slice]:
        """Rows of op(T), in the order of substitution."""
        return self._in_order(cut(0, self.system.n, self.strip))

    def pieces(self, strip: slice) -> list[Extent]:
        """Boxes of a strip that cover its part of the triangle, in the order of substitution."""
        beside, near = self._beside(strip), self._near(strip)
        parts = [(strip, c) for c in self._in_order(cut(beside.start, beside.stop, self.depth))]
        return parts + near

    def _beside(self, strip: slice) -> slice:
        """Columns of the pieces of a strip that do not reach the diagonal."""
        n, depth = self.system.n, self.depth
        if self.system.is_lower:
            return slice(0, strip.start // depth * depth)
        return slice(min(-(-strip.stop // depth) * depth, n), n)

    def _near(self, strip: slice) -> list[Extent]:
        """Pieces of a strip that reach the diagonal, without parts wholly on its other side."""
        t, beside = self.system.t, self._beside(strip)
        if self.system.is_lower:
            return [
                (slice(max(strip.start, c.start // t.rows * t.rows), strip.stop), c)
                for c in cut(beside.stop, strip.stop, self.depth)
            ]
        first = strip.start // self.depth * self.depth
        return [
            (
                slice(strip.start, min(strip.stop, c.stop)),
                slice(max(c.start, strip.start // t.columns * t.columns), c.stop),
            )
            for c in cut(first, beside.start, self.depth)[::-1]
        ]

    def loads(self, group: slice) -> list[Extent]:
        """Boxes of B for a group, in the order of their use."""
        b = self.system.b
        if group.start == group.stop:
            return []
        columns = cut(group.start // b.columns * b.columns, group.stop, self.load[1])
        rows = self._in_order(cut(0, self.system.n, self.load[0]))
        return [(i, j) for i in rows for j in columns]

    def _in_order(self, parts: list[slice]) -> list[slice]:
        return parts if self.system.is_lower else parts[::-1]

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of a group of X in memory: a whole number of chunks high, as on disk."""
        return -(-self.system.n // self.chunk[0]) * self.chunk[0], self.columns

    @property
    def block_bytes(self) -> int:
        """Memory of a group of X; none if all of X is in memory, which belongs to the caller."""
        if not self.system.is_stored:
            return 0
        return matrix_bytes(*self.block_shape, self.system.dtype.itemsize)

    @property
    def piece_bytes(self) -> int:
        """Memory of a piece of T."""
        return self.system.t.memory_bytes(self.strip, self.depth)

    @property
    def ring_bytes(self) -> int:
        """Memory of the pieces of T."""
        return pieces_in_memory(self.size) * self.piece_bytes

    @property
    def load_bytes(self) -> int:
        """Memory of the boxes of B."""
        return RING_PIECES * self.system.b.memory_bytes(*self.load)

    def bounce_bytes(self, name: str) -> int:
        """Memory for unaligned transfers of T, B or X."""
        if name == "X":
            is_moved = self.system.is_stored
            is_aligned = self.chunk[0] * self.system.dtype.itemsize % SLOT_ALIGN_BYTES == 0
        else:
            grains = self.system.t if name == "T" else self.system.b
            is_moved, is_aligned = grains.is_on_disk, grains.is_aligned
        return bounce_bytes(self.budget_bytes, is_aligned=is_aligned) if is_moved else 0

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the solution takes from its arena."""
        bounce = sum(self.bounce_bytes(name) for name in "TBX")
        rings = self.ring_bytes + self.load_bytes
        return self.block_bytes + rings + bounce + self.system.copy_bytes

    def triangle_bytes(self) -> int:
        """Bytes of T that are read in one pass."""
        if not self.system.t.is_on_disk:
            return 0
        t, total = self.system.t, 0
        for strip in self.strips():
            beside = self._beside(strip)
            total += t.box_bytes(strip.stop - strip.start, beside.stop - beside.start)
            for rows, columns in self._near(strip):
                total += t.box_bytes(rows.stop - rows.start, columns.stop - columns.start)
        return total

    def triangle_read(self) -> tuple[int, int]:
        """Bytes and pieces of T that this process reads. It sends them to the others."""
        t = self.system.t
        if self.size == 1 or not t.is_on_disk:
            return self.passes * self.triangle_bytes(), 0
        pieces = [
            t.box_bytes(rows.stop - rows.start, columns.stop - columns.start)
            for strip in self.strips()
            for rows, columns in self.pieces(strip)
        ]
        return dealt_bytes(pieces, self.passes, self.size, self.rank)

    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process sends."""
        if self.size == 1:
            return 0, 0
        nbytes, messages = self.triangle_read()
        if not self.system.is_stored:
            extent, itemsize = (slice(0, self.system.n), self.own), self.system.dtype.itemsize
            of_result = shared_bytes(extent, self.system.n, itemsize)
            nbytes, messages = nbytes + of_result[0], messages + of_result[1]
        return nbytes, messages

    def bytes_read(self) -> int:
        """Bytes of T and B that this process reads. Exact if chunks are whole pages."""
        b = self.system.b
        loaded = sum(
            b.box_bytes(self.system.n, group.stop - group.start // b.columns * b.columns)
            for group in self.groups()
            if group.start < group.stop
        )
        return self.triangle_read()[0] + loaded

    def bytes_written(self) -> int:
        """Bytes of X that this process writes, with the padding below its last row."""
        s, own = self.system, self.own.stop - self.own.start
        return self.block_shape[0] * own * s.dtype.itemsize if s.is_stored else 0

    @property
    def own_flops(self) -> float:
        """Operations of this process."""
        return flops(self.system.n, self.own.stop - self.own.start, self.system.dtype)

    def words_lower_bound(self) -> float:
        """Count the words on disk once. No sharper lower bound is known."""
        s = self.system
        triangle = s.n * (s.n + 1) / 2 * s.t.is_on_disk
        return float(triangle + s.n * s.rhs * (s.b.is_on_disk + s.is_stored))

    def phase(self) -> Phase:
        """Return the bytes moved and the operations."""
        s = self.system
        return Phase(
            dtype=s.dtype,
            bytes_read=self.bytes_read(),
            bytes_written=self.bytes_written(),
            flops=self.own_flops,
            ends_read_bytes=s.b.memory_bytes(self.strip, self.columns),
            ends_written_bytes=self.strip * self.columns * s.dtype.itemsize * s.is_stored,
        )

    @property
    def method(self) -> str:
        """Description of the method, for users."""
        count = self.passes
        passes = "1 pass" if count == 1 else f"{count} passes"
        return (
            f"{passes} over the triangle, with {self.columns} columns of X at once, in pieces of "
            f"{self.strip} x {self.depth}"
            + (f", dealt to {self.size} processes" if self.size > 1 else "")
        )


def triangular_geometry(
    system: TriangularSystem, memory_bytes: int, size: int = 1, rank: int = 0
) -> TriangularGeometry:
    """Cut a triangular system for a memory budget, which each of several processes has.

    Raises
    ------
    BudgetError
        If one column does not fit.
    """
    if found := _best(system, memory_bytes, size):
        return dataclasses.replace(found, rank=rank)
    need = 0
    while need == 0 or _best(system, need, size) is None:
        need = min(g.memory_bytes for g in _smallest(system, need or memory_bytes, size))
    what = f"a triangular system of order {system.n} in {system.dtype.name} with these chunks"
    raise too_small(need, memory_bytes, what)


def _best(system: TriangularSystem, memory_bytes: int, size: int) -> TriangularGeometry | None:
    for chunk in _chunks(system, memory_bytes):
        ways = _ways(system, chunk, memory_bytes, size)
        found = [g for g in ways if g.memory_bytes <= memory_bytes]
        if found:
            return min(found, key=_score)
    smallest = [g for g in _smallest(system, memory_bytes, size) if g.memory_bytes <= memory_bytes]
    return min(smallest, key=_score, default=None)


def _chunks(system: TriangularSystem, memory_bytes: int) -> Iterator[tuple[int, int]]:
    """Candidate chunks of X on disk, from large to small."""
    if len(system.shape) < 2 or not system.is_stored:
        return iter([(1, 1)])
    return result_chunks(system.n, system.rhs, system.dtype, system.t.rows, memory_bytes)


def _score(g: TriangularGeometry) -> float:
    """Bytes of T that are moved, weighted by the slowness of the products."""
    slow = 1 + THIN / g.strip + THIN / g.columns + FLAT / g.depth
    # Half of a strip's square lies on the other side of the diagonal, and is read needlessly.
    wide = 1 + max(g.strip, g.depth) / g.system.n
    return g.passes * slow * wide


def _ways(
    system: TriangularSystem, chunk: tuple[int, int], memory_bytes: int, size: int
) -> Iterator[TriangularGeometry]:
    """Candidate cuts of a system; some may not fit."""
    for strip, depth in piece_shapes(system.t, system.n, system.n, memory_bytes):
        for load in _loads(system, strip):
            one = TriangularGeometry(system, 1, strip, depth, load, chunk, memory_bytes, size)
            yield _widest(one)


def _smallest(
    system: TriangularSystem, memory_bytes: int, size: int
) -> Iterator[TriangularGeometry]:
    """Cuts that need the least memory: one grain of each operand, and one column of X."""
    grain, load = (system.t.rows, system.t.columns), (system.b.rows, system.b.columns)
    for chunk in _chunks(system, memory_bytes):
        yield TriangularGeometry(system, 1, *grain, load, chunk, memory_bytes, size)


def _loads(system: TriangularSystem, strip: int) -> set[tuple[int, int]]:
    """Candidate shapes of boxes of B: less than 4 MiB, if grains are."""
    b = system.b
    if not b.is_on_disk:
        return {(strip, system.rhs)}
    return {
        b.covering(min(rows, system.n), min(columns, system.rhs))
        for rows in (strip, 64, 1)
        for columns in (128, 16, 1)
    }


def _widest(one: TriangularGeometry) -> TriangularGeometry:
    """Make groups as wide as fits, of about equal width, and of whole grains of B if possible."""
    system = one.system
    if not system.is_stored:
        return dataclasses.replace(one, columns=one.most)
    column_bytes = pitch(one.block_shape[0], system.dtype.itemsize) * system.dtype.itemsize
    left = one.budget_bytes - one.memory_bytes + one.block_bytes
    most = max(min(left // SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES // column_bytes, one.most), 1)
    unit = system.b.columns if most >= system.b.columns else 1
    units = -(-one.most // unit)
    groups = -(-units // (most // unit))
    columns = min(-(-units // groups) * unit, one.most)
    return dataclasses.replace(one, columns=columns)


def triangular_cost(problem: Problem) -> Cost:
    """Plan `solve_triangular` to disk, with B in Fortran order with default chunks.

    T has the same layout, unless the options ``order`` and ``chunks`` set another. If there are
    several processes, it is the cost of the first, which has most to do.
    """
    n, rhs, dtype = problem.n, problem.rhs, problem.dtype
    trans = read_trans("trans", problem.option("trans", "N"))
    is_lower = bool(problem.option("lower", False)) != (trans != "N")
    layout = layout_of(problem)
    t = planned_grains(problem, layout)
    b = Grains.of(default_chunks((n, rhs), dtype.itemsize, "F"), "F", dtype.itemsize)
    t = t if trans == "N" else t.transposed()
    system = TriangularSystem(n, rhs, dtype, t, b, is_lower, (n, rhs), is_stored=True)
    processes = count_of("processes", problem.option("processes", 1))
    link = problem.option("link", None)
    g = triangular_geometry(system, problem.memory_bytes, processes)
    phase = g.phase()
    if processes > 1 and link is not None:
        sent_bytes = g.passes * g.triangle_bytes()
        phase = dataclasses.replace(phase, network_seconds=sent_bytes / parse_rate(link))
    grid = result_metadata(system.shape, dtype, g.chunk).grid()
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=grid.shards * grid.shard_bytes,
        words_lower_bound=g.words_lower_bound() if processes == 1 else None,
        phases=(phase,),
        processes=processes,
        bytes_sent=g.sent()[0],
    )
