"""The loads of the slabs of an LU, for any layout, and its cost."""

from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import tile_shape
from outcore.linalg._geometry.factor_plan import (
    LuGeometry,
    dealt_lu_geometry,
    flops,
    lu_geometry,
    own_flops,
    panel_flops,
    update_flops,
)
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._geometry.loads import ColumnLoads
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Cost, Phase, Problem, flop_weight


class SlabLoads(ColumnLoads[LuGeometry]):
    """The loads of an LU's slabs."""

    def groups(self, chunks: tuple[int, ...]) -> tuple[int, int]:
        """Return how many tiles and panels a read covers, so that it reads chunks whole."""
        return load_groups(self.geometry, chunks)


def load_groups(g: LuGeometry, chunks: tuple[int, ...]) -> tuple[int, int]:
    """Return how many tiles and panels to load together so that no chunk is read twice.

    The panels of several processes are not adjacent, so each is loaded by itself.
    """
    across = _group(chunks[1], g.columns, g.slab_panels) if g.deal.size == 1 else 1
    return _group(chunks[0], g.rows, g.tiles), across


def _group(chunk: int, tile: int, most: int) -> int:
    if tile % chunk == 0:
        return 1
    return min(chunk // tile, most) if chunk % tile == 0 else most


# Shares of the speed of a large matrix product that other steps of LU reach, measured with OpenBLAS
# 0.3.30. These steps are a twentieth of the operations, so the shares need not be exact.
PANEL_SHARE = 0.40
TRIANGLE_SHARE = 0.35

# Narrow slabs use the disk all the time. The disk is slower while all cores compute, and the cores
# are slower too. At n = 16384 and 1/32, a run took 25.3 s where the disk alone takes 20.5 s. On
# another machine it took 27 s, with 21 s of arithmetic and 15 s of disk at their own rates.
_SLOWDOWN = 0.25

# Seconds per byte: a row swap moves each element of a slab once per row of L, at random.
_SWAP_S_PER_BYTE = 0.6e-9


def lu_geometry_of(problem: Problem) -> LuGeometry:
    """Cut as `lu_factor` does: factors that take the space of a matrix have its tiles."""
    overwrite_a = problem.option("overwrite_a", False)
    tile = tile_shape(problem.n, problem.dtype.itemsize) if overwrite_a else None
    return lu_geometry(problem.n, problem.dtype, problem.memory_bytes, tile)


def lu_costs(problem: Problem, processes: int) -> list[Cost]:
    """Plan `lu_factor` of several processes: the cost of each."""
    layout, disk = layout_of(problem), problem.disk()
    budgets = (problem.memory_bytes,) * processes
    cuts = [dealt_lu_geometry(problem.n, problem.dtype, budgets, at) for at in range(processes)]
    return [slabs_cost(g, layout, disk) for g in cuts]


def lu_cost(problem: Problem) -> Cost:
    """Plan `lu_factor` by slabs."""
    g, layout, disk = lu_geometry_of(problem), layout_of(problem), problem.disk()
    return slabs_cost(g, layout, disk, overwrite_a=problem.option("overwrite_a", False))


def slabs_cost(
    g: LuGeometry, layout: Layout, disk: DiskReads, *, overwrite_a: bool = False
) -> Cost:
    """Return the cost of an LU by slabs."""
    loads = SlabLoads(g, layout, disk)
    # The first panel is read before everything else, and the last is written after it.
    panel = g.height * g.columns * g.dtype.itemsize
    phase = Phase(
        dtype=g.dtype,
        bytes_read=g.factor_bytes_read(),
        bytes_written=g.factor_bytes_written(),
        flops=flops(g.n, g.dtype) if g.deal.size == 1 else own_flops(g),
        gemm_flops=gemm_flops(g),
        other_seconds=memory_seconds(g),
        ends_read_bytes=panel * g.held_panels,
        ends_written_bytes=panel,
        slowdown=_SLOWDOWN,
        bytes_sent=g.sent()[0],
    )
    return Cost(
        method=loads.method(g.method),
        peak_memory_bytes=loads.peak_bytes(g.memory_bytes),
        disk_bytes=g.tile_bytes * g.tiles * (g.slab_panels if overwrite_a else g.panels),
        words_lower_bound=g.words_lower_bound() if g.deal.size == 1 else None,
        phases=loads.phases(phase),
    )


def gemm_flops(g: LuGeometry) -> float:
    """Operations of an LU, slow ones weighted by their speed relative to products."""
    weight = flop_weight(g.dtype)
    panels = triangles = products = 0.0
    for K in range(g.panels):
        # All processes wait for a panel, also those that do not hold it.
        k = min(g.columns, g.n - K * g.columns)
        right = g.held_columns(K + 1, g.panels)
        panels += panel_flops(g, K)
        triangles += weight * k**2 * right
        products += (update_flops(g, K) - weight * k**2) * right
    return panels / PANEL_SHARE + triangles / TRIANGLE_SHARE + products


def memory_seconds(g: LuGeometry) -> float:
    """Time of row swaps, and of the checks of A and U."""
    swapped = sum(
        min(g.columns, g.n - K * g.columns) * g.held_columns(K + 1, g.panels)
        for K in range(g.panels)
    )
    itemsize = g.dtype.itemsize
    scanned = 1.5 * g.n * g.held_columns(0, g.panels)
    return swapped * itemsize * _SWAP_S_PER_BYTE + scanned * itemsize * SCAN_S_PER_BYTE
