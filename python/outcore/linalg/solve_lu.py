"""The way of `solve` by LU in the type of the matrix."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from outcore.array import read_metadata
from outcore.linalg.cost import Phase, Problem
from outcore.linalg.lu_solve import solve_and_report
from outcore.linalg.own_factors import own_factors, ready_factors
from outcore.linalg.residual import check
from outcore.linalg.solve_plan import passes, solve_cost
from outcore.linalg.solving import Solving
from outcore.report import Report


def solve_by_lu(job: Solving, *, overwrite_a: bool) -> tuple[Any, Report]:
    """Factor, substitute, and look at the residual."""
    where = job.factors_at(".lu")
    ready = ready_factors(where, job.source, job.dtype, overwrite=job.overwrite)
    problem = Problem(job.n, job.dtype, job.memory_bytes, rhs=job.columns)
    phases: Sequence[Phase]
    if ready:
        # What is ready may be used with less memory than it takes to make it.
        phases = (Phase(dtype=job.dtype, bytes_read=0), *passes(problem, ready.tile))
    else:
        phases = solve_cost(problem).phases
    factoring, substituting, checking = job.parts(phases)
    with own_factors(
        where, job.A, ready, memory_bytes=job.memory_bytes, keep=job.keep, overwrite_a=overwrite_a,
        overwrite=job.overwrite, resume=job.resume, threads=job.threads, progress=factoring,
    ) as lu:  # fmt: skip
        x, report = solve_and_report(lu, job.rhs, job.memory_bytes, job.threads, substituting)
        if lu.report:
            report = lu.report.followed_by(report)
        else:
            report.notes.append(f"used the factors in {where.path}")
        if read_metadata(job.source).state == "consumed":
            report.notes.append("A gave its space to the factors: the backward error is not known")
        else:
            checked = check(lu, job.rhs, x, job.memory_bytes, job.threads, checking)
            report = report.followed_by(checked)
    return x, dataclasses.replace(report, verb="solve", method="LU")
