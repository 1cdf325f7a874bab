"""Storage of QR's reflections, and the completion of its factors."""

import base64
import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from outcore.array.create import create_array
from outcore.layout.disk_reads import DiskReads
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.factor import QR, QR_TRANSPOSED, QRFactor, TransposedQRFactor
from outcore.linalg._slab_qr.loads import QrLoads
from outcore.linalg._slab_qr.plan import SlabQrGeometry
from outcore.report.longcall import LongCall


class SlabQrStorage(FactorStorage[SlabQrGeometry]):
    """The files of one QR; see `FactorStorage`."""

    kind = QR
    made: ClassVar[type[QRFactor]] = QRFactor

    @property
    def loads(self) -> QrLoads:
        """The loads of its slabs."""
        layout = self.layout
        disk = DiskReads(*self.matrix.read_granularity)
        return QrLoads(
            self.geometry, layout.transposed() if self.kind.is_transposed else layout, disk
        )

    def taus(self) -> list[npt.NDArray[Any]]:
        """Factors of the reflections of the complete panels."""
        g, whole = self.geometry, self._tau()
        ends = [g.extent(panel) for panel in range(min(self.first_panel, g.applied))]
        return [whole[first:end] for first, end in ends]

    def _tau(self) -> npt.NDArray[Any]:
        """All factors of reflections in the journal."""
        texts = [record.extremes["tau"] for record in self.journal.records]
        parts = [np.frombuffer(base64.b64decode(text), self._little) for text in texts]
        return np.concatenate([np.empty(0, self._little), *parts]).astype(self.geometry.dtype)

    @property
    def _little(self) -> np.dtype[Any]:
        """The element type in the journal: little-endian."""
        return self.geometry.dtype.newbyteorder("<")

    def noted(self, extremes: Extremes, taus: list[npt.NDArray[Any]]) -> dict[str, Any]:
        """Return the journal's entry for a slab."""
        tau = np.concatenate([np.empty(0, self._little), *taus]).astype(self._little)
        text = base64.b64encode(tau.tobytes()).decode()
        return {"norm1": extremes.norm1, "info": extremes.info, "tau": text}

    def finish(self, call: LongCall, flops_done: float) -> QRFactor:
        """Complete the factors on disk and return them, with the report."""
        g, first = self.geometry, self.first_panel
        self.refuse_changed()
        extremes = Extremes()
        for record in self.journal.records:
            noted = record.extremes
            extremes.see(Extremes(norm1=noted["norm1"], info=noted["info"]))
        metadata = self.lay_out()
        tau = self._tau()
        with create_array(
            self.target.path / "tau", tau.shape, g.dtype, if_exists="overwrite"
        ) as file:
            file[...] = tau
            file.flush()
        notes = [f"exactly singular: diagonal number {extremes.info} of R is zero"]
        loads = self.loads
        read, written = loads.bytes_moved(first)
        slow = loads.notes(transposed=self.kind.is_transposed)
        report = self.report(
            call,
            flops_done=flops_done,
            planned_bytes_read=read + g.factor_bytes_read(first),
            planned_bytes_written=written + g.factor_bytes_written(first),
            m=g.m,
            method=loads.method(g.method),
            notes=(notes if extremes.info else []) + slow,
        )
        known = {"m": g.m, "norm1": extremes.norm1, "info": extremes.info}
        self.complete(metadata, report, known)
        return dataclasses.replace(self.made.open(self.target), report=report)


class TransposedQrStorage(SlabQrStorage):
    """The files of the QR of a matrix that is read as its transpose."""

    kind = QR_TRANSPOSED
    made = TransposedQRFactor
