"""Bytes that slab loads of a QR read from the disk: exact, for any layout."""

import functools

from outcore.linalg._geometry.box_reads import BoxReads, parts
from outcore.linalg._geometry.loads import Loads
from outcore.linalg._slab_qr.plan import SlabQrGeometry

_MANY_TIMES = 1.5
"""The report has a note if the words loaded exceed this multiple of the matrix."""


class ColumnLoads(Loads[SlabQrGeometry]):
    """The loads of the slabs of a QR."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.geometry.m, self.geometry.n

    @property
    def rows(self) -> int:
        """Rows to read; whole tiles if the matrix is copied."""
        return self.geometry.height if self.is_copied else self.geometry.m

    @property
    def at_once(self) -> int:
        """Panels that one read covers, so that a chunk is not read for each of its panels."""
        return _at_once(self.geometry, self.source_layout.chunks[1])

    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Bytes that the conveyor reads."""
        g = self.geometry
        return _load_bytes(g, reads, g.height if is_copy else g.m, first_panel)

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


def _at_once(g: SlabQrGeometry, chunk: int) -> int:
    return max(min(chunk // g.columns, g.slab_panels), 1)


@functools.lru_cache(1 << 10)
def _load_bytes(g: SlabQrGeometry, reads: BoxReads, rows: int, first_panel: int) -> int:
    """Bytes that the conveyor reads of `rows` rows."""
    high, wide = reads.layout.chunks
    step = _at_once(g, wide)
    across = (
        (panel * g.columns, min(min(panel + step, slab.last) * g.columns, g.n))
        for slab in g.slabs(first_panel)
        for panel in range(slab.first, slab.last, step)
    )
    return reads.bytes_of(parts([(0, rows)], high), parts(across, wide), g.height)
