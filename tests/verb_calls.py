"""A call of each verb that has a plan, with small matrices, and the plan of that call."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from definite import definite
from linpack import Matrix
from lu_by_method import RATES

import outcore as oc
from outcore import linalg
from outcore.report.report import Report

M, N = 700, 256
MEMORY = 4_000_000


@dataclass(frozen=True)
class Verb:
    """The call of a verb in a directory, and the options of its plan besides n and the memory."""

    call: Callable[[Path, dict[str, Any]], Report]
    options: dict[str, Any]

    def plan(self, name: str) -> oc.Plan:
        return oc.plan(name, **({"n": N, "memory": MEMORY, "rates": RATES} | self.options))


def square() -> Matrix:
    """Return a positive definite matrix, which suits every method."""
    return np.asfortranarray(definite(N, "f8"))


def oblong() -> Matrix:
    return np.random.default_rng(1).standard_normal((M, N))


def made(directory: Path, given: Matrix, name: str = "A", order: str = "F") -> oc.Array:
    return oc.from_array(given, directory / name, order=order, progress=False)


def last(_: object) -> Report:
    found = oc.last_report()
    assert found is not None
    return found


def of(result: Any) -> Report:
    """Return the report that a call returns as its last result, or on its result."""
    report = result[-1] if isinstance(result, tuple) else result.report
    assert isinstance(report, Report)
    return report


def _factors(verb: str, directory: Path) -> Any:
    quiet = {"memory": MEMORY, "progress": False}
    if verb == "qr":
        return linalg.qr_factor(made(directory, oblong()), **quiet)  # type: ignore[arg-type]
    make = {"lu": linalg.lu_factor, "cholesky": linalg.cho_factor}[verb]
    return make(made(directory, square()), **quiet)  # type: ignore[operator]


def _iterative(function: Callable[..., Any], steps: str) -> Verb:
    most = {"max_sweeps": 3} if steps == "sweeps" else {"max_iterations": 3}

    def call(path: Path, given: dict[str, Any]) -> Report:
        return of(function(made(path, square(), order="C"), np.ones(N), tol=None, **most, **given))

    return Verb(call, {steps: 3})


VERBS = {
    "lu": Verb(lambda path, given: of(linalg.lu_factor(made(path, square()), **given)), {}),
    "cholesky": Verb(lambda path, given: of(linalg.cho_factor(made(path, square()), **given)), {}),
    "qr": Verb(
        lambda path, given: of(linalg.qr(made(path, oblong(), order="C"), **given)), {"m": M}
    ),
    "qr_factor": Verb(
        lambda path, given: of(linalg.qr_factor(made(path, oblong()), **given)), {"m": M}
    ),
    "form_q": Verb(lambda path, given: of(linalg.form_q(_factors("qr", path), **given)), {"m": M}),
    "lu_solve": Verb(
        lambda path, given: last(linalg.lu_solve(_factors("lu", path), np.ones(N), **given)), {}
    ),
    "cho_solve": Verb(
        lambda path, given: last(linalg.cho_solve(_factors("cholesky", path), np.ones(N), **given)),
        {},
    ),
    "qr_solve": Verb(
        lambda path, given: last(linalg.qr_solve(_factors("qr", path), np.ones(M), **given)),
        {"m": M},
    ),
    "slogdet": Verb(lambda path, given: of(linalg.slogdet(made(path, square()), **given)), {}),
    "export_lapack": Verb(
        lambda path, given: of(linalg.export_lapack(_factors("lu", path), **given)), {}
    ),
    "cond_est": Verb(lambda path, given: of(linalg.cond_est(_factors("lu", path), **given)), {}),
    "lstsq": Verb(
        lambda path, given: of(linalg.lstsq(made(path, oblong(), order="C"), np.ones(M), **given)),
        {"m": M},
    ),
    "gram": Verb(
        lambda path, given: of(linalg.gram(made(path, oblong(), order="C"), **given)), {"m": M}
    ),
    "svd": Verb(
        lambda path, given: of(linalg.svd(made(path, oblong(), order="C"), 5, **given)),
        {"m": M, "k": 5},
    ),
    "solve": Verb(
        lambda path, given: of(linalg.solve(made(path, square()), np.ones(N), **given)), {}
    ),
    "gauss_seidel": _iterative(linalg.gauss_seidel, "sweeps"),
    "jacobi": _iterative(linalg.jacobi, "sweeps"),
    "cg": _iterative(linalg.cg, "iterations"),
    "gmres": _iterative(linalg.gmres, "iterations"),
    "matmul": Verb(
        lambda path, given: last(
            linalg.matmul(made(path, square()), made(path, square(), "B"), out=path / "C", **given)
        ),
        {},
    ),
    "solve_triangular": Verb(
        lambda path, given: last(
            linalg.solve_triangular(
                made(path, np.tril(square())), made(path, np.ones((N, 1)), "B"), lower=True, **given
            )
        ),
        {"lower": True},
    ),
}
"""Verbs by the name of their plan."""
