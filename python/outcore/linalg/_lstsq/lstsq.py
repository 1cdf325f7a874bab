"""Least squares with a matrix whose rows are streamed once: from disk, memory or an iterator.

If the triangle does not fit into memory, the columns of a wide matrix are streamed
(`outcore.linalg._lstsq.least_norm`), or slabs are factored (`outcore.linalg._lstsq.slabs`):
slabs of columns, or of rows of a wide matrix. Otherwise `ParallelQR` factors [A b], and keeps only
the triangle R, c = Qᴴ b and the norms of the residuals of b. Then R x = c is solved, by singular
values if R is close to a matrix of lower rank. Damping enters only then
(`outcore.linalg._lstsq.triangle`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import is_finite, is_number
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.errors import Interrupted, InvalidError
from outcore.layout.elements import array_of
from outcore.linalg._lstsq.least_norm import least_norm
from outcore.linalg._lstsq.least_squares_report import LeastSquaresReport
from outcore.linalg._lstsq.plan import LeastNormGeometry, Operands, lstsq_way, use_slabs_if
from outcore.linalg._lstsq.slabs import solve_by_slabs
from outcore.linalg._lstsq.triangle import Minimizer, solve_damped, solve_triangle
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.result import claimed, columns_of, put, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.agreement import agreed_steps
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.merge import Merging, seconds_of
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.report import row_report, written_too
from outcore.linalg._rows.shares import ALONE
from outcore.linalg._rows.source import (
    IteratedRows,
    RowsLike,
    RowSource,
    StoredRows,
    own_rows,
    paired_rows,
    row_source,
)
from outcore.linalg._rows.stream import check_finite, leave, side_by_side, streams
from outcore.linalg._rows.tsqr import ParallelQR
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.linalg._rows.weights import RowWeights
from outcore.linalg._slab_qr.plan import SlabQrGeometry
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.result_dtype import result_dtype, work_dtype
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing
from outcore.processes.team import Team
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, Place

_SINGULAR_VALUES = 20
"""Operations of singular values of a triangle, over those of its QR, at most."""

_WHY = "the lstsq that wrote it was stopped; call it again"


@opens_results(report=LeastSquaresReport)
def lstsq(
    made: Made,
    A: RowsLike,
    b: RowsLike | None = None,
    *,
    weights: RowsLike | None = None,
    cond: float | None = None,
    damp: float = 0.0,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    factors: PathLike | None = None,
    keep_factors: bool = False,
    keep_r: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, LeastSquaresReport]:
    """Find the x that minimizes ‖b - A x‖₂, or with weights ‖W^½ (b - A x)‖₂.

    If a triangle of n x n elements fits into memory, each row of A is read once, and nothing is
    written. Otherwise, if m < n, `A` is not an iterator, and a triangle of m x m elements fits,
    each column is read twice. Otherwise an A of full rank on disk is factored by slabs, like
    `qr_factor`; with m < n its transpose is factored.

    With `comm`, each process of a parallel program reads its own part of the rows, and factors it.
    The triangles are merged in a tree. All processes get the solution and its report.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, an object with shape, dtype
        and slicing, or an iterator of blocks of rows of any heights. Integers become float64.
    b
        (m,) or (m, k) right-hand sides, in any of the same forms; an iterator's blocks may differ
        in height from those of `A`. Leave it out if `A` is an iterator of pairs (rows of A, rows of
        b).
    weights
        (m,) weights of the rows, at least 0, in any of the same forms: the inverses of the
        variances of the observations, or multiples of these. The call minimizes ``∑ w |b - A x|²``.
        Rows of weight 0 do not count. Slabs support neither weights nor `damp`.
    cond
        Singular values of A below `cond` times the largest count as zero. By default n ε, with the
        machine epsilon ε of the type. SciPy's default, ε, is smaller than the rounding error of an
        exact zero.
    damp
        Minimize ‖b - A x‖₂² + damp² ‖x‖₂² instead (ridge regression, Tikhonov regularization).
        Then `cond` applies to the singular values of [A; damp I].
    dtype
        Type of the arithmetic and of the solution, such as ``"f4"``; by default NumPy's promotion
        of `A`, `b` and `weights`. Blocks of an operand of another type are converted as they are
        read.
    memory
        Budget; by default half of the available memory. Streamed rows need 2 n² elements for the
        triangle and its update (more if threads share the rows), n k for the right-hand sides, and
        blocks of rows. Streamed columns, for m < n, need 2 m² elements, n k for the solution, and
        blocks of columns. Slabs need one slab of columns; for m < n of rows.
    out
        Directory of a solution on disk; by default the solution is in memory.
    factors
        Directory of the factors during the call, if A is factored by slabs; by default that of `A`
        with ``.qr`` appended. Existing complete factors of the same `A` are used. A stopped call
        leaves its factors, from which the next one resumes.
    keep_r
        Return the triangle R of A in memory as ``report.R``, for ``report.covariance()``. R must
        fit into the budget: the call then uses neither blocks of columns nor slabs.
    keep_factors
        Leave the factors on disk for `open_factor` and `qr_solve`. With m < n they are those of the
        transpose, with which `qr_solve` finds solutions of least norm. Streaming makes no factors,
        and then the report has a note.
    if_exists
        ``"open"`` opens a complete solution at `out` if the same call made it, with the same
        operands. ``"overwrite"`` replaces an array at `out`, and factors of another matrix at
        `factors`.
    resume
        Resume a stopped call with the same arguments: from its factors, or from its saved triangle
        if `out` is given and `A` and `b` are arrays.
    threads
        Number of BLAS threads; by default unchanged.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left). If `A`
        is an iterator and `b` is not an array, the length is unknown: the function gets (0.0, NaN)
        until the end, and no bar is shown. Only the first of several processes shows a bar.
    comm
        Communicator of mpi4py. All its processes call with equal arguments, except `memory`,
        `threads` and `progress`, which are those of each process. All must see `A`, `b` and
        `weights`, which are arrays, not iterators. The rows are divided evenly, whatever the
        memory, in whole chunks, and so that each process has n rows or more; with fewer rows, the
        last processes have none. Each process needs memory for streamed rows. A stopped call
        resumes with the same number of processes; with another number it restarts.
    timeout
        Seconds to wait for other processes, beyond the time for their work.

    Returns
    -------
    x : numpy.ndarray or Array
        (n,) or (n, k), of the type that `A`, `b` and `weights` promote to, or of `dtype`; on disk
        if `out` is given. If there are several minimizers, the one of least 2-norm.
    report : LeastSquaresReport
        With ``rank``, ``condition``, ``residual_norms``, ``residual_variances``, and
        ``covariance()`` of the coefficients.

    Raises
    ------
    InvalidError
        If `A`, `b` and `weights` do not fit each other, or their types are not supported; if a
        weight is negative; if the processes have different arguments.
    DiskError
        If another process does not answer in time.
    BudgetError
        If neither the triangle and blocks of a few rows nor slabs fit into the budget.
    SingularMatrixError
        With slabs, if the columns of A (for m < n its rows) are linearly dependent.
    ExistsError
        If `out` exists, or with slabs if `factors` has factors of another matrix.
    JournalError
        With slabs, if the files of a stopped call do not match, because A has been written to.
    DiskFullError
        If the disk has no space for the solution, or with slabs for the factors.
    NonFiniteError
        If an operand has a NaN or an infinity, with its index.
    Interrupted
        After Ctrl-C or SIGTERM. With `out` and with slabs a later call resumes.

    Notes
    -----
    2 n² (m - n/3) + 4 k n (m - n/2) operations, four times that for complex types. Streaming reads
    m n words. Slabs of w columns read about n² (m - n/3) / (2w) + 3 m n words, and write m n; with
    m < n exchange m and n. `damp` adds 2/3 n³ operations. Sources: Golub & Van Loan, *Matrix
    Computations*, 4th ed., sections 5.3 and 5.5, and 5.6.2 for wide matrices; Demmel, Grigori,
    Hoemmen & Langou 2012 (TSQR); LAPACK's xGELSD for matrices of lower rank; Paige, Math. Comp. 27
    (1973) and Demmel & Higham, SIAM J. Matrix Anal. Appl. 14 (1993) for wide matrices.
    """
    with Sharing(comm, timeout) as sharing:
        if b is None:
            given, right = _read_pairs(A)
        else:
            given, right = row_source("A", A), row_source("b", b, is_column=True)
        beside = None if weights is None else row_source("weights", weights, is_column=True)
        problem = _Problem(
            given, right, beside, A, b, cond, damp, dtype, keep_r=keep_r, sharing=sharing
        )
        operands_given: dict[str, tuple[RowSource, object]] = {"A": (given, A), "b": (right, b)}
        if beside is not None:
            operands_given["weights"] = beside, weights
        # States of version 0.1 before damping came last, with "damp", have other triangles.
        arguments = {"cond": problem.cond, "damp_last": problem.damp, "dtype": problem.dtype.name}
        how = {"keep_r": keep_r, "if_exists": if_exists, "resume": resume, "out": out}
        steps = agreed_steps(
            "lstsq", operands_given, arguments, how, memory, made, sharing,
            names={"damp_last": "damp"},
        )  # fmt: skip
        memory_bytes = steps.memory_bytes
        planned = problem.operands(is_stored=out is not None)
        way = lstsq_way(planned, memory_bytes, problem.use_slabs_if(), keep_r=keep_r)
        sources = [source for source, _ in operands_given.values()]
        operands = [source.array for source in sources if isinstance(source, StoredRows)]
        try:
            if isinstance(way, SlabQrGeometry):
                return problem.solve_by_slabs(
                    way, out=out, factors=factors, keep_factors=keep_factors, if_exists=if_exists,
                    resume=resume, threads=threads, progress=progress, made=made,
                )  # fmt: skip
            with (
                claimed(out, operands, if_exists=if_exists, why=_WHY, sharing=sharing) as where,
                long_call(
                    "least squares", memory_bytes=memory_bytes, work=problem.work(way),
                    threads=sharing.threads(threads), progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                x, report = problem.solve_streamed(call, way, where, steps)
        except KeyboardInterrupt as error:
            text = steps.stopped("least squares", "lstsq", error)
            if isinstance(way, SlabQrGeometry):
                text = (
                    "least squares was stopped; call lstsq again with the same arguments to resume"
                )
            raise Interrupted(text) from None
    if keep_factors:
        report.notes.append(f"no factors were kept: {report.method} makes none on disk")
    return x, report


def _read_pairs(A: RowsLike) -> tuple[RowSource, RowSource]:
    if not isinstance(A, Iterator):
        raise InvalidError("need b=, unless A is an iterator of pairs (rows of A, rows of b)")
    left, right = paired_rows(A)
    return IteratedRows("A", left), IteratedRows("b", right, is_column=True)


def _check_weights(A: RowSource, weights: RowSource) -> None:
    if weights.columns != 1:
        raise InvalidError(
            f"need a vector as weights, have {weights.columns} columns; give one for each row"
        )
    if work_dtype("weights", weights.layout.dtype).kind == "c":
        raise InvalidError(
            f"need real weights, have {weights.layout.dtype}; give the inverses of variances"
        )
    if A.rows is not None and weights.rows is not None and A.rows != weights.rows:
        raise InvalidError(
            f"A has {A.rows} rows, weights has {weights.rows}; give one weight for each row"
        )


class _Problem:
    """Sources of rows that fit each other, and their solution."""

    def __init__(
        self,
        A: RowSource,
        b: RowSource,
        weights: RowSource | None,
        given_a: Any,
        given_b: Any,
        cond: float | None,
        damp: float,
        dtype: npt.DTypeLike | None,
        *,
        keep_r: bool,
        sharing: Sharing,
    ) -> None:
        if A.rows is not None and b.rows is not None and A.rows != b.rows:
            raise InvalidError(
                f"A has {A.rows} rows, b has {b.rows}; a right-hand side has as many rows as A"
            )
        if weights is not None:
            _check_weights(A, weights)
        if not (is_finite(damp) and damp >= 0):
            raise InvalidError(f"damp must be a number of at least 0, have {damp!r}")
        if cond is not None and not (is_number(cond) and 0 <= cond < 1):
            raise InvalidError(f"cond must be at least 0 and below 1, have {cond!r}")
        self.sources = [A, b] if weights is None else [A, b, weights]
        self.dtype = result_dtype({each.name: each.layout.dtype for each in self.sources}, dtype)
        for source in self.sources:
            source.deliver(self.dtype)
        self.A, self.b, self.weights, self.damp = A, b, weights, float(damp)
        self.sharing = sharing
        self.keep_r, self.arrays = keep_r, [*(each.name for each in self.sources), "x"]
        self.given_a, self.given_b = given_a, given_b
        self.n, self.k = A.columns, b.columns
        self.rows = next((each.rows for each in self.sources if each.rows is not None), None)
        self.cond = float(cond) if cond is not None else self.n * float(np.finfo(self.dtype).eps)
        # The rows of this process.
        self.shares, self.own = ALONE, self.sources
        if self.rows is not None:
            self.shares, self.own = own_rows(self.sources, sharing, self.n)

    def operands(self, *, is_stored: bool) -> Operands:
        """Return the operands for plans: the rows of this process."""
        A, b, *beside = (source.layout for source in self.own)
        weights = beside[0] if beside else None
        return Operands(A, b, weights, self.dtype, is_stored, self.sharing.size)

    @property
    def own_count(self) -> int | None:
        """Number of rows of this process; `None` if unknown before the end."""
        return self.rows if self.sharing.size == 1 else self.own[0].rows

    def work(self, way: list[RowPlan] | LeastNormGeometry) -> float | None:
        """Return the operations, for progress; `None` if unknown before the end."""
        if isinstance(way, LeastNormGeometry):
            return way.flops
        return self.flops(self.own_count) if self.own_count else None

    def flops(self, rows: int) -> float:
        """Return the operations for a number of rows."""
        return tsqr_flops(rows, self.n, self.k, self.dtype)

    def use_slabs_if(self) -> str | None:
        """Return the condition for slabs of columns, as advice; `None` if they can be used."""
        instead = use_slabs_if(self.A.layout, self.dtype)
        if instead is None and self.damp:
            return "leave out damp=, which slabs of columns do not have"
        if instead is None and self.weights is not None:
            return (
                "leave out weights=, which slabs of columns do not have, and multiply the rows of "
                "A and b by their square roots"
            )
        if instead is None and isinstance(self.b, IteratedRows):
            return "give b as an array, which slabs of columns need"
        return instead

    def solve_by_slabs(self, g: SlabQrGeometry, **options: Any) -> tuple[Any, LeastSquaresReport]:
        assert isinstance(self.A, StoredRows), "slabs are of an array on disk"
        m, n = self.A.array.shape
        b = self.b.array if isinstance(self.b, StoredRows) else array_of(self.given_b)
        found, report = solve_by_slabs(self.A.array, b, g, self.cond, **options)
        figures = {each.name: getattr(report, each.name) for each in fields(Report)}
        more = {
            "verb": "lstsq",
            "rank": g.n,
            "residual_norms": [float(norm) for norm in found.residual_norms],
            "degrees_of_freedom": float(max(m - n, 0)),
        }
        return found.x, LeastSquaresReport(**figures | more)

    def solve_streamed(
        self,
        call: LongCall,
        way: list[RowPlan] | LeastNormGeometry,
        out: Place | None,
        steps: StepsDone,
    ) -> tuple[Any, LeastSquaresReport]:
        """Solve with streamed rows or columns, and deliver x in memory or on disk."""
        shape = (self.n,) if self.b.is_vector else (self.n, self.k)
        into: AbstractContextManager[Array | None] = nullcontext()
        if out is not None:
            into = written(out, columns_of(shape, self.dtype), _WHY, steps)
        with into as target, Team(self.sharing) as team:
            if isinstance(way, LeastNormGeometry):
                x, report = self.solve_wide(call, way, target, steps)
            else:
                x, report = self.solve(call, way, target, steps, team)
            x = x[:, 0] if self.b.is_vector else x
            moved = 0, 0
            if target is not None and team.rank == 0:
                moved = put(x, target, call, TRANSFER_BYTES[0], number=len(self.sources))
        if target is not None:
            written_too(report, 0 if team.rank else x.nbytes, moved, call)
        return x if target is None else target, self.of_all(report, team)

    def of_all(self, own: LeastSquaresReport, team: Team) -> LeastSquaresReport:
        """Return the report of all processes, given that of this one."""
        if team.size == 1:
            return own
        planned = self.operands(is_stored=False).sent(self.shares, keep_r=self.keep_r)
        own.processes = [process_figures(own, team.sent, planned)]
        found = whole_report(replace(own, R=None), team)
        assert isinstance(found, LeastSquaresReport), "it has the type of this one"
        found.R = own.R
        return found

    def solve(
        self,
        call: LongCall,
        plans: list[RowPlan],
        target: Array | None,
        steps: StepsDone,
        team: Team,
    ) -> tuple[Matrix, LeastSquaresReport]:
        factor = ParallelQR(plans[0], self.k, call)
        heights = [plan.height for plan in plans]
        weighing = None if self.weights is None else RowWeights(call)
        state = [*factor.state, *([] if weighing is None else [weighing.counted])]
        kept = KeptState(target, steps, [*heights, *factor.cuts], state, call)
        count = self.own_count or 0
        row_work = self.flops(count) / count if count else 0.0
        first_row = self.shares.own.start
        factor.rows = kept.load(count)
        call.meter.skip(factor.rows * row_work)
        with streams(self.own, plans, call, first=factor.rows) as opened, factor.at_work():
            for first, (rows, right, *beside) in side_by_side(opened, factor.rows):
                team.check()
                check_finite("A", first_row + first, rows)
                check_finite("b", first_row + first, right)
                if weighing is not None:
                    weighing.apply(first_row + first, beside[0], rows, right)
                leave(opened, factor.share(rows, right))
                call.meter.advance(len(rows) * row_work)
                kept.passed(factor.rows, count, factor.settle)
            factor.finish()
        counted = factor.rows if weighing is None else int(weighing.counted[0, 0])
        flops = self.flops(factor.rows) if factor.rows else 0.0
        if team.size == 1:
            found = self.minimize(factor, counted, call)
        else:
            found = self.minimize_together(factor, counted, call, team)
        report = self.report(
            found, call, (factor.rows, self.n), steps.notes(count, "row"),
            method=f"QR of rows as they are read, {plans[0].height} at once", flops=flops,
            moved=(sum(each.bytes_read() for each in self.own), 0),
            planned=(sum(each.layout.bytes_read() for each in self.own), 0),
        )  # fmt: skip
        report.R = factor.R if self.keep_r else None
        if found.rank < (min(factor.rows, self.n) if self.damp else self.n):
            report.notes.append(
                f"A has rank {found.rank} of {self.n} at cond={self.cond:.2g}: x is the solution "
                "of least norm"
            )
        return found.x, report

    def minimize(self, factor: ParallelQR, counted: int, call: LongCall) -> Minimizer:
        """Solve with the triangle of all rows, of which `counted` have a weight."""
        R = factor.triangle()
        if self.damp:
            found = solve_damped(factor, R, counted, self.damp, self.cond, call)
        else:
            x, rank, condition, sizes = solve_triangle(
                R, factor.c, self.cond, call, most=min(factor.rows, self.n)
            )
            freedom = max(float(counted - rank), 0.0)
            found = Minimizer(x, rank, condition, counted, sizes, freedom)
        return found._replace(residual_norms=np.hypot(found.residual_norms, factor.rest))

    def minimize_together(
        self, factor: ParallelQR, counted: int, call: LongCall, team: Team
    ) -> Minimizer:
        """Merge the triangles of all processes. The first one solves, and all get the solution."""
        flops = self.flops(self.shares.most) + _SINGULAR_VALUES * self.flops(self.n)
        more_s = seconds_of(self.shares, [each.layout for each in self.own], flops)
        strips = self.operands(is_stored=False).strips
        merging = Merging(team, self.shares, strips.most_words, self.dtype, call, more_s)
        merging.join_triangles(factor)
        factor.rest[:] = functools.reduce(np.hypot, team.all_of(factor.rest.copy(), more_s))
        counted = sum(team.all_of(counted))
        factor.rows = self.shares.edges[-1]
        if self.keep_r:
            merging.spread_triangle(factor.R)
        del merging
        found = self.minimize(factor, counted, call) if team.rank == 0 else None
        x: Matrix = np.empty((self.n, self.k), self.dtype, order="F")
        if found is not None:
            x[...] = found.x
            found = found._replace(x=x[:0])
        (found, *_) = team.all_of(found, more_s)
        assert found is not None, "the first process has solved"
        team.broadcast(x.T, more_s)
        return found._replace(x=x)

    def solve_wide(
        self, call: LongCall, g: LeastNormGeometry, target: Array | None, steps: StepsDone
    ) -> tuple[Matrix, LeastSquaresReport]:
        given = self.A.array if isinstance(self.A, StoredRows) else self.given_a
        columns = row_source("A", given, transposed=True)
        columns.deliver(self.dtype)
        found, read = least_norm(
            columns, self.b, self.weights, g, self.damp, self.cond, call, target, steps
        )
        report = self.report(
            found, call, (g.m, g.n), steps.notes(2 * g.blocks), method=g.method, flops=g.flops,
            moved=(read, 0), planned=(g.bytes_read(), 0),
        )  # fmt: skip
        if found.rank < found.counted:
            report.notes.append(
                f"the rows of A depend on each other: it has rank {found.rank} of {g.m} at "
                f"cond={self.cond:.2g}"
            )
        return found.x, report

    def report(
        self, found: Minimizer, call: LongCall, shape: tuple[int, int], notes: list[str],
        **figures: Any,
    ) -> LeastSquaresReport:  # fmt: skip
        """Return the report, given further arguments of `row_report`."""
        return row_report(
            LeastSquaresReport, call, "lstsq", shape, self.dtype, arrays=self.arrays,
            is_stored=self.A.layout.is_stored, rank=found.rank, condition=found.condition,
            residual_norms=[float(size) for size in found.residual_norms], notes=notes,
            degrees_of_freedom=found.degrees_of_freedom, damp=self.damp, **figures,
        )  # fmt: skip
