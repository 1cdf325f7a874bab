"""Solving with LU factors on disk: all right-hand sides in one pass over L and one over U.

With E = L_s⁻¹ P_s ... L_1⁻¹ P_1 (panels 1 to s, in LINPACK order) the factorization is E A = U, so

    A x = b:    x = U⁻¹ E b         panels of L forward, then panels of U backward
    Aᵀ x = b:   x = Eᵀ U⁻ᵀ b        panels of U forward, then panels of L backward

Each pass reads its triangle in tiles, n²/2 words and the other half of the diagonal tiles. With k
right-hand sides there are 2n²k flops (8n²k complex).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import ArrayFile
from outcore.array import Array
from outcore.blas import Kernels, Trans, kernels
from outcore.create import create_array
from outcore.errors import BudgetError, InvalidError, SingularMatrixError
from outcore.linalg.factor import LUFactor
from outcore.linalg.panel import Matrix
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report, io_and_wait_seconds
from outcore.streams import BlockStream
from outcore.volumes import PathLike
from outcore.zarr_format import SLOT_ALIGN_BYTES

RING_TILES = 6

Counters: TypeAlias = tuple[int, int, int, int]
"""Bytes read, bytes written, read requests, write requests."""

Which: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]


def lu_solve(
    lu: LUFactor,
    b: npt.ArrayLike | Array,
    *,
    trans: Which = 0,
    memory: int | str | None = None,
    out: PathLike | None = None,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Any:
    """Solve A x = b, Aᵀ x = b or Aᴴ x = b with factors on disk.

    Parameters
    ----------
    lu
        Factors from `lu_factor` or `open_factor`.
    b
        (n,) or (n, k): a NumPy array, or an `Array` on disk, which is worked on in groups of as
        many columns as fit in memory (each group is a pass over L and one over U).
    trans
        0 or ``"N"`` for A, 1 or ``"T"`` for Aᵀ, 2 or ``"C"`` for Aᴴ, as in SciPy.
    memory
        Budget of the pass; by default half of the available memory. A solution in memory is the
        caller's and not counted.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    threads, progress
        As for `lu_factor`.

    Returns
    -------
    numpy.ndarray or Array
        x, of the shape of `b`; on disk if `b` is or `out` is given. Of the factors' type; complex
        for a complex `b`.

    Raises
    ------
    SingularMatrixError
        If U has an exactly zero diagonal element.
    InvalidError
        If `b` does not fit the factors.
    """
    return solve_and_report(
        lu, b, trans=trans, memory=memory, out=out, threads=threads, progress=progress
    )[0]


def solve_and_report(
    lu: LUFactor,
    b: npt.ArrayLike | Array,
    *,
    trans: Which = 0,
    memory: int | str | None = None,
    out: PathLike | None = None,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Any, Report]:
    """Do what `lu_solve` does, and report on it."""
    call = _RightHandSide.read(lu, b, trans)
    memory_bytes = budget.resolve(memory)
    work = 2.0 * lu.n**2 * call.columns * (4 if lu.dtype.kind == "c" else 1)
    with long_call(
        f"solving with {lu.path.name}", memory_bytes=memory_bytes, work=work, threads=threads,
        progress=progress,
    ) as means:  # fmt: skip
        if not isinstance(b, Array) and out is None:
            X = call.in_memory()
            passes = 1
            counters = _sweep(lu, X, call.trans, means, memory_bytes)
            x: Any = call.solution(X)
        else:
            x, passes, counters = _solve_on_disk(lu, call, out, means, memory_bytes)
        io_seconds, wait_seconds = io_and_wait_seconds(means.trace)
        report = Report(
            verb="lu_solve",
            n=lu.n,
            dtype=lu.dtype.name,
            seconds=means.seconds(),
            flops=work,
            bytes_read=counters[0],
            bytes_written=counters[1],
            planned_bytes_read=passes * solve_bytes_read(lu.n, lu.dtype, lu.tile),
            planned_bytes_written=0,
            io_seconds=io_seconds,
            wait_seconds=wait_seconds,
            memory_bytes=memory_bytes,
            peak_memory_bytes=means.arena.peak_bytes,
            growth=lu.growth,
            spans=means.trace.spans()[0],
        )
        return x, report


def solve_bytes_read(n: int, dtype: np.dtype[Any], tile: tuple[int, int]) -> int:
    """Bytes of factors read by one pass over L and one over U: the diagonal tiles twice. Exact."""
    rows, columns = tile
    tile_bytes = -(-rows * columns * dtype.itemsize // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES
    return -(-n // columns) * (-(-n // rows) + 1) * tile_bytes


class _RightHandSide(NamedTuple):
    """A right-hand side that fits the factors."""

    b: Any
    trans: Trans
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    columns: int
    is_split: bool
    """Complex, with real factors: its real and imaginary parts are solved for side by side."""

    @classmethod
    def read(cls, lu: LUFactor, b: Any, trans: Which) -> "_RightHandSide":
        if lu.info:
            raise SingularMatrixError(
                f"A is singular: diagonal number {lu.info} of U is exactly zero, so there is no "
                "unique solution; use least squares, or correct the matrix",
                lu.info,
            )
        letters: dict[Any, Trans] = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
        if trans not in letters:
            raise InvalidError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', have {trans!r}")
        given = b if isinstance(b, Array) else np.asarray(b)
        if given.ndim not in (1, 2) or given.shape[0] != lu.n:
            raise InvalidError(
                f"need a right-hand side of shape ({lu.n},) or ({lu.n}, k), have {given.shape}"
            )
        if given.dtype.kind not in "biufc":
            raise InvalidError(f"a right-hand side is numbers, have {given.dtype}")
        columns = given.shape[1] if given.ndim == 2 else 1
        is_split = given.dtype.kind == "c" and lu.dtype.kind == "f"
        return cls(given, letters[trans], lu.dtype, given.shape, columns, is_split)

    @property
    def solution_dtype(self) -> np.dtype[Any]:
        """Type of the solution."""
        return np.result_type(self.dtype, np.complex64) if self.is_split else self.dtype

    def in_memory(self, columns: slice = slice(None)) -> Matrix:
        """Copy columns of b, (n, k) column-major, in the factors' type."""
        part = self.b[:, columns] if len(self.shape) == 2 else self.b[:]
        part = np.asarray(part).reshape(self.shape[0], -1)
        if self.is_split:
            part = np.concatenate([part.real, part.imag], axis=1)
        if not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
            raise InvalidError(f"the right-hand side has a NaN or an infinity in row {row}")
        return np.array(part, self.dtype, order="F")

    def solution(self, X: Matrix) -> npt.NDArray[Any]:
        """Give a solution the shape and type of b."""
        if self.is_split:
            half = X.shape[1] // 2
            X = X[:, :half] + 1j * X[:, half:]
        return X[:, 0] if len(self.shape) == 1 else X


