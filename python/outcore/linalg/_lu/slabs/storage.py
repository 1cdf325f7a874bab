"""Storage of LU's row swaps, and the completion of its factors."""

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from outcore.array.create import create_array
from outcore.layout.disk_reads import DiskReads
from outcore.linalg._factors.checks import Extremes, wild_growth
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._geometry.factor_plan import LuGeometry
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._lu.slabs.loads import SlabLoads
from outcore.linalg._output.factor import LU, LUFactor
from outcore.linalg._output.journal import Record
from outcore.report.longcall import LongCall

G = TypeVar("G", bound=Geometry)


class LuFiles(FactorStorage[G], ABC):
    """The files of one LU, by any algorithm; see `FactorStorage`.

    Attributes
    ----------
    why
        Reason for an algorithm that the caller did not request.
    """

    kind = LU
    method: ClassVar[str]
    why = ""

    def joined(self, records: Sequence[Record]) -> Record:
        """Return the record of a slab from those of all processes, each about its own columns."""
        extremes, infos = Extremes(), []
        for record in records:
            own = Extremes(**record.extremes)
            infos.append(own.info)
            extremes.see(own)
        extremes.info = min((info for info in infos if info), default=0)
        return dataclasses.replace(records[0], extremes=extremes.to_json())

    @abstractmethod
    def planned_bytes(self) -> tuple[int, int]:
        """Return the bytes that this call reads and writes according to the plan."""

    @property
    def title(self) -> str:
        """Name of the method in the report."""
        return self.method

    def notes(self, extremes: Extremes) -> list[str]:
        """Return the notes of the report."""
        notes = [self.why] if self.why else []
        if extremes.info:
            notes.append(f"exactly singular: diagonal number {extremes.info} is zero")
        if text := wild_growth(extremes.growth, self.geometry.dtype):
            notes.append(text)
        return notes

    def further_figures(self) -> dict[str, Any]:
        """Return further figures for the report."""
        return {}

    def panel_pivots(self) -> list[npt.NDArray[np.int32]]:
        """Row swaps of the complete panels, each counted from its panel's first row."""
        width = self.geometry.columns
        return [
            piv[at : at + width] - np.int32(at) - np.int32(first * width)
            for first, piv in self._pivots()
            for at in range(0, len(piv), width)
        ]

    def _pivots(self) -> list[tuple[int, npt.NDArray[np.int32]]]:
        """First panel and row swaps of each complete slab."""
        return [(r.first, r.piv) for r in self.journal.records if r.piv is not None]

    def finish(self, call: LongCall, flops_done: float) -> LUFactor:
        """Complete the factors on disk and return them, with the report."""
        g = self.geometry
        self.refuse_changed()
        extremes = Extremes()
        for record in self.journal.records:
            extremes.see(Extremes(**record.extremes))
        read, written = self.planned_bytes()
        report = self.report(
            call,
            flops_done=flops_done,
            planned_bytes_read=read,
            planned_bytes_written=written,
            method=self.title,
            growth=extremes.growth,
            notes=self.notes(extremes),
            **self.further_figures(),
        )
        if self.team.rank == 0:
            metadata = self.lay_out()
            with create_array(self.target.path / "piv", g.n, "i4", if_exists="overwrite") as file:
                file[...] = np.concatenate([piv for _, piv in self._pivots()])
                file.flush()
            known = {"norm1": extremes.norm1, "growth": extremes.growth, "info": extremes.info}
            self.complete(metadata, report, known)
        self.team.same(None)
        return dataclasses.replace(LUFactor.open(self.target), report=report)


class LuStorage(LuFiles[LuGeometry]):
    """The files of one LU by slabs."""

    method = "slabs"

    @property
    def loads(self) -> SlabLoads:
        """The loads of its slabs."""
        disk = DiskReads(*self.matrix.read_granularity)
        return SlabLoads(self.geometry, self.layout, disk)

    def planned_bytes(self) -> tuple[int, int]:
        """Return the bytes that this call reads and writes according to the plan."""
        g, first = self.geometry, self.first_panel
        read, written = self.loads.bytes_moved(first)
        return read + g.factor_bytes_read(first), written + g.factor_bytes_written(first)

    def planned_sent(self) -> tuple[int, int]:
        """Return the bytes and messages that this process sends according to the plan."""
        return self.geometry.sent(self.first_panel)

    def planned_remote_read(self) -> int:
        """Return the `remote_read` of the plan."""
        g = self.geometry
        # Each slab reads the panels of this process to its left, from the diagonal down.
        own = [
            self.remote_bytes(K, g.tiles_below(K)) if g.deal.owner(K) == g.deal.rank else 0
            for K in range(g.panels)
        ]
        left_of = list(itertools.accumulate(own, initial=0))
        return sum(left_of[slab.first] for slab in g.slabs(self.first_panel))
