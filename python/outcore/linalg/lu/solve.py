"""Solving with LU factors on disk: all right-hand sides in one pass over L and one over U."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from outcore import budget
from outcore.array import Array
from outcore.errors import Interrupted, SingularMatrixError
from outcore.linalg.factors.factor import Factor, LUFactor, refuse_others
from outcore.linalg.lu.plan import solve_bytes_read, solve_flops
from outcore.linalg.lu.sweeps import Sweeps, cut_sweep
from outcore.linalg.systems.right_hand_side import RightHandSide, Which, put, solution
from outcore.longcall import long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.volumes import PathLike


def lu_solve(
    lu: LUFactor,
    b: npt.ArrayLike | Array,
    *,
    trans: Which = 0,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Any:
    """Solve A x = b, Aᵀ x = b or Aᴴ x = b with factors on disk.

    Parameters
    ----------
    lu
        Factors from `lu_factor` or `open_factor`.
    b
        (n,) or (n, k): a NumPy array, or an `Array` on disk, which is worked on in groups of as
        many columns as fit in memory (each group is a pass over L and one over U).
    trans
        0 or ``"N"`` for A, 1 or ``"T"`` for Aᵀ, 2 or ``"C"`` for Aᴴ, as in SciPy.
    memory
        Budget of the pass; by default half of the available memory. A solution in memory is the
        caller's and not counted.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    overwrite
        Replace an array that is at `out`.
    threads, progress
        As for `lu_factor`.

    Returns
    -------
    numpy.ndarray or Array
        x, of the shape of `b`; on disk if `b` is or `out` is given. Of the factors' type; complex
        for a complex `b`.

    Raises
    ------
    SingularMatrixError
        If U has an exactly zero diagonal element.
    InvalidError
        If these are no LU factors, or `b` does not fit them.
    """
    refuse_others(lu, LUFactor)
    rhs = RightHandSide.read(lu.n, lu.dtype, b, trans, out, overwrite=overwrite, reads=[lu.path])
    return solve_and_report(lu, rhs, budget.resolve(memory), threads, progress)[0]


def solve_and_report(
    lu: LUFactor,
    rhs: RightHandSide,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
) -> tuple[Any, Report]:
    """Do what `lu_solve` does, and report on it."""
    refuse_singular(lu)
    # Columns in memory are the caller's.
    column_bytes = rhs.column_bytes if rhs.out else 0
    block_tiles, group = cut_sweep(lu, memory_bytes, column_bytes, rhs.columns)
    starts = range(0, rhs.columns, max(group, 1))
    passes = max(len(starts), 1)
    planned = passes * solve_bytes_read(lu.n, lu.dtype, lu.tile)
    with stopping_cleanly("solving with", lu), long_call(
        f"solving with {lu.path.name}", memory_bytes=memory_bytes, work=planned, threads=threads,
        progress=progress,
    ) as call:  # fmt: skip
        sweeps = Sweeps(lu, call, block_tiles)
        if rhs.out is None:
            X = rhs.in_memory()
            sweeps.solve(X, rhs.trans)
            x: Any = rhs.solution(X)
        else:
            with solution(rhs) as x:
                for first in starts:
                    columns = slice(first, min(first + group, rhs.columns))
                    X = rhs.in_memory(columns)
                    sweeps.solve(X, rhs.trans)
                    put(x, columns, rhs.solution(X))
        bytes_read, bytes_written, *_ = sweeps.counters()
        report = Report(
            verb="lu_solve",
            n=lu.n,
            dtype=lu.dtype.name,
            flops=solve_flops(lu.n, lu.dtype, rhs.columns * rhs.parts),
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            planned_bytes_read=planned,
            planned_bytes_written=0,
            growth=lu.growth,
            **call.figures(),
        )
        return x, report


def refuse_singular(lu: LUFactor) -> None:
    """Refuse factors that cannot solve.

    Raises
    ------
    SingularMatrixError
        If U has an exactly zero diagonal element.
    """
    if lu.info:
        raise SingularMatrixError(
            f"A is singular: diagonal number {lu.info} of U is exactly zero, so there is no "
            "unique solution; use least squares, or correct the matrix",
            lu.info,
        )


@contextmanager
def stopping_cleanly(doing: str, factor: Factor) -> Iterator[None]:
    """Say of a call that only reads factors what is to be done after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"{doing} {factor.path.name} stopped; the factors are as they were, call again"
        ) from None
