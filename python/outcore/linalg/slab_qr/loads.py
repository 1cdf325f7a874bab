"""What loading the slabs of a QR reads from the disk: exact, for any layout."""

import functools

from outcore.linalg.box_reads import BoxReads, parts
from outcore.linalg.loads import Loads
from outcore.linalg.slab_qr.plan import SlabQrGeometry

_MANY_TIMES = 1.5
"""What is loaded more often than this is noted."""


class ColumnLoads(Loads[SlabQrGeometry]):
    """How the slabs of a QR are loaded."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.geometry.m, self.geometry.n

    @property
    def rows(self) -> int:
        """Rows that are read: of a copy whole tiles."""
        return self.geometry.height if self.is_copied else self.geometry.m

    @property
    def at_once(self) -> int:
        """Panels that are read together, lest a chunk that they share be read for each."""
        return _at_once(self.geometry, self.source_layout.chunks[1])

    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Bytes that the conveyor reads."""
        g = self.geometry
        return _load_bytes(g, reads, g.height if is_copy else g.m, first_panel)

    def notes(self, *, transposed: bool) -> list[str]:
        """Tell whose layout is read slowly how to do better."""
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
    """Bytes that the conveyor reads of so many rows."""
    high, wide = reads.layout.chunks
    step = _at_once(g, wide)
    across = (
        (panel * g.columns, min(min(panel + step, slab.last) * g.columns, g.n))
        for slab in g.slabs(first_panel)
        for panel in range(slab.first, slab.last, step)
    )
    return reads.bytes_of(parts([(0, rows)], high), parts(across, wide), g.height)
