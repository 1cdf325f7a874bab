"""The way of `solve` by factors in the type of the matrix: LU, or Cholesky."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from outcore.array_metadata import read_metadata
from outcore.linalg.cholesky.factorization import cho_factor
from outcore.linalg.cholesky.solve import solve_and_report as solve_with_cholesky
from outcore.linalg.cost import Phase, Problem
from outcore.linalg.factors.factor import CHOLESKY, CholeskyFactor, LUFactor
from outcore.linalg.factors.own import own_factors, ready_factors
from outcore.linalg.lu.factorization import lu_factor
from outcore.linalg.lu.solve import solve_and_report as solve_with_lu
from outcore.linalg.systems.plan import passes, solve_cost
from outcore.linalg.systems.residual import check
from outcore.linalg.systems.right_hand_side import RightHandSide
from outcore.linalg.systems.solving import Solving
from outcore.progress import ProgressLike
from outcore.report import Report

F = TypeVar("F", LUFactor, CholeskyFactor)


@dataclass(frozen=True)
class Way(Generic[F]):
    """A kind of factors, how they are made, and how they solve."""

    kind: type[F]
    factor: Callable[..., F]
    solve: Callable[[F, RightHandSide, int, int | None, ProgressLike], tuple[Any, Report]]


# By slabs, as `solve_cost` plans it.
BY_LU: Final = Way(LUFactor, functools.partial(lu_factor, method="slabs"), solve_with_lu)
BY_CHOLESKY: Final = Way(CholeskyFactor, cho_factor, solve_with_cholesky)


def solve_directly(job: Solving, way: Way[F], *, overwrite_a: bool) -> tuple[Any, Report]:
    """Factor, substitute, and look at the residual.

    Raises
    ------
    NotPositiveDefiniteError
        By Cholesky, if A is not positive definite.
    """
    kind = way.kind.kind
    where = job.factors_at(kind.suffix)
    ready = ready_factors(where, job.source, job.dtype, way.kind, overwrite=job.overwrite)
    problem = Problem(
        job.n, job.dtype, job.memory_bytes, rhs=job.columns,
        options={"assume_a": "pos" if kind is CHOLESKY else "gen"},
    )  # fmt: skip
    phases = _phases(problem, None if ready is None else ready.tile)
    factoring, substituting, checking = job.parts(phases)
    with own_factors(
        where, job.A, ready, way.factor, memory_bytes=job.memory_bytes, keep=job.keep,
        overwrite_a=overwrite_a, overwrite=job.overwrite, resume=job.resume, threads=job.threads,
        progress=factoring,
    ) as factors:  # fmt: skip
        x, report = way.solve(factors, job.rhs, job.memory_bytes, job.threads, substituting)
        if factors.report:
            report = factors.report.followed_by(report)
        else:
            report.notes.append(f"used the factors in {where.path}")
        if read_metadata(job.source).state == "consumed":
            report.notes.append("A gave its space to the factors: the backward error is not known")
        else:
            checked = check(factors, job.rhs, x, job.memory_bytes, job.threads, checking)
            report = report.followed_by(checked)
    return x, dataclasses.replace(report, verb="solve", method=kind.title)


def _phases(problem: Problem, ready_tile: tuple[int, int] | None) -> Sequence[Phase]:
    """Plan the three phases; what is ready may be used with less memory than making it takes."""
    if ready_tile is None:
        return solve_cost(problem).phases
    return (Phase(dtype=problem.dtype, bytes_read=0), *passes(problem, ready_tile))