def _solve_on_disk(
    lu: LUFactor, call: _RightHandSide, out: PathLike | None, means: LongCall, memory_bytes: int
) -> tuple[Array, int, Counters]:
    """Solve in groups of columns; return the solution, the passes made, and what they moved."""
    # Per column: the solution, and its transfer to and from the disk.
    column_bytes = 3 * lu.n * call.solution_dtype.itemsize
    group = (memory_bytes - _ring_bytes(lu)) // column_bytes
    if group < 1:
        raise BudgetError(
            f"need {_ring_bytes(lu) + column_bytes} bytes for one column of the solution, have "
            f"{memory_bytes}; raise memory="
        )
    target = out if out is not None else f"{call.b.path}.x"
    x = create_array(target, call.shape, call.solution_dtype, order="F")
    x.mark("incomplete", "the solve that wrote it was stopped; solve again with another out=")
    starts = range(0, call.columns, group)
    totals: Counters = (0, 0, 0, 0)
    for first in starts:
        columns = slice(first, min(first + group, call.columns))
        X = call.in_memory(columns)
        moved = _sweep(lu, X, call.trans, means, memory_bytes - 2 * X.nbytes)
        a, b, c, d = (t + m for t, m in zip(totals, moved, strict=True))
        totals = (a, b, c, d)
        X = call.solution(X)
        if X.ndim == 1:
            x[:] = X
        else:
            x[:, columns] = X
    x.flush()
    x.mark(None)
    return x, len(starts), totals


