"""The left singular vectors, formed in memory, or on disk from stored reflections."""

from collections import deque

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import wait
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.layout.zarr_format import Metadata
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tall_q import Passed, TallQ, build_from_disk
from outcore.linalg._rows.tsqr_plan import block_bounce_bytes, block_chunk
from outcore.linalg._svd.plan import SvdGeometry
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class MemoryU:
    """U in memory, which replaces the reflections.

    Parameters
    ----------
    g, call
        Geometry, and the call.
    team, shares
        The processes, and their rows.
    more_s
        Additional time to wait for rows of another process.
    """

    def __init__(
        self, g: SvdGeometry, call: LongCall, team: Team, shares: Shares, more_s: float
    ) -> None:
        self._g, self._call, self._team, self._shares = g, call, team, shares
        self._more_s = more_s
        self._memory = allocated(call, (g.q.m, g.q.n), g.q.dtype)

    def rows(self, first: int, count: int) -> Matrix:
        """Return memory for rows of A Z."""
        return self._memory[first : first + count]

    def keep(self, first: int) -> None:
        """Keep the current reflections."""

    def make_durable(self) -> None:
        """Do nothing: no data is on disk."""

    def build(self, q: TallQ, left: Matrix, built: int, passed: Passed) -> Matrix:
        """Form U = Q `left`."""
        g = self._g
        block = allocated(self._call, (g.q.height, g.k), g.q.dtype)
        for rows in reversed(cut(0, g.q.m, g.q.height)):
            inside = self._memory[rows]
            q.build(rows.start, inside)
            kernels(g.q.dtype).gemm(inside, left, block[: len(inside)], beta=0)
            inside[:, : g.k] = block[: len(inside)]
        own = self._memory[:, : g.k]
        return own if self._team.size == 1 else self._gathered(own, block)

    def _gathered(self, own: Matrix, block: Matrix) -> Matrix:
        """Return all rows: each process sends its own to the others. `block` is scratch."""
        g, team, edges = self._g, self._team, self._shares.edges
        U, message = allocated(self._call, (g.m, g.k), g.q.dtype), block.reshape(-1, order="F")
        for rank in range(team.size):
            for rows in cut(edges[rank], edges[rank + 1], g.q.height):
                part = message[: (rows.stop - rows.start) * g.k]
                those = part.reshape((-1, g.k), order="F")
                if rank == team.rank:
                    those[...] = own[rows.start - edges[rank] : rows.stop - edges[rank]]
                team.broadcast(part, self._more_s, rank)
                U[rows] = those
        return U

    def bytes_moved(self) -> tuple[int, int]:
        """Return bytes read and written."""
        return 0, 0


class DiskU:
    """U on disk. The reflections are in a separate array during the call.

    Parameters
    ----------
    target, reflections
        Arrays that are open for writing.
    g, call
        Geometry, and the call.
    first_row
        First row of this process in U.
    """

    def __init__(
        self, target: Array, reflections: Array, g: SvdGeometry, call: LongCall, first_row: int
    ) -> None:
        self._target, self._g, self._call, self._first_row = target, g, call, first_row
        self._reflections: ArrayFile = open_whole_chunks(
            reflections, call, g.q.bounce_bytes, number=1, writable=True
        )
        bounce = block_bounce_bytes(g.q.height, g.k, g.q.dtype)
        self._file = open_whole_chunks(target, call, bounce, number=2, writable=True)
        shape = (g.q.height, g.q.n)
        self._blocks = deque([allocated(call, shape, g.q.dtype) for _ in range(2)])
        self._leaving: deque[Ticket] = deque()

    def rows(self, first: int, count: int) -> Matrix:
        """Return memory for rows of A Z."""
        if len(self._leaving) == len(self._blocks):
            wait(self._leaving.popleft(), self._call.trace)
        self._blocks[0][count:] = 0
        return self._blocks[0][:count]

    def keep(self, first: int) -> None:
        """Write the current reflections."""
        self._leaving.append(self._reflections.submit_write([first, 0], [1, 1], self._blocks[0]))
        self._blocks.rotate()

    def make_durable(self) -> None:
        """Wait until all reflections so far are on disk."""
        for ticket in self._leaving:
            wait(ticket, self._call.trace)
        wait(self._reflections.submit_sync(), self._call.trace)

    def build(self, q: TallQ, left: Matrix, built: int, passed: Passed) -> Array:
        """Form U = Q `left`; `built` blocks exist already."""
        g, call = self._g, self._call
        for ticket in self._leaving:
            wait(ticket, call.trace)
        self._blocks.clear()
        blocks = deque([allocated(call, (g.q.height, g.k), g.q.dtype) for _ in range(2)])
        product = kernels(g.q.dtype)

        def put(first: int, rows: Matrix, block: Matrix) -> Ticket:
            # The older of both blocks is free: `build_from_disk` has waited for its write.
            U = blocks[0]
            blocks.rotate()
            product.gemm(rows, left, U[: len(rows)], beta=0)
            U[len(rows) :] = 0
            return self._file.submit_write([self._first_row + first, 0], [1, 1], U)

        build_from_disk(q, self._reflections, self._file, call, put, built, passed)
        return self._target

    def bytes_moved(self) -> tuple[int, int]:
        """Return bytes read and written."""
        counters = [file.counters() for file in (self._reflections, self._file)]
        return sum(c[0] for c in counters), sum(c[1] for c in counters)


def u_metadata(g: SvdGeometry) -> Metadata:
    """Return the metadata of U on disk."""
    chunk = block_chunk(g.q.height, g.k, g.q.dtype)
    return Metadata((g.m, g.k), g.q.dtype, chunk, "F", "row-major")
