"""Triangular systems larger than memory, op(T) X = B: the call. The loops are in `substitution`."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import column_extremes
from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import Interrupted, InvalidError, NonFiniteError, SingularMatrixError
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, room, written
from outcore.linalg._output.result_chunks import result_metadata
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._products.agreement import (
    agree_on_product,
    all_sent,
    left_of_all,
    meeting_at_the_end,
    share_result,
)
from outcore.linalg._products.dealt_pieces import Pieces
from outcore.linalg._products.triangular_plan import (
    TriangularGeometry,
    TriangularSystem,
    flops,
    triangular_geometry,
)
from outcore.linalg._tiles.block_writer import DiskResult, WholeResult
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import Grains, cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import (
    DiskOperand,
    Extent,
    Operand,
    OperandLike,
    Part,
    grains_of,
    open_whole_chunks,
    operand,
    read_arrays,
)
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.linalg._tiles.transposes import read_trans
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing, seconds_for
from outcore.processes.team import Team
from outcore.report.longcall import LongCall, check_threads, long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike, Place

Which: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]

_WHY = "the solve that wrote it was stopped; call solve_triangular again with the same arguments"


@opens_results(beside("B", ".x"))
def solve_triangular(
    made: Made,
    T: OperandLike,
    B: OperandLike,
    *,
    trans: Which = "N",
    lower: bool = False,
    unit_diagonal: bool = False,
    dtype: npt.DTypeLike | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    memory: int | str | None = None,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Any:
    """Solve op(T) X = B with a triangular matrix T, each in memory or on disk.

    With `comm`, the processes of a parallel program divide the columns of X. Each reads a part of
    T, which it sends to all others. All get X.

    Parameters
    ----------
    T
        (n, n) array on disk, with any chunks in either order, its path or lazy transpose ``A.T``,
        or a NumPy array. The call uses only its upper triangle, or with `lower` the lower one. It
        reads elements of the other triangle only if they lie in the same chunks.
    B
        (n,) or (n, k) right-hand sides, on disk or in memory.
    trans
        The operator op: ``"N"`` or 0 none, ``"T"`` or 1 the transpose, ``"C"`` or 2 the conjugate
        transpose.
    lower
        Whether T is lower triangular.
    unit_diagonal
        Treat the diagonal as ones, and ignore its elements.
    out
        Directory of the solution on disk; by default that of an on-disk `B` with ``.x`` appended.
    resume
        Resume a stopped call with the same arguments, if the solution is on disk. The call records
        its progress about every minute, by groups of as many columns as fit in memory.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. It does not include a
        `T`, `B` or X in memory, which belong to the caller.
    dtype, if_exists, threads, progress, comm, timeout
        As for `matmul`.

    Returns
    -------
    Array or numpy.ndarray
        X, of the shape of `B`. Its type is the promotion of `T` and `B`, or `dtype`. It is on disk,
        in Fortran order, if `B` is or `out` is given.

    Raises
    ------
    SingularMatrixError
        If the diagonal has a zero. ``info`` is LAPACK's: the number of the first zero, counted from
        1.
    NonFiniteError
        If the triangle or `B` has a NaN or an infinity. The error gives its index.
    InvalidError
        If shapes do not fit, types are not supported, `out` is an operand, or the processes have
        different arguments.
    DiskError
        If another process does not answer in time.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    ExistsError, BusyError
        If `out` holds something that must not be overwritten, or another call writes there.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes if the solution is on disk.
    """
    with Sharing(comm, timeout) as sharing:
        check_threads(threads)
        arrays = read_arrays({"T": T, "B": B})
        computed_in = result_dtype({name: x.dtype for name, x in arrays.items()}, dtype)
        if out is None and isinstance(arrays["B"], Array):
            out = f"{arrays['B'].place.stem}.x"
        letter = read_trans("trans", trans)
        is_stored = out is not None
        system = _system(arrays, letter, computed_in, is_lower=bool(lower), is_stored=is_stored)
        arguments = {
            "trans": letter,
            "lower": bool(lower),
            "unit": bool(unit_diagonal),
            "dtype": computed_in.name,
        }
        how = {"out": None if out is None else str(out), "if_exists": if_exists, "resume": resume}
        if is_stored and 0 in system.shape:
            raise InvalidError(
                f"a solution of shape {system.shape} cannot be on disk; leave out= out"
            )
        agree_on_product("solve_triangular", arrays, arguments | how, sharing)
        if system.rhs == 0:
            keep(Report("solve_triangular", system.n, computed_in.name, 0.0, 0.0, 0, 0, 0, 0))
            return np.zeros(system.shape, computed_in)
        matrix = operand(arrays["T"], letter, computed_in)
        # Equal matrices may differ in their strides, so that not all processes copy them.
        copied = max(sharing.exchange(matrix.copy_bytes))
        system = dataclasses.replace(system, t=matrix.grains, copy_bytes=copied)
        steps = StepsDone(
            out, "solve_triangular", arguments, arrays, memory, resume=resume, made=made,
            sharing=sharing,
        )  # fmt: skip
        g = steps.planned(
            lambda memory_bytes: triangular_geometry(
                system, memory_bytes, sharing.size, sharing.rank
            )
        )
        operands = list(arrays.values())
        try:
            with (
                claimed(out, operands, if_exists=if_exists, why=_WHY, sharing=sharing) as where,
                long_call(
                    "triangular system", memory_bytes=steps.memory_bytes, work=g.own_flops,
                    threads=sharing.threads(threads), progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                run = Substitution(
                    g, matrix, arrays["T"], arrays["B"], call,
                    is_lower=bool(lower), is_unit=bool(unit_diagonal),
                )  # fmt: skip
                if where is None:
                    found: tuple[Any, Report] = _to_memory(g, run, call, steps)
                else:
                    found = _to_disk(g, run, where, call, steps)
                result, report = found
                keep(report, result)
                return result
        except KeyboardInterrupt as error:
            raise Interrupted(steps.stopped("the solve", "solve_triangular", error)) from None


def _system(
    arrays: Mapping[str, Array | npt.NDArray[Any]],
    trans: Trans,
    dtype: np.dtype[Any],
    *,
    is_lower: bool,
    is_stored: bool,
) -> TriangularSystem:
    T, b = arrays["T"], arrays["B"]
    if T.ndim != 2 or T.shape[0] != T.shape[1]:
        raise InvalidError(f"need a square matrix as T, have shape {T.shape}")
    n, shape = T.shape[0], b.shape
    if shape[0] != n:
        raise InvalidError(f"need a B of shape ({n},) or ({n}, k), have {shape}")
    grains = grains_of(b, dtype) if isinstance(b, Array) else Grains()
    return TriangularSystem(
        n, (*shape, 1)[1] if n else 0, dtype, Grains(), grains, is_lower != (trans != "N"), shape,
        is_stored,
    )  # fmt: skip


def _to_memory(
    g: TriangularGeometry, run: Substitution, call: LongCall, steps: StepsDone
) -> tuple[npt.NDArray[Any], Report]:
    """Return the solution, which all processes get, and the report of all of them."""
    system = g.system
    X = room(system.n, system.rhs, system.dtype, steps.sharing.here())
    with Team(steps.sharing) as team:
        with meeting_at_the_end(team, g.bytes_read(), g.own_flops):
            run.run(WholeResult(X), steps, team)
        share_result(X, [(slice(0, system.n), g.own_of(rank)) for rank in range(g.size)], team)
        report = _whole_report(g, run, call, 0, steps, team)
    return X.reshape(system.shape, order="F"), report


def _to_disk(
    g: TriangularGeometry, run: Substitution, where: Place, call: LongCall, steps: StepsDone
) -> tuple[Array, Report]:
    """Write the solution to an array; return the array, and the report of all processes."""
    system = g.system
    metadata = result_metadata(system.shape, system.dtype, g.chunk)
    with written(where, metadata, _WHY, steps) as array, Team(steps.sharing) as team:
        if team.rank:
            array.count_writing(elsewhere=True)
        file = open_whole_chunks(array, call, g.bounce_bytes("X"), 2, writable=True)
        result = DiskResult(
            file, call, system.dtype, g.block_shape,
            chunk=g.chunk if len(system.shape) == 2 else None, axis=0,
            steps=sum(len(g.pieces(strip)) for strip in g.strips()),
            is_backward=not system.is_lower,
        )  # fmt: skip
        with meeting_at_the_end(team, g.bytes_read() + g.bytes_written(), g.own_flops):
            run.run(result, steps, team)
        report = _whole_report(g, run, call, file.counters()[1], steps, team)
    return array, report


def _whole_report(
    g: TriangularGeometry,
    run: Substitution,
    call: LongCall,
    bytes_written: int,
    steps: StepsDone,
    team: Team,
) -> Report:
    """Return the report of all processes."""
    system = g.system
    own = call.report(
        Report, "solve_triangular", system.n, system.dtype, method=g.method,
        flops=g.own_flops, moved=(run.bytes_read(), bytes_written),
        planned=(g.bytes_read(), g.bytes_written()), words_lower_bound=g.words_lower_bound(),
        notes=run.notes + steps.notes(len(g.groups())), arrays=["T", "B", "X"],
    )  # fmt: skip
    if team.size > 1:
        own.processes = [process_figures(own, all_sent(run.pieces, team), g.sent())]
    return whole_report(own, team)


_LOOK = 256
"""Rows and columns of T that are searched together for an invalid element."""


class Substitution:
    """The loops of the algorithm.

    Parameters
    ----------
    matrix
        op(T).
    T, B
        The arguments of the call.
    is_lower
        Whether T itself is lower triangular.
    is_unit
        Whether the diagonal is treated as ones.

    Attributes
    ----------
    notes
        Notes for the reader of the report.
    pieces
        The pieces of op(T), of which processes read some each.
    """

    def __init__(
        self,
        g: TriangularGeometry,
        matrix: Operand,
        T: Array | npt.NDArray[Any],
        B: Array | npt.NDArray[Any],
        call: LongCall,
        *,
        is_lower: bool,
        is_unit: bool,
    ) -> None:
        self.g, self.matrix, self.T, self.B, self.call = g, matrix, T, B, call
        self.is_lower, self.is_unit = is_lower, is_unit
        self.notes: list[str] = []
        self.pieces = Pieces()
        self.parts: Iterator[Part] = iter(())
        self.kernels = kernels(g.system.dtype)
        matrix.open(call, g.bounce_bytes("T"), 0)
        self.sides = DiskOperand(B, "N", g.system.dtype) if isinstance(B, Array) else None
        if self.sides:
            self.sides.open(call, g.bounce_bytes("B"), 1)

    def bytes_read(self) -> int:
        """Bytes of T and B read so far."""
        return self.matrix.bytes_read() + (self.sides.bytes_read() if self.sides else 0)

    def run(self, result: WholeResult | DiskResult, steps: StepsDone, team: Team) -> None:
        """Solve for all pending groups of columns."""
        g, strips = self.g, self.g.strips()
        groups = g.groups()
        left = left_of_all(steps, groups)
        self.boxes = self.boxes_of_b([group for _, group in left])
        for group in groups[: len(groups) - len(left)]:
            work = flops(g.system.n, group.stop - group.start, g.system.dtype)
            self.call.meter.skip(work)
        boxes = (box for _ in left for strip in strips for box in g.pieces(strip))
        # Another process may still write its group.
        more_s = seconds_for(g.budget_bytes, flops(g.system.n, g.columns, g.system.dtype))
        try:
            with self.pieces.parts(
                self.matrix, boxes, team, self.call, g.piece_bytes, more_s
            ) as self.parts:
                for done, group in left:
                    if group.start < group.stop:
                        self.solve(group, result)
                    else:
                        for _ in (box for strip in strips for box in g.pieces(strip)):
                            next(self.parts)  # for the other processes
                    steps.passed(done, len(groups), result.sync)
            result.flush()
        except BaseException:
            result.abandon()
            raise

    def solve(self, group: slice, result: WholeResult | DiskResult) -> None:
        """Solve for a group of columns."""
        g = self.g
        X = result.begin((slice(0, g.system.n), group))
        self.loads = deque(g.loads(group))
        for strip in g.strips():
            while self.loads and self.is_needed(self.loads[0], strip):
                self.load(X, group, result)
            for box in g.pieces(strip):
                self.substitute(X, strip, box)
                result.advance()
                # Loads for the next strip are issued in between.
                if self.loads and result.is_free(self.loads[0][0]):
                    self.load(X, group, result)
            self.look_at(X, strip)
            result.done(strip.stop if g.system.is_lower else strip.start)

    def boxes_of_b(self, groups: list[slice]) -> Iterator[Part]:
        """Yield the boxes of B in the order of their use."""
        if self.sides is None:
            return iter(())
        return self.sides.parts(
            (box for group in groups for box in self.g.loads(group)), self.g.load_bytes
        )

    def is_needed(self, box: Extent, strip: slice) -> bool:
        """Whether a strip, or an earlier one, uses rows of a box of B."""
        if self.g.system.is_lower:
            return bool(box[0].start < strip.stop)
        return bool(box[0].stop > strip.start)

    def load(self, X: Matrix, group: slice, result: WholeResult | DiskResult) -> None:
        """X = B, for the next box of B."""
        rows, across = self.loads.popleft()
        result.wait_free(rows)
        columns = slice(max(across.start, group.start), min(across.stop, group.stop))
        part_of_x = X[rows, columns.start - group.start : columns.stop - group.start]
        if self.sides is None:
            b = self.B if self.B.ndim == 2 else self.B[:, None]
            np.copyto(part_of_x, b[rows, columns], casting="same_kind")
        else:
            part = next(self.boxes)
            values = part.cut(rows, columns)
            part_of_x[...] = values if part.trans == "N" else values.T
        if (bad := _not_finite(part_of_x)) is not None:
            at = (rows.start + bad[0], columns.start + bad[1])
            raise NonFiniteError(
                f"B[{at[0]}, {at[1]}] is {part_of_x[bad]}; every element must be finite: correct "
                "it",
                at,
            )

    def substitute(self, X: Matrix, strip: slice, box: Extent) -> None:
        """Apply one piece of the triangle."""
        part, (_, columns) = next(self.parts), box
        is_lower = self.g.system.is_lower
        start_ns = self.call.trace.now_ns()
        beside = slice(columns.start, min(columns.stop, strip.start))
        if not is_lower:
            beside = slice(max(columns.start, strip.stop), columns.stop)
        self.subtract(part, X, strip, beside)
        here = slice(max(columns.start, strip.start), min(columns.stop, strip.stop))
        if here.start < here.stop:
            block = part.cut(here, here)
            self.look_at_block(block, here)
            self.kernels.trsm(
                block, X[here], unit=self.is_unit, trans=part.trans,
                lower=is_lower == (part.trans == "N"),
            )  # fmt: skip
            self.call.meter.advance(flops(here.stop - here.start, X.shape[1], X.dtype))
            rest = slice(here.stop, strip.stop) if is_lower else slice(strip.start, here.start)
            self.subtract(part, X, rest, here)
        self.call.trace.record("compute", start_ns)

    def subtract(self, part: Part, X: Matrix, rows: slice, columns: slice) -> None:
        """X[rows] -= op(T)[rows, columns] X[columns]."""
        if rows.start >= rows.stop or columns.start >= columns.stop:
            return
        T = part.cut(rows, columns)
        self.kernels.gemm(T, X[columns], X[rows], alpha=-1, beta=1, trans_a=part.trans)
        self.call.meter.advance(2.0 * T.size * X.shape[1] * flop_weight(X.dtype))

    def look_at_block(self, block: Matrix, here: slice) -> None:
        """Raise for zeros on the diagonal, and for NaN or infinities that may not show in X."""
        if not np.isfinite(column_extremes(block, False)[0]):
            # The element may lie in the other triangle.
            self.refuse_not_finite(here, here)
        zeros = np.flatnonzero(block.diagonal() == 0)
        if len(zeros) and not self.is_unit:
            first = self.first_zero(here.start + int(zeros[0]))
            raise SingularMatrixError(
                f"T is singular: T[{first}, {first}] is exactly zero, so there is no unique "
                "solution; correct the matrix, or use least squares",
                first + 1,
            )

    def first_zero(self, found: int) -> int:
        """Return the first zero on the diagonal, which is at `found` or before."""
        for rows in cut(0, found, _LOOK):
            zeros = np.flatnonzero(np.diagonal(self.T[rows, rows]) == 0)
            if len(zeros):
                return int(rows.start + zeros[0])
        return found

    def look_at(self, X: Matrix, strip: slice) -> None:
        """Check a solved strip for elements that are not finite, and find the cause."""
        if self.notes or _not_finite(X[strip]) is None:
            return
        self.refuse_not_finite(strip, slice(0, self.g.system.n))
        self.notes.append("the solution has infinities or NaN: it is too large for the type")

    def refuse_not_finite(self, strip: slice, among: slice) -> None:
        """Raise if rows of op(T) have a non-finite element in the triangle, within some columns."""
        is_lower = self.g.system.is_lower
        for rows in cut(strip.start, strip.stop, _LOOK):
            for columns in cut(among.start, among.stop, _LOOK):
                i, j = np.ogrid[rows, columns]
                if is_lower == self.is_lower:
                    block = self.T[rows, columns]
                else:
                    block = self.T[columns, rows].T
                is_used = (i > j if is_lower else i < j) | ((i == j) & (not self.is_unit))
                bad = np.argwhere(is_used & ~np.isfinite(block))
                if len(bad):
                    row, column = rows.start + int(bad[0][0]), columns.start + int(bad[0][1])
                    at = (row, column) if is_lower == self.is_lower else (column, row)
                    raise NonFiniteError(
                        f"T[{at[0]}, {at[1]}] is {block[tuple(bad[0])]}; every element of the "
                        "triangle must be finite: correct it",
                        at,
                    )


def _not_finite(X: Matrix) -> tuple[int, int] | None:
    """Return row and column of an element that is not finite, if there is one."""
    # The sums may overflow even if no element does.
    if np.isfinite(column_extremes(X, False)[0]):
        return None
    for j in range(X.shape[1]):
        bad = np.flatnonzero(~np.isfinite(X[:, j]))
        if len(bad):
            return int(bad[0]), j
    return None
