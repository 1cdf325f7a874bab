"""The choice of LU's algorithm: slabs, block columns, or tournament pivoting."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from outcore._util.counts import count_of
from outcore.array_files.metadata import read_metadata
from outcore.errors import BudgetError, InvalidError, JournalError, OutcoreError
from outcore.linalg._geometry.factor_plan import DTYPES, dealt_lu_geometry, lu_geometry
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._lu.block_columns.cost import partial_cost, tournament_cost
from outcore.linalg._lu.block_columns.plan import partial_geometry, tournament_geometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._lu.slabs.loads import (
    lu_cost,
    lu_costs,
    lu_geometry_of,
    slabs_cost,
)
from outcore.linalg._output.factor import LU, read_any_group
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import read_journal
from outcore.linalg._tiles.cost import Cost, Problem, of_several
from outcore.linalg._tiles.matrix import place_of
from outcore.linalg._tiles.result_dtype import factor_dtype
from outcore.machine import rates
from outcore.storage.volumes import Place

Algorithm: TypeAlias = Literal["slabs", "block-columns", "tournament"]
LuMethod: TypeAlias = Literal["auto", "slabs", "block-columns", "tournament"]

LEAST_BYTES = 256 << 20
"""Smaller matrices take seconds with any method. Slabs are their default."""

ONLY = "memory does not hold one panel over all rows, which all other methods need"
"""Reason in the plan for tournament pivoting that the caller did not request."""

UNMEASURED = "no rates are stored for this disk, so nominal ones were used; oc.plan measures them"
"""Note of a call that chose without measured rates."""

# Block columns are considered if memory holds less than this fraction of the matrix.
_SMALL_BUDGET = 16

# They are chosen if they take less than this fraction of the time of slabs.
_WORTH_SECONDS = 0.95

# They are also chosen below the first factor if they move less than half of the words, in less than
# twice the disk space. A plan may be off by that factor, and a method that moves few words depends
# less on the disk.
_WORTH_WORDS, _FEW_WORDS, _MUCH_ROOM = 1.25, 0.5, 2


class Choice(NamedTuple):
    """The algorithm of a call.

    Attributes
    ----------
    algorithm
        Name of the algorithm.
    why
        Reason for the report, if there was a choice.
    """

    algorithm: Algorithm
    why: str = ""


def check_method(method: str, *, overwrite_a: bool) -> None:
    """Raise for an unknown method, or for one that cannot overwrite A."""
    if method not in get_args(LuMethod):
        raise InvalidError(f"method must be one of {get_args(LuMethod)}, have {method!r}")
    if method in ("block-columns", "tournament") and overwrite_a:
        how = "by block columns" if method == "block-columns" else "with tournament pivoting"
        raise InvalidError(
            f"LU {how} needs the space of the matrix and its own; leave out overwrite_a, or pass "
            "method='slabs'"
        )


def chosen(method: LuMethod, job: Factoring) -> Choice:
    """Choose the algorithm of a call. A resumed run keeps its algorithm."""
    overwrite_a, memory_bytes = job.overwrite_a, job.memory_bytes
    check_method(method, overwrite_a=overwrite_a)
    source = place_of(job.A)
    metadata = read_metadata(source)
    if job.resume and not overwrite_a:
        begun = _begun_with(job.target(LU), job.argument)
        if begun is not None:
            return Choice(begun)
    if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
        # Later checks refuse an array that cannot be factored.
        return Choice("slabs" if method == "auto" else method)
    n, made_in = metadata.shape[0], factor_dtype(metadata.dtype, job.dtype)
    layout = Layout.of(metadata, made_in)
    if method == "block-columns" and not partial_geometry(n, made_in, memory_bytes, layout).widths:
        # A single block column is the algorithm by slabs.
        return Choice("slabs")
    if method != "auto":
        return Choice(method)
    if overwrite_a:
        return Choice("slabs")
    if _only_tournament(n, made_in, memory_bytes, layout) is not None:
        return Choice("tournament", ONLY)
    if not _may_pay(n, made_in, memory_bytes):
        return Choice("slabs")
    return _by_time(n, made_in, memory_bytes, layout, rates.stored(source.path.parent))


def by_several(method: LuMethod, job: Factoring) -> Choice:
    """Return the algorithm of several processes; refuse a method or a run of another algorithm."""
    check_method(method, overwrite_a=job.overwrite_a)
    refuse_for_several(method, overwrite_a=job.overwrite_a)
    begun = _begun_with(job.target(LU), job.argument) if job.resume else None
    if begun not in (None, "slabs"):
        raise JournalError(
            f"{job.target(LU).path} holds an LU that was stopped in the method {begun!r}, which "
            "one process runs; leave out comm=, or pass resume=False to restart"
        )
    return Choice("slabs")


def refuse_for_several(method: str, *, overwrite_a: bool) -> None:
    """Raise for a method that needs one process, or for `overwrite_a`."""
    if method not in ("auto", "slabs"):
        raise InvalidError(
            f"several processes factor by method='slabs', have {method!r}; leave out method=, or "
            "start one process"
        )
    if overwrite_a:
        raise InvalidError(
            "several processes need overwrite_a=False, have True; leave it out, or start one "
            "process"
        )


def _by_time(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout, known: rates.Rates | None
) -> Choice:
    """Choose by the time at the stored rates, or at nominal ones, and give the reason."""
    g, at = partial_geometry(n, dtype, memory_bytes, layout), known or rates.NOMINAL
    slabs = slabs_cost(lu_geometry(n, dtype, memory_bytes), layout, at.reads)
    # A single block column is the algorithm by slabs.
    columns = partial_cost(g) if g.widths else None
    algorithm = better(slabs, columns, lambda cost: cost.seconds(at))
    if columns is None:
        return Choice(algorithm)
    words = [
        (cost.bytes_read + cost.bytes_written) / dtype.itemsize / n**2 for cost in (slabs, columns)
    ]
    why = (
        f"{algorithm} for time and words: slabs move {words[0]:.3g} n^2 words, block columns "
        f"{words[1]:.3g}"
    )
    return Choice(algorithm, why if known else f"{why}; {UNMEASURED}")


def _only_tournament(
    n: int, dtype: np.dtype[Any], memory_bytes: int, layout: Layout
) -> TournamentGeometry | None:
    """Return the cuts for tournament pivoting, if only that method fits in the memory."""
    try:
        # Block columns need memory for a panel, too.
        lu_geometry(n, dtype, memory_bytes)
    except BudgetError:
        with contextlib.suppress(BudgetError):
            return tournament_geometry(n, dtype, memory_bytes, layout)
    return None


def _may_pay(n: int, dtype: np.dtype[Any], memory_bytes: int) -> bool:
    matrix_bytes = n * n * dtype.itemsize
    return matrix_bytes >= LEAST_BYTES and memory_bytes < matrix_bytes / _SMALL_BUDGET


def better(slabs: Cost, columns: Cost | None, seconds: Callable[[Cost], float]) -> Algorithm:
    """Choose between slabs and block columns. `None` for `columns` means slabs."""
    if columns is None:
        return "slabs"
    moved, moved_by_slabs = (c.bytes_read + c.bytes_written for c in (columns, slabs))
    is_lean = moved < _FEW_WORDS * moved_by_slabs
    is_lean &= columns.disk_bytes < _MUCH_ROOM * slabs.disk_bytes
    most = _WORTH_WORDS if is_lean else _WORTH_SECONDS
    return "block-columns" if seconds(columns) < most * seconds(slabs) else "slabs"


class Planned(NamedTuple):
    """The cost of an LU, the tile shape of its factors, and the costs of several processes."""

    cost: Cost
    tile: tuple[int, int]
    of_each: tuple[Cost, ...] = ()


def lu_plan(problem: Problem) -> Cost:
    """Plan `lu_factor` with the algorithm that it would take."""
    return planned_lu(problem).cost


def planned_lu(problem: Problem) -> Planned:
    """Plan `lu_factor`, and return the tile shape of its factors too."""
    method = problem.option("method", "auto")
    overwrite_a = problem.option("overwrite_a", False)
    check_method(method, overwrite_a=overwrite_a)
    n, dtype, memory_bytes = problem.n, problem.dtype, problem.memory_bytes
    layout = layout_of(problem)
    processes = count_of("processes", problem.option("processes", 1))
    link = problem.option("link", None)
    if processes > 1:
        refuse_for_several(method, overwrite_a=overwrite_a)
        dealt = dealt_lu_geometry(n, dtype, (memory_bytes,) * processes, 0)
        costs = tuple(lu_costs(problem, processes))
        return Planned(of_several(costs, link), (dealt.rows, dealt.columns), costs)
    if method == "slabs" or overwrite_a or dtype.name not in DTYPES:
        return _by_slabs(problem)
    if method == "tournament":
        g = tournament_geometry(n, dtype, memory_bytes, layout)
        return Planned(tournament_cost(g), (g.rows, g.columns))
    if method == "auto" and (only := _only_tournament(n, dtype, memory_bytes, layout)) is not None:
        cost = tournament_cost(only)
        cost = dataclasses.replace(cost, method=f"{cost.method} ({ONLY})")
        return Planned(cost, (only.rows, only.columns))
    if method == "auto" and (problem.seconds is None or not _may_pay(n, dtype, memory_bytes)):
        return _by_slabs(problem)
    columns = partial_geometry(n, dtype, memory_bytes, layout)
    if not columns.widths:
        return _by_slabs(problem)
    cost = partial_cost(columns)
    if method == "auto" and problem.seconds is not None:
        slabs = _by_slabs(problem)
        if better(slabs.cost, cost, problem.seconds) == "slabs":
            return slabs
    return Planned(cost, (columns.rows, columns.columns))


def _by_slabs(problem: Problem) -> Planned:
    g = lu_geometry_of(problem)
    return Planned(lu_cost(problem), (g.rows, g.columns))


def _begun_with(target: Place, argument: str) -> Algorithm | None:
    """Return the algorithm of a stopped run at `target`; `None` if there is nothing to resume."""
    journal = None
    with contextlib.suppress(OutcoreError):
        if read_any_group(target)[1]["state"] == "incomplete":
            journal = read_journal(target)
    if journal is None:
        return None
    cuts = journal.header.cuts
    if cuts is None:
        return "slabs"
    if (method := cuts.get("method")) in ("block-columns", "tournament"):
        return cast(Algorithm, method)
    raise JournalError(
        f"{target.path} holds a stopped run by a method that this version does not have; remove it "
        f"and restart, or pass another {argument}"
    )
