"""Solving A x = b in one call, with the backward error of the solution."""

from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from outcore import budget
from outcore.array import Array, read_metadata
from outcore.errors import Interrupted, InvalidError
from outcore.linalg.refined_solve import solve_refined
from outcore.linalg.right_hand_side import RightHandSide
from outcore.linalg.solve_lu import solve_by_lu
from outcore.linalg.solve_plan import lower
from outcore.linalg.solving import Solving
from outcore.progress import Meter, ProgressLike
from outcore.report import Report
from outcore.volumes import PathLike, place

AssumeA: TypeAlias = Literal["gen", "sym", "her", "pos", "auto"]


def solve(
    A: Array | PathLike,
    b: npt.ArrayLike | Array,
    *,
    assume_a: AssumeA = "gen",
    factor_dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    factors: PathLike | None = None,
    keep_factors: bool = False,
    overwrite_a: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Any, Report]:
    """Solve A x = b with A on disk, by LU with partial pivoting.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path.
    b
        (n,) or (n, k) right-hand sides, in memory or on disk.
    assume_a
        As in SciPy. Every kind is solved by LU for now, so this changes nothing but a note.
    memory
        Budget; by default half of the available memory.
    out
        Directory of the solution, to have it on disk.
    factors
        Directory of the factors while the call runs; by default that of `A` with ``.lu`` appended.
        Complete factors of the same `A` that are there already are used.
    keep_factors
        Leave the factors on disk for `open_factor`.
    overwrite
        Replace factors of something else at `factors`, and a solution at `out`.
    overwrite_a, resume, threads, progress
        As for `lu_factor`.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`.
    report : Report
        Of the whole call; ``report.backward_error`` is ‖b - Ax‖₁ / (‖A‖₁‖x‖₁ + ‖b‖₁), the largest
        of the columns looked at. It is `None` after ``overwrite_a``, when A is gone.

    Raises
    ------
    SingularMatrixError
        If A is exactly singular.
    OutcoreError
        And what `lu_factor` and `lu_solve` raise.
    """
    if assume_a not in ("gen", "sym", "her", "pos", "auto"):
        raise InvalidError(
            f"assume_a must be 'gen', 'sym', 'her', 'pos' or 'auto', have {assume_a!r}"
        )
    source = A.place if isinstance(A, Array) else place(A)
    metadata = read_metadata(source)
    if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
        raise InvalidError(
            f"need a square matrix, have shape {metadata.shape} in {source.path}; for others there "
            "is least squares"
        )
    n, dtype = metadata.shape[0], metadata.dtype
    low = lower(dtype, factor_dtype)
    if low is not None and overwrite_a:
        raise InvalidError(
            "overwrite_a=True gives up A, which refinement needs: leave out that or factor_dtype"
        )
    with Meter(f"solving with {source.path.name}", 0.0, progress) as bar:
        job = Solving(
            A=A,
            source=source,
            n=n,
            dtype=dtype,
            # A wrong right-hand side is found before the hours of factoring, not after.
            rhs=RightHandSide.read(n, dtype, b, "N", out, overwrite=overwrite),
            factors=factors,
            keep=keep_factors,
            memory_bytes=budget.resolve(memory),
            overwrite=overwrite,
            resume=resume,
            threads=threads,
            bar=bar,
        )
        if not isinstance(b, Array):
            job.rhs.in_memory()  # a NaN in it is refused now too
        try:
            if low is not None:
                x, report = solve_refined(job, low)
            else:
                x, report = solve_by_lu(job, overwrite_a=overwrite_a)
        except KeyboardInterrupt:
            raise Interrupted(
                f"solving with {source.path.name} stopped; call solve again with the same "
                "arguments to go on from what is done"
            ) from None
    if assume_a in ("sym", "her", "pos"):
        report.notes.append(f"assume_a={assume_a!r}: solved by LU")
    if factor_dtype is not None and low is None:
        report.notes.append(f"factor_dtype is {dtype}, as the matrix: there is nothing to refine")
    return x, report
