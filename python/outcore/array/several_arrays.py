"""Several arrays assembled together by one `fill`, such as S and K of a boundary method."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists, check_if_exists
from outcore._util.progress import ProgressLike
from outcore.array.access import Access, weights_of
from outcore.array.array import Array, open_array
from outcore.array.create import DiskLayout, array_metadata, servers_of
from outcore.array.existing import open_existing
from outcore.array.fill import Fill, Filled, fill_arrays, is_stopped
from outcore.array.fill_agreement import agree_on_creation
from outcore.array.fill_identity import FillIdentity
from outcore.errors import ExistsError, InvalidError
from outcore.layout.zarr_format import Metadata, check_dtype
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import PathLike, Place, how_they_meet, place


def create_arrays(
    paths: Sequence[PathLike],
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike] = "f8",
    *,
    fill: Fill,
    fill_id: Any = None,
    chunks: Sequence[int] | int | None = None,
    order: str = "C",
    chunk_order: str | None = None,
    access: Access | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    if_exists: IfExists = "error",
    reserve: bool = True,
    memory: int | str | None = None,
    threads: int = 1,
    resume: bool = True,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> list[Array]:
    """Create several arrays of one shape on disk, assembled by one `fill`.

    It suits codes that compute the elements of several matrices from the same distances: each block
    is computed once. ``S, K = oc.create_arrays(["S", "K"], (n, n), "c16", fill=fill)``.

    Parameters
    ----------
    paths
        Directories of the arrays, at least two, also in pools.
    shape
        Shape of each array.
    dtype
        Type of all arrays, or a list with the type of each.
    fill
        Called as ``fill(rows, cols)`` for blocks of whole chunks; returns a tuple with a block for
        each path. The blocks of all arrays together are as large as those of `create_array`.
    chunks, order, chunk_order, access, dims, attributes
        As in `create_array`, for each array. By default the chunks suit the widest type. Arrays of
        several types, or on different numbers of servers, get no disk schema.
    if_exists
        As in `create_array`. ``"open"`` opens the complete arrays, and creates the others.
    fill_id, reserve, memory, threads, resume, progress, comm, timeout
        As in `create_array`, for all arrays together.

    Returns
    -------
    list of Array
        In the order of `paths`, open for reading and writing. The ``report`` of each new array
        covers all of them.

    Raises
    ------
    InvalidError
        If there are fewer than two paths, one path is inside another, or `fill` returns a wrong
        result.
    ExistsError, JournalError, DiskFullError, DiskError, BudgetError, BusyError, Interrupted
        As in `create_array`.

    Warns
    -----
    FillChangedWarning
        If the call resumes, or opens, an array whose `fill` had different source text.
    """
    with Sharing(comm, timeout, "create_arrays") as sharing:
        places = _places(paths)
        plain = (chunks, order, chunk_order, dims, attributes)
        metadata = _metadata(places, shape, dtype, access, *plain)
        count = len(places)
        identities = [
            FillIdentity.of(fill, fill_id, f"{number} of {count}") for number in range(1, count + 1)
        ]
        how = {"if_exists=": if_exists, "reserve=": reserve, "resume=": resume}
        sharing.agree({"number of paths": count})
        for each in zip(places, metadata, identities, strict=True):
            agree_on_creation(*each, sharing, how)
        given = {
            "chunks": chunks, "chunk_order": chunk_order, "access": access, "dims": dims,
            "attributes": attributes,
        }  # fmt: skip
        chosen = [name for name in given if given[name] is not None]
        # The first of several processes looks for whole arrays.
        is_whole = [False] * count
        if sharing.rank == 0:
            is_whole = _whole(places, metadata, identities, chosen, if_exists, resume=resume)
        is_whole = sharing.same(is_whole)
        found = [
            open_array(where.path, "r+") if whole else None
            for where, whole in zip(places, is_whole, strict=True)
        ]
        made: list[Array] = []
        if not all(is_whole):
            filled = [
                Filled(where, each, reserve, is_whole=whole)
                for where, each, whole in zip(places, metadata, is_whole, strict=True)
            ]
            made = fill_arrays(
                filled, fill, identities=identities, if_exists=if_exists, memory=memory,
                threads=threads, resume=resume, progress=progress, sharing=sharing,
            )  # fmt: skip
        rest = iter(made)
        return [next(rest) if array is None else array for array in found]


def _whole(
    places: Sequence[Place],
    metadata: Sequence[Metadata],
    identities: Sequence[FillIdentity],
    chosen: Sequence[str],
    if_exists: IfExists,
    *,
    resume: bool,
) -> list[bool]:
    """Return which arrays an earlier call has completed, so that this one opens them."""
    # A call that was killed at its very end leaves some arrays complete and others incomplete.
    count = len(places)
    goes_on = (
        check_if_exists(if_exists) == "error"
        and resume
        and any(is_stopped(where, count) for where in places)
    )
    found = [False] * count
    for number, where in enumerate(places if if_exists == "open" or goes_on else []):
        with contextlib.nullcontext() if if_exists == "open" else contextlib.suppress(ExistsError):
            array = open_existing(where, metadata[number], chosen)
            if array is not None:
                identities[number].check_opened(where, array.metadata.made, stacklevel=5)
                found[number] = True
    return found


def _places(paths: Sequence[PathLike]) -> list[Place]:
    if not isinstance(paths, list | tuple) or len(paths) < 2:
        raise InvalidError(
            f"need a list of at least two paths, have {paths!r}; create_array makes one array"
        )
    places = [place(path) for path in paths]
    for number, where in enumerate(places):
        for other in places[:number]:
            if how_they_meet(where.path, other.path):
                raise InvalidError(
                    f"need directories beside each other, have {other.path} and {where.path}; "
                    "choose other paths"
                )
    return places


def _metadata(
    places: Sequence[Place],
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike],
    access: Access | None,
    chunks: Sequence[int] | int | None,
    order: str,
    chunk_order: str | None,
    *others: Any,
) -> list[Metadata]:
    """Return the metadata of the arrays, which all have the chunks of the widest type."""
    given = list(dtype) if isinstance(dtype, list | tuple) else [dtype] * len(places)
    if len(given) != len(places):
        raise InvalidError(
            f"need one dtype for all of {len(places)} paths, or one for each, have {len(given)}; "
            "give as many"
        )
    dtypes: list[np.dtype[Any]] = [check_dtype(each) for each in given]
    dtype = max(dtypes, key=lambda each: each.itemsize)
    widest = array_metadata(shape, dtype, chunks, order, chunk_order, *others)
    layout = DiskLayout(access=None if access is None else weights_of(access))
    is_chosen = bool(chunks or chunk_order or order != "C")
    # The chunks of a disk schema depend on the type and on the number of servers.
    is_one_kind = len({*dtypes}) == len({servers_of(where) for where in places}) == 1
    servers = None if is_one_kind else 1
    return [
        dataclasses.replace(
            layout.of(where, widest, is_chosen=is_chosen, servers=servers), dtype=each
        )
        for each, where in zip(dtypes, places, strict=True)
    ]
