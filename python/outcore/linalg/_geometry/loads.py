"""Loading of slabs into memory: from the matrix in its layout, or from a copy of it in tiles.

Narrow slabs read far more of a matrix in C order than they need. If a copy in tiles costs less, the
matrix is first copied (`outcore.linalg._geometry.tile_copy`) into the space of the factors.
"""

import dataclasses
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from outcore.layout.disk_reads import DiskReads
from outcore.linalg._geometry.box_reads import BoxReads, parts
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES, Slabbed
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._geometry.tile_copy import TileCopy, copy_memory
from outcore.linalg._tiles.cost import Phase

G = TypeVar("G", bound=Geometry)
S = TypeVar("S", bound=Slabbed)


@dataclass(frozen=True)
class Loads(ABC, Generic[G]):
    """Loading of the slabs of a matrix. Each kind of factors has its own subclass.

    Attributes
    ----------
    geometry
        Slabs of the matrix, which is not a part of a larger one.
    layout
        Layout of the matrix.
    disk
        Granularity of the disk's reads.
    is_lower
        Whether only the elements on and below the diagonal are loaded.
    """

    geometry: G
    layout: Layout
    disk: DiskReads
    is_lower: ClassVar[bool] = False

    @abstractmethod
    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Return the exact bytes that slabs from `first_panel` read of the matrix or copy."""

    @property
    def is_copied(self) -> bool:
        """Whether a copy in tiles moves fewer bytes than loading slabs from the matrix itself."""
        if self.geometry.deal.size > 1:
            return False
        return self.copy.block.rows > 0 and sum(self._copied(0)) < self._direct(0)

    @property
    def copy(self) -> TileCopy:
        """The copy, if there is one."""
        g = self.geometry
        return TileCopy(
            g.shape, g.dtype, self.layout, (g.rows, g.columns),
            copy_memory(g.budget_bytes, g.bounce_bytes), self.disk.block_bytes, self.is_lower,
        )  # fmt: skip

    @property
    def source_layout(self) -> Layout:
        """Layout of the source of the slabs."""
        return self._tiles if self.is_copied else self.layout

    def bytes_moved(self, first_panel: int = 0) -> tuple[int, int]:
        """Return the exact bytes read and written by a run from a panel, without the factors."""
        return self._copied(first_panel) if self.is_copied else (self._direct(first_panel), 0)

    def phases(self, factoring: Phase) -> tuple[Phase, ...]:
        """Return the phases of a factorization, given the phase that moves the factors only."""
        (read, written), copied = self.bytes_moved(), self._copying(0)
        if not self.is_copied:
            copied = 0, 0
        loading = dataclasses.replace(
            factoring,
            bytes_read=factoring.bytes_read + read - copied[0],
            bytes_written=factoring.bytes_written + written - copied[1],
        )
        return (Phase(factoring.dtype, *copied), loading) if self.is_copied else (loading,)

    def peak_bytes(self, factoring: int) -> int:
        """Return the peak memory, given that of a factorization without a copy.

        The blocks of a copy stay allocated for the rest of the call, up to the budget.
        """
        return self.geometry.budget_bytes if self.is_copied else factoring

    def method(self, itself: str) -> str:
        """Return the method as text, given that of a factorization without a copy."""
        return f"{itself}, from the matrix copied to tiles first" if self.is_copied else itself

    @property
    def _tiles(self) -> Layout:
        return Layout("F", (self.geometry.rows, self.geometry.columns))

    def _copying(self, first_panel: int) -> tuple[int, int]:
        return self.copy.bytes_read(first_panel), self.geometry.factor_bytes_written(first_panel)

    def _copied(self, first_panel: int) -> tuple[int, int]:
        read, written = self._copying(first_panel)
        reads = BoxReads(self._tiles, self.geometry.dtype, TILE_BOUNCE_BYTES, self.disk)
        return read + self.slab_bytes(reads, first_panel, is_copy=True), written

    def _direct(self, first_panel: int) -> int:
        g = self.geometry
        reads = BoxReads(self.layout, g.dtype, g.bounce_bytes, self.disk)
        return self.slab_bytes(reads, first_panel, is_copy=False)


class ColumnLoads(Loads[S]):
    """The loads of slabs of whole columns."""

    @abstractmethod
    def groups(self, chunks: tuple[int, ...]) -> tuple[int, int]:
        """Return how many tiles and panels a read covers, so that it reads chunks whole."""

    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Bytes that the conveyor reads."""
        g, groups = self.geometry, self.groups(reads.layout.chunks)
        return _load_bytes(g, reads, g.height if is_copy else g.shape[0], groups, first_panel)


@functools.lru_cache(1 << 10)
def _load_bytes(
    g: Slabbed, reads: BoxReads, rows: int, groups: tuple[int, int], first_panel: int
) -> int:
    """Bytes that the conveyor reads of `rows` rows, some tiles and panels at once."""
    high, wide = reads.layout.chunks
    down, across = groups[0] * g.rows, groups[1] * g.columns
    tops = ((top, min(top + down, rows)) for top in range(0, g.height, down))
    lefts = (
        (K * g.columns, min(K * g.columns + across, g.extent(slab.last - 1)[1]))
        for slab in g.slabs(first_panel)
        for K in g.deal.held(*slab)[:: groups[1]]
    )
    return reads.bytes_of(parts(tops, high), parts(lefts, wide), g.height)
