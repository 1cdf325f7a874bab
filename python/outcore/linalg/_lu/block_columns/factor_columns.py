"""LU by block columns: left-looking, in roughly square blocks of rows and columns.

No column has to fit in memory as a whole to be updated::

    for each block column [o, e):
        for each block of rows:  C <- L⁻¹ (P A)[rows, o:e]   # C stays in memory, L and U stream by
            write the rows of U;  spill the rows below
        factor the spilled rows;  write L, as tiles and by rows

If all rows from the diagonal down fit in memory at once, they are factored there. `partial.py` and
`tournament.py` factor spilled rows in different ways. Lists of rows gather L, so no swap is ever
carried out on disk. Blocks of r rows and w columns move about n³/3 (1/r + 1/w) words, plus the
words that the factoring moves (`docs/numerics-lu.md`).
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.streams import Pending, wait
from outcore.blas.lapack import kernels
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._lu.block_columns.column_update import ColumnFiles, ColumnUpdate
from outcore.linalg._lu.block_columns.geometry import BlockColumn, BlockColumnGeometry
from outcore.linalg._lu.block_columns.row_moves import RowMoves
from outcore.linalg._lu.block_columns.row_panel import factor_rows, largest_above, swap_rows
from outcore.linalg._lu.block_columns.row_sums import RowSums
from outcore.linalg._lu.block_columns.storage import COPY, BlockColumnStorage
from outcore.linalg._tiles.matrix import Matrix, room_in
from outcore.linalg._tiles.relay import Relay
from outcore.linalg._tiles.widened import MatrixFile
from outcore.report.longcall import LongCall

G = TypeVar("G", bound=BlockColumnGeometry)


class BlockColumnFactorization(ABC, Generic[G]):
    """The phases of an LU by block columns. Each phase has the whole memory budget."""

    def __init__(self, storage: BlockColumnStorage[G], call: LongCall) -> None:
        self.storage, self.call, self.g = storage, call, storage.geometry
        self.kernels = kernels(self.g.dtype)
        self.moves: list[RowMoves] = []

    def run(self) -> None:
        """Factor the block columns that are not factored yet."""
        g, storage = self.g, self.storage
        begin = storage.journal.trailing
        storage.keep_only(begin)
        if g.widths and not storage.journal.records:
            storage.make_lower()
        if begin is None and g.is_copied:
            with storage.phase():
                storage.commit_trailing(0, copy_to_segments(storage, self.call))
        for k, s in enumerate(g.block_columns):
            if not self.is_done(k):
                self.make(k)
            self.moves.append(RowMoves.of(storage.swaps_of(s), s.origin))
        storage.keep_only(None)

    @abstractmethod
    def is_done(self, k: int) -> bool:
        """Whether block column `k` is complete."""

    @abstractmethod
    def make(self, k: int) -> None:
        """Run the pending phases of block column `k`."""

    def is_noted(self, k: int) -> bool:
        """Whether the journal says that block column `k` is updated and spilled."""
        return self.storage.journal.trailing == k + 1

    def update(self, k: int) -> None:
        """Update block column `k`. Factor it if all of it is in memory, else spill it."""
        g, storage, s = self.g, self.storage, self.g.block_columns[k]
        is_whole = g.is_whole(s)
        if g.is_copied:
            source: MatrixFile = storage.open_beside(COPY, "rest", g.copy_grid())
        else:
            source = storage.open_matrix(whole_chunks=True, bounce_bytes=TILE_BOUNCE_BYTES)
        lower = storage.open_lower(TILE_BOUNCE_BYTES) if g.widths else None
        factors = storage.open_factors(g.transpose_bytes)
        spill = None if is_whole else storage.open_spill(s, anew=True)
        files = ColumnFiles(source, lower, factors, spill)
        column = ColumnUpdate(g, k, self.moves, files, self.call)
        R = column.run()
        if is_whole:
            self.factor(s, R, factors, lower, column.extremes)
        else:
            storage.commit_trailing(k + 1, column.extremes)

    def factor(
        self,
        s: BlockColumn,
        R: Matrix,
        factors: ArrayFile,
        lower: ArrayFile | None,
        extremes: Extremes,
    ) -> None:
        """Factor all rows of a block column in memory, in whole tiles, with partial pivoting."""
        g = self.g
        piv = np.empty(s.width, np.int32)
        start_ns = self.call.trace.now_ns()
        whole, R = R, R[: s.order, : s.width]
        info = factor_rows(self.kernels, R, piv, self._leaf(s.order))
        extremes.see_info(info, s.origin)
        extremes.max_u = max(extremes.max_u, largest_above(R[: s.width]))
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(g.lower_flops(s))
        if lower is not None and not g.is_last(s):
            wait(lower.submit_write([s.origin, s.origin], [1, 1], whole), self.call.trace)
        # In the factors, the L of a panel does not contain the row swaps of later panels.
        for first in range(0, s.width, g.columns):
            end = min(first + g.columns, s.width)
            later = piv[end:] - np.int32(end)
            swap_rows(R[end:, first:end], later, reverse=True)
        tiles = whole[:, : g.tile_columns(s)]
        wait(factors.submit_write([s.origin, s.origin], [1, 1], tiles), self.call.trace)
        self.storage.commit_column(s, piv, extremes)

    def _leaf(self, rows: int) -> npt.NDArray[Any]:
        count = self.g.leaf_bytes(rows) // self.g.dtype.itemsize
        return room_in(self.call.arena, (count,), self.g.dtype)


def copy_to_segments(storage: BlockColumnStorage[Any], call: LongCall) -> Extremes:
    """Copy to segments those columns of A whose rows lists cannot gather, and check them."""
    g = storage.geometry
    left, (rows, columns) = g.copied_from, g.copy_block()
    rest = g.n - left
    matrix = storage.open_matrix(whole_chunks=True, bounce_bytes=g.bounce_bytes)
    copy = storage.open_beside(COPY, "rest", g.copy_grid(), anew=True)
    extremes = Extremes()
    sums = RowSums(g, columns, call.arena, extremes)
    room = [room_in(call.arena, (rows, columns), g.dtype) for _ in range(2)]
    high, wide = (-(-g.n // chunk) * chunk for chunk in g.layout.chunks)
    down = -(-g.n // rows)

    def arrive(number: int) -> Pending:
        across, i = divmod(number, down)
        first = left + across * columns
        part = room[number % 2][: high - i * rows, : wide - first]
        return matrix.submit_read([i * rows, first], [1, 1], part)

    relay = Relay(2, -(-rest // columns) * down, arrive, call.trace)
    try:
        relay.poll()
        for across in range(-(-rest // columns)):
            first = across * columns
            width = min(columns, rest - first)
            sums.begin()
            for i in range(down):
                number = across * down + i
                relay.take(number)
                start_ns = call.trace.now_ns()
                T, numbers = room[number % 2], np.arange(i * rows, min((i + 1) * rows, g.n))
                sums.look(T[: len(numbers), :width], numbers, left + first)
                call.trace.record("compute", start_ns)
                T[len(numbers) :] = 0
                T[:, width:] = 0
                whole = g.whole_rows(len(numbers)), g.whole_segments(width)
                part = T[: whole[0], : whole[1]]
                relay.leave(number, [copy.submit_write([i * rows, first], [1, 1], part)])
            sums.end(width)
        relay.drain()
    except BaseException:
        relay.abandon()
        raise
    return extremes
