"""The direct method of `solve`: factors in the type of the matrix, by LU or Cholesky."""

import contextlib
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from outcore._util.progress import ProgressLike
from outcore.array_files.metadata import read_metadata
from outcore.errors import OutcoreError
from outcore.linalg._cholesky.factorization import factor_cholesky
from outcore.linalg._estimate.cond_est import estimate_condition
from outcore.linalg._factors.sweeps import Swept
from outcore.linalg._lu.factorization import lu_for_call
from outcore.linalg._lu.solve import solve_and_report
from outcore.linalg._output.factor import CHOLESKY, LU, CholeskyFactor, Kind, LUFactor
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import read_journal
from outcore.linalg._output.own import own_factors, ready_factors
from outcore.linalg._rhs.condition import PROBES, UNKNOWN
from outcore.linalg._rhs.residual import check
from outcore.linalg._rhs.solving import Solving
from outcore.linalg._systems.plan import condition_phases, passes, solve_cost
from outcore.linalg._tiles.cost import Phase
from outcore.processes.team import Team, alone
from outcore.report.report import Report
from outcore.storage.volumes import Place


def solve_directly(
    job: Solving, kind: Kind = LU, *, overwrite_a: bool = False
) -> tuple[Any, Report]:
    """Factor, substitute, and compute the residual.

    Raises
    ------
    NotPositiveDefiniteError
        With Cholesky, if A is not positive definite.
    """
    is_positive, sharing = kind is CHOLESKY, job.sharing
    made_as: type[Swept] = CholeskyFactor if is_positive else LUFactor
    where = job.factors_at(kind.suffix)
    ready = ready_factors(where, job.source, job.dtype, made_as, if_exists=job.if_exists)
    phases = list(_phases(job, kind, ready))
    estimated = [phases.pop()] if job.condition else []
    *made, solved, checked = phases
    factoring, substituting, checking, estimating = job.parts(made, [solved], [checked], estimated)
    lower = is_positive and _lower(job, where, overwrite_a=overwrite_a)

    def make(wanted: Factoring) -> Swept:
        # The residual shows whether A is Hermitian.
        if is_positive:
            return factor_cholesky(wanted, sharing, lower=lower)[0]
        return lu_for_call(wanted, sharing)

    wanted = job.factoring(job.A, where, overwrite_a=overwrite_a, progress=factoring)
    wanted = dataclasses.replace(wanted, dtype=job.dtype)
    sharing.agree({"factors": None if ready is None else str(where.path)})
    own: AbstractContextManager[Swept] = own_factors(where, wanted, ready, make, sharing)
    with own as factors, Team(sharing) as team:
        x, report = solve_and_report(
            factors, job.rhs, job.memory_bytes, job.threads, substituting, resume=job.resume,
            probes=PROBES, team=team,
        )  # fmt: skip
        if report.probed_condition is None and job.columns:
            report.notes.append(UNKNOWN)
        if factors.report:
            report = factors.report.followed_by(report)
            # Factors from a resumed run have no bound, nor does the whole call.
            report.words_lower_bound = factors.report.words_lower_bound
        else:
            report.notes.append(f"used the factors in {where.path}")
        if read_metadata(job.source).state == "consumed":
            report.notes.append("A gave its space to the factors: the backward error is not known")
        else:
            look = check(factors, job.rhs, x, job.memory_bytes, job.threads, checking, team)
            report = report.followed_by(look)
        if job.condition:
            report = with_condition(report, job, factors, estimating, team)
    return x, dataclasses.replace(report, verb="solve", method=_method_of(factors))


def with_condition(
    report: Report,
    job: Solving,
    factors: Swept,
    progress: ProgressLike,
    team: Team | None = None,
) -> Report:
    """Estimate the condition number from the factors, and add it to the report on a solution."""
    condition, estimate = estimate_condition(
        factors, job.memory_bytes, job.threads, progress, team or alone(), resume=job.resume
    )
    estimate.notes = [f"condition number by {note}" for note in estimate.notes]
    backward_error, bound = report.backward_error, report.words_lower_bound
    whole = report.followed_by(estimate)
    return dataclasses.replace(
        whole, condition=condition, backward_error=backward_error, words_lower_bound=bound
    )


def _method_of(factors: Swept) -> str:
    """Return the name of the method, with the algorithm of new factors if it is not by slabs."""
    made = factors.report.method if factors.report else None
    title = factors.kind.title
    return title if made is None or "slabs" in made else f"{title}, {made}"


def _lower(job: Solving, where: Place, *, overwrite_a: bool) -> bool:
    """Whether Cholesky reads the lower triangle: as a stopped run did, or the faster one."""
    begun = None
    if where.exists() and job.resume and not overwrite_a:
        with contextlib.suppress(OutcoreError):
            begun = read_journal(where)
    if begun is not None:
        return begun.header.lower
    return overwrite_a or read_metadata(job.source).order == "F"


def _phases(job: Solving, kind: Kind, ready: Swept | None) -> Sequence[Phase]:
    """Plan the factorization, the solve with its factors, and the residual.

    Complete factors need less memory to solve than to factor, so only their solve is planned.
    """
    problem = job.problem(assume_a="pos" if kind is CHOLESKY else "gen", processes=job.sharing.size)
    if ready is None:
        return solve_cost(problem).phases
    return *passes(problem, ready.tile), *condition_phases(problem, job.dtype, ready.tile)
