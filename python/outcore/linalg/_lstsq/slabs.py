"""Least squares with a matrix on disk that is too wide to stream its rows: factor, then solve.

If a matrix has more columns than rows, its transpose is factored, and the solution has least norm.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import Meter, ProgressLike
from outcore._util.sizes import format_bytes
from outcore.array.array import Array
from outcore.errors import InvalidError, SingularMatrixError
from outcore.linalg._lstsq.plan import Operands, least_streaming_bytes
from outcore.linalg._output.factor import QR, QRFactor, TransposedQRFactor
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.own import own_factors, ready_factors
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._rows.right_hand_look import look_at
from outcore.linalg._rows.source import row_source
from outcore.linalg._rows.stream import check_finite
from outcore.linalg._slab_qr.factorization import factor_qr, factor_transpose
from outcore.linalg._slab_qr.plan import PROBES, SlabQrGeometry, Tiles, by_slabs, flops
from outcore.linalg._slab_qr.solve import Solved, room_for, solve_and_report
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, place

_FLOPS_OF_A_READ = 100.0
"""Operations in the time that the disk needs to read a number, for progress."""


def solve_by_slabs(
    A: Array,
    b: Any,
    g: SlabQrGeometry,
    cond: float,
    *,
    out: PathLike | None,
    factors: PathLike | None,
    keep_factors: bool,
    if_exists: IfExists,
    resume: bool,
    threads: int | None,
    progress: ProgressLike,
    made: Made,
) -> tuple[Solved, Report]:
    """Minimize ‖b - A x‖₂ with QR factors on disk, which are removed at the end unless kept.

    Parameters
    ----------
    A
        (m, n).
    b
        (m,) or (m, k): a NumPy array, or one on disk.
    g
        Cuts of A, or of its transpose for m < n.
    cond
        Singular values below `cond` times the largest count as zero.
    out, factors, keep_factors, if_exists, resume, threads, progress
        As for `lstsq`.
    made
        The identity of the call, for its solution.

    Returns
    -------
    Solved
        The solution. Its ``report`` describes only the last part.
    Report
        Report of the whole call.

    Raises
    ------
    SingularMatrixError
        If singular values count as zero.
    """
    (m, n), is_wide = A.shape, A.shape[0] < A.shape[1]
    kind, make = (TransposedQRFactor, factor_transpose) if is_wide else (QRFactor, factor_qr)
    where = place(factors if factors is not None else f"{A.place.stem}{QR.suffix}")
    if where.path == A.path:
        raise InvalidError(f"factors= is the matrix itself, {A.path}; name another directory")
    ready = ready_factors(where, A.place, g.dtype, kind, if_exists=if_exists)
    # Errors in b are found before the hours of factoring, not after.
    rhs = RightHandSide.read(
        m, g.dtype, b, "N", out, if_exists=if_exists, unknowns=n,
        reads=[A.path, where.path], stays=True, made=made,
    )  # fmt: skip
    if not isinstance(b, Array):
        _check_columns(b, rhs.solution_dtype)
    tiles = Tiles(g.m, g.n, g.dtype, *((g.rows, g.columns) if ready is None else ready.tile))
    room_for(tiles, rhs, g.budget_bytes, PROBES)
    solving = tiles.pass_bytes() / g.dtype.itemsize * _FLOPS_OF_A_READ
    factoring = 0.0 if ready is not None else flops(g.m, g.n, g.dtype)
    looking = rhs.b.size * _FLOPS_OF_A_READ if isinstance(b, Array) else 0.0
    work = looking + factoring + solving
    with Meter(f"least squares with {A.place.title}", work, progress) as bar:
        look = look_at(rhs, g.budget_bytes, bar.part(looking))
        job = Factoring(
            A, g.budget_bytes, where.path, g.dtype, False, if_exists, resume, threads,
            bar.part(factoring), argument="factors=", is_temporary=not keep_factors,
        )  # fmt: skip
        with own_factors(where, job, ready, make) as qr:
            found = solve_and_report(
                qr, rhs, g.budget_bytes, threads, bar.part(solving), PROBES,
                accept=lambda condition: _refuse_deficient(condition, g, cond, A, rhs),
            )  # fmt: skip
            _note_ill_conditioned(found.report, cond, is_wide=is_wide)
    report = found.report if qr.report is None else qr.report.followed_by(found.report)
    if look is not None:
        report = look.followed_by(report)
    # The least that any method must move is A, once. Factors belong to this method only.
    report.words_lower_bound = float(m * n)
    report.m, report.n = m, n
    report.method = "existing QR factors"
    if qr.report is not None:
        report.method = by_slabs(qr.report.method or "", transposed=is_wide)
    return found, report


def _check_columns(b: npt.NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise for a right-hand side that is not finite, of any type and strides, by columns."""
    for j, column in enumerate(b.T if b.ndim == 2 else [b]):
        # Elements that are too large for the type become infinite.
        with np.errstate(over="ignore"):
            check_finite("b", 0, column.astype(dtype)[:, None], j)


def _refuse_deficient(
    condition: float | None, g: SlabQrGeometry, cond: float, A: Array, rhs: RightHandSide
) -> None:
    """Raise for a matrix that is certainly not of full rank."""
    # The condition in the Frobenius norm is at most n times that in the 2-norm.
    if condition is not None and cond * condition / g.n >= 1:
        lines = "rows" if A.shape[0] < A.shape[1] else "columns"
        left, right = row_source("A", A), row_source("b", rhs.b, is_column=True)
        dtype = rhs.solution_dtype
        for source in (left, right):
            source.deliver(dtype)
        operands = Operands(left.layout, right.layout, None, dtype, rhs.out is not None)
        need = least_streaming_bytes(operands)
        raise SingularMatrixError(
            f"the {lines} of A depend on each other: its condition number is about {condition:.1e} "
            f"in the Frobenius norm, so its rank is below {g.n} at cond={cond:.1e}, and slabs of "
            f"{lines} give no solution of least norm then; leave out {lines}, or raise memory= to "
            f"{need} bytes ({format_bytes(need)}), with which there are no slabs"
        )


def _note_ill_conditioned(report: Report, cond: float, *, is_wide: bool) -> None:
    """Add a note if a matrix may not be of full rank, at `cond` or to working precision."""
    condition, eps = report.probed_condition or 0.0, float(np.finfo(report.dtype).eps)
    if max(cond, eps) * condition >= 1:
        rest = ", nor is ‖b - A x‖ zero, as it is without rounding" if is_wide else ""
        report.notes.append(
            f"A is ill-conditioned, about {condition:.1e} in the Frobenius norm: its rank at "
            f"cond={cond:.1e} is not certain, and x may have few correct digits{rest}"
        )
