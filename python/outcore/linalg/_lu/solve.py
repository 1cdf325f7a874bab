"""Solves with LU factors on disk: all right-hand sides in one pass over L and one over U."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.errors import InvalidError, SingularMatrixError
from outcore.linalg._factors.panel_servers import Parts
from outcore.linalg._factors.sweeps import Sweeps, Swept, cut_sweep, sweep_bytes_of, swept_by
from outcore.linalg._output.factor import Factor, LUFactor, refuse_others
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.agreement import agree_on_solving
from outcore.linalg._rhs.columns import ColumnRoom, fitted
from outcore.linalg._rhs.condition import Probes, probe_bytes, with_probes
from outcore.linalg._rhs.groups import Groups, report_on, solve_groups
from outcore.linalg._rhs.right_hand_side import RightHandSide, Which, opened, substituted_in
from outcore.linalg._rhs.solutions import shared_solution, system_of
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing, interrupted
from outcore.processes.team import Team, alone
from outcore.report.longcall import long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike


@opens_results(beside("b", ".x"))
def lu_solve(
    made: Made,
    lu: LUFactor,
    b: npt.ArrayLike | Array | PathLike,
    *,
    trans: Which = 0,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Any:
    """Solve A x = b, Aᵀ x = b or Aᴴ x = b with factors on disk.

    With `comm`, the processes of a parallel program divide the columns of each group. Each reads
    its part of the factors once for all of them, and broadcasts it.

    Parameters
    ----------
    lu
        Factors from `lu_factor` or `open_factor`.
    b
        (n,) or (n, k): a NumPy array, or an array on disk or its path. The call solves for a `b` on
        disk in groups of as many columns as fit in memory; each group is a pass over L and one over
        U.
    trans
        0 or ``"N"`` for A, 1 or ``"T"`` for Aᵀ, 2 or ``"C"`` for Aᴴ, as in SciPy.
    dtype
        Type of the arithmetic and of the solution; by default NumPy's promotion of the factors and
        `b`. The call converts factors of another type as it reads them. That adds no digits to the
        factors, but `b` is not rounded, and substitution adds no errors of their type.
    memory
        Budget of the pass in each process; by default half of the available memory, which the
        processes of a host share. It does not include a solution in memory, which belongs to the
        caller.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call for the same system, if the solution is on disk. The call records its
        progress by groups of columns.
    threads, progress, comm, timeout
        As for `lu_factor`.

    Returns
    -------
    numpy.ndarray or Array
        x, of the shape of `b`. Its type is the promotion of the factors and `b`, or `dtype`. It is
        on disk if `b` is or `out` is given, and its ``report`` then describes the call. All
        processes get all of it.
        `outcore.last_report` returns the report in either case.

    Raises
    ------
    SingularMatrixError
        If U has an exactly zero diagonal element.
    InvalidError
        If `lu` is not a factorization by LU, or `b` does not fit it.
    """
    refuse_others(lu, LUFactor)
    return solve_by_all(
        lu, b, trans, dtype, memory, out, if_exists, resume, threads, progress, comm, timeout, made
    )


def solve_by_all(
    factor: Swept,
    b: Any,
    trans: Which,
    dtype: npt.DTypeLike | None,
    memory: int | str | None,
    out: PathLike | None,
    if_exists: IfExists,
    resume: bool,
    threads: int | None,
    progress: ProgressLike,
    comm: Any,
    timeout: float,
    made: Made,
) -> Any:
    """Run `lu_solve` or `cho_solve` on all processes of a communicator; return the solution."""
    with Sharing(comm, timeout) as sharing:
        b = opened(b)
        rhs = RightHandSide.read(
            factor.n, substituted_in(factor.dtype, b, dtype), b, trans, out, if_exists=if_exists,
            reads=[factor.path], made=made,
        )  # fmt: skip
        agree_on_solving("a solve", {"factors": factor}, rhs, sharing, resume=resume)
        with Team(sharing) as team:
            x, report = solve_and_report(
                factor, rhs, sharing.budget(memory), sharing.threads(threads),
                sharing.progress(progress), resume=resume, team=team,
            )  # fmt: skip
    keep(report, x)
    return x


def solve_and_report(
    factor: Swept,
    rhs: RightHandSide,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    *,
    resume: bool = True,
    probes: int = 0,
    team: Team | None = None,
) -> tuple[Any, Report]:
    """Run `lu_solve` or `cho_solve`, and return the report too.

    With `probes`, also estimate A's condition.
    """
    team = team or alone()
    verb, growth = "cho_solve", None
    if isinstance(factor, LUFactor):
        refuse_singular(factor)
        verb, growth = "lu_solve", factor.growth
    probes, (room, (block_tiles, most)) = with_probes(
        probes if team.rank == 0 else 0,
        lambda probes: cut_group(factor, rhs, memory_bytes, probes, team.size),
    )
    # The columns of a group are divided evenly, so each process must have memory for its part.
    cuts = team.all_of((block_tiles, most))
    block_tiles, most = min(cut[0] for cut in cuts), min(cut[1] for cut in cuts) * team.size
    system = None if rhs.out is None else system_of(verb, factor, rhs)
    with (
        stopping_cleanly("solving with", factor),
        shared_solution(rhs, team, system=system, resume=resume) as into,
    ):
        groups = Groups.of(rhs, most, into.done)
        planned = work = len(groups) * sweep_bytes_of(factor)
        messages = remote = 0
        parts = Parts(factor, team)
        if team.size > 1:
            planned, messages, remote = (
                len(groups) * each for each in swept_by(factor, block_tiles, parts)
            )
        with long_call(
            f"solving with {factor.path.name}", memory_bytes=memory_bytes, work=work,
            threads=threads, progress=progress,
        ) as call:  # fmt: skip
            already = team.sent
            sweeps = Sweeps(factor, call, block_tiles, team, parts)
            probing = Probes(factor.n, probes, rhs.dtype, call)
            moved = solve_groups(
                rhs, into, groups, lambda X, _: sweeps.solve(X, rhs.trans, probing.take()), call,
                room, team,
            )  # fmt: skip
            own = report_on(
                verb, factor, rhs, groups, sweeps.counters()[:2], planned, moved, call,
                growth=growth, probed_condition=probing.condition(factor.norm1),
            )  # fmt: skip
            if team.size > 1:
                columns = [team.part_of(group) for group in groups.slices()]
                filled = [each.stop - each.start for each in columns if rhs.out is None]
                sent = [a + b - c for a, b, c in zip(sweeps.sent, team.sent, already, strict=True)]
                column_bytes = rhs.solution_shape[0] * rhs.solution_dtype.itemsize
                planned += sum(filled) * column_bytes
                messages += sum(1 for count in filled if count)
                read = sweeps.remote_read, remote
                figures = process_figures(own, (sent[0], sent[1]), (planned, messages), read)
                own.processes = [figures]
            report = whole_report(own, team)
    return into.x, report


def cut_group(
    factor: Factor, rhs: RightHandSide, memory_bytes: int, probes: int, processes: int = 1
) -> tuple[ColumnRoom, tuple[int, int]]:
    """Divide memory between right-hand sides, probes and factors, as `cut_sweep` does."""
    beside_bytes = probe_bytes(factor.n, rhs.dtype, probes)
    return fitted(
        rhs,
        memory_bytes,
        lambda r: cut_sweep(
            factor,
            memory_bytes,
            r.column_bytes,
            rhs.columns,
            r.beside_bytes + beside_bytes,
            rhs.dtype,
            processes,
        ),
    )


def refuse_singular(lu: LUFactor) -> None:
    """Raise for factors that cannot solve.

    Raises
    ------
    SingularMatrixError
        If U has an exactly zero diagonal element.
    InvalidError
        If U has an element that is not finite.
    """
    refuse_overflowed(lu)
    if lu.info:
        raise SingularMatrixError(
            f"A is singular: diagonal number {lu.info} of U is exactly zero, so there is no "
            "unique solution; use least squares, or correct the matrix",
            lu.info,
        )


def refuse_overflowed(lu: LUFactor) -> None:
    """Raise for factors with elements that are not finite.

    Raises
    ------
    InvalidError
        If U has such an element.
    """
    if not math.isfinite(lu.growth):
        raise InvalidError(f"numbers as large as those of A overflow {lu.dtype}; scale it")


@contextmanager
def stopping_cleanly(doing: str, factor: Factor) -> Iterator[None]:
    """Turn Ctrl-C in a call that only reads factors into an error that says how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        fix = "the factors are as they were, call again with the same arguments"
        raise interrupted(f"{doing} {factor.path.name} stopped", error, fix) from None
