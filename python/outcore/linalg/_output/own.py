"""Factors that a call creates for its own use, or finds complete.

Temporary factors have a mark in their directory from their start. So a killed call never leaves
factors that look like the user's.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from outcore._util.if_exists import IfExists, check_if_exists
from outcore.array_files.metadata import read_metadata, version_of
from outcore.errors import (
    CorruptError,
    ExistsError,
    InvalidError,
    SingularMatrixError,
)
from outcore.linalg._output.factor import (
    LU,
    Factor,
    LUFactor,
    read_any_group,
    read_group,
    remove_factors,
)
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import read_journal
from outcore.linalg._tiles.matrix import place_of
from outcore.linalg._tiles.result_dtype import factor_dtype
from outcore.processes.sharing import Sharing
from outcore.report.report import Report
from outcore.storage.volumes import Place

MARK = "outcore.temporary"
"""Name of the mark: a file in the directory of temporary factors."""


def is_marked(where: Place) -> bool:
    """Whether factors are temporary."""
    return where.exists(MARK)


def mark(where: Place, *, is_temporary: bool = True) -> None:
    """Mark factors as temporary, or as the user's."""
    if is_temporary and not is_marked(where):
        where.replace_small(MARK, b"made by a call for itself\n")
    elif not is_temporary and is_marked(where):
        where.volume.remove(where.inside(MARK))


F = TypeVar("F", bound=Factor)


def are_begun(where: Place, source: Place, dtype: np.dtype[Any], *, resume: bool) -> bool:
    """Whether LU factors of this matrix and type exist, or a stopped run of them."""
    if not where.exists() or read_any_group(where)[0] is not LU:
        return False
    if read_group(where)["state"] == "complete":
        return ready_factors(where, source, dtype, LUFactor, if_exists="overwrite") is not None
    journal = read_journal(where) if resume else None
    if journal is None:
        return False
    begun = journal.header
    found = begun.source, begun.dtype, begun.generation, begun.modified_ns
    return found == (source.source, dtype.name, *version_of(source))


def ready_factors(
    where: Place,
    source: Place,
    dtype: np.dtype[Any],
    kind: type[F],
    *,
    if_exists: IfExists,
    argument: str = "factors=",
) -> F | None:
    """Open complete factors of this type from an earlier call; `None` if there are none.

    Raises
    ------
    ExistsError
        If the existing factors are of something else, and may not be overwritten.
    """
    if not where.exists():
        return None
    found, group = read_any_group(where)
    if group["state"] != "complete":
        return None
    now = version_of(source)
    same = group["source"] == source.source and group["generation"] == now.generation
    same = same and found is kind.kind
    # A matrix consumed by its factors has no files left, so its modification time is 0.
    if same and now.modified_ns in (group["modified_ns"], 0) and group["dtype"] == dtype.name:
        return kind.open(where)
    if if_exists == "overwrite":
        return None
    if found is not kind.kind:
        raise ExistsError(
            f"{where.path} holds {found.title} factors of {group['source']}, not "
            f"{kind.kind.title} factors of {source.source}; pass if_exists='overwrite', "
            f"or another {argument}"
        )
    raise ExistsError(
        f"{where.path} holds factors of {group['source']} in {group['dtype']} as it was before, "
        f"not of {source.source} in {dtype} as it is; "
        f"pass if_exists='overwrite', or another {argument}"
    )


def opened_factors(job: Factoring, kind: type[F], *, lower: bool = True) -> F | None:
    """Open the complete factors that a factorization with ``if_exists="open"`` returns.

    Raises
    ------
    ExistsError
        If they are of something else.
    """
    if check_if_exists(job.if_exists) != "open":
        return None
    source, where = place_of(job.A), job.target(kind.kind)
    try:
        made_in = factor_dtype(read_metadata(source).dtype, job.dtype)
        found = ready_factors(
            where, source, made_in, kind, if_exists=job.if_exists, argument=job.argument
        )
    except CorruptError:
        return None  # The factorization refuses the directory.
    if found is None:
        return None
    if read_any_group(where)[1].get("lower", True) != lower:
        raise ExistsError(
            f"{where.path} holds factors with lower={not lower}, this call has lower={lower}; pass "
            f"if_exists='overwrite', or another {job.argument}"
        )
    return dataclasses.replace(found, report=Report.load(where.path))


@contextmanager
def own_factors(
    where: Place,
    job: Factoring,
    ready: F | None,
    make: Callable[[Factoring], F],
    sharing: Sharing | None = None,
) -> Iterator[F]:
    """Make factors unless they are `ready`; remove new temporary factors at the end.

    Factors that prove singular, or have overflowed, are removed too, unless they are kept. Only the
    first process removes any.
    """
    keep = not job.is_temporary or (ready is not None and not is_marked(where))
    factors = make(job) if ready is None else ready
    useless = SingularMatrixError, InvalidError
    if sharing is not None:
        sharing.meet()
        if sharing.rank:
            yield factors
            sharing.meet()
            return
    with removed_at_end(where, keep=keep, useless=useless, later=job.later):
        yield factors
        if sharing is not None:
            sharing.meet()  # No process uses them any more.


@contextmanager
def removed_at_end(
    where: Place,
    *,
    keep: bool,
    useless: tuple[type[Exception], ...],
    later: list[Place] | None = None,
) -> Iterator[None]:
    """Remove factors at the end unless they are kept, also after errors that make them useless.

    Until then they are marked. A stopped call leaves them to the next one, which finds them
    complete, and removes them because of the mark. With `later`, the caller removes them.
    """
    mark(where, is_temporary=not keep)
    try:
        yield
    except useless:
        if not keep:
            remove_factors(where)
        raise
    if not keep and later is not None:
        later.append(where)
    elif not keep:
        remove_factors(where)
