"""The completion of a Cholesky factor on disk."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from outcore.layout.disk_reads import DiskReads
from outcore.linalg._cholesky.checks import joined, notes_on
from outcore.linalg._cholesky.geometry import CholeskyGeometry
from outcore.linalg._cholesky.loads import TriangleLoads
from outcore.linalg._factors.lower_tiles import keep_lower
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._output.factor import CHOLESKY, CholeskyFactor
from outcore.linalg._output.journal import Record
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

    @property
    def state(self) -> dict[str, Any]:
        """The state of the checks of A, as `joined` describes it."""
        return self.journal.records[-1].extremes

    def joined(self, records: Sequence[Record]) -> Record:
        """Return the record of a slab from those of all processes, each about its own columns."""
        g, one = self.geometry, records[0]
        before = self.state if self.journal.records else None
        columns = g.extent(one.last - 1)[1] - g.extent(one.first)[0]
        state = joined(before, [record.extremes for record in records], columns, g.dtype)
        return dataclasses.replace(one, extremes=state)

    def planned_sent(self) -> tuple[int, int]:
        """Return the bytes and messages that this process sends according to the plan."""
        return self.geometry.sent(self.first_panel)

    def planned_remote_read(self) -> int:
        """Return the `remote_read` of the plan."""
        g, total = self.geometry, 0
        for slab in g.slabs(self.first_panel):
            (part,) = g.parts(slab)
            total += sum(self.remote_bytes(K, part.tiles) for K in g.deal.held(0, slab.first))
        return total

    def finish(self, call: LongCall, flops_done: float) -> CholeskyFactor:
        """Complete the factor on disk and return it, with the report."""
        g, first, state = self.geometry, self.first_panel, self.state
        self.refuse_changed()
        loads = self.loads
        read, written = loads.bytes_moved(first)
        report = self.report(
            call,
            flops_done=flops_done,
            planned_bytes_read=read + g.factor_bytes_read(first),
            planned_bytes_written=written + g.factor_bytes_written(first),
            method=loads.method(g.method),
            notes=notes_on(state, g.n, g.dtype, self.metadata.dtype)
            + loads.notes(lower=self.lower),
        )
        if self.team.rank == 0:
            metadata = self.lay_out()
            if self.journal.header.overwrite_a:
                keep_lower(self.target.below(self.kind.array), metadata)
            values: dict[str, object] = {"norm1": state["norm1"]}
            if not self.lower:
                values["lower"] = False
            self.complete(metadata, report, values)
        self.team.same(None)
        return dataclasses.replace(CholeskyFactor.open(self.target), report=report)
