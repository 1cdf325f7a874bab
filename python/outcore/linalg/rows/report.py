"""What a method whose rows go by reports of itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcore import blas_choice
from outcore.longcall import LongCall
from outcore.report import Report


def written_too(report: Report, nbytes: int, moved: tuple[int, int], call: LongCall) -> None:
    """Add to a report that a result of so many bytes was written in the end.

    Parameters
    ----------
    moved
        Bytes read and written for that.
    """
    report.planned_bytes_written = (report.planned_bytes_written or 0) + nbytes
    report.bytes_read += moved[0]
    report.bytes_written += moved[1]
    for name, figure in call.figures().items():
        setattr(report, name, figure)


def figures_of(
    call: LongCall,
    verb: str,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *,
    method: str,
    flops: float,
    moved: tuple[int, int],
    planned: tuple[int, int],
    is_stored: bool,
    words_written: float = 0.0,
    arrays: Sequence[str] = ("A",),
) -> dict[str, Any]:
    """Figures of a `Report` on a matrix of some shape.

    Parameters
    ----------
    call, verb, shape, dtype, method, flops
        What was done, how, on what.
    moved, planned
        Bytes read and written, as counted and as planned.
    is_stored
        Whether the matrix is on disk, so that each of its words must be read.
    words_written
        Those of results that any method must write.
    arrays
        Names of the arrays in the trace.
    """
    kernels, threads = blas_choice.in_use()
    return {
        "verb": verb,
        "m": shape[0],
        "n": shape[1],
        "dtype": dtype.name,
        "method": method,
        "flops": flops,
        "bytes_read": moved[0],
        "bytes_written": moved[1],
        "planned_bytes_read": planned[0],
        "planned_bytes_written": planned[1],
        "words_lower_bound": float(shape[0] * shape[1] * is_stored) + words_written or None,
        "kernels": kernels,
        "threads": threads,
        "arrays": list(arrays),
        **call.figures(),
    }
