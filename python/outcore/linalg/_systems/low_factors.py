"""Factors in lower precision: A is copied, and the factors take the disk space of the copy.

The next call recognizes each state that a killed call leaves:

- An incomplete copy: the call restarts the copy.
- A copy: the call starts its factorization.
- A consumed copy and a journal: the call resumes the factorization.
- Complete factors of the copy: they become factors of A, and the call removes the rest of the copy.
- Complete factors of A: the call uses them.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from outcore._util.progress import ProgressLike
from outcore.array_files.metadata import read_metadata, version_of
from outcore.errors import ExistsError, JournalError, OutcoreError
from outcore.linalg._geometry.factor_plan import lu_geometry
from outcore.linalg._lu.factorization import factor_lu
from outcore.linalg._output.factor import (
    LU,
    LUFactor,
    read_group,
    remove_factors,
    write_group,
)
from outcore.linalg._output.own import is_marked, mark, ready_factors, removed_at_end
from outcore.linalg._rhs.solving import Solving
from outcore.linalg._systems.low_copy import (
    COPY,
    TooLowError,
    copied,
    is_copy,
    is_current,
    make_copy,
    remove_copy,
)
from outcore.linalg._tiles.matrix import open_matrix
from outcore.report.report import Report
from outcore.storage.volumes import Place, place


def find_low_factors(job: Solving, where: Place, low: np.dtype[Any]) -> LUFactor | None:
    """Open complete factors, and remove useless files of a stopped call.

    Raises
    ------
    ExistsError
        If the files there belong to another matrix, and must not be overwritten.
    """
    copy = _copy_of(where)
    group = read_group(where) if where.exists() else None
    of_copy = group is not None and group["source"] == str(copy.path)
    ours = is_copy(copy)
    replaced = job.if_exists == "overwrite"
    if ours and not replaced and copied(copy).path != job.source.source:
        raise ExistsError(
            f"a stopped solve with {copied(copy).path} left {copy.path}; finish that solve, or "
            "pass if_exists='overwrite' or another factors="
        )
    usable = job.resume and is_current(copy, job.source, low)
    if group and of_copy and usable and group["state"] == "complete":
        _adopt(job, where, copy)
    elif of_copy and not usable:
        remove_factors(where)
    ready = ready_factors(where, job.source, low, LUFactor, if_exists=job.if_exists)
    if is_copy(copy):
        is_lost = read_metadata(copy).state == "consumed" and not of_copy
        if ready or is_lost or not usable:
            remove_copy(copy)
    return ready


@contextmanager
def low_factors(
    job: Solving,
    where: Place,
    low: np.dtype[Any],
    ready: LUFactor | None,
    progress: tuple[ProgressLike, ProgressLike],
    reports: list[Report],
) -> Iterator[LUFactor]:
    """Copy A and factor the copy, unless factors are `ready`; remove them at the end.

    The reports of the copy and the factorization are appended to `reports`. New factors that prove
    unusable are removed even if factors are to be kept. In that case those in full precision are
    kept.

    Raises
    ------
    TooLowError
        If A cannot be represented in lower precision, or is singular in it.
    """
    keep = job.keep or (ready is not None and not is_marked(where))
    lu = ready or _make(job, where, low, progress, reports)
    try:
        with removed_at_end(where, keep=keep, useless=(TooLowError,), later=job.later):
            if lu.info:
                raise TooLowError(f"A is singular in {low}: diagonal number {lu.info} of U is zero")
            yield lu
    except TooLowError:
        if ready is None and where.exists():
            remove_factors(where)
        raise


def _make(
    job: Solving,
    where: Place,
    low: np.dtype[Any],
    progress: tuple[ProgressLike, ProgressLike],
    reports: list[Report],
) -> LUFactor:
    copying, factoring = progress
    copy = _copy_of(where)
    if not is_copy(copy):
        g = lu_geometry(job.n, low, job.memory_bytes)
        with open_matrix(job.source) as A:
            reports.append(
                make_copy(A, copy, low, (g.rows, g.columns), job.memory_bytes, job.threads, copying)
            )
    try:
        overwrite_a = read_metadata(copy).grid().shards == 1
        wanted = job.factoring(copy.path, where, overwrite_a=overwrite_a, progress=factoring)
        # Refinement handles singularity and grown pivots, so nothing warns of them.
        lu = factor_lu(dataclasses.replace(wanted, resume=True), "slabs")
    except OutcoreError:
        if read_metadata(copy).state != "consumed":
            remove_copy(copy)
        raise
    if lu.report:
        reports.append(lu.report.with_name("the matrix", COPY))
    if not is_current(copy, job.source, low):
        remove_factors(where)
        remove_copy(copy)
        raise JournalError(
            f"{job.source.path} was written to while it was factored, so the factors may be of "
            "neither its old nor its new content; call again"
        )
    _adopt(job, where, copy)
    return LUFactor.open(where)


def _adopt(job: Solving, where: Place, copy: Place) -> None:
    """Turn factors of the copy into factors of A, and remove the rest of the copy."""
    if not job.keep:
        mark(where)
    now = version_of(job.source)
    values = read_group(where) | {"source": job.source.source, **now._asdict()}
    del values["kind"], values["state"]
    write_group(where, LU, "complete", values)
    remove_copy(copy)


def _copy_of(where: Place) -> Place:
    """Return the place of the copy whose factors go to `where`."""
    return place(f"{where.path}.copy")
