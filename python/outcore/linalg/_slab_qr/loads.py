"""Bytes that slab loads of a QR read from the disk, exact for any layout; and its cost."""

from outcore.layout.zarr_format import default_chunks
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._geometry.loads import ColumnLoads
from outcore.linalg._slab_qr.plan import SlabQrGeometry, factor_phase, slab_qr_geometry
from outcore.linalg._tiles.cost import Cost, Problem

_MANY_TIMES = 1.5
"""The report has a note if the words loaded exceed this multiple of the matrix."""


class QrLoads(ColumnLoads[SlabQrGeometry]):
    """The loads of the slabs of a QR."""

    def groups(self, chunks: tuple[int, ...]) -> tuple[int, int]:
        """Read all rows, and as many panels as a chunk has, so that no panel reads it again."""
        g = self.geometry
        return g.tiles, max(min(chunks[1] // g.columns, g.slab_panels), 1)

    def notes(self, *, transposed: bool) -> list[str]:
        """Return advice for a layout that is slow to read."""
        g = self.geometry
        words = sum(self.bytes_moved()) / g.dtype.itemsize / (g.m * g.n)
        if words < _MANY_TIMES:
            return []
        layout, best = (self.layout.transposed(), "C") if transposed else (self.layout, "F")
        return [
            f"loading a matrix in order {layout.order!r}, chunks {layout.chunks}, took "
            f"{words:.2g} times its words; with order={best!r} and default chunks it takes 1 "
            "(oc.from_array copies)"
        ]


def slab_qr_cost(problem: Problem) -> Cost:
    """Plan `qr_factor`."""
    shape, dtype = (problem.m or problem.n, problem.n), problem.dtype
    overwrite_a = problem.option("overwrite_a", False)
    # Factors that take the space of a matrix have its chunks as tiles.
    rows, columns = default_chunks(shape, dtype.itemsize, "F")
    tile = (rows, columns) if overwrite_a else None
    g = slab_qr_geometry(shape, dtype, problem.memory_bytes, tile)
    loads = QrLoads(g, layout_of(problem), problem.disk())
    return Cost(
        method=loads.method(g.method),
        peak_memory_bytes=loads.peak_bytes(g.memory_bytes),
        disk_bytes=g.tile_bytes * g.tiles * (g.slab_panels if overwrite_a else g.panels),
        words_lower_bound=g.words_lower_bound(),
        phases=loads.phases(factor_phase(g)),
    )
