"""Reports of methods that stream rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcore.report.longcall import LongCall, R
from outcore.report.report import Report


def written_too(report: Report, nbytes: int, moved: tuple[int, int], call: LongCall) -> None:
    """Add the final write of a result to a report.

    Parameters
    ----------
    moved
        Bytes read and written by that write.
    """
    report.planned_bytes_written = (report.planned_bytes_written or 0) + nbytes
    report.bytes_read += moved[0]
    report.bytes_written += moved[1]
    for name, figure in call.figures().items():
        setattr(report, name, figure)


def row_report(
    kind: type[R],
    call: LongCall,
    verb: str,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *,
    is_stored: bool,
    words_written: float = 0.0,
    arrays: Sequence[str] = ("A",),
    **more: Any,
) -> R:
    """Return a report on a call for a matrix of the given shape.

    Parameters
    ----------
    kind, verb, dtype, more
        Arguments of `LongCall.report`.
    call
        The call.
    is_stored
        Whether the matrix is on disk, so that any method must read each of its words.
    words_written
        Words of results that any method must write.
    arrays
        Names of the arrays in the trace.
    """
    m, n = shape
    words = float(m * n * is_stored) + words_written or None
    return call.report(
        kind, verb, n, dtype, m=m, words_lower_bound=words, arrays=list(arrays), **more
    )
