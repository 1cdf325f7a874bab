"""The passes over LU and Cholesky factors that solve for columns in memory.

With E = L_s⁻¹ P_s ... L_1⁻¹ P_1 (panels 1 to s, in LINPACK order), the factorization is E A = U, so

    A x = b:    x = U⁻¹ E b         panels of L forward, then panels of U backward
    Aᵀ x = b:   x = Eᵀ U⁻ᵀ b       panels of U forward, then panels of L backward

With Cholesky's A = L Lᴴ:

    A x = b:    x = L⁻ᴴ L⁻¹ b       panels of L forward, then backward

Each pass reads its triangle in tiles: n²/2 words, plus the other half of the diagonal tiles. With k
right-hand sides there are 2n²k flops (8n²k complex).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from outcore._core import ArrayFile
from outcore._util.budget import too_small
from outcore._util.streams import BlockStream
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.linalg._factors.panel_servers import Parts
from outcore.linalg._geometry.factor_plan import (
    RING_BLOCKS,
    TILE_BOUNCE_BYTES,
    even_blocks,
    ring_blocks,
    solve_bytes_read,
    solve_flops,
    stream_blocks,
    tall_block,
    taller_block,
)
from outcore.linalg._output.factor import CHOLESKY, CholeskyFactor, Kind, LUFactor
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.widened import Converted, converted_bytes
from outcore.processes.blocks import Expected
from outcore.processes.broadcasts import blocks_of
from outcore.processes.sharing import seconds_for
from outcore.processes.team import Team, alone
from outcore.report.longcall import LongCall

Swept: TypeAlias = LUFactor | CholeskyFactor


class PlannedFactors(NamedTuple):
    """Order, type, and tiles of factors that may not exist yet."""

    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]


class TiledFactors(Protocol):
    """The attributes of factors that determine their reads."""

    @property
    def n(self) -> int:
        """Order of the matrix."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile."""


