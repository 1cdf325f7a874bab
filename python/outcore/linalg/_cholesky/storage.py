"""The completion of a Cholesky factor on disk."""

import dataclasses

from outcore.layout.disk_reads import DiskReads
from outcore.linalg._cholesky.checks import Sums
from outcore.linalg._cholesky.geometry import CholeskyGeometry
from outcore.linalg._cholesky.loads import TriangleLoads
from outcore.linalg._factors.lower_tiles import keep_lower
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.factor import CHOLESKY, CholeskyFactor
from outcore.report.longcall import LongCall


class CholeskyStorage(FactorStorage[CholeskyGeometry]):
    """The files of one Cholesky factorization; see `FactorStorage`."""

    kind = CHOLESKY

    @property
    def lower(self) -> bool:
        """Whether the lower triangle of the matrix is read."""
        return self.journal.header.lower

    @property
    def loads(self) -> TriangleLoads:
        """The loads of its slabs."""
        layout = self.layout
        disk = DiskReads(*self.matrix.read_granularity)
        return TriangleLoads(self.geometry, layout if self.lower else layout.transposed(), disk)

    def finish(self, call: LongCall, flops_done: float, sums: Sums) -> CholeskyFactor:
        """Complete the factor on disk and return it, with the report."""
        g, first = self.geometry, self.first_panel
        self.refuse_changed()
        metadata = self.lay_out()
        if self.journal.header.overwrite_a:
            keep_lower(self.target.below(self.kind.array), metadata)
        loads = self.loads
        read, written = loads.bytes_moved(first)
        report = self.report(
            call,
            flops_done=flops_done,
            planned_bytes_read=read + g.factor_bytes_read(first),
            planned_bytes_written=written + g.factor_bytes_written(first),
            method=loads.method(g.method),
            notes=sums.notes() + loads.notes(lower=self.lower),
        )
        values: dict[str, object] = {"norm1": sums.norm1}
        if not self.lower:
            values["lower"] = False
        self.complete(metadata, report, values)
        return dataclasses.replace(CholeskyFactor.open(self.target), report=report)
