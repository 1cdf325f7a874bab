"""Checks of every solve with right-hand sides and solutions on disk."""

import outcore as oc
from outcore.report.report import Report


def assert_in_groups(
    x: oc.Array, report: Report, b_bytes: int, pass_bytes: int, most_bytes: int
) -> None:
    """Check that the call made several passes over the factors, and moved the planned bytes."""
    assert report.planned_bytes_read is not None
    passes, rest = divmod(report.planned_bytes_read - b_bytes, pass_bytes)
    assert rest == 0
    assert 1 < passes < 60
    # If chunks of b do not begin on pages, the call also reads the rest of those pages.
    assert 0 <= report.bytes_read - report.planned_bytes_read < 2 * b_bytes
    assert report.bytes_written == report.planned_bytes_written == x.nbytes
    # The budget held at least a column, and the trace names the arrays.
    assert x.shape[0] * x.dtype.itemsize < report.peak_memory_bytes <= most_bytes
    assert report.spans is not None
    assert {8, 9} <= set(report.spans[:, 1].tolist())
