"""The search for the cuts of a matrix product for a memory budget, and its cost."""

import dataclasses
import math
from collections.abc import Iterator

from outcore._util.budget import too_small
from outcore._util.counts import count_of
from outcore._util.sizes import parse_rate
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._output.result_chunks import result_chunks, result_metadata
from outcore.linalg._products.matmul_geometry import (
    MatmulGeometry,
    Name,
    Product,
    units_of,
)
from outcore.linalg._tiles.cost import Cost, Problem
from outcore.linalg._tiles.grains import Grains
from outcore.linalg._tiles.transposes import read_trans

PIECE_BYTES = 4 << 20
"""Pieces grow to this size if the budget allows it."""

# Candidates for the length and depth of pieces, and for the number of blocks along C.
_LENGTHS, _DEPTHS = (512, 128, 32, 8, 1), (256, 64, 16, 1)
_MEMORY_DEPTHS = (1024, 256, 64)
_COUNTS = (*range(1, 17), *(int(16 * 1.3**i) for i in range(1, 60)))

MOST_DEPTH = 1024
"""Largest depth of a slab, unless its grains are deeper. It suffices to hide the writes of C."""

# A product of m x k by k x n takes about 1 + 25/m + 25/n + 4/k times its ideal time (OpenBLAS
# 0.3.30, two cores, float64). Blocks with shallow slabs wait for the writes of C.
THIN, FLAT = 25, 4
_SHALLOW = 1.2


def matmul_geometry(
    product: Product, memory_bytes: int, size: int = 1, rank: int = 0
) -> MatmulGeometry:
    """Cut a product for a memory budget, for few reads and large BLAS products.

    If there are several processes, each has that budget.

    Raises
    ------
    BudgetError
        If the smallest blocks do not fit.
    """
    if found := _best(product, memory_bytes, size):
        return dataclasses.replace(found, rank=rank)
    need = 0
    while need == 0 or _best(product, need, size) is None:
        need = min(g.memory_bytes for g in _smallest(product, need or memory_bytes, size))
    p = product
    what = f"a product of {p.m} x {p.k} by {p.k} x {p.n} in {p.dtype.name} with these chunks"
    raise too_small(need, memory_bytes, what)


def _best(product: Product, memory_bytes: int, size: int) -> MatmulGeometry | None:
    """Find the best cuts that fit, with the largest possible chunks of C."""
    for tile in _tiles(product, memory_bytes):
        ways = _ways(product, tile, memory_bytes, size)
        found = [g for g in ways if g.memory_bytes <= memory_bytes]
        if found:
            return min(found, key=_score)
    smallest = [g for g in _smallest(product, memory_bytes, size) if g.memory_bytes <= memory_bytes]
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
    # The first process has most, and receives all pieces that it does not read.
    streamed_bytes = g.streamed_bytes() if g.size > 1 else g.streamed()[0]
    moved_bytes = g.held_bytes() + streamed_bytes + g.bytes_written() + 1
    return moved_bytes * slow**2 * shallow * max(g.own_flops, 1)


def _depth(memory_bytes: int, product: Product) -> int:
    """Preferred depth of slabs: two of them then take a third of a square block's memory."""
    words = memory_bytes / product.dtype.itemsize
    return min(MOST_DEPTH, max(int(math.sqrt(words) / 6), 1))


def _ways(
    product: Product, tile: tuple[int, int], memory_bytes: int, size: int
) -> Iterator[MatmulGeometry]:
    """Candidate cuts of a product; some may not fit."""
    units = units_of(product, tile)
    for holds in ("A", "B"):
        streams: Name = "A" if holds == "B" else "B"
        for length, piece_depth in piece_shapes(
            product.grains(streams), product.length(streams), product.k, memory_bytes
        ):
            for depth in _slab_depths(product, holds, piece_depth, memory_bytes):
                for along in _lengths(product.length(streams), units[streams]):
                    g = MatmulGeometry(
                        product, holds, along, along, depth, min(length, along), piece_depth, tile,
                        memory_bytes, size,
                    )  # fmt: skip
                    yield from _widest(g, units[holds])


def _smallest(product: Product, memory_bytes: int, size: int) -> Iterator[MatmulGeometry]:
    """Cuts that need the least memory: one grain of each operand."""
    for tile in _tiles(product, memory_bytes):
        units = units_of(product, tile)
        for holds in ("A", "B"):
            streamed = product.grains("A" if holds == "B" else "B")
            deep = -(-streamed.columns // product.grains(holds).columns)
            yield MatmulGeometry(
                product, holds, units["A"], units["B"], deep * product.grains(holds).columns,
                streamed.rows, streamed.columns, tile, memory_bytes, size,
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
    holds, whole = g.holds, g.held_length

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

    If there are several processes, it is the cost of the first, which has most to do.
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
    processes = count_of("processes", problem.option("processes", 1))
    link = problem.option("link", None)
    g = matmul_geometry(product, problem.memory_bytes, processes)
    phase = g.phase()
    if processes > 1 and link is not None:
        # Each piece goes to every process, so each link carries all pieces.
        phase = dataclasses.replace(phase, network_seconds=g.streamed_bytes() / parse_rate(link))
    grid = result_metadata(product.shape, dtype, g.tile).grid()
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=grid.shards * grid.shard_bytes,
        words_lower_bound=g.words_lower_bound() if processes == 1 else None,
        phases=(phase,),
        processes=processes,
        bytes_sent=g.sent()[0],
    )
