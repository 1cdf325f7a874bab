"""The method of `solve` with factors in lower precision and refinement.

LAPACK's ``dsgesv`` is similar. If refinement stalls, GMRES follows, with the factors as a
preconditioner. If that stalls too, LU in the precision of the matrix follows.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.linalg._factors.sweeps import Sweeps
from outcore.linalg._geometry.factor_plan import lu_geometry
from outcore.linalg._output.factor import LUFactor
from outcore.linalg._output.own import are_begun
from outcore.linalg._rhs.columns import ColumnRoom, Columns, fitted
from outcore.linalg._rhs.condition import (
    PROBES,
    UNKNOWN,
    Probes,
    condition_of,
    is_singular,
    probe_bytes,
    with_probes,
)
from outcore.linalg._rhs.deflation import Deflation
from outcore.linalg._rhs.groups import gone_on_at
from outcore.linalg._rhs.residual import MatrixPasses, matrix_in
from outcore.linalg._rhs.solutions import solution, system_of
from outcore.linalg._rhs.solving import Solving
from outcore.linalg._systems.direct import solve_directly, with_condition
from outcore.linalg._systems.low_copy import TooLowError
from outcore.linalg._systems.low_factors import find_low_factors, low_factors
from outcore.linalg._systems.plan import (
    Passes,
    condition_phases,
    planned_refining,
    refining_phase,
    solve_cost,
)
from outcore.linalg._systems.refine import Refinement
from outcore.linalg._systems.refine_plan import RefineGeometry, refine_geometry
from outcore.linalg._tiles.columns import draw_normal
from outcore.linalg._tiles.cost import Phase
from outcore.linalg._tiles.matrix import Matrix, open_matrix
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report


def solve_refined(job: Solving, low: np.dtype[Any]) -> tuple[Any, Report]:
    """Factor in lower precision and refine; if that fails, use `solve_directly`, and say why."""
    if are_begun(job.factors_at(".lu"), job.source, job.dtype, resume=job.resume):
        x, report = solve_directly(job)
        report.notes.append(
            f"factors in {job.dtype} existed, or were begun: none in {low} were made"
        )
        return x, report
    done: list[Report] = []
    try:
        x = _solve(job, low, done)
    except TooLowError as error:
        beside = _beside(job)
        x, report = solve_directly(beside)
        report.notes.insert(0, f"{low} did not suffice: {error}")
        if beside.keep and beside is not job:
            report.notes.append(
                f"the factors in {job.dtype} are in {beside.factors_at('.lu').path}"
            )
        method = f"LU in {job.dtype}, after one in {low}"
        growth, backward_error = report.growth, report.backward_error
        done.append(report)
    else:
        method, growth = done[-1].method, done[-1].growth
        backward_error = done[-1].backward_error
    whole = functools.reduce(Report.followed_by, done)
    return x, dataclasses.replace(
        whole,
        verb="solve",
        dtype=job.dtype.name,
        method=method,
        growth=growth,
        backward_error=backward_error,
        history=[error for report in done for error in report.history],
    )


def _beside(job: Solving) -> Solving:
    """Let factors in full precision go beside the matrix if existing factors are in the way."""
    if job.factors is None or job.if_exists == "overwrite" or not job.factors_at("").exists():
        return job
    return dataclasses.replace(job, factors=None)


def _solve(job: Solving, low: np.dtype[Any], done: list[Report]) -> Any:
    """Solve by factors in lower precision; append the reports to `done`."""
    where = job.factors_at(f".{low.kind}{low.itemsize}.lu")
    ready = find_low_factors(job, where, low)
    phases: Sequence[Phase]
    if ready:
        nothing = Phase(dtype=low, bytes_read=0)
        refined = _planned(job, ready, _fitted(job, low, ready.tile)[1])
        estimated = condition_phases(job.problem(), low, ready.tile)
        phases = nothing, nothing, refined, *estimated
    else:
        g = lu_geometry(job.n, low, job.memory_bytes)
        # An error is raised here rather than after hours of factoring.
        _fitted(job, low, (g.rows, g.columns))
        phases = solve_cost(job.problem(factor_dtype=low)).phases
    ahead = len(phases) - 1 - job.condition
    copying, factoring, refining, estimating = job.parts(
        phases[:1], phases[1:ahead], phases[ahead : ahead + 1], phases[ahead + 1 :]
    )
    with low_factors(job, where, low, ready, (copying, factoring), done) as lu:
        x = _refine(job, lu, refining, done)
        if job.condition:
            done[-1] = with_condition(done[-1], job, lu, estimating)
            _refuse_beyond(done[-1], low)
    if ready:
        done[-1].notes.append(f"used the factors in {where.path}")
    return x


def _refuse_beyond(report: Report, low: np.dtype[Any]) -> None:
    """Replace a condition number that factors in lower precision cannot resolve by a note."""
    if is_singular(report.condition, low):
        report.condition = None
        report.notes.append(
            f"the condition number is above {1 / np.finfo(low).eps:.0e}, and factors in {low} "
            "cannot tell it; call solve without factor_dtype for it"
        )


def _fitted(
    job: Solving, low: np.dtype[Any], tile: tuple[int, int], probes: int = 0
) -> tuple[ColumnRoom, RefineGeometry]:
    rhs = job.rhs

    def cut(room: ColumnRoom) -> RefineGeometry:
        return refine_geometry(
            job.n, job.dtype, low, tile, job.memory_bytes, rhs.columns, parts=rhs.parts,
            beside_bytes=room.beside_bytes + probe_bytes(job.n, job.dtype, probes),
        )  # fmt: skip

    return fitted(rhs, job.memory_bytes, cut)


def _planned(job: Solving, lu: LUFactor, g: RefineGeometry) -> Phase:
    most = g.columns * job.rhs.parts
    matrix_bytes = job.n**2 * job.stored.itemsize
    return planned_refining(
        job.n, job.dtype, lu.dtype, lu.tile, job.columns, most, g.deflated, matrix_bytes
    )


class _Passes:
    """Passes over A and the factors, with their counts."""

    def __init__(
        self,
        A: Array,
        dtype: np.dtype[Any],
        lu: LUFactor,
        call: LongCall,
        g: RefineGeometry,
        probes: int,
    ) -> None:
        self.call, self.dtype, self.lu = call, dtype, lu
        self.probes = Probes(lu.n, probes, dtype, call)
        self.of_a = MatrixPasses(A, call, g.ring_bytes, dtype)
        self.sweeps = Sweeps(lu, call, g.block_tiles)
        self.multiplied: list[int] = []
        self.solved: list[int] = []
        """Number of columns of each pass."""

    def subtract_product(self, X: Matrix, R: Matrix) -> None:
        self.multiplied.append(X.shape[1])
        self.of_a.subtract_product(X, R)

    def solve(self, D: Matrix) -> None:
        self.solved.append(D.shape[1])
        self.sweeps.solve(D, beside=self.probes.take())

    def planned(self, n: int) -> Phase:
        """Return the planned cost of the passes that were made."""
        lu = self.lu
        solved, multiplied = (Passes(len(p), sum(p)) for p in (self.solved, self.multiplied))
        each = self.of_a.bytes_of_pass
        return refining_phase(n, self.dtype, lu.dtype, lu.tile, solved, multiplied, each)


def _refine(job: Solving, lu: LUFactor, progress: ProgressLike, done: list[Report]) -> Any:
    rhs = job.rhs
    probes, (columns_room, g) = with_probes(
        PROBES, lambda probes: _fitted(job, lu.dtype, lu.tile, probes)
    )
    work = _planned(job, lu, g).bytes_read
    # A solution from other factors may have taken other steps, so it is not resumed.
    system = None if rhs.out is None else system_of("refinement", lu, rhs)
    with (
        open_matrix(job.source) as A,
        long_call(
            f"refining with {lu.path.name}", memory_bytes=job.memory_bytes, work=work,
            threads=job.threads, progress=progress,
        ) as call,
    ):  # fmt: skip
        passes = _Passes(A, job.dtype, lu, call, g, probes)
        # Deflation's vectors come before the columns of a group.
        width = g.deflated + min(g.columns * rhs.parts, job.columns)
        room = (
            matrix_in(call, job.n, width, job.dtype), matrix_in(call, job.n, width, job.dtype)
        )  # fmt: skip
        deflation = Deflation(*room, g.deflated)
        moved = Columns(rhs, call, columns_room)
        refined: list[Refinement] = []
        condition: float | None = None
        begun = 0
        try:
            with solution(rhs, system=system, resume=job.resume) as into:
                begun = into.done
                for first in range(begun, rhs.columns, g.columns):
                    columns = slice(first, min(first + g.columns, rhs.columns))
                    refined.append(_begin(job, passes, moved, room, deflation, columns))
                    _refine_group(refined[-1], passes, g)
                    moved.store(into.x, columns, refined[-1].X)
                    if rhs.out is not None:
                        moved.sync()
                        into.note(columns.stop)
                    if first == begun:
                        condition = _condition(job, passes, g, room)
        finally:
            done.append(_report(job, passes, moved, refined, condition))
            if begun:
                done[-1].notes.append(gone_on_at(begun, rhs.columns))
    return into.x


def _begin(
    job: Solving,
    passes: _Passes,
    moved: Columns,
    room: tuple[Matrix, Matrix],
    deflation: Deflation,
    columns: slice,
) -> Refinement:
    rhs = job.rhs
    end = deflation.count + (columns.stop - columns.start) * rhs.parts
    X, R = (matrix[:, deflation.count : end] for matrix in room)
    moved.load(rhs.b, columns, R)
    rhs.refuse_non_finite(R)
    return _refinement(job, passes, X, R, lambda R: moved.load(rhs.b, columns, R), deflation)


def _refinement(
    job: Solving,
    passes: _Passes,
    X: Matrix,
    R: Matrix,
    load_b: Callable[[Matrix], None],
    deflation: Deflation | None = None,
) -> Refinement:
    return Refinement(
        X=X,
        R=R,
        load_b=load_b,
        subtract_product=passes.subtract_product,
        solve=passes.solve,
        norm_a=passes.lu.norm1,
        low=passes.lu.dtype,
        tolerance=job.n * float(np.finfo(job.dtype).eps),
        deflation=deflation,
    )


def _refine_group(group: Refinement, passes: _Passes, g: RefineGeometry) -> None:
    stalled = group.refine()
    if not len(stalled):
        return
    at = f"refinement stalled at a backward error of {group.history[-1]:.1e}"
    steps = g.krylov(len(stalled))
    if not steps:
        raise TooLowError(f"{at}; memory does not hold what GMRES needs for {len(stalled)} columns")
    n = len(group.X)
    V = [matrix_in(passes.call, n, len(stalled), group.X.dtype) for _ in range(steps + 1)]
    W = matrix_in(passes.call, n, len(stalled), group.X.dtype)
    if not group.refine_by_gmres(stalled, V, W):
        raise TooLowError(f"{at}, and GMRES at {group.history[-1]:.1e}")


def _condition(
    job: Solving, passes: _Passes, g: RefineGeometry, room: tuple[Matrix, Matrix]
) -> float | None:
    """Estimate the condition of A.

    The precision of the factors limits the estimate. A matrix that is singular in lower precision
    may be singular in the higher one too. A right-hand side in its range then has many solutions,
    and refinement finds one. So a random right-hand side is refined too.

    Raises
    ------
    TooLowError
        If the solution for the random right-hand side does not converge.
    """
    lu = passes.lu
    found = passes.probes.condition(lu.norm1)
    if not is_singular(found, lu.dtype):
        return found
    X, R = (matrix[:, :1] for matrix in room)

    probe = _refinement(job, passes, X, R, functools.partial(draw_normal, seed=1))
    _refine_group(probe, passes, g)
    return condition_of(lu.norm1, X)


def _report(
    job: Solving,
    passes: _Passes,
    moved: Columns,
    refined: list[Refinement],
    condition: float | None,
) -> Report:
    phase = passes.planned(job.n)
    counters = [file.counters() for file in (passes.of_a.file, passes.sweeps.file)]
    read, written = moved.counters()
    steps = max((group.steps for group in refined), default=0)
    krylov_steps = sum(group.krylov_steps for group in refined)
    method = f"LU in {passes.lu.dtype}, {_steps(steps)} of refinement"
    if krylov_steps:
        method += f", {_steps(krylov_steps)} of GMRES"
    # Groups are refined one after another. The history has the largest error of any group, by step.
    longest = max((len(group.history) for group in refined), default=0)
    history = [
        max(group.history[min(step, len(group.history) - 1)] for group in refined if group.history)
        for step in range(longest)
    ]
    return passes.call.report(
        Report, "refinement", job.n, job.dtype, flops=phase.flops,
        moved=(sum(c[0] for c in counters) + read, written),
        planned=(phase.bytes_read + moved.asked[0], moved.asked[1]), growth=passes.lu.growth,
        backward_error=float(max((group.errors.max() for group in refined), default=0.0)),
        probed_condition=condition, notes=[UNKNOWN] if refined and not passes.probes.count else [],
        method=method, history=history,
    )  # fmt: skip


def _steps(count: int) -> str:
    return f"{count} step" + "s" * (count != 1)
