"""The cuts of a matrix product for a memory budget, and its cost. Pure arithmetic."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from outcore._util.budget import too_small
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._output.result_chunks import result_chunks, result_metadata
from outcore.linalg._tiles.cost import Cost, Phase, Problem, flop_weight
from outcore.linalg._tiles.grains import Grains, bounce_bytes, cut
from outcore.linalg._tiles.pitch import matrix_bytes
from outcore.linalg._tiles.transposes import read_trans

RING_PIECES = 3
"""Pieces of the streamed operand in memory: one in use, two being read."""

PIECE_BYTES = 4 << 20
"""Pieces grow to this size if the budget allows it."""

# Candidates for the length and depth of pieces, and for the number of blocks along C.
_LENGTHS, _DEPTHS = (512, 128, 32, 8, 1), (256, 64, 16, 1)
_MEMORY_DEPTHS = (1024, 256, 64)
_COUNTS = (*range(1, 17), *(int(16 * 1.3**i) for i in range(1, 60)))

PARTS = 4
"""Number of parts of a piece that is as long as a block of C, when C becomes final."""

MOST_DEPTH = 1024
"""Largest depth of a slab, unless its grains are deeper. It suffices to hide the writes of C."""

# A product of m x k by k x n takes about 1 + 25/m + 25/n + 4/k times its ideal time (OpenBLAS
# 0.3.30, two cores, float64). Blocks with shallow slabs wait for the writes of C.
THIN, FLAT = 25, 4
_SHALLOW = 1.2

Name: TypeAlias = Literal["A", "B"]
Extent: TypeAlias = tuple[slice, slice]


def flops(m: int, n: int, k: int, dtype: np.dtype[Any]) -> float:
    """Real operations of a product of m x k by k x n: 2 m n k, four times that for complex."""
    return flop_weight(dtype) * 2.0 * m * n * k


@dataclass(frozen=True)
class Product:
    """C = op(A) op(B) for the plan: C is m x n, the inner length is k.

    Attributes
    ----------
    m, n, k, dtype
        Sizes and element type.
    a, b
        Grains of op(A) and op(B).
    shape
        Shape of C: (m, n), or one of them if an operand is a vector.
    is_stored
        Whether C is written to disk.
    copy_bytes
        Memory for copies of operands that the BLAS cannot use directly.
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    a: Grains
    b: Grains
    shape: tuple[int, ...]
    is_stored: bool
    copy_bytes: int = 0

    def grains(self, name: Name) -> Grains:
        """Grains of an operand: (along C, along the inner length)."""
        return self.a if name == "A" else self.b.transposed()

    def length(self, name: Name) -> int:
        """Rows of op(A), or columns of op(B)."""
        return self.m if name == "A" else self.n


