"""LU by block columns with partial pivoting, for budgets that hold few columns.

An updated block column is factored by slabs of its columns, like a whole matrix. Its L is copied by
rows once all its pivots are known::

    for each slab of the spilled rows:  algorithm A                      # slabs.py
    for each row tile:  L <- tiles;  swaps of later panels;  write L     # lower_copy.py

If rows of A cannot be gathered, A itself supplies the slabs of the first block column. The columns
of the last slab are written by rows from memory.
"""

import numpy as np
import numpy.typing as npt

from outcore._util.streams import wait
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._lu.block_columns.factor_columns import BlockColumnFactorization
from outcore.linalg._lu.block_columns.geometry import BlockColumn
from outcore.linalg._lu.block_columns.lower_copy import LowerCopy
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.slabs.conveyor import Source
from outcore.linalg._lu.slabs.factor_slabs import SlabFactorization
from outcore.linalg._tiles.widened import MatrixFile


class PartialFactorization(BlockColumnFactorization[PartialGeometry]):
    """The phases of an LU by block columns with partial pivoting, each with the whole budget."""

    def is_done(self, k: int) -> bool:
        """Whether block column `k` is complete."""
        journal = self.storage.journal
        return self.g.is_done(k, journal.panels_done, journal.trailing)

    def make(self, k: int) -> None:
        """Run the pending phases of block column `k`."""
        storage, s = self.storage, self.g.block_columns[k]
        is_factored = storage.journal.panels_done == storage.panels_of(s).last
        if not (is_factored or self.g.is_loaded(s) or self.is_noted(k)):
            with storage.phase():
                self.update(k)
            if self.g.is_whole(s):
                return
        kept = s.width
        if not is_factored:
            with storage.phase():
                kept = self.factor_slabs(s)
        if kept and not self.g.is_last(s):
            with storage.phase():
                self.copy_lower(s, kept)

    def factor_slabs(self, s: BlockColumn) -> int:
        """Factor a block column by slabs; return its first column whose L is stored by rows."""
        g, storage = self.g, self.storage
        slabs = g.slabs_of(s)
        storage.open_factors()
        is_loaded = g.is_loaded(s)
        if not is_loaded:
            file: MatrixFile = storage.open_spill(s, bounce_bytes=slabs.bounce_bytes)
            source = Source(file, slabs.height, (g.rows, g.columns))
        else:
            file = storage.open_matrix(whole_chunks=False, bounce_bytes=slabs.bounce_bytes)
            source = Source(file, g.n, g.layout.chunks)
        run = SlabFactorization(self.storage, self.call, slabs, source, is_original=is_loaded)
        run.run()
        if g.is_last(s):
            return s.width
        slab, memory = run.conveyor.held()
        kept = g.whole_segments(slab.first * g.columns)
        if kept == s.width:
            return kept
        piv = self._swaps(s)
        left = slab.first * g.columns
        start_ns = self.call.trace.now_ns()
        for first in range(kept, s.width, g.columns):
            panel = memory[: s.order, first - left : first - left + g.columns]
            self.kernels.laswp(panel, piv, first + g.columns, len(piv))
        self.call.trace.record("compute", start_ns)
        lower = storage.open_lower(g.transpose_bytes)
        for first in range(kept, s.width, g.segment):
            part = memory[first:, first - left : first - left + g.segment]
            start = [s.origin + first, s.origin + first]
            wait(lower.submit_write(start, [1, 1], part), self.call.trace)
        storage.sync()
        return kept

    def _swaps(self, s: BlockColumn) -> npt.NDArray[np.int32]:
        """Row swaps of a block column, counted from its first row."""
        return self.storage.swaps_of(s) - np.int32(s.origin)

    def copy_lower(self, s: BlockColumn, end: int) -> None:
        """Copy L of the columns before `end`, by rows, with all swaps of the block column."""
        g, storage = self.g, self.storage
        factors = storage.open_factors(g.transpose_bytes)
        lower = storage.open_lower(TILE_BOUNCE_BYTES)
        LowerCopy(g, s, end, self._swaps(s), factors, lower, self.call).run()
        storage.sync()
