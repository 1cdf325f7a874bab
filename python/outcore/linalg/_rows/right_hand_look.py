"""The check of a right-hand side on disk, which finds a NaN before the hours of factoring."""

import numpy as np

from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._rows.plan import fit_rows
from outcore.linalg._rows.source import row_source
from outcore.linalg._rows.stream import check_finite, streams
from outcore.report.longcall import long_call
from outcore.report.report import RIGHT_HAND_SIDES, Report


def look_at(rhs: RightHandSide, memory_bytes: int, progress: ProgressLike) -> Report | None:
    """Read a right-hand side on disk, and raise if it is not finite in the solution's type.

    Returns
    -------
    Report or None
        Report of the check; `None` if `rhs` is in memory, or a few of its rows do not fit in
        memory.

    Raises
    ------
    NonFiniteError
        With the index of a NaN, an infinity or a number too large for that type.
    """
    if not isinstance(rhs.b, Array):
        return None
    by_column = rhs.b.ndim == 2 and rhs.b.order == "F"
    source = row_source("b", rhs.b, transposed=by_column)
    plans, _ = fit_rows(
        [source.layout], dtype=rhs.solution_dtype, order=None,
        budget_bytes=memory_bytes, memory=lambda plans: plans[0].memory_bytes,
    )  # fmt: skip
    if plans is None:
        return None
    with (
        long_call(
            f"looking at {rhs.b.path.name}", memory_bytes=memory_bytes, work=rhs.b.nbytes,
            progress=progress,
        ) as call,
        streams([source], plans, call, number=RIGHT_HAND_SIDES) as (stream,),
        np.errstate(over="ignore"),
    ):  # fmt: skip
        for first, rows, _ in stream:
            start_ns = call.trace.now_ns()
            check_finite("b", first, rows, transposed=by_column)
            call.trace.record("compute", start_ns)
            call.meter.advance(rows.size * rhs.b.dtype.itemsize)
    return call.report(
        Report, "look", rhs.n, rhs.dtype, computes=False, moved=(source.bytes_read(), 0),
        planned=(plans[0].layout.bytes_read(), 0),
    )  # fmt: skip