@dataclass(frozen=True)
class MatmulGeometry:
    """Cuts of a product.

    C is computed in *blocks* of ``rows`` x ``columns``, each of which stays in memory until it is
    complete. A *slab* of one operand, ``depth`` deep, is held while *pieces* of the other operand
    stream past it.

    Attributes
    ----------
    holds
        Name of the operand that is held.
    tile
        Chunk of C on disk; (1, 1) if C is a vector or in memory.
    """

    product: Product
    holds: Name
    rows: int
    columns: int
    depth: int
    piece_length: int
    piece_depth: int
    tile: tuple[int, int]
    budget_bytes: int

    @property
    def streams(self) -> Name:
        """Name of the operand that is streamed."""
        return "A" if self.holds == "B" else "B"

    def block_length(self, name: Name) -> int:
        """Rows of a block for A, columns for B."""
        return self.rows if name == "A" else self.columns

    def blocks(self) -> Iterator[Extent]:
        """Cut C into (rows, columns), in an order in which blocks that share slabs are adjacent."""
        rows, columns = cut(0, self.product.m, self.rows), cut(0, self.product.n, self.columns)
        if self.holds == "B":
            return ((i, j) for j in columns for i in rows)
        return ((i, j) for i in rows for j in columns)

    def slabs(self) -> list[slice]:
        """Cut the inner length for the held operand."""
        return cut(0, self.product.k, self.depth)

    def lengths(self, block: Extent) -> list[slice]:
        """Cut a block along C into the lengths of pieces.

        Each length is used with all depths of a slab before the next length. So the beginning of C
        is final, and can be written, while the last slab is still in use.
        """
        along = block[self.streams == "B"]
        return cut(along.start, along.stop, self.piece_length)

    @property
    def is_one_piece(self) -> bool:
        """Whether a piece is as long as a block of C, and C a matrix on disk.

        A whole block then becomes final with its last piece. So that it can be written and its
        memory reused step by step, its first and last piece are used in `PARTS` parts.
        """
        is_matrix = self.product.is_stored and len(self.product.shape) == 2
        return is_matrix and self.piece_length >= self.block_length(self.streams)

    @property
    def final_axis(self) -> int:
        """Axis of C along which blocks become final."""
        return int((self.streams == "B") != self.is_one_piece)

    def part(self, block: Extent, along: slice) -> Extent:
        """Return the rows and columns of C that pieces of one length update."""
        return (along, block[1]) if self.streams == "A" else (block[0], along)

    def parts(self, block: Extent, along: slice) -> list[Extent]:
        """Cut `part` for a first or last piece, between chunks of C."""
        if not self.is_one_piece:
            return [self.part(block, along)]
        axis = self.final_axis
        whole, chunk = block[axis], self.tile[axis]
        step = -(-(whole.stop - whole.start) // (chunk * PARTS)) * chunk
        parts = cut(whole.start, whole.stop, step)
        return [(along, part) if axis else (part, along) for part in parts]

    def depths(self, slab: slice) -> list[slice]:
        """Depths of the pieces that begin within a slab. The last may extend into the next slab."""
        first = -(-slab.start // self.piece_depth) * self.piece_depth
        return [
            slice(i, min(i + self.piece_depth, self.product.k))
            for i in range(first, slab.stop, self.piece_depth)
        ]

    def box(self, name: Name, along: slice, depth: slice) -> Extent:
        """Return (rows, columns) of a box in op(A) or op(B)."""
        return (along, depth) if name == "A" else (depth, along)

    @property
    def slab_bytes(self) -> int:
        """Memory of a slab."""
        grains = self.product.grains(self.holds)
        return grains.memory_bytes(self.block_length(self.holds), self.depth)

    @property
    def slab_buffers(self) -> int:
        """Slabs in memory: one in use and one being read, unless the product has only one."""
        is_one = self.block_length(self.holds) >= self.product.length(self.holds)
        return 1 if is_one and self.depth >= self.product.k else 2

    @property
    def ring_bytes(self) -> int:
        """Memory of the pieces."""
        grains = self.product.grains(self.streams)
        return RING_PIECES * grains.memory_bytes(self.piece_length, self.piece_depth)

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of a block in memory: a whole number of chunks high, as on disk."""
        rows = min(self.rows, self.product.m)
        return -(-rows // self.tile[0]) * self.tile[0], min(self.columns, self.product.n)

    @property
    def block_bytes(self) -> int:
        """Memory of a block of C; none if all of C is in memory, which belongs to the caller."""
        if not self.product.is_stored:
            return 0
        return matrix_bytes(*self.block_shape, self.product.dtype.itemsize)

    def bounce_bytes(self, name: str) -> int:
        """Memory for unaligned transfers of A, B or C."""
        product = self.product
        if name == "C":
            is_moved = product.is_stored
            is_aligned = self.tile[0] * product.dtype.itemsize % SLOT_ALIGN_BYTES == 0
        else:
            grains = product.a if name == "A" else product.b
            is_moved, is_aligned = grains.is_on_disk, grains.is_aligned
        return bounce_bytes(self.budget_bytes, is_aligned=is_aligned) if is_moved else 0

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the product takes from its arena."""
        bounce = sum(self.bounce_bytes(name) for name in "ABC")
        slabs = self.slab_buffers * self.slab_bytes
        return self.block_bytes + slabs + self.ring_bytes + bounce + self.product.copy_bytes

    def bytes_read(self) -> int:
        """Bytes of A and B that are read. Exact if chunks are whole pages."""
        times = {self.streams: self._count(self.holds), self.holds: 1}
        if self.depth < self.product.k:
            times[self.holds] = self._count(self.streams)
        return sum(
            many * grains.box_bytes(self.product.length(name), self.product.k)
            for name, many in times.items()
            for grains in [self.product.grains(name)]
        )

    def _count(self, name: Name) -> int:
        return math.ceil(self.product.length(name) / self.block_length(name))

    def bytes_written(self) -> int:
        """Bytes of C that are written, with the padding below its last row."""
        if not self.product.is_stored:
            return 0
        rows = -(-self.product.m // self.tile[0]) * self.tile[0]
        return rows * self.product.n * self.product.dtype.itemsize

    def words_lower_bound(self) -> float:
        """Words that any product must move.

        2mnk/√M are read (Smith et al. 2017, arXiv 1702.02017) if no matrix is in memory, and each
        matrix on disk at least once. C is written.
        """
        p = self.product
        once = p.m * p.k * p.a.is_on_disk + p.k * p.n * p.b.is_on_disk
        many = 2 * p.m * p.n * p.k / math.sqrt(self.budget_bytes / p.dtype.itemsize)
        all_on_disk = p.a.is_on_disk and p.b.is_on_disk and p.is_stored
        return max(many if all_on_disk else 0.0, float(once)) + p.m * p.n * p.is_stored

    def phase(self) -> Phase:
        """Return the bytes moved and the operations."""
        p = self.product
        last = min(self.piece_length, self.block_length(self.streams))
        end = last * min(self.block_length(self.holds), p.length(self.holds)) * p.is_stored
        return Phase(
            dtype=p.dtype,
            bytes_read=self.bytes_read(),
            bytes_written=self.bytes_written(),
            flops=flops(p.m, p.n, p.k, p.dtype),
            ends_read_bytes=self.slab_bytes + self.ring_bytes // RING_PIECES,
            ends_written_bytes=end * p.dtype.itemsize,
        )

    @property
    def method(self) -> str:
        """Description of the method, for users."""
        return (
            f"{self._count('A')} x {self._count('B')} blocks of {self.rows} x {self.columns}, "
            f"slabs of {self.holds} {min(self.depth, self.product.k)} deep held, "
            f"{self.streams} streamed in pieces of {self.piece_length} x {self.piece_depth}"
        )


def matmul_geometry(product: Product, memory_bytes: int) -> MatmulGeometry:
    """Cut a product for a memory budget, for few reads and large BLAS products.

    Raises
    ------
    BudgetError
        If the smallest blocks do not fit.
    """
    if found := _best(product, memory_bytes):
        return found
    need = 0
    while need == 0 or _best(product, need) is None:
        need = min(g.memory_bytes for g in _smallest(product, need or memory_bytes))
    p = product
    what = f"a product of {p.m} x {p.k} by {p.k} x {p.n} in {p.dtype.name} with these chunks"
    raise too_small(need, memory_bytes, what)


def _best(product: Product, memory_bytes: int) -> MatmulGeometry | None:
    """Find the best cuts that fit, with the largest possible chunks of C."""
    for tile in _tiles(product, memory_bytes):
        found = [g for g in _ways(product, tile, memory_bytes) if g.memory_bytes <= memory_bytes]
        if found:
            return min(found, key=_score)
    smallest = [g for g in _smallest(product, memory_bytes) if g.memory_bytes <= memory_bytes]
    return min(smallest, key=_score, default=None)


def _tiles(product: Product, memory_bytes: int) -> Iterator[tuple[int, int]]:
    """Candidate chunks of C on disk, from large to small."""
    if len(product.shape) < 2 or not product.is_stored:
        return iter([(1, 1)])
    m, n = product.shape
    return result_chunks(m, n, product.dtype, product.a.rows, memory_bytes)


def _score(g: MatmulGeometry) -> float:
    """Weight the bytes moved by the slowness of the products, which take most of the time."""
    thin = THIN / g.piece_length + THIN / g.block_length(g.holds)
    slow = 1 + thin + FLAT / g.piece_depth
    shallow = _SHALLOW if g.depth < min(_depth(g.budget_bytes, g.product), g.product.k) else 1
    return (g.bytes_read() + g.bytes_written() + 1) * slow**2 * shallow


def _depth(memory_bytes: int, product: Product) -> int:
    """Preferred depth of slabs: two of them then take a third of a square block's memory."""
    words = memory_bytes / product.dtype.itemsize
    return min(MOST_DEPTH, max(int(math.sqrt(words) / 6), 1))


def _units(product: Product, tile: tuple[int, int]) -> dict[Name, int]:
    """Units of block lengths along C: blocks end at boundaries of grains and of chunks of C."""
    return {"A": math.lcm(product.a.rows, tile[0]), "B": product.b.columns}


def _ways(product: Product, tile: tuple[int, int], memory_bytes: int) -> Iterator[MatmulGeometry]:
    """Candidate cuts of a product; some may not fit."""
    units = _units(product, tile)
    for holds in ("A", "B"):
        streams: Name = "A" if holds == "B" else "B"
        for length, piece_depth in piece_shapes(
            product.grains(streams), product.length(streams), product.k, memory_bytes
        ):
            for depth in _slab_depths(product, holds, piece_depth, memory_bytes):
                for along in _lengths(product.length(streams), units[streams]):
                    g = MatmulGeometry(
                        product, holds, along, along, depth, min(length, along), piece_depth, tile,
                        memory_bytes,
                    )  # fmt: skip
                    yield from _widest(g, units[holds])


def _smallest(product: Product, memory_bytes: int) -> Iterator[MatmulGeometry]:
    """Cuts that need the least memory: one grain of each operand."""
    for tile in _tiles(product, memory_bytes):
        units = _units(product, tile)
        for holds in ("A", "B"):
            streamed = product.grains("A" if holds == "B" else "B")
            deep = -(-streamed.columns // product.grains(holds).columns)
            yield MatmulGeometry(
                product, holds, units["A"], units["B"], deep * product.grains(holds).columns,
                streamed.rows, streamed.columns, tile, memory_bytes,
            )  # fmt: skip


def piece_shapes(grains: Grains, length: int, k: int, memory_bytes: int) -> set[tuple[int, int]]:
    """Candidate shapes of pieces, as (along C, depth), of a matrix of that length and depth."""
    found = set()
    for long in _LENGTHS:
        for deep in _DEPTHS if grains.is_on_disk else _MEMORY_DEPTHS:
            if not grains.is_on_disk:
                found.add((min(max(long, 4096), length), min(deep, k)))
                continue
            piece = grains.covering(min(long, length), min(deep, k))
            most = min(PIECE_BYTES, memory_bytes // 48)
            while grains.box_bytes(2 * piece[0], piece[1]) <= most and piece[0] < min(2048, length):
                piece = 2 * piece[0], piece[1]
            found.add(piece)
    return found


def _slab_depths(product: Product, holds: Name, piece_depth: int, memory_bytes: int) -> set[int]:
    """Candidate depths of slabs. No piece then needs more than two slabs."""
    grains, k = product.grains(holds), product.k
    whole = grains.covering(1, k)[1]
    if not grains.is_on_disk:
        return {whole}
    found = {whole}
    for wanted in (piece_depth, _depth(memory_bytes, product)):
        depth = grains.covering(1, max(wanted, piece_depth))[1]
        # Prefer slabs that end at the boundaries of pieces.
        common = math.lcm(grains.columns, piece_depth)
        even = -(-depth // common) * common
        found.add(min(even if 2 * even <= 3 * depth else depth, whole))
    return found


def _lengths(length: int, unit: int) -> set[int]:
    """Candidate lengths of blocks along C."""
    units = -(-length // unit)
    return {-(-units // count) * unit for count in _COUNTS if count <= units} | {unit}


def _widest(g: MatmulGeometry, unit: int) -> Iterator[MatmulGeometry]:
    """Make blocks as long along the held operand as fits, all of about the same length."""
    product, holds = g.product, g.holds
    whole = product.length(holds)

    def of(length: int) -> MatmulGeometry:
        if holds == "A":
            return dataclasses.replace(g, rows=length)
        return dataclasses.replace(g, columns=length)

    all_of_it = of(-(-whole // unit) * unit)
    if all_of_it.memory_bytes <= g.budget_bytes:
        yield all_of_it
        return
    one, two = of(unit), of(2 * unit)
    each = max(two.memory_bytes - one.memory_bytes, 1)
    units = -(-whole // unit)
    count = min((g.budget_bytes - one.memory_bytes) // each + 1, units)
    # Each term of the memory is rounded up to pages.
    while count > 1 and of(count * unit).memory_bytes > g.budget_bytes:
        count -= 1
    if count >= 1:
        yield of(-(-units // -(-units // count)) * unit)


def planned_grains(problem: Problem, layout: Layout) -> Grains:
    """Return the grains of a matrix of a plan."""
    computed = 0 if layout.stored is None else problem.dtype.itemsize
    return Grains.of(layout.chunks, layout.order, layout.itemsize(problem.dtype), computed)


def matmul_cost(problem: Problem) -> Cost:
    """Plan `matmul` of m x k by k x n to disk; `m` and `k` default to `n`.

    By default the operands are in Fortran order with default chunks. The options ``order`` and
    ``chunks`` set both operands; ``order_a``, ``chunks_a``, ``order_b`` and ``chunks_b`` set one.
    """
    n, dtype = problem.n, problem.dtype
    m, k = problem.m or n, problem.k or n
    grains = {}
    for name, shape in (("a", (m, k)), ("b", (k, n))):
        trans = read_trans(f"trans_{name}", problem.option(f"trans_{name}", "N"))
        stored = shape if trans == "N" else shape[::-1]
        layout = layout_of(problem, stored, of=f"_{name}")
        found = planned_grains(problem, layout)
        grains[name] = found if trans == "N" else found.transposed()
    product = Product(m, n, k, dtype, grains["a"], grains["b"], (m, n), is_stored=True)
    g = matmul_geometry(product, problem.memory_bytes)
    grid = result_metadata(product.shape, dtype, g.tile).grid()
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=grid.shards * grid.shard_bytes,
        words_lower_bound=g.words_lower_bound(),
        phases=(g.phase(),),
    )
