"""Create arrays and groups."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import is_count
from outcore._util.if_exists import IfExists, check_if_exists
from outcore._util.progress import ProgressLike
from outcore.array.access import Access
from outcore.array.advise import advise
from outcore.array.array import Array, open_array
from outcore.array.existing import make_array, open_existing, remove_array
from outcore.array.fill import Fill, Filled, fill_arrays
from outcore.array.fill_agreement import agree_on_creation
from outcore.array.fill_identity import FillIdentity
from outcore.array_files.metadata import (
    read_metadata,
)
from outcore.errors import ExistsError, InvalidError, OutcoreError
from outcore.layout.attributes import is_same_json, plain_attributes
from outcore.layout.disk_chunks import with_disk_schema
from outcore.layout.disk_schema import MemorySchema, divide
from outcore.layout.distribution import Rules
from outcore.layout.zarr_format import (
    SLOT_ALIGN_BYTES,
    Metadata,
    check_dtype,
    check_shape,
    default_chunks,
    group_json,
)
from outcore.processes.sharing import Sharing
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, Place, place, refuse_being_made

Lengths: TypeAlias = Sequence[int] | int
"""A number for each dimension; for one dimension also the number itself."""


def create_array(
    path: PathLike,
    shape: Lengths,
    dtype: npt.DTypeLike = "f8",
    *,
    chunks: Lengths | None = None,
    order: str = "C",
    chunk_order: str | None = None,
    disk_schema: Rules | None = None,
    memory_schema: MemorySchema | None = None,
    mesh: Lengths | None = None,
    access: Access | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    growing: bool = False,
    fill: Fill | None = None,
    fill_id: Any = None,
    if_exists: IfExists = "error",
    reserve: bool = True,
    memory: int | str | None = None,
    threads: int = 1,
    resume: bool = True,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Array:
    """Create an array of zeros, or assembled by `fill`, on disk; open it for reading and writing.

    With `comm`, all processes of a parallel program call together. The first one creates the array.
    Blocks of `fill` are dealt to them in turn, and each process computes and writes its own. The
    array is the same as that of one process.

    Parameters
    ----------
    path
        Directory of the new array; the call also makes the directories above it.
    shape, dtype
        As for `numpy.zeros`, with any number type. An array that is `growing` starts without steps:
        ``(0, 512, 512)``.
    chunks
        Shape of a chunk, the unit of I/O, at most 64 MiB. By default about 4 MiB. With three or
        more dimensions, chunks are near-cubes, so that boxes and planes in any direction are fast.
        A matrix gets the tiles that LU uses, a tall one with ``order="C"`` whole rows.
        ``docs/format.md`` states the rule.
    order
        Order of elements in a chunk: ``"C"`` or ``"F"``. Use ``"F"`` for matrices to be factored.
    chunk_order
        Order of chunks on disk: ``"row-major"`` (default for C), ``"column-major"`` (default for
        F), ``"hilbert"``, ``"z-order"``.
    disk_schema
        Division of the array, or of each step if it is growing, into blocks. Each block lies whole
        on one server of a pool. It replaces `chunks` and `chunk_order`. ``"natural"``: the part of
        each process of an SPMD program is a block. ``"traditional"``: the parts of the servers, one
        after another, are the array in row-major order. Or ``"block"``, ``"cyclic(K)"`` or ``"*"``
        for each dimension, as in HPF, over a mesh of servers: ``"block,block,*"``. See
        ``docs/how-to/disk-schemas.md``.
    memory_schema
        For ``"natural"``: the distribution of the array over the processes, if it is not
        ``"block"`` along every dimension.
    mesh
        For ``"natural"``, processes along each dimension; otherwise servers along each distributed
        dimension. If there is only one, the default is all servers.
    access
        How programs will read the array, or each step if it is growing: words as in `advise`, such
        as ``"planes:0"``. The array gets the advised layout, instead of `chunks`, `order` and
        `chunk_order`, and keeps the words as ``access``.
    dims
        Names of the dimensions, for xarray.
    attributes
        The user's attributes, stored in ``zarr.json``, where other software reads them too: text,
        finite numbers, booleans, `None`, and lists and dictionaries of these with text keys.
    growing
        Make an array of time steps; `Array.append` adds steps along the first dimension. Each step
        has its own shard file, so a chunk contains one step: `chunks` is the chunk shape of a step,
        or begins with 1. Only steps of single numbers, ``shape=(0,)``, share a chunk.
    fill
        Function ``fill(rows, cols)`` (one slice for each dimension) that returns the elements of a
        block of whole chunks. Blocks have up to 64 MiB, or an eighth of the budget. With ``threads
        > 1`` several threads call it at once. `create_arrays` makes several arrays with one `fill`.
    fill_id
        A JSON value that identifies the result of `fill`, such as ``{"wavenumber": 20.6}``. A call
        with another value neither resumes nor opens the array.
    if_exists
        ``"error"`` refuses an existing array, unless a call with `fill` was stopped and this call
        resumes it. ``"open"`` also opens a whole array unchanged, so that a script can run again.
        It compares shape, type, order and `fill_id`, and those of chunks, dimensions and attributes
        that are given. ``"overwrite"`` replaces an existing array.
    reserve
        Reserve the disk space now, so that later writes cannot fill the disk.
    memory, threads, progress
        Budget for the blocks of `fill`, number of concurrent calls of `fill`, and whether to show
        progress on the terminal.
    resume
        Resume a stopped assembly of the same array with the same `attributes` and `fill_id`. Python
        cannot compare functions: values that `fill` takes from its closure, from objects and from
        other functions are not compared. Put those that matter into `fill_id`. Any number of
        processes can resume.
    comm
        Communicator of mpi4py. All its processes call with equal arguments, except `memory`,
        `threads` and `progress`. Each has its own memory and threads; by default, the processes of
        a host share half of its available memory. Only the first one shows a bar, of all.
    timeout
        Seconds to wait for a process that does not answer. A process answers while `fill` runs,
        unless `fill` keeps Python's interpreter lock for so long.

    Returns
    -------
    Array
        The array, open for reading and writing. With `fill`, its ``report`` describes the assembly.

    Raises
    ------
    ExistsError
        If `path` exists; with ``if_exists="open"``, if it is something else.
    JournalError
        If a stopped assembly at `path` has another shape, layout, `attributes` or `fill_id`.
    DiskFullError
        If the disk has no room for the array.
    InvalidError
        For an unusable shape, type, order or chunk shape; for attributes that JSON would change; if
        the result of `fill` does not fit, or the processes have different arguments.
    DiskError
        If another process does not answer in time.
    OutcoreError
        If `fill` raised an error in another process; the error names the process and the block.
    BudgetError
        If `memory` does not hold the blocks of `fill`.
    BusyError
        If another call is making an array, or factoring, at `path`.
    Interrupted
        On Ctrl-C or SIGTERM during `fill`. The same call resumes after the finished blocks.

    Warns
    -----
    FillChangedWarning
        If the call resumes, or opens, an array whose `fill` had a different source text.
    """
    with Sharing(comm, timeout, "create_array") as sharing:
        metadata = array_metadata(
            shape, dtype, chunks, order, chunk_order, dims, attributes, growing=growing
        )
        if growing and fill is not None:
            raise InvalidError(
                "an array that grows begins empty, without blocks to fill; append its steps"
            )
        where = place(path)
        is_chosen = bool(chunks or chunk_order or order != "C")
        layout = DiskLayout(disk_schema, memory_schema, mesh, access)
        metadata = layout.of(where, metadata, is_chosen=is_chosen)
        if fill is None and fill_id is not None:
            raise InvalidError(
                f"fill_id= belongs to fill=, have fill_id={fill_id!r} alone; pass both"
            )
        identity = None if fill is None else FillIdentity.of(fill, fill_id)
        agree_on_creation(
            where, metadata, identity, sharing,
            {"if_exists=": if_exists, "reserve=": reserve, "resume=": resume},
        )  # fmt: skip
        given = {
            "chunks": chunks, "chunk_order": chunk_order, "disk_schema": disk_schema,
            "access": access, "dims": dims, "attributes": attributes,
        }  # fmt: skip
        chosen = [name for name in given if given[name] is not None]
        if check_if_exists(if_exists) == "open":
            found = _opened(where, metadata, chosen, sharing)
            if found is not None:
                if identity is not None:
                    identity.check_opened(where, found.metadata.made)
                return found
        if fill is None or identity is None:
            return _zeros(where, metadata, if_exists, sharing, reserve=reserve)
        return fill_arrays(
            [Filled(where, metadata, reserve)],
            fill,
            identities=[identity],
            if_exists=if_exists,
            memory=memory,
            threads=threads,
            resume=resume,
            progress=progress,
            sharing=sharing,
        )[0]


def _opened(
    where: Place, metadata: Metadata, chosen: Sequence[str], sharing: Sharing
) -> Array | None:
    """Open a whole array that the first process finds; all processes do the same."""
    found = open_existing(where, metadata, chosen) if sharing.rank == 0 else None
    if sharing.same(found is not None):
        return found or open_array(where.path, "r+")
    return None


def _zeros(
    where: Place, metadata: Metadata, if_exists: IfExists, sharing: Sharing, *, reserve: bool
) -> Array:
    """Let the first process create an array of zeros, and all open it."""
    if sharing.rank == 0:
        refuse_being_made(where)
        make_array(where, metadata, if_exists=if_exists, reserve=reserve)
    sharing.meet()
    # The creation has raised the generation.
    return Array(where, metadata, "r+")


def servers_of(where: Place) -> int | None:
    """Return the number of I/O servers of the pool of a place; `None` for a plain path."""
    return len(where.path.root.core.server_ids) if isinstance(where.path, PoolPath) else None


class DiskLayout(NamedTuple):
    """The arguments of `create_array` that divide an array over disks, or let `advise` do so."""

    disk_schema: Rules | None = None
    memory_schema: MemorySchema | None = None
    mesh: Sequence[int] | int | None = None
    access: Access | None = None

    def of(
        self, where: Place, metadata: Metadata, *, is_chosen: bool, servers: int | None = None
    ) -> Metadata:
        """Complete the metadata with the layout on its volume.

        Parameters
        ----------
        where, metadata
            The place of the array, and its metadata.
        is_chosen
            Whether the caller chose chunks or their order.
        servers
            Number of I/O servers, if it is not that of the pool.

        Raises
        ------
        InvalidError
            If the schema or the words of `access` do not fit the array, or conflict with another
            argument.
        """
        if servers is None:
            servers = servers_of(where)
        if self.access is not None:
            return self._advised(where, metadata, servers, is_chosen=is_chosen)
        if self.disk_schema is None:
            if self.memory_schema is not None or self.mesh is not None:
                raise InvalidError(
                    "memory_schema= and mesh= belong to a disk_schema, have memory_schema="
                    f"{self.memory_schema!r} and mesh={self.mesh!r} without; pass disk_schema= "
                    'too, such as "natural"'
                )
            return metadata.on(where.volume)
        if is_chosen:
            raise InvalidError(
                "a disk_schema chooses chunks, their order and order='C', have "
                f"chunks={metadata.chunks!r}, chunk_order={metadata.chunk_order!r} and "
                f"order={metadata.order!r}; leave these out, or disk_schema="
            )
        shape = metadata.shape[int(metadata.growing) :]
        if not shape:
            raise InvalidError(
                "need steps of at least one dimension for a disk_schema, have an array that grows "
                "by single numbers; leave it out"
            )
        divided = divide(shape, self.disk_schema, self.memory_schema, self.mesh, servers)
        return with_disk_schema(metadata, *divided, where.volume.slot_align_bytes)

    def _advised(
        self, where: Place, metadata: Metadata, servers: int | None, *, is_chosen: bool
    ) -> Metadata:
        """Return the metadata that `advise` chooses; they keep the words."""
        assert self.access is not None, "there are words"
        if is_chosen or self != DiskLayout(access=self.access):
            raise InvalidError(
                "need access= to choose chunks, order, chunk_order and disk_schema, have some of "
                "these, too; leave them out, or access="
            )
        shape = metadata.shape[int(metadata.growing) :]
        if not shape:
            raise InvalidError(
                "need steps of at least one dimension for access=, have an array that grows by "
                "single numbers; leave it out"
            )
        advice = advise(shape, metadata.dtype, access=self.access, servers=servers)
        metadata = dataclasses.replace(metadata, access=advice.access)
        if advice.disk_schema is None:
            metadata = dataclasses.replace(
                metadata,
                chunks=(1, *advice.chunks) if metadata.growing else advice.chunks,
                order=advice.order,
                chunk_order=advice.chunk_order,
            )
        layout = DiskLayout(advice.disk_schema, None, advice.mesh)
        return layout.of(where, metadata, is_chosen=False, servers=servers)


def array_metadata(
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike,
    chunks: Sequence[int] | int | None,
    order: str,
    chunk_order: str | None,
    dims: Sequence[str] | None,
    attributes: dict[str, Any] | None,
    *,
    growing: bool = False,
) -> Metadata:
    """Check the layout arguments of `create_array`, and return the metadata."""
    if order not in ("C", "F"):
        raise InvalidError(f"order must be 'C' or 'F', have {order!r}")
    kind = check_dtype(dtype)
    extents = check_shape(
        (shape,) if isinstance(shape, int | np.integer) else shape, growing=growing
    )
    if math.prod(extents) * kind.itemsize > 1 << 62:
        raise InvalidError(f"an array of shape {extents} is larger than 2^62 bytes")
    if chunks is None:
        chunks = _default_chunks(extents, kind.itemsize, order, growing=growing)
    given = (chunks,) if isinstance(chunks, int | np.integer) else tuple(chunks)
    if not all(map(is_count, given)):
        raise InvalidError(f"chunks are integers of at least 1, have {chunks!r}")
    if growing and len(extents) > 1:
        if len(given) == len(extents) - 1:
            given = (1, *given)
        if given[0] != 1:
            raise InvalidError(
                f"a chunk of an array that grows has one step, have chunks {given}; give "
                f"{(1, *given[1:])}"
            )
    if dims is not None and not all(isinstance(name, str) for name in dims):
        raise InvalidError(f"names of dimensions are text, have {list(dims)}")
    if dims is not None and len(dims) != len(extents):
        raise InvalidError(f"need {len(extents)} names of dimensions, have {list(dims)}")
    return Metadata(
        shape=extents,
        dtype=kind,
        chunks=tuple(int(c) for c in given),
        order=order,
        chunk_order=chunk_order or ("column-major" if order == "F" else "row-major"),
        dims=None if dims is None else tuple(dims),
        attributes=plain_attributes(attributes),
        growing=growing,
    )


def _default_chunks(
    shape: tuple[int, ...], itemsize: int, order: str, *, growing: bool
) -> tuple[int, ...]:
    if not growing:
        return default_chunks(shape, itemsize, order)
    if len(shape) == 1:
        return (SLOT_ALIGN_BYTES // itemsize,)
    return (1, *default_chunks(shape[1:], itemsize, order))


def _is_array(where: Place) -> bool:
    """Whether there is an array of outcore's own layout, in any state."""
    with contextlib.suppress(OutcoreError):
        read_metadata(where)
        return True
    return False


