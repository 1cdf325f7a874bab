"""Solves of A x = b in one call, with the backward error of the solution."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import Meter, ProgressLike
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata
from outcore.errors import InvalidError, NonFiniteError, NotPositiveDefiniteError
from outcore.linalg._cholesky.plan import cholesky_geometry
from outcore.linalg._factors.begin import tile_to_reuse
from outcore.linalg._output.factor import CHOLESKY, KINDS, LU
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.own import are_begun
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.agreement import agree_on_solving
from outcore.linalg._rhs.condition import warn_if_singular
from outcore.linalg._rhs.right_hand_side import RightHandSide, opened
from outcore.linalg._rhs.solving import Solving
from outcore.linalg._rows.right_hand_look import look_at
from outcore.linalg._systems.direct import solve_directly
from outcore.linalg._systems.hermitian import find_asymmetry
from outcore.linalg._systems.plan import ASSUMPTIONS, looking_phase, lower
from outcore.linalg._systems.refined import solve_refined
from outcore.linalg._tiles.assumptions import AssumeA as StatedA
from outcore.linalg._tiles.assumptions import assumption, largest_backward_error, warn_not_hermitian
from outcore.linalg._tiles.cost import Phase
from outcore.linalg._tiles.matrix import place_of
from outcore.linalg._tiles.result_dtype import factor_dtype as factor_dtype_of
from outcore.linalg._tiles.result_dtype import matrix_dtype, result_dtype
from outcore.processes.sharing import Sharing, interrupted, seconds_for
from outcore.report.report import Report
from outcore.storage.volumes import SAME, PathLike, Place, how_they_meet, place

AssumeA: TypeAlias = StatedA | Literal["auto"]


@opens_results(beside("b", ".x"))
def solve(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array,
    *,
    assume_a: AssumeA = "gen",
    dtype: npt.DTypeLike | None = None,
    factor_dtype: npt.DTypeLike | None = None,
    condition: bool = False,
    memory: int | str | None = None,
    out: PathLike | None = None,
    factors: PathLike | None = None,
    keep_factors: bool = False,
    overwrite_a: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, Report]:
    """Solve A x = b with A on disk, by LU with partial pivoting.

    With `comm`, the processes of a parallel program factor, substitute and check the solution
    together, in the type of the system; see `lu_factor`, `cho_factor` and `lu_solve`. All of them
    get the solution and the same report.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path.
    b
        (n,) or (n, k) right-hand sides, in memory or on disk.
    assume_a
        As in SciPy, also by its long names. ``"gen"`` (``"general"``), ``"sym"`` (``"symmetric"``)
        and ``"her"`` (``"hermitian"``) use LU, which reads all of `A`. ``"pos"``
        (``"positive definite"``), for Hermitian positive definite matrices, uses Cholesky, which is
        half the work. If a pivot is not positive, LU follows. Cholesky reads one triangle. The
        call warns if the other triangle differs: the residual shows it, or with `overwrite_a` a
        pass over `A` that comes first.
        ``"auto"`` tests the matrix: if A = Aᴴ to the last bit and its diagonal is positive, the
        method is that of ``"pos"``, otherwise that of ``"gen"``. The test is one pass over A; it
        stops early for most other matrices. The report contains the result of the test. A must be
        whole in any case.
    dtype
        Type of the arithmetic and of the solution; by default NumPy's promotion of `A` and `b`. The
        call converts an `A` of lower precision as it reads it. A real `A` stays real with a complex
        `b`. ``"f4"`` with a float32 `A` solves in single precision whatever `b` is.
    factor_dtype
        ``"f4"`` for a system in float64, ``"c8"`` for complex128: factor in single precision, which
        takes half of the time and space, and refine the solution in double. Each step of refinement
        is a pass over A and the factors. If refinement stalls, GMRES follows, with the factors as a
        preconditioner. If that stalls too, LU in double follows. The report says which was needed;
        its ``history`` contains the backward errors. The method needs disk space for a copy of A in
        single precision.
    condition
        Estimate the condition number of A in the 1-norm from the factors, like `cond_est`, and
        report it as ``report.condition``. This takes about five more passes over the factors.
    memory
        Budget of each process; by default half of the available memory, which the processes of a
        host share.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    factors
        Directory of the factors during the call; by default that of `A` with ``.lu`` appended,
        ``.cho`` for Cholesky, ``.f4.lu`` or ``.c8.lu`` for factors in single precision. The call
        uses complete factors of the same `A` that exist there.
    keep_factors
        Leave the factors on disk for `open_factor`.
    if_exists
        ``"open"`` opens a whole solution at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces other factors at `factors`, and a solution at `out`.
    overwrite_a, resume, threads, progress, comm, timeout
        As for `lu_factor`.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`.
    report : Report
        Report of the whole call. ``report.backward_error`` is ‖b - Ax‖₁ / (‖A‖₁‖x‖₁ + ‖b‖₁), the
        largest of the checked columns. It is `None` after ``overwrite_a``, because A is lost.

    Warns
    -----
    scipy.linalg.LinAlgWarning
        If A is singular to working precision. The call solves for random vectors beside `b`, and
        estimates a condition number above 1/ε from them.

    SymmetryWarning
        If A is not Hermitian to the rounding errors of its own type and that of the arithmetic,
        with ``assume_a="pos"``. Then `x` solves another system.

    Raises
    ------
    SingularMatrixError
        If A is exactly singular.
    OutcoreError
        Also any error of `lu_factor` and `lu_solve`.
    """
    return solve_system(
        A, b, assume_a=assume_a, dtype=dtype, factor_dtype=factor_dtype, condition=condition,
        memory=memory, out=out, factors=factors, keep_factors=keep_factors, overwrite_a=overwrite_a,
        if_exists=if_exists, resume=resume, threads=threads, progress=progress, made=made,
        comm=comm, timeout=timeout,
    )  # fmt: skip


def solve_system(
    A: Array | PathLike,
    b: npt.ArrayLike | Array,
    *,
    assume_a: AssumeA = "gen",
    dtype: npt.DTypeLike | None = None,
    factor_dtype: npt.DTypeLike | None = None,
    condition: bool = False,
    memory: int | str | None = None,
    out: PathLike | None = None,
    factors: PathLike | None = None,
    keep_factors: bool = False,
    overwrite_a: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    made: Made = None,
    later: list[Place] | None = None,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, Report]:
    """Run `solve`; with `later`, leave temporary factors, which the caller removes.

    After an error they stay, with their mark. The same call then finds them complete.
    """
    with Sharing(comm, timeout) as sharing:
        assume_a = assumption(assume_a)
        if assume_a not in ASSUMPTIONS:
            raise InvalidError(
                f"assume_a must be one of {', '.join(map(repr, ASSUMPTIONS))}, have {assume_a!r}"
            )
        source = place_of(A)
        metadata = read_metadata(source)
        if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
            raise InvalidError(
                f"need a square matrix, have shape {metadata.shape} in {source.path}; for others "
                "there is least squares"
            )
        n, right = metadata.shape[0], opened(b)
        found = result_dtype({"A": metadata.dtype, "b": right.dtype}, dtype)
        job_dtype = factor_dtype_of(metadata.dtype, matrix_dtype(found, metadata.dtype))
        low = lower(job_dtype, factor_dtype)
        meet = None if factors is None else how_they_meet(place(factors).path, source.path)
        if meet is not None:
            what = "is the matrix itself" if meet == SAME else f"{meet} the matrix"
            raise InvalidError(f"factors= {what}, {source.path}; name another directory")
        if low is not None and overwrite_a:
            raise InvalidError(
                "overwrite_a=True consumes A, which refinement needs; leave out one of overwrite_a "
                "and factor_dtype"
            )
        names = [f"{source.stem}{kind.suffix}" for kind in KINDS.values()]
        own = names if factors is None else [factors]
        reads = [source.path, *(place(name).path for name in own)]
        with Meter(f"solving with {source.title}", 0.0, sharing.progress(progress)) as bar:
            job = Solving(
                A=A,
                source=source,
                n=n,
                dtype=job_dtype,
                # Errors in the right-hand side are found before the hours of factoring, not after.
                rhs=RightHandSide.read(
                    n, job_dtype, right, "N", out, if_exists=if_exists, reads=reads, made=made
                ),
                factors=factors,
                condition=condition,
                keep=keep_factors,
                memory_bytes=sharing.budget(memory),
                if_exists=if_exists,
                resume=resume,
                threads=sharing.threads(threads),
                bar=bar,
                sharing=sharing,
                later=later,
            )
            if sharing.size > 1:
                refuse_for_several(low is not None, overwrite_a=overwrite_a)
                agree_on_solving("solve", {"A": source}, job.rhs, sharing, resume=resume)
                sharing.agree(
                    {
                        "assume_a=": assume_a, "condition=": condition,
                        "keep_factors=": keep_factors,
                        "factors=": None if factors is None else str(place(factors).path),
                    }
                )  # fmt: skip
            try:
                look = _look_at_right_hand_side(job)
                if low is not None:
                    x, report = solve_refined(job, low)
                    if assume_a != "gen":
                        report.notes.append(
                            f"assume_a={assume_a!r} makes no difference to refinement"
                        )
                elif assume_a == "auto":
                    x, report = _solve_as_it_looks(job, overwrite_a=overwrite_a)
                elif assume_a == "pos":
                    x, report = _solve_positive(job, overwrite_a=overwrite_a)
                else:
                    x, report = solve_directly(job, overwrite_a=overwrite_a)
                    if assume_a != "gen":
                        report.notes.append(f"assume_a={assume_a!r}: solved by LU")
            except KeyboardInterrupt as error:
                fix = "call solve again with the same arguments to resume"
                raise interrupted(f"solving with {source.title} stopped", error, fix) from None
        if look is not None:
            report = _after_looking(look, report)
        if factor_dtype is not None and low is None:
            report.notes.append(
                f"factor_dtype is {job_dtype}, as the system: there is nothing to refine"
            )
        report.job = f"solving with {source.title}"
        if isinstance(x, Array):
            x.report = report
        if assume_a == "pos" and report.method.startswith(CHOLESKY.title):
            _warn_if_not_hermitian(report, n, metadata.dtype, job_dtype)
        warn_if_singular(report.probed_condition, job_dtype, stacklevel=5)
        return x, report


def _warn_if_not_hermitian(report: Report, n: int, *dtypes: np.dtype[Any]) -> None:
    """Warn, and add a note, if a solution by Cholesky does not solve the system with all of A."""
    error = report.backward_error
    if error is None or error <= largest_backward_error(n, *dtypes):
        return
    how = f"x leaves a backward error of {error:.1e} with all of it"
    report.notes.append(f"A is not Hermitian: {how}")
    warn_not_hermitian(how, "solve with assume_a='gen'", stacklevel=6)


def refuse_for_several(is_low: bool, *, overwrite_a: bool) -> None:
    """Raise for options of a solve that need one process."""
    for name, is_given in (("factor_dtype=", is_low), ("overwrite_a=", overwrite_a)):
        if is_given:
            raise InvalidError(
                f"several processes do not solve with {name}; leave it out, or start one process"
            )


def _look_at_right_hand_side(job: Solving) -> Report | None:
    """Raise for a right-hand side that is not finite. Only the first process looks."""
    if not isinstance(job.rhs.b, Array):
        job.rhs.refuse_non_finite_given()
        return None
    look = _looked_at(job) if job.sharing.rank == 0 else None
    found: Report | None = job.sharing.exchange(look, seconds_for(job.rhs.b.nbytes))[0]
    return found


def _looked_at(job: Solving) -> Report | None:
    """Read all of a right-hand side on disk."""
    (looking,) = job.parts([Phase(dtype=job.rhs.solution_dtype, bytes_read=job.rhs.b.nbytes)])
    try:
        return look_at(job.rhs, job.memory_bytes, looking)
    except NonFiniteError as error:
        job.rhs.refuse_row(error.index[0])
        raise


def _after_looking(look: Report, report: Report) -> Report:
    """Return one report on the check and the solve."""
    whole = look.followed_by(report)
    return dataclasses.replace(
        whole, verb="solve", method=report.method, growth=report.growth, history=report.history
    )


def _solve_positive(job: Solving, *, overwrite_a: bool) -> tuple[Any, Report]:
    """Solve by Cholesky, or by LU if that fails and has not overwritten the matrix."""
    if overwrite_a and read_metadata(job.source).state != "consumed":
        why, look = _look_before(job)
        x, report = solve_directly(job, CHOLESKY, overwrite_a=True)
        report = _after_looking(look, report)
        report.notes += [why] if why else []
        return x, report
    try:
        x, report = solve_directly(job, CHOLESKY, overwrite_a=overwrite_a)
        return x, report
    except NotPositiveDefiniteError as error:
        if overwrite_a:
            raise
        why = job.sharing.same(str(error).partition(";")[0])
    x, report = solve_directly(job)
    report.notes.append(f"Cholesky failed: {why}; solved by LU")
    return x, report


def _look_before(job: Solving) -> tuple[str, Report]:
    """Compare the triangles of A before Cholesky overwrites it, and warn if they differ."""
    # Cholesky would raise these errors too, but only after the pass over A.
    tile = tile_to_reuse(job.source, read_metadata(job.source), job.dtype)
    cholesky_geometry(job.n, job.dtype, job.memory_bytes, tile)
    (looking,) = job.parts([looking_phase(job.problem())])
    least = largest_backward_error(job.n, job.stored, job.dtype)
    why, look = find_asymmetry(job.source, job.memory_bytes, job.threads, looking, least)
    if why:
        how = why.removeprefix("A is not Hermitian: ")
        warn_not_hermitian(how, "solve with assume_a='gen'", stacklevel=7)
    return why, look


def _solve_as_it_looks(job: Solving, *, overwrite_a: bool) -> tuple[Any, Report]:
    """Solve by Cholesky if the matrix passes the test and is positive definite; else by LU."""
    if overwrite_a:
        x, report = solve_directly(job, overwrite_a=True)
        report.notes.append("overwrite_a=True: solved by LU, since Cholesky may fail halfway")
        return x, report
    begun = are_begun(job.factors_at(LU.suffix), job.source, job.dtype, resume=job.resume)
    if job.sharing.same(begun):
        x, report = solve_directly(job)
        report.notes.append("LU factors existed, or were begun: A was not examined")
        return x, report
    A_bytes = job.n**2 * job.stored.itemsize
    (looking,) = job.parts([Phase(dtype=job.dtype, bytes_read=A_bytes)])
    found = None
    if job.sharing.rank == 0:
        found = find_asymmetry(job.source, job.memory_bytes, job.threads, looking)
    told = job.sharing.exchange(found, seconds_for(A_bytes))[0]
    assert told is not None
    why, look = found or told
    if why:
        x, report = solve_directly(job)
        note = f"{why}: solved by LU"
    else:
        x, report = _solve_positive(job, overwrite_a=False)
        note = "A is Hermitian and its diagonal positive"
    whole = _after_looking(look, report)
    whole.notes.insert(0, note)
    return x, whole
