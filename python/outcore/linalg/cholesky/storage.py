"""How a Cholesky factor is completed on disk."""

import dataclasses

from outcore.linalg.cholesky.checks import Sums
from outcore.linalg.cholesky.geometry import CholeskyGeometry
from outcore.linalg.cholesky.lower_tiles import keep_lower
from outcore.linalg.factors.factor import CHOLESKY, CholeskyFactor
from outcore.linalg.factors.storage import FactorStorage
from outcore.longcall import LongCall


class CholeskyStorage(FactorStorage[CholeskyGeometry]):
    """The files of one Cholesky factorization; see `FactorStorage`."""

    kind = CHOLESKY

    @property
    def lower(self) -> bool:
        """Whether the lower triangle of the matrix is read."""
        return self.journal.header.lower

    @property
    def chunk(self) -> tuple[int, int]:
        """Chunk shape of the matrix, or of its transpose: of what is read as lower triangle."""
        rows, columns = self.metadata.chunks
        return (rows, columns) if self.lower else (columns, rows)

    def finish(self, call: LongCall, flops_done: float, sums: Sums) -> CholeskyFactor:
        """Complete the factor on disk and return it, with the report."""
        g, first = self.geometry, self.first_panel
        self.refuse_changed()
        metadata = self.lay_out()
        if self.journal.header.overwrite_a:
            keep_lower(self.target.below(self.kind.array), metadata)
        planned = g.matrix_bytes_read(first, self.chunk[0]) + g.factor_bytes_read(first)
        report = self.report(
            call,
            flops_done=flops_done,
            planned_bytes_read=planned,
            method=g.method,
            notes=sums.notes(),
        )
        self.complete(metadata, report, {"norm1": sums.norm1})
        return dataclasses.replace(CholeskyFactor.open(self.target), report=report)
