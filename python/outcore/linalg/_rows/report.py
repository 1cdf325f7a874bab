"""Figures in the reports of methods that stream rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from outcore.blas import blas_choice
from outcore.report.longcall import LongCall
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
    """Return the figures of a `Report` for a matrix of the given shape.

    Parameters
    ----------
    call, verb, shape, dtype, method, flops
        Operation, method and matrix of the call.
    moved, planned
        Bytes read and written, as counted and as planned.
    is_stored
        Whether the matrix is on disk, so that any method must read each of its words.
    words_written
        Words of results that any method must write.
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
