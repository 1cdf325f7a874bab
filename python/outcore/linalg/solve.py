"""Solving A x = b in one call, with the backward error of the solution."""

import dataclasses
import warnings
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgWarning

from outcore import budget
from outcore.array import Array, open_array, read_metadata
from outcore.errors import ExistsError, InvalidError, SingularMatrixError
from outcore.lapack import kernels
from outcore.linalg.changes import version_of
from outcore.linalg.factor import TEMPORARY, LUFactor, open_factor, read_group
from outcore.linalg.lu import lu_factor
from outcore.linalg.lu_solve import Counters, RightHandSide, solve_and_report
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.streams import BlockStream
from outcore.volumes import PathLike, Place, place

AssumeA: TypeAlias = Literal["gen", "sym", "her", "pos", "auto"]

_CHECK_BYTES = 64 << 20
"""Tiles of A read ahead while the residual is formed."""


def solve(
    A: Array | PathLike,
    b: npt.ArrayLike | Array,
    *,
    assume_a: AssumeA = "gen",
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
    # A wrong right-hand side is found before the hours of factoring, not after.
    if len(metadata.shape) == 2:
        RightHandSide.read(metadata.shape[0], metadata.dtype, b, "N", out, overwrite=overwrite)
    target = place(factors if factors is not None else f"{source.path}.lu")
    lu = _ready_factors(target, source, overwrite=overwrite)
    # Factors that a stopped call of this function made for itself are its own to remove.
    keep = keep_factors or (lu is not None and not target.exists(TEMPORARY))
    if lu is None:
        with warnings.catch_warnings():
            # A singular matrix is an error here, as in scipy.linalg.solve.
            warnings.simplefilter("ignore", LinAlgWarning)
            lu = lu_factor(
                A, memory=memory, out=target.path, overwrite_a=overwrite_a, overwrite=overwrite,
                resume=resume, threads=threads, progress=progress,
            )  # fmt: skip
    if keep and target.exists(TEMPORARY):
        target.volume.remove(target.inside(TEMPORARY))
    elif not keep:
        target.volume.replace_small(target.inside(TEMPORARY), b"made by solve\n")
    try:
        x, report = solve_and_report(
            lu, b, memory=memory, out=out, overwrite=overwrite, threads=threads, progress=progress
        )
    except SingularMatrixError:
        if not keep:
            target.volume.remove(target.name)
        raise
    if lu.report:
        report = lu.report.followed_by(report)
    else:
        report.notes.append(f"used the factors in {target.path}")
    if assume_a in ("sym", "her", "pos"):
        report.notes.append(f"assume_a={assume_a!r}: solved by LU")
    if read_metadata(source).state == "consumed":
        report.notes.append("A gave its space to the factors: the backward error is not known")
    else:
        report = report.followed_by(_check(lu, x, b, budget.resolve(memory), progress))
    report = dataclasses.replace(report, verb="solve")
    if not keep:
        target.volume.remove(target.name)
    return x, report


def _ready_factors(where: Place, source: Place, *, overwrite: bool) -> LUFactor | None:
    """Open factors that a call which was stopped later, or an earlier one, left complete."""
    if not where.exists():
        return None
    group = read_group(where)
    if group["state"] != "complete":
        return None
    now = version_of(source)
    same = group["source"] == str(source.path) and group["generation"] == now.generation
    # A matrix that was given up to its factors has no files left to be modified.
    if same and now.modified_ns in (group["modified_ns"], 0):
        return open_factor(where.path)
    if overwrite:
        return None
    raise ExistsError(
        f"{where.path} holds factors of {group['source']} as it was before, not of "
        f"{source.path} as it is; pass overwrite=True, or another factors="
    )


def _check(lu: LUFactor, x: Any, b: Any, memory_bytes: int, progress: ProgressLike) -> Report:
    """Form the residual in one pass over A, and report the backward error."""
    columns = x.shape[1] if x.ndim == 2 else 1
    A = open_array(lu.source)
    dtype = np.result_type(lu.dtype, x.dtype)
    # R, X and the copies that slicing makes, for as many columns as fit.
    fit = max((memory_bytes - _ring_bytes(A, memory_bytes)) // (4 * lu.n * dtype.itemsize), 1)
    looked_at = slice(0, min(columns, fit))
    notes = []
    if looked_at.stop < columns:
        notes.append(f"the backward error is of the first {looked_at.stop} of {columns} columns")
    X, R = _columns(x, looked_at, dtype), _columns(b, looked_at, dtype)
    norm_b = np.abs(R).sum(axis=0)
    work = 2.0 * lu.n**2 * X.shape[1] * (4 if dtype.kind == "c" else 1)
    with long_call(
        f"residual of {A.path.name}", memory_bytes=memory_bytes, work=work, progress=progress
    ) as call:
        counters = _subtract_product(A, X, R, call, memory_bytes)
        scale = lu.norm1 * np.abs(X).sum(axis=0) + norm_b
        errors = np.abs(R).sum(axis=0) / np.where(scale > 0, scale, 1)
        return Report(
            verb="residual",
            n=lu.n,
            dtype=lu.dtype.name,
            flops=work,
            bytes_read=counters[0],
            bytes_written=0,
            planned_bytes_read=A.nbytes,
            planned_bytes_written=0,
            backward_error=float(errors.max(initial=0)),
            notes=notes,
            **call.figures(),
        )


def _columns(array: Any, columns: slice, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    part = array[:, columns] if array.ndim == 2 else array[:]
    return np.array(np.asarray(part).reshape(len(part), -1), dtype, order="F")


def _ring_bytes(A: Array, memory_bytes: int) -> int:
    return min(_CHECK_BYTES, memory_bytes // 2, 8 * A.metadata.grid().slot_bytes)


def _subtract_product(
    A: Array, X: npt.NDArray[Any], R: npt.NDArray[Any], call: LongCall, memory_bytes: int
) -> Counters:
    """R <- R - A X, with A streamed chunk by chunk; return the counters of its file."""
    ring = _ring_bytes(A, memory_bytes)
    file = A.open_file(call.arena, ring // 4, trace=call.trace)
    stream = BlockStream(file, A.dtype, call.arena, ring - ring // 4, call.trace)
    stream.extend(A.small_boxes(ring // 4))
    product = kernels(A.dtype) if A.dtype == R.dtype else None
    for (rows, columns), tile in stream:
        start_ns = call.trace.now_ns()
        if product is None:
            R[rows] -= tile @ X[columns]
        elif A.order == "F":
            product.gemm(tile, X[columns], R[rows], alpha=-1, beta=1)
        else:
            product.gemm(tile.T, X[columns], R[rows], alpha=-1, beta=1, trans_a="T")
        call.trace.record("compute", start_ns)
        call.meter.advance(2.0 * tile.size * X.shape[1] * (4 if R.dtype.kind == "c" else 1))
    return file.counters()