def _ring_bytes(lu: LUFactor) -> int:
    rows, columns = lu.tile
    return RING_TILES * (-(-rows * columns * lu.dtype.itemsize // 4096) * 4096) + (64 << 10)


class _Tile(NamedTuple):
    """A tile of the factors: panel, first row and end row of it, and its elements."""

    panel: int
    first: int
    end: int
    data: Matrix


def _sweep(lu: LUFactor, X: Matrix, trans: Trans, means: LongCall, memory_bytes: int) -> Counters:
    """Solve in place for all columns of X; return what was moved."""
    ring = min(_ring_bytes(lu), memory_bytes)
    file = lu.open_tiles(means.arena, means.trace)
    solver = _Solver(lu, X, kernels(lu.dtype), trans)
    passes = [solver.forward_l, solver.backward_u]
    if trans != "N":
        passes = [solver.forward_u_transposed, solver.backward_l_transposed]
    work = lu.n**2 * X.shape[1] * (4 if lu.dtype.kind == "c" else 1) / solver.panels
    for one_pass in passes:
        # Each pass has its own stream, over the tiles in the order it asks for them.
        stream = _TileStream(lu, file, means, ring)
        one_pass(stream, lambda: means.meter.advance(work))
    return file.counters()


class _TileStream:
    """Tiles of the factors in the order in which a pass goes through them."""

    def __init__(self, lu: LUFactor, file: ArrayFile, means: LongCall, memory_bytes: int) -> None:
        self._lu, self._trace = lu, means.trace
        self._stream = BlockStream(file, lu.dtype, means.arena, memory_bytes, means.trace)

    def go(self, panels: Iterable[int], tiles: Callable[[int], Iterable[int]]) -> Iterator[_Tile]:
        n, (rows, columns) = self._lu.n, self._lu.tile
        schedule = [(K, t) for K in panels for t in tiles(K)]
        self._stream.extend(
            (slice(t * rows, (t + 1) * rows), slice(K * columns, (K + 1) * columns))
            for K, t in schedule
        )
        for K, t in schedule:
            tile = self._stream.take().data
            end, width = min((t + 1) * rows, n), min(columns, n - K * columns)
            start_ns = self._trace.now_ns()
            yield _Tile(K, t * rows, end, tile[: end - t * rows, :width])
            self._trace.record("compute", start_ns)


class _Solver:
    """The four passes, on X in place."""

    def __init__(self, lu: LUFactor, X: Matrix, kernels: Kernels, trans: Trans) -> None:
        self.lu, self.X, self.kernels, self.trans = lu, X, kernels, trans
        self.panels = -(-lu.n // lu.tile[1])
        self.tiles = -(-lu.n // lu.tile[0])

    def _below(self, K: int) -> range:
        rows, columns = self.lu.tile
        return range(K * columns // rows, self.tiles)

    def _above(self, K: int) -> range:
        rows, columns = self.lu.tile
        return range(K * columns // rows, -1, -1)

    def _extent(self, K: int) -> tuple[int, int]:
        columns = self.lu.tile[1]
        return K * columns, min((K + 1) * columns, self.lu.n)

    def forward_l(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- E X."""
        for tile in stream.go(range(self.panels), self._below):
            (o, e), X, first = self._extent(tile.panel), self.X, tile.first
            if first <= o:
                piv = self.lu.panel_piv(tile.panel)
                self.kernels.laswp(X[o:], piv, 0, len(piv))
                self.kernels.trsm(tile.data[o - first : e - first], X[o:e], lower=True, unit=True)
                first = e
                advance()
            L = tile.data[first - tile.first :]
            self.kernels.gemm(L, X[o:e], X[first : tile.end], alpha=-1, beta=1)

    def backward_u(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- U⁻¹ X."""
        for tile in stream.go(range(self.panels)[::-1], self._above):
            (o, e), X, end = self._extent(tile.panel), self.X, tile.end
            if end >= e:
                block = tile.data[o - tile.first : e - tile.first]
                self.kernels.trsm(block, X[o:e], lower=False, unit=False)
                end = o
                advance()
            U = tile.data[: end - tile.first]
            self.kernels.gemm(U, X[o:e], X[tile.first : end], alpha=-1, beta=1)

    def forward_u_transposed(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- U⁻ᵀ X (or U⁻ᴴ X)."""
        for tile in stream.go(range(self.panels), lambda K: self._above(K)[::-1]):
            (o, e), X = self._extent(tile.panel), self.X
            end = min(tile.end, o)
            U = tile.data[: end - tile.first]
            self.kernels.gemm(U, X[tile.first : end], X[o:e], alpha=-1, beta=1, trans_a=self.trans)
            if tile.end >= e:
                block = tile.data[o - tile.first : e - tile.first]
                self.kernels.trsm(block, X[o:e], lower=False, unit=False, trans=self.trans)
                advance()

    def backward_l_transposed(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- Eᵀ X (or Eᴴ X)."""
        for tile in stream.go(range(self.panels)[::-1], lambda K: self._below(K)[::-1]):
            (o, e), X = self._extent(tile.panel), self.X
            first = max(tile.first, e)
            L = tile.data[first - tile.first :]
            self.kernels.gemm(L, X[first : tile.end], X[o:e], alpha=-1, beta=1, trans_a=self.trans)
            if tile.first <= o:
                block = tile.data[o - tile.first : e - tile.first]
                self.kernels.trsm(block, X[o:e], lower=True, unit=True, trans=self.trans)
                piv = self.lu.panel_piv(tile.panel)
                self.kernels.laswp(X[o:], piv, 0, len(piv), reverse=True)
                advance()
