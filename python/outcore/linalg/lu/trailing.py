"""The update of the trailing matrix by a super-slab: C <- C - L U, out of place.

Rows of the trailing matrix are gathered in their new order by lists. U of a block of columns stays
in memory, while L comes in tiles and C in blocks of rows. All blocks are row-major, that is
column-major transposed: C' <- C' - U' L'.
"""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket, column_extremes
from outcore.errors import OutcoreError
from outcore.lapack import kernels
from outcore.linalg.cost import flop_weight
from outcore.linalg.lu.checks import Extremes
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.row_sums import RowSums
from outcore.linalg.lu.two_level_geometry import TwoLevelGeometry
from outcore.linalg.matrix import Matrix
from outcore.linalg.triangles import solve_lower
from outcore.longcall import LongCall
from outcore.streams import BlockStream, wait


class UpdateFiles(NamedTuple):
    """What an update reads and writes.

    Attributes
    ----------
    source
        The columns right of the super-slab, from column `first_column` of the file on.
    swapped
        L of the super-slab with all its row swaps.
    factors
        For U.
    ahead, rest
        The next trailing matrix: its next super-slab, and what is right of that, if anything.
    """

    source: ArrayFile
    first_column: int
    swapped: ArrayFile
    factors: ArrayFile
    ahead: ArrayFile
    rest: ArrayFile | None