def _check_group(where: Place, attributes: dict[str, Any] | None) -> None:
    """Refuse a path that is not a group, or a group with other attributes."""
    try:
        document = json.loads(where.volume.read_small(where.inside("zarr.json")))
        is_group, have = document["node_type"] == "group", document.get("attributes") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        is_group, have = False, {}
    if not is_group or "outcore" in have:
        raise ExistsError(f"{where.path} exists and is no group; choose another name")
    if attributes is not None and not is_same_json(have, attributes):
        raise ExistsError(
            f"{where.path} exists and has attributes {have}, this call makes {attributes}; choose "
            "another name, or pass if_exists='overwrite'"
        )


def create_group(
    path: PathLike, *, attributes: dict[str, Any] | None = None, if_exists: IfExists = "error"
) -> AnyPath:
    """Create a Zarr group, a directory for arrays that belong together.

    ``xarray.open_zarr(path, consolidated=False)`` opens a group whose arrays have ``dims=``.

    Parameters
    ----------
    path
        Directory of the group, also in a pool; the call also makes the directories above it.
    attributes
        The user's attributes, stored in ``zarr.json``; as for `create_array`.
    if_exists
        ``"open"`` accepts an existing group, with the same `attributes` if these are given.
        ``"overwrite"`` rewrites its ``zarr.json``, and changes nothing else in it; it removes an
        existing array.

    Returns
    -------
    Path or PoolPath
        The directory.

    Raises
    ------
    ExistsError
        If `path` exists.
    InvalidError
        If JSON would change the attributes.
    BusyError
        If another call is making an array, or factoring, at `path`.
    """
    document = group_json(plain_attributes(attributes))
    where = place(path)
    if check_if_exists(if_exists) != "overwrite" and where.exists():
        if if_exists == "open":
            _check_group(where, None if attributes is None else plain_attributes(attributes))
            return where.path
        raise ExistsError(
            f"{where.path} exists; choose another name, or pass if_exists='open' or 'overwrite'"
        )
    refuse_being_made(where)
    if _is_array(where):
        remove_array(where)
    where.replace_small("zarr.json", document)
    return where.path
