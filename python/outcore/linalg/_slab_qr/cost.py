"""Costs of a QR by slabs, for the plan."""

from outcore.layout.zarr_format import default_chunks
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._slab_qr.loads import ColumnLoads
from outcore.linalg._slab_qr.plan import factor_phase, slab_qr_geometry
from outcore.linalg._tiles.cost import Cost, Problem


def slab_qr_cost(problem: Problem) -> Cost:
    """Plan `qr_factor`."""
    shape, dtype = (problem.m or problem.n, problem.n), problem.dtype
    overwrite_a = problem.option("overwrite_a", False)
    # Factors that take the space of a matrix have its chunks as tiles.
    rows, columns = default_chunks(shape, dtype.itemsize, "F")
    tile = (rows, columns) if overwrite_a else None
    g = slab_qr_geometry(shape, dtype, problem.memory_bytes, tile)
    loads = ColumnLoads(g, layout_of(problem), problem.disk())
    return Cost(
        method=loads.method(g.method),
        peak_memory_bytes=loads.peak_bytes(g.memory_bytes),
        disk_bytes=g.tile_bytes * g.tiles * (g.slab_panels if overwrite_a else g.panels),
        words_lower_bound=g.words_lower_bound(),
        phases=loads.phases(factor_phase(g)),
    )