class Update:
    """Update `k`.

    Parameters
    ----------
    geometry, k
        What is updated.
    order
        Rows of the trailing matrix in their order after the super-slab's swaps.
    files
        See there.
    call
        For memory and progress.
    is_original
        Whether the trailing matrix is A, which is looked at then.
    """

    def __init__(
        self,
        geometry: TwoLevelGeometry,
        k: int,
        order: npt.NDArray[np.int64],
        files: UpdateFiles,
        call: LongCall,
        *,
        is_original: bool,
    ) -> None:
        g = geometry
        self.g, self.k, self.order, self.files, self.call = g, k, order, files, call
        self.s, self.width = g.super_slabs[k], g.block_columns(k)
        self.kernels, self.weight = kernels(g.dtype), flop_weight(g.dtype)
        self.panels = self.s.width // g.columns
        self.row_tiles = -(-self.s.rest // g.rows)
        self.blocks = -(-self.s.rest // self.width)
        self.extremes = Extremes()
        self.sums = RowSums(g, self.width, call.arena, self.extremes) if is_original else None
        self.U = self._allocate(self.s.width)
        self.C = [self._allocate(g.rows) for _ in range(2)]
        self.stream = BlockStream(
            files.swapped, g.dtype, call.arena, g.ring_bytes, call.trace,
            least_bytes=g.tile_bytes,
        )  # fmt: skip
        self.relay = Relay(2, self.blocks * self.row_tiles, self._arrive, call.trace)
        self.arriving: list[Ticket] = []
        self.leaving: list[Ticket] = []

    def _allocate(self, rows: int) -> Matrix:
        """Make room for rows of a block: zeros, whatever the memory held before."""
        memory = self.call.arena.allocate(rows * self.width * self.g.dtype.itemsize)
        room: Matrix = np.ndarray((rows, self.width), self.g.dtype, memoryview(memory))
        room[:] = 0
        return room

    def run(self) -> Extremes:
        """Compute and write the next trailing matrix; return what was seen."""
        try:
            self._read_ahead(0)
            for K in range(self.panels):
                self._gather(0, K)
            self.relay.poll()
            for block in range(self.blocks):
                self._solve(block)
                self._read_ahead(block + 1)
                for i in range(self.row_tiles):
                    self._multiply(block, i)
                if self.sums:
                    self.sums.end(self._columns(block).stop - self._columns(block).start)
            self.relay.drain()
        except BaseException:
            self._abandon()
            raise
        finally:
            # It knows this object: without the circle, memory goes back at once.
            del self.relay
        return self.extremes

    def _columns(self, block: int) -> slice:
        """Columns of a block, counted from the first right of the super-slab."""
        return slice(block * self.width, min((block + 1) * self.width, self.s.rest))

    def _wide(self, block: int) -> int:
        """Columns of a block as it is read."""
        return min(self.width, self.g.source_columns(self.k) - block * self.width)

    def _gather(self, block: int, K: int) -> None:
        """Start reading the rows that become those of U in panel `K`."""
        rows = slice(K * self.g.columns, (K + 1) * self.g.columns)
        self.arriving.append(self._read(self.order[rows], block, self.U[rows]))

    def _rows(self, i: int) -> npt.NDArray[np.int64]:
        """Rows of the trailing matrix that are gathered to row tile `i` of the next one."""
        first = self.s.width + i * self.g.rows
        return self.order[first : first + self.g.rows]

    def _arrive(self, number: int) -> Ticket:
        block, i = divmod(number, self.row_tiles)
        rows = self._rows(i)
        return self._read(rows, block, self.C[number % 2][: len(rows)])

    def _read(self, rows: npt.NDArray[np.int64], block: int, target: Matrix) -> Ticket:
        first = self.files.first_column + block * self.width
        return self.files.source.submit_read_rows(rows, first, target[:, : self._wide(block)])

    def _read_ahead(self, block: int) -> None:
        """Schedule the tiles of L for a block: first the triangle, by panels, then by rows."""
        if block >= self.blocks:
            return
        above = self.s.width // self.g.rows
        triangle = ((i, K) for K in range(self.panels) for i in range(self._diagonal(K), above))
        below = itertools.product(range(above, above + self.row_tiles), range(self.panels))
        self.stream.extend(self._tile(i, K) for i, K in itertools.chain(triangle, below))

    def _diagonal(self, K: int) -> int:
        """Tile of a panel that holds its diagonal block."""
        return K * self.g.columns // self.g.rows

    def _tile(self, i: int, K: int) -> tuple[slice, slice]:
        r, k = self.g.rows, self.g.columns
        return slice(i * r, (i + 1) * r), slice(K * k, (K + 1) * k)

    def _solve(self, block: int) -> None:
        """U <- L⁻¹ U with the triangle of the super-slab; U leaves for the factors."""
        g, columns = self.g, self._columns(block)
        width = columns.stop - columns.start
        for ticket in self.arriving:
            wait(ticket, self.call.trace)
        self.arriving = []
        U = self.U[:, :width].T
        if self.sums:
            self.sums.begin()
            self._look(self.U[:, :width], self.order[: self.s.width], columns)
        for K in range(self.panels):
            o, e = K * g.columns, (K + 1) * g.columns
            for i in range(self._diagonal(K), self.s.width // g.rows):
                L, first = self.stream.take().data, i * g.rows
                start_ns = self.call.trace.now_ns()
                if i == self._diagonal(K):
                    diagonal = L[o - first : e - first]
                    solve_lower(self.kernels, diagonal, U[:, o:e], "R", trans="T", unit=True)
                    L, first = L[e - first :], e
                self._subtract(U[:, o:e], L, U[:, first : first + len(L)])
                self.call.trace.record("compute", start_ns)
            self.relay.poll()
        self.extremes.max_u = max(self.extremes.max_u, column_extremes(U, False)[1])
        self.call.meter.advance(self.weight * self.s.width**2 * width)
        whole = -(-width // g.columns) * g.columns
        self.U[:, width:whole] = 0
        first = self.s.origin + self.s.width + columns.start
        self.leaving = [
            self.files.factors.submit_write([self.s.origin, first], [1, 1], self.U[:, :whole])
        ]

    def _multiply(self, block: int, i: int) -> None:
        """C <- C - L U for one row tile; C leaves for the next trailing matrix."""
        g, columns, number = self.g, self._columns(block), block * self.row_tiles + i
        width, rows = columns.stop - columns.start, self._rows(i)
        self.relay.take(number)
        room = self.C[number % 2]
        if self.sums:
            self._look(room[: len(rows), :width], rows, columns)
        U, C = self.U[:, :width].T, room[: len(rows), :width].T
        is_last = i == self.row_tiles - 1 and block < self.blocks - 1
        if is_last:
            for ticket in self.leaving:
                wait(ticket, self.call.trace)
        for K in range(self.panels):
            L = self.stream.take().data
            start_ns = self.call.trace.now_ns()
            self._subtract(U[:, K * g.columns : (K + 1) * g.columns], L[: len(rows)], C)
            self.call.trace.record("compute", start_ns)
            del L
            if is_last:
                # This part of U is not needed any more: that of the next block comes in.
                self._gather(block + 1, K)
            self.relay.poll()
        self.call.meter.advance(self.weight * 2.0 * len(rows) * self.s.width * width)
        room[len(rows) :] = 0
        room[:, width:] = 0
        self.relay.leave(number, self._write(block, i, room))

    def _write(self, block: int, i: int, room: Matrix) -> list[Ticket]:
        """Start writing whole tiles and chunks of the next trailing matrix."""
        g, columns = self.g, self._columns(block)
        ahead = g.super_slabs[self.k + 1].width
        top, tickets = i * g.rows, []
        if columns.start < ahead:
            end = -(-min(columns.stop, ahead) // g.columns) * g.columns
            part = room[:, : end - columns.start]
            tickets.append(self.files.ahead.submit_write([top, columns.start], [1, 1], part))
        if columns.stop > ahead and self.files.rest is not None:
            first = max(columns.start, ahead)
            end = columns.start + -(-(columns.stop - columns.start) // g.segment) * g.segment
            part = room[:, first - columns.start : end - columns.start]
            tickets.append(self.files.rest.submit_write([top, first - ahead], [1, 1], part))
        return tickets

    def _subtract(self, U: Matrix, L: Matrix, C: Matrix) -> None:
        """C' <- C' - U' L'."""
        self.kernels.gemm(U, L, C, alpha=-1, beta=1, trans_b="T")

    def _look(self, T: Matrix, rows: npt.NDArray[np.int64], columns: slice) -> None:
        assert self.sums is not None
        start_ns = self.call.trace.now_ns()
        self.sums.look(T, rows, self.s.origin + self.s.width + columns.start)
        self.call.trace.record("compute", start_ns)

    def _abandon(self) -> None:
        """Wait for what is in flight, whatever becomes of it."""
        self.relay.abandon()
        for ticket in (*self.arriving, *self.leaving):
            with contextlib.suppress(OutcoreError):
                ticket.wait()
