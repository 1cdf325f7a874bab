"""Least squares with QR factors on disk: one pass over Q's reflections, and one over R.

    minimize ‖b - A x‖₂ with A = Q R:    c = Qᴴ b,    R x = c[:n],    ‖b - A x‖₂ = ‖c[n:]‖₂

With more columns than rows, the factors are those of Aᵀ, and the solution has least norm::

    minimize ‖x‖₂ with Aᵀ = Q R and A x = b:    Rᴴ z = b̄,    x̄ = Q [z; 0]

Each pass reads its part of the factors in tiles, whatever the number of right-hand sides. With k
right-hand sides there are (4mn - n²) k flops, four times as many for complex types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import InvalidError, SingularMatrixError
from outcore.linalg._lu.solve import stopping_cleanly
from outcore.linalg._output.factor import QRFactor, refuse_others
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.columns import ColumnRoom, fitted
from outcore.linalg._rhs.condition import Probes, warn_if_singular, with_probes
from outcore.linalg._rhs.groups import Groups, report_on, solve_groups
from outcore.linalg._rhs.right_hand_side import RightHandSide, opened, substituted_in
from outcore.linalg._rhs.solutions import solution, system_of
from outcore.linalg._slab_qr.plan import PROBES, Tiles, solve_flops
from outcore.linalg._slab_qr.reflections import Reflections
from outcore.linalg._tiles.columns import norms, power_of_two, squares
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike


@opens_results(beside("b", ".x"))
def qr_solve(
    made: Made,
    qr: QRFactor,
    b: npt.ArrayLike | Array | PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Any:
    """Find the x that minimizes ‖b - A x‖₂ with the QR factors of A on disk.

    If there are several, as with more columns than rows, it is the one of least norm.

    Parameters
    ----------
    qr
        Factors of an (m, n) matrix of full rank, m >= n, from `qr_factor` or `open_factor`. For a
        matrix with m < n, factors of its transpose, which `lstsq` keeps.
    b
        (m,) or (m, k): a NumPy array, or an array on disk or its path. The call solves in groups of
        as many columns as fit in memory; each group is a pass over the reflections and one over R.
    dtype
        Type of the arithmetic and of the solution; by default NumPy's promotion of the factors and
        `b`. The call converts factors of another type as it reads them. That adds no digits to the
        factors, but `b` is not rounded, and substitution adds no errors of their type.
    memory
        Budget of the passes; by default half of the available memory. It does not include columns
        of a `b` in memory, which belong to the caller.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call for the same system, if the solution is on disk. The call records its
        progress by groups of columns.
    threads, progress
        As for `qr_factor`.

    Returns
    -------
    numpy.ndarray or Array
        x, (n,) or (n, k). Its type is the promotion of the factors and `b`, or `dtype`. It is on
        disk if `b` is or `out` is given, and its ``report`` then describes the call.
        `outcore.last_report` returns the report in either case.

    Raises
    ------
    SingularMatrixError
        If the diagonal of R has an exact zero.
    InvalidError
        If `qr` is not a factorization by QR, or `b` does not fit it. Also if A has more columns
        than rows, and `qr` are not the factors of its transpose.
    BudgetError
        Before any work, if memory does not suffice.
    Interrupted
        After Ctrl-C or SIGTERM.
    """
    refuse_others(qr, QRFactor)
    refuse_wide(qr.shape)
    m, n = qr.kind.shape_of(qr.shape)
    b = opened(b)
    rhs = RightHandSide.read(
        m,
        substituted_in(qr.dtype, b, dtype),
        b,
        "N",
        out,
        if_exists=if_exists,
        unknowns=n,
        reads=[qr.path],
        made=made,
    )
    memory_bytes = budget.resolve(memory)
    tiles = Tiles(*qr.shape, rhs.dtype, *qr.tile, qr.dtype)
    probes, _ = with_probes(PROBES, lambda probes: room_for(tiles, rhs, memory_bytes, probes))
    found = solve_and_report(
        qr, rhs, memory_bytes, threads, progress, probes, is_noted=True, resume=resume
    )
    keep(found.report, found.x)
    warn_if_singular(found.report.probed_condition, qr.dtype)
    return found.x


def refuse_wide(shape: tuple[int, int]) -> None:
    """Raise for a matrix with more columns than rows."""
    if shape[0] < shape[1]:
        raise InvalidError(
            f"need at least as many rows as columns for least squares, have {shape[0]} x "
            f"{shape[1]}: there are many solutions; lstsq finds the one of least norm"
        )


def room_for(
    tiles: Tiles, rhs: RightHandSide, memory_bytes: int, probes: int
) -> tuple[ColumnRoom, int]:
    """Return the memory of right-hand sides, and how many can be solved for in one pass.

    Raises
    ------
    BudgetError
        If not even one fits.
    """
    return fitted(
        rhs,
        memory_bytes,
        lambda room: tiles.group(
            memory_bytes, rhs.columns, rhs.parts, room.column_bytes, probes, room.beside_bytes
        ),
    )


@dataclass(frozen=True)
class Solved:
    """The result of `solve_and_report`.

    Attributes
    ----------
    x, report
        The solution, and the report.
    residual_norms
        ‖b - A x‖₂ of each right-hand side, without rounding errors: 0 with at least as many columns
        as rows.
    """

    x: Any
    report: Report
    residual_norms: npt.NDArray[np.float64]


def solve_and_report(
    qr: QRFactor,
    rhs: RightHandSide,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    probes: int = 0,
    accept: Callable[[float | None], None] = lambda condition: None,
    *,
    is_noted: bool = False,
    resume: bool = False,
) -> Solved:
    """Run `qr_solve`, and return its report too.

    `probes` random vectors are solved for beside the first right-hand sides. From them the call
    estimates the condition of R in the Frobenius norm, and passes it to `accept`. If that raises an
    error, no solution remains, except with `is_noted`: then solved columns outlast an error. With
    `resume` too, the call resumes with the columns of a stopped call. The residuals are then those
    of the other columns only; a caller that needs all of them must not resume.
    """
    if qr.info:
        lines = "rows" if qr.kind.is_transposed else "columns"
        raise SingularMatrixError(
            f"the {lines} of A depend on each other: diagonal number {qr.info} of R is exactly "
            f"zero, so there is no unique solution; leave out {lines}",
            qr.info,
        )
    tiles = Tiles(*qr.shape, rhs.dtype, *qr.tile, qr.dtype)
    room, most = room_for(tiles, rhs, memory_bytes, probes)
    system = system_of("qr_solve", qr, rhs) if is_noted and rhs.out is not None else None
    with (
        stopping_cleanly("solving with", qr),
        solution(rhs, system=system, resume=resume) as into,
    ):
        groups = Groups.of(rhs, most, into.done)
        planned = len(groups) * tiles.pass_bytes()
        residuals = np.zeros(rhs.columns)
        with long_call(
            f"solving with {qr.path.name}", memory_bytes=memory_bytes, work=planned,
            threads=threads, progress=progress,
        ) as call:  # fmt: skip
            passes = _Passes(qr, tiles, groups.size * rhs.parts, probes, call)

            def solve(X: Matrix, columns: slice) -> None:
                if qr.kind.is_transposed:
                    passes.least_norm(X)
                    return
                passes.least_squares(X)
                below = norms(X[qr.n :]) if qr.m > qr.n else np.zeros(X.shape[1])
                residuals[columns] = np.hypot.reduce(below.reshape(rhs.parts, -1), axis=0)

            moved = solve_groups(rhs, into, groups, solve, call, room)
            condition = passes.condition()
            accept(condition)
            left = groups.columns - groups.first
            flops = solve_flops(qr.shape, rhs.dtype, left * rhs.parts)
            report = report_on(
                "qr_solve", qr, rhs, groups, passes.file.counters()[:2], planned, moved, call,
                flops=flops, probed_condition=condition,
            )  # fmt: skip
            report.m, report.n = qr.kind.shape_of(qr.shape)
    return Solved(into.x, report, residuals)


class _Passes:
    """The two passes on columns in memory, and one solve for probes."""

    def __init__(self, qr: QRFactor, tiles: Tiles, width: int, probes: int, call: LongCall) -> None:
        self.qr, self.tiles, self.call = qr, tiles, call
        self.kernels = kernels(tiles.dtype)
        self.file = qr.open_tiles(call.arena, call.trace)
        self.stream = BlockStream(
            self.file, qr.dtype, call.arena, tiles.ring_bytes, call.trace,
            least_bytes=tiles.tile_bytes,
        )  # fmt: skip
        self.reflections = Reflections(tiles.dtype, tiles.columns, width, call.arena)
        self.probes = Probes(qr.n, probes, tiles.dtype, call)
        # Very large or small elements must be scaled before they are squared.
        self.scale = 1.0 if 1e-100 < qr.norm1 < 1e100 else power_of_two(1 / qr.norm1)
        self.squares_of_r = 0.0

    def least_squares(self, X: Matrix) -> None:
        """X <- Qᴴ X, and then R⁻¹ X in its first n rows."""
        t, panels = self.tiles, range(self.tiles.panels)
        self.stream.extend(t.box(K, tile) for K in panels for tile in t.tiles_below(K))
        self.stream.extend(t.box(K, tile) for K in panels[::-1] for tile in t.above(K))
        for K in panels:
            o, e = t.extent(K)
            self.reflections.apply(t.blocks(K, self.take), self.qr.tau[o:e], X[o:])
        beside = self.probes.take()
        for K in panels[::-1]:
            for tile in t.above(K):
                self.substitute(K, tile, X, beside)

    def least_norm(self, X: Matrix) -> None:
        """X <- Q R⁻ᴴ X of its first n rows; both are conjugated."""
        t, n, panels = self.tiles, self.qr.n, range(self.tiles.panels)
        self.stream.extend(t.box(K, tile) for K in panels for tile in t.above(K)[::-1])
        self.stream.extend(t.box(K, tile) for K in panels[::-1] for tile in t.tiles_below(K))
        np.conjugate(X[:n], out=X[:n])
        beside = self.probes.take()
        for K in panels:
            for tile in t.above(K)[::-1]:
                self.substitute(K, tile, X, beside, "C")
        X[n:] = 0
        for K in panels[::-1]:
            o, e = t.extent(K)
            self.reflections.apply(t.blocks(K, self.take), self.qr.tau[o:e], X[o:], "N")
        np.conjugate(X, out=X)

    def substitute(
        self, K: int, tile: int, X: Matrix, beside: Matrix | None, trans: Trans = "N"
    ) -> None:
        """Use a tile of R: solve with its diagonal block, subtract with the rows above that.

        With R, tiles come from the bottom; with Rᴴ (`trans` "C"), from the top.
        """
        (o, e), first = self.tiles.extent(K), tile * self.tiles.rows
        data = self.take()
        start_ns = self.call.trace.now_ns()
        above = data[: max(min(o - first, len(data)), 0), : e - o]
        triangle = data[o - first : e - first, : e - o] if first <= o < first + len(data) else None
        for Y in [X] if beside is None else [X, beside]:
            part = Y[first : first + len(above)]
            if trans != "N":
                self.kernels.gemm(above, part, Y[o:e], alpha=-1, trans_a=trans)
            if triangle is not None:
                self.kernels.trsm(triangle, Y[o:e], lower=False, trans=trans, unit=False)
            if trans == "N":
                self.kernels.gemm(above, Y[o:e], part, alpha=-1)
        if beside is not None:
            columns = [above] if len(above) else []
            if triangle is not None:
                columns += [triangle[: j + 1, j : j + 1] for j in range(e - o)]
            self.squares_of_r += sum(squares(part, self.scale).sum() for part in columns)
        self.call.trace.record("compute", start_ns)

    def condition(self) -> float | None:
        """Estimate ‖R‖ ‖R⁻¹‖ in the Frobenius norm from the probes; `None` without probes."""
        return self.probes.condition(math.sqrt(self.squares_of_r) / self.scale)

    def take(self) -> Matrix:
        """Take the next tile, in the type of the arithmetic."""
        self.call.meter.advance(self.tiles.tile_bytes)
        data: Matrix = self.stream.take().data
        if data.dtype == self.tiles.dtype:
            return data
        memory = self.call.arena.allocate(data.size * self.tiles.dtype.itemsize)
        tile: Matrix = np.ndarray(data.shape, self.tiles.dtype, memoryview(memory), order="F")
        with np.errstate(over="ignore"):
            tile[...] = data
        return tile
