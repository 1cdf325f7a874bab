"""Solving with LU factors on disk: all right-hand sides in one pass over L and one over U.

With E = L_s⁻¹ P_s ... L_1⁻¹ P_1 (panels 1 to s, in LINPACK order) the factorization is E A = U, so

    A x = b:    x = U⁻¹ E b         panels of L forward, then panels of U backward
    Aᵀ x = b:   x = Eᵀ U⁻ᵀ b        panels of U forward, then panels of L backward

Each pass reads its triangle in tiles, n²/2 words and the other half of the diagonal tiles. With k
right-hand sides there are 2n²k flops (8n²k complex).
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import ArrayFile
from outcore.array import Array, open_array, read_metadata, write_metadata
from outcore.blas_calls import Trans
from outcore.errors import (
    BudgetError,
    ExistsError,
    Interrupted,
    InvalidError,
    OutcoreError,
    SingularMatrixError,
)
from outcore.lapack import Kernels, kernels
from outcore.linalg.factor import LUFactor
from outcore.linalg.lu_plan import TILE_BOUNCE_BYTES, solve_bytes_read
from outcore.linalg.panel import Matrix
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.sizes import format_bytes
from outcore.streams import BlockStream
from outcore.volumes import PathLike, Place, place
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata, default_chunks

RING_TILES = (3, 6)
"""Fewest and most tiles of read-ahead."""

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
    overwrite: bool = False,
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
    overwrite
        Replace an array that is at `out`.
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
        lu,
        b,
        trans=trans,
        memory=memory,
        out=out,
        overwrite=overwrite,
        threads=threads,
        progress=progress,
    )[0]


def solve_and_report(
    lu: LUFactor,
    b: npt.ArrayLike | Array,
    *,
    trans: Which = 0,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Any, Report]:
    """Do what `lu_solve` does, and report on it."""
    if lu.info:
        raise SingularMatrixError(
            f"A is singular: diagonal number {lu.info} of U is exactly zero, so there is no "
            "unique solution; use least squares, or correct the matrix",
            lu.info,
        )
    call = RightHandSide.read(lu.n, lu.dtype, b, trans, out, overwrite=overwrite)
    memory_bytes = budget.resolve(memory)
    need = _ring_bytes(lu, RING_TILES[0]) + (call.column_bytes if call.out else 0)
    if memory_bytes < need:
        raise BudgetError(
            f"need {need} bytes ({format_bytes(need)}) to solve with tiles of {lu.tile[0]} x "
            f"{lu.tile[1]}, have {memory_bytes} ({format_bytes(memory_bytes)}); raise memory="
        )
    work = 2.0 * lu.n**2 * call.columns * (4 if lu.dtype.kind == "c" else 1 + call.is_split)
    with _stopping_cleanly(lu), long_call(
        f"solving with {lu.path.name}", memory_bytes=memory_bytes, work=work, threads=threads,
        progress=progress,
    ) as means:  # fmt: skip
        if call.out is None:
            X = call.in_memory()
            passes = 1
            counters = _sweep(lu, X, call.trans, means, memory_bytes)
            x: Any = call.solution(X)
        else:
            x, passes, counters = _solve_on_disk(lu, call, call.out, means, memory_bytes)
        report = Report(
            verb="lu_solve",
            n=lu.n,
            dtype=lu.dtype.name,
            flops=work,
            bytes_read=counters[0],
            bytes_written=counters[1],
            planned_bytes_read=passes * solve_bytes_read(lu.n, lu.dtype, lu.tile),
            planned_bytes_written=0,
            growth=lu.growth,
            **means.figures(),
        )
        return x, report


@contextmanager
def _stopping_cleanly(lu: LUFactor) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"solving with {lu.path.name} stopped; the factors are as they were, call again"
        ) from None


class RightHandSide(NamedTuple):
    """A right-hand side that fits a matrix of order `n` and its factors."""

    b: Any
    trans: Trans
    n: int
    dtype: np.dtype[Any]
    out: Place | None
    """Where the solution goes, unless it stays in memory."""

    @classmethod
    def read(
        cls,
        n: int,
        dtype: np.dtype[Any],
        b: Any,
        trans: Which,
        out: PathLike | None,
        *,
        overwrite: bool,
    ) -> "RightHandSide":
        """Check a right-hand side and where its solution is to go.

        Raises
        ------
        InvalidError
            If it is not one.
        ExistsError
            If there is something at `out` that may not be overwritten.
        """
        letters: dict[Any, Trans] = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}
        if not isinstance(trans, int | str) or trans not in letters:
            raise InvalidError(f"trans must be 0, 1, 2, 'N', 'T' or 'C', have {trans!r}")
        given = b if isinstance(b, Array) else np.asarray(b)
        if given.ndim not in (1, 2) or given.shape[0] != n:
            raise InvalidError(
                f"need a right-hand side of shape ({n},) or ({n}, k), have {given.shape}"
            )
        if given.dtype.kind not in "biufc":
            raise InvalidError(f"a right-hand side is numbers, have {given.dtype}")
        if out is None and isinstance(b, Array):
            out = f"{b.path}.x"
        where = None if out is None else place(out)
        if where and where.volume.exists(where.name) and not _is_stopped(where):
            if not overwrite or not where.exists():
                raise ExistsError(
                    f"{where.path} exists; choose another out=, or pass overwrite=True if it is an "
                    "array that may go"
                )
            if isinstance(b, Array) and where.path == b.path:
                raise InvalidError(f"out= is the right-hand side itself, {b.path}; choose another")
        return cls(given, letters[trans], n, dtype, where)

    @property
    def columns(self) -> int:
        """Number of right-hand sides."""
        return int(self.b.shape[1]) if self.b.ndim == 2 else 1

    @property
    def is_split(self) -> bool:
        """Complex, with real factors: real and imaginary parts are solved for side by side."""
        return bool(self.b.dtype.kind == "c" and self.dtype.kind == "f")

    @property
    def solution_dtype(self) -> np.dtype[Any]:
        """Type of the solution."""
        return np.result_type(self.dtype, np.complex64) if self.is_split else self.dtype

    @property
    def column_bytes(self) -> int:
        """Memory for a column of a solution on disk: as it is read, solved for, and written."""
        return self.n * int(self.b.dtype.itemsize + 2 * self.solution_dtype.itemsize)

    def in_memory(self, columns: slice = slice(None)) -> Matrix:
        """Copy columns of b, (n, k) column-major, in the factors' type."""
        part = np.asarray(self.b[:, columns] if self.b.ndim == 2 else self.b[:])
        part = part.reshape(self.n, part.size // self.n)
        k = part.shape[1]
        X: Matrix = np.empty((self.n, k + k * self.is_split), self.dtype, order="F")
        # What is too large for the type becomes infinite, and is found below.
        with np.errstate(over="ignore"):
            if self.is_split:
                X[:, :k], X[:, k:] = part.real, part.imag
            else:
                X[...] = part
        for j in range(X.shape[1]):
            bad = np.flatnonzero(~np.isfinite(X[:, j]))
            if len(bad):
                raise InvalidError(
                    f"the right-hand side has a NaN, an infinity or a number too large for "
                    f"{self.dtype} in row {bad[0]}"
                )
        return X

    def solution(self, X: Matrix) -> npt.NDArray[Any]:
        """Give a solution the shape and type of b."""
        if self.is_split:
            half = X.shape[1] // 2
            joined: Matrix = np.empty((self.n, half), self.solution_dtype, order="F")
            joined.real, joined.imag = X[:, :half], X[:, half:]
            X = joined
        return X[:, 0] if self.b.ndim == 1 else X


_WHY = "the solve that wrote it was stopped; solve again"


def _is_stopped(where: Place) -> bool:
    """Whether this is what a solve that was killed left of its solution."""
    with contextlib.suppress(OutcoreError):
        metadata = read_metadata(where)
        return (metadata.state, metadata.why) == ("incomplete", _WHY)
    return False


def _create_solution(call: RightHandSide, where: Place) -> Array:
    """Make the array of the solution, incomplete from the first moment."""
    if where.volume.exists(where.name):
        where.volume.remove(where.name)
    shape, dtype = call.b.shape, call.solution_dtype
    chunks = default_chunks(shape, dtype.itemsize, "F")
    metadata = Metadata(shape, dtype, chunks, "F", "column-major", state="incomplete", why=_WHY)
    write_metadata(where, metadata)
    ArrayFile.create(where.volume, where.name, metadata.grid(), True)
    return open_array(where.path, "r+", allow_incomplete=True)


def _solve_on_disk(
    lu: LUFactor, call: RightHandSide, where: Place, means: LongCall, memory_bytes: int
) -> tuple[Array, int, Counters]:
    """Solve in groups of columns; return the solution, the passes made, and what they moved."""
    ring = min(
        _ring_bytes(lu, RING_TILES[1]),
        max(_ring_bytes(lu, RING_TILES[0]), memory_bytes - call.column_bytes),
    )
    group = (memory_bytes - ring) // call.column_bytes
    starts = range(0, call.columns, group)
    totals: Counters = (0, 0, 0, 0)
    try:
        x = _create_solution(call, where)
        for first in starts:
            columns = slice(first, min(first + group, call.columns))
            X = call.in_memory(columns)
            moved = _sweep(lu, X, call.trans, means, ring)
            a, b, c, d = (t + m for t, m in zip(totals, moved, strict=True))
            totals = (a, b, c, d)
            X = call.solution(X)
            if X.ndim == 1:
                x[:] = X
            else:
                x[:, columns] = X
        x.flush()
        x.mark(None)
    except BaseException:
        with contextlib.suppress(OutcoreError):
            where.volume.remove(where.name)
        raise
    return x, len(starts), totals


def _ring_bytes(lu: LUFactor, tiles: int) -> int:
    rows, columns = lu.tile
    page = SLOT_ALIGN_BYTES
    return tiles * (-(-rows * columns * lu.dtype.itemsize // page) * page) + TILE_BOUNCE_BYTES


class _Tile(NamedTuple):
    """A tile of the factors: panel, first row and end row of it, and its elements."""

    panel: int
    first: int
    end: int
    data: Matrix

    def part(self, first: int, end: int) -> Matrix:
        """Rows of the matrix from `first` to ``end - 1``."""
        return self.data[first - self.first : end - self.first]


def _sweep(lu: LUFactor, X: Matrix, trans: Trans, means: LongCall, memory_bytes: int) -> Counters:
    """Solve in place for all columns of X; return what was moved."""
    ring = min(_ring_bytes(lu, RING_TILES[1]), memory_bytes) - TILE_BOUNCE_BYTES
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

    def _subtract(self, T: Matrix, X: Matrix, Y: Matrix, trans: Trans = "N") -> None:
        """Y <- Y - op(T) X."""
        self.kernels.gemm(T, X, Y, alpha=-1, beta=1, trans_a=trans)

    def forward_l(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- E X."""
        for tile in stream.go(range(self.panels), self._below):
            (o, e), X, first = self._extent(tile.panel), self.X, tile.first
            if first <= o:
                piv = self.lu.panel_piv(tile.panel)
                self.kernels.laswp(X[o:], piv, 0, len(piv))
                self.kernels.trsm(tile.part(o, e), X[o:e], lower=True, unit=True)
                first = e
                advance()
            self._subtract(tile.part(first, tile.end), X[o:e], X[first : tile.end])

    def backward_u(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- U⁻¹ X."""
        for tile in stream.go(range(self.panels)[::-1], self._above):
            (o, e), X, end = self._extent(tile.panel), self.X, tile.end
            if end >= e:
                self.kernels.trsm(tile.part(o, e), X[o:e], lower=False, unit=False)
                end = o
                advance()
            self._subtract(tile.part(tile.first, end), X[o:e], X[tile.first : end])

    def forward_u_transposed(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- U⁻ᵀ X (or U⁻ᴴ X)."""
        for tile in stream.go(range(self.panels), lambda K: self._above(K)[::-1]):
            (o, e), X = self._extent(tile.panel), self.X
            end = min(tile.end, o)
            self._subtract(tile.part(tile.first, end), X[tile.first : end], X[o:e], self.trans)
            if tile.end >= e:
                self.kernels.trsm(
                    tile.part(o, e), X[o:e], lower=False, unit=False, trans=self.trans
                )
                advance()

    def backward_l_transposed(self, stream: _TileStream, advance: Callable[[], None]) -> None:
        """X <- Eᵀ X (or Eᴴ X)."""
        for tile in stream.go(range(self.panels)[::-1], lambda K: self._below(K)[::-1]):
            (o, e), X = self._extent(tile.panel), self.X
            first = max(tile.first, e)
            self._subtract(tile.part(first, tile.end), X[first : tile.end], X[o:e], self.trans)
            if tile.first <= o:
                self.kernels.trsm(tile.part(o, e), X[o:e], lower=True, unit=True, trans=self.trans)
                piv = self.lu.panel_piv(tile.panel)
                self.kernels.laswp(X[o:], piv, 0, len(piv), reverse=True)
                advance()
