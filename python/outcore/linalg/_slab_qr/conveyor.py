"""The conveyor of a QR by slabs of columns."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from outcore.linalg._factors.conveyor import Load, SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._geometry.factor_plan import Slab
from outcore.linalg._slab_qr.plan import SlabQrGeometry
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall


class Source(NamedTuple):
    """The source of slabs: a file, the number of rows to read, and of panels per read.

    The file may store the transpose.
    """

    file: MatrixFile
    rows: int
    at_once: int
    is_transposed: bool


class QrConveyor(SlabConveyor):
    """Memory for one slab. A cell is a panel, counted from the slab's first."""

    def __init__(
        self,
        g: SlabQrGeometry,
        storage: FactorStorage[SlabQrGeometry],
        call: LongCall,
        source: Source,
    ) -> None:
        super().__init__(source.file, call, g, rows=g.m, height=g.height)
        self._storage, self._source = storage, source

    def _place(self, slab: Slab) -> None:
        self._storage.place_slab(slab)

    def _loads_of(self, slab: Slab) -> Iterator[Load]:
        columns, at_once = self._columns, self._source.at_once
        for panel in range(0, slab.last - slab.first, at_once):
            left = panel * columns
            right = min(left + at_once * columns, self._width(slab))
            start = [0, slab.first * columns + left]
            target = self._memory[: self._source.rows, left:right]
            if self._source.is_transposed:
                start, target = start[::-1], target.T
            cells = range(panel, panel + at_once)
            yield Load(slab.first + panel, cells, [(start, target)])

    def _cells(self) -> Counter[Hashable]:
        return Counter(range(self.part.last - self.part.first))

    def panel_done(self, panel: int) -> None:
        """Write a panel of the slab, which is final."""
        # The journal must name a slab before later writes. Otherwise a crash could lose two slabs.
        self._storage.commit()
        columns, cell = self._columns, panel - self.part.first
        place = self._storage.places[panel] * columns
        elements = self._memory[:, cell * columns : (cell + 1) * columns]
        ticket = self._storage.factors.submit_write([0, place], [1, 1], elements)
        self._leave([ticket], Counter([cell]))