def sweep_bytes(kind: Kind, n: int, dtype: np.dtype[Any], tile: tuple[int, int]) -> int:
    """Bytes of factors that a solve reads in its two passes. Exact."""
    if kind is not CHOLESKY:
        return solve_bytes_read(n, dtype, tile)
    rows, columns = tile
    stored = sum(-(-n // rows) - first // rows for first in range(0, n, columns))
    return 2 * stored * rows * columns * dtype.itemsize


def sweep_bytes_of(factor: Swept) -> int:
    """Bytes that a solve with these factors reads."""
    return sweep_bytes(factor.kind, factor.n, factor.dtype, factor.tile)


def tile_bytes(lu: TiledFactors) -> int:
    """Bytes of a tile on disk: whole pages."""
    return lu.tile[0] * lu.tile[1] * lu.dtype.itemsize


def swept_by(factor: Swept, block_tiles: int, parts: Parts) -> tuple[int, int, int]:
    """Return the bytes that one of several processes reads and sends in a solve, and the messages.

    Each reads its panels once in each of the two passes, and sends all that it reads. The third
    number is the bytes that it reads from I/O servers of others.
    """
    panels, is_cholesky = parts.own(), factor.kind is CHOLESKY
    remote_bytes = 0
    for panel in panels:
        for tiles in _passed_tiles(factor, panel, is_cholesky=is_cholesky):
            remote_bytes += parts.remote_bytes(panel, tiles)
    return *_passed(factor, block_tiles, panels, is_cholesky=is_cholesky), remote_bytes


def sweep_part(
    kind: Kind, factors: TiledFactors, block_tiles: int, rank: int, processes: int
) -> tuple[int, int]:
    """Return the bytes and messages of `swept_by` for factors of a kind that may not exist yet."""
    panels = range(rank, -(-factors.n // factors.tile[1]), processes)
    return _passed(factors, block_tiles, panels, is_cholesky=kind is CHOLESKY)


def _passed(
    factors: TiledFactors, block_tiles: int, panels: Iterable[int], *, is_cholesky: bool
) -> tuple[int, int]:
    """Return the bytes and messages of some panels in both passes."""
    nbytes = messages = 0
    for panel in panels:
        for tiles in _passed_tiles(factors, panel, is_cholesky=is_cholesky):
            nbytes += len(tiles) * tile_bytes(factors)
            messages += -(-len(tiles) // block_tiles)
    return nbytes, messages


def _passed_tiles(factors: TiledFactors, panel: int, *, is_cholesky: bool) -> tuple[range, range]:
    """Return the tiles of a panel in each pass."""
    rows, columns = factors.tile
    diagonal = panel * columns // rows
    below = range(diagonal, -(-factors.n // rows))
    return below, below if is_cholesky else range(diagonal + 1)


def ring_bytes(
    lu: TiledFactors, block_tiles: int, dtype: np.dtype[Any] | None = None, processes: int = 1
) -> int:
    """Memory of a sweep beside its columns: read-ahead, and one block in the columns' type.

    One of several processes also has blocks that it sends and receives.
    """
    block_bytes = block_tiles * tile_bytes(lu)
    converted = converted_bytes(lu.dtype, dtype or lu.dtype, block_bytes)
    return ring_blocks(processes) * block_bytes + converted + TILE_BOUNCE_BYTES


def cut_sweep(
    lu: TiledFactors,
    memory_bytes: int,
    column_bytes: int,
    columns: int,
    beside_bytes: int = 0,
    dtype: np.dtype[Any] | None = None,
    processes: int = 1,
) -> tuple[int, int]:
    """Divide memory between blocks of tiles and columns, by the same rule as LU.

    Parameters
    ----------
    column_bytes
        Memory that each column takes from the budget; 0 if the columns are the caller's.
    columns
        Number of columns.
    beside_bytes
        Memory needed for other purposes.
    dtype
        Type of the columns, if it differs from that of the factors.
    processes
        Number of processes of the call.

    Returns
    -------
    tuple
        Tiles of a block, and number of columns to solve for at once.

    Raises
    ------
    BudgetError
        If blocks of one tile and one column do not fit.
    """
    tiles = -(-lu.n // lu.tile[0])
    each = tile_bytes(lu) + converted_bytes(lu.dtype, dtype or lu.dtype, tile_bytes(lu)) // 2
    for block_tiles in (tall_block(tile_bytes(lu), tiles, memory_bytes), 1):
        left = memory_bytes - beside_bytes - ring_bytes(lu, block_tiles, dtype, processes)
        group = min(columns, left // column_bytes) if column_bytes else columns
        if left >= 0 and (group or not columns):
            left = (left - group * column_bytes) * RING_BLOCKS // ring_blocks(processes)
            return taller_block(block_tiles, each, tiles, left), group
    need = ring_bytes(lu, 1, dtype, processes) + column_bytes + beside_bytes
    what = f"a solve with tiles of {lu.tile[0]} x {lu.tile[1]}"
    raise too_small(need, memory_bytes, what)


class Sweeps:
    """Repeated solves with the factors, in place, for all columns at once.

    They report the bytes read to the meter of the call. Each process of several solves for its own
    columns, and reads its part of the factors for all of them.

    Attributes
    ----------
    sent
        Bytes and messages that this process has sent to others.
    remote_read
        Bytes that it has read from I/O servers of others.
    """

    def __init__(
        self,
        lu: Swept,
        call: LongCall,
        block_tiles: int,
        team: Team | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.lu, self.call, self.block_tiles = lu, call, block_tiles
        self.team, self.sent, self.remote_read = team or alone(), (0, 0), 0
        self.parts = parts or Parts(lu, self.team)
        self.file = lu.open_tiles(call.arena, call.trace)

    def solve(self, X: Matrix, trans: Trans = "N", beside: Matrix | None = None) -> None:
        """Solve in place: X <- A⁻¹ X, or with A transposed. Solve for the columns `beside` X too.

        With Cholesky factors, `trans` is ``"N"`` or the conjugate transpose, which is A too.
        X may have a wider type than the factors. The arithmetic is then done in that type, and
        needs memory for one more block of that type.
        """
        is_cholesky = isinstance(self.lu, CholeskyFactor)
        matrices = [X] if beside is None else [X, beside]
        solver = _Solver(self.lu, matrices, "C" if is_cholesky else trans, self.block_tiles)
        passes = [solver.forward_l, solver.backward_u]
        if is_cholesky:
            passes = [solver.forward_l, solver.backward_l_adjoint]
        elif trans != "N":
            passes = [solver.forward_u_transposed, solver.backward_l_transposed]
        for one_pass in passes:
            self._run(one_pass, X)

    def _run(self, one_pass: Callable[["_BlockStream"], None], X: Matrix) -> None:
        """Run a pass with a stream of its own, whose memory is free at the end."""
        stream = _BlockStream(
            self.lu, self.file, self.call, self.block_tiles, X, self.team, self.parts
        )
        one_pass(stream)
        self.remote_read += stream.remote_read
        self.sent = self.sent[0] + stream.sent[0], self.sent[1] + stream.sent[1]

    def counters(self) -> tuple[int, int, int, int]:
        """Bytes read, bytes written, read requests, write requests."""
        return self.file.counters()


class _Block(NamedTuple):
    """Tiles of one panel of the factors: first row and end row, and the elements."""

    panel: int
    first: int
    end: int
    data: Matrix

    def part(self, first: int, end: int) -> Matrix:
        """Rows of the matrix from `first` to ``end - 1``."""
        return self.data[first - self.first : end - self.first]


class _BlockStream:
    """Blocks of the factors, in the order in which a pass uses them for columns `X`."""

    def __init__(
        self,
        lu: Swept,
        file: ArrayFile,
        call: LongCall,
        most_tiles: int,
        X: Matrix,
        team: Team,
        parts: Parts,
    ) -> None:
        self._lu, self._call, self._team, self._parts = lu, call, team, parts
        self.remote_read = 0
        block_bytes = most_tiles * tile_bytes(lu)
        stream = BlockStream(
            file, lu.dtype, call.arena, stream_blocks(team.size) * block_bytes, call.trace,
            least_bytes=block_bytes,
        )  # fmt: skip
        # Another process may have more columns than this one, but not by more than one.
        flops = solve_flops(lu.n, lu.dtype, X.shape[1] + 1)
        beside_bytes = lu.n * (X.shape[1] + 1) * X.dtype.itemsize
        more_s = seconds_for(block_bytes + beside_bytes, flops)
        self._blocks = blocks_of(
            stream, team, call, RING_BLOCKS, ring_blocks(team.size), block_bytes, more_s
        )
        self._converted = Converted(lu.dtype, X.dtype, block_bytes, call)

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent."""
        return self._blocks.sent

    def go(
        self, panels: Iterable[int], blocks: Callable[[int], Iterable[range]]
    ) -> Iterator[_Block]:
        n, (rows, columns), rank = self._lu.n, self._lu.tile, self._team.rank
        readers = self._parts.readers
        schedule = [
            (K, range(min(block[0], block[-1]), max(block[0], block[-1]) + 1))
            for K in panels
            for block in blocks(K)
        ]
        trace = self._call.trace
        with self._blocks:
            self._blocks.expect(
                Expected(readers[K], (len(t) * rows, columns), self._lu.dtype, True)
                for K, t in schedule
            )
            self._blocks.read(
                [
                    (slice(t.start * rows, t.stop * rows), slice(K * columns, (K + 1) * columns))
                    for K, t in schedule
                    if readers[K] == rank
                ]
            )
            for K, t in schedule:
                if readers[K] == rank:
                    self.remote_read += self._parts.remote_bytes(K, t)
                data = self._blocks.take()
                read_bytes = data.nbytes
                first, end = t.start * rows, min(t.stop * rows, n)
                width = min(columns, n - K * columns)
                start_ns = trace.now_ns()
                yield _Block(K, first, end, self._converted(data[: end - first, :width]))
                trace.record("compute", start_ns)
                self._call.meter.advance(read_bytes)


class _Solver:
    """The four passes, on matrices of the same type, in place."""

    def __init__(self, lu: Swept, matrices: list[Matrix], trans: Trans, most_tiles: int) -> None:
        # One of several processes may have no columns.
        self.matrices = [X for X in matrices if X.shape[1]]
        self.lu, self.trans, self.most_tiles = lu, trans, most_tiles
        self.unit = isinstance(lu, LUFactor)
        self.kernels = kernels(matrices[0].dtype)
        self.panels = -(-lu.n // lu.tile[1])
        self.tiles = -(-lu.n // lu.tile[0])

    def _below(self, K: int, step: int = 1) -> Iterator[range]:
        """Blocks from the diagonal down, cut from the top, or from the bottom for step -1."""
        rows, columns = self.lu.tile
        return even_blocks(range(K * columns // rows, self.tiles)[::step], self.most_tiles)

    def _above(self, K: int, step: int = 1) -> Iterator[range]:
        """Blocks from the diagonal up, cut from the bottom, or from the top for step -1."""
        rows, columns = self.lu.tile
        return even_blocks(range(K * columns // rows, -1, -1)[::step], self.most_tiles)

    def _extent(self, K: int) -> tuple[int, int]:
        columns = self.lu.tile[1]
        return K * columns, min((K + 1) * columns, self.lu.n)

    def _subtract(self, T: Matrix, rows: slice, target: slice, trans: Trans = "N") -> None:
        """X[target] <- X[target] - op(T) X[rows]."""
        for X in self.matrices:
            self.kernels.gemm(T, X[rows], X[target], alpha=-1, beta=1, trans_a=trans)

    def _substitute(
        self, T: Matrix, rows: slice, *, lower: bool, unit: bool, trans: Trans = "N"
    ) -> None:
        """X[rows] <- op(T)⁻¹ X[rows]."""
        for X in self.matrices:
            self.kernels.trsm(T, X[rows], lower=lower, unit=unit, trans=trans)

    def _swap(self, K: int, *, reverse: bool = False) -> None:
        """Apply the row interchanges of a panel."""
        if not isinstance(self.lu, LUFactor):
            return
        piv, first = self.lu.panel_piv(K), self._extent(K)[0]
        for X in self.matrices:
            self.kernels.laswp(X[first:], piv, 0, len(piv), reverse=reverse)

    def forward_l(self, stream: _BlockStream) -> None:
        """X <- E X, or L⁻¹ X."""
        for block in stream.go(range(self.panels), self._below):
            (o, e), first = self._extent(block.panel), block.first
            if first <= o:
                self._swap(block.panel)
                self._substitute(block.part(o, e), slice(o, e), lower=True, unit=self.unit)
                first = e
            self._subtract(block.part(first, block.end), slice(o, e), slice(first, block.end))

    def backward_u(self, stream: _BlockStream) -> None:
        """X <- U⁻¹ X."""
        for block in stream.go(range(self.panels)[::-1], self._above):
            (o, e), end = self._extent(block.panel), block.end
            if end >= e:
                self._substitute(block.part(o, e), slice(o, e), lower=False, unit=False)
                end = o
            self._subtract(block.part(block.first, end), slice(o, e), slice(block.first, end))

    def forward_u_transposed(self, stream: _BlockStream) -> None:
        """X <- U⁻ᵀ X (or U⁻ᴴ X)."""
        for block in stream.go(range(self.panels), lambda K: self._above(K, -1)):
            (o, e), trans = self._extent(block.panel), self.trans
            above = slice(block.first, min(block.end, o))
            self._subtract(block.part(above.start, above.stop), above, slice(o, e), trans)
            if block.end >= e:
                self._substitute(
                    block.part(o, e), slice(o, e), lower=False, unit=False, trans=trans
                )

    def backward_l_transposed(self, stream: _BlockStream) -> None:
        """X <- Eᵀ X (or Eᴴ X)."""
        self._backward_l(stream, lambda K: self._below(K, -1))

    def backward_l_adjoint(self, stream: _BlockStream) -> None:
        """X <- L⁻ᴴ X, with the blocks of `forward_l`."""
        self._backward_l(stream, lambda K: reversed([*self._below(K)]))

    def _backward_l(self, stream: _BlockStream, blocks: Callable[[int], Iterable[range]]) -> None:
        for block in stream.go(range(self.panels)[::-1], blocks):
            (o, e), trans = self._extent(block.panel), self.trans
            below = slice(max(block.first, e), block.end)
            self._subtract(block.part(below.start, below.stop), below, slice(o, e), trans)
            if block.first <= o:
                self._substitute(
                    block.part(o, e), slice(o, e), lower=True, unit=self.unit, trans=trans
                )
                self._swap(block.panel, reverse=True)
