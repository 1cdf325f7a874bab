"""The start or resume of a factorization. All checks that can refuse a call are here."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from outcore._core import ArrayFile, Grid
from outcore._util.if_exists import check_if_exists
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata, settle, version_of, write_metadata
from outcore.blas import blas_choice
from outcore.errors import (
    ConsumedError,
    CorruptError,
    DiskFullError,
    ExistsError,
    IncompleteError,
    InvalidError,
    JournalError,
    NonFiniteError,
    NotPositiveDefiniteError,
    OutcoreError,
)
from outcore.layout.zarr_format import Metadata
from outcore.linalg._factors.lower_tiles import create_lower
from outcore.linalg._factors.panel_servers import dealing_order
from outcore.linalg._factors.storage import FactorStorage, shared_room
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._output.factor import (
    KINDS,
    Kind,
    read_any_group,
    tile_grid,
    tile_metadata,
    write_group,
)
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import (
    Header,
    Journal,
    Settings,
    read_journal,
    settings_of,
)
from outcore.linalg._output.kept_solves import is_kept_solve
from outcore.linalg._output.own import MARK, mark
from outcore.linalg._tiles.matrix import place_of, refuse_transpose
from outcore.linalg._tiles.result_dtype import factor_dtype
from outcore.processes.sharing import Sharing
from outcore.processes.team import Team
from outcore.report.longcall import check_threads
from outcore.storage.pool_locks import is_lock
from outcore.storage.volumes import (
    INSIDE,
    AnyPath,
    Place,
    bytes_on_disk,
    exclusive,
    how_they_meet,
    move,
    on_one_disk,
)

_SECTOR_BYTES = 512
"""Bytes of a disk sector. Solvers read tiles in whole sectors, without memory to round them up."""

_PARTS = {
    "journal": frozenset[str](),
    MARK: frozenset[str](),
    **{kind.array: frozenset({"c", "zarr.json"}) for kind in KINDS.values()},
    **{
        name: frozenset({"c", "zarr.json", "outcore.generation"})
        for kind in KINDS.values()
        for name in kind.vectors
    },
    **{name: frozenset({"c"}) for kind in KINDS.values() for name in kind.workspaces},
}
"""Contents of a factor directory beside ``zarr.json``, and the contents of each entry."""

_HOPELESS = (NonFiniteError, NotPositiveDefiniteError, JournalError)
"""After these errors there is nothing to resume."""

Tile: TypeAlias = tuple[int, int] | None
"""Shape of existing tiles, if any."""

Order: TypeAlias = tuple[int, ...]
"""The ranks in the order of their turns; empty if there is none yet."""

G = TypeVar("G", bound=Geometry)
S = TypeVar("S", bound=FactorStorage[Any])


@dataclass(frozen=True)
class Method(Generic[G, S]):
    """The properties by which the start of a factorization differs from others.

    Attributes
    ----------
    geometry
        Cuts a matrix of a given number of columns and type for a budget and given tiles, and deals
        panels to processes in a given order.
    storage
        The class of its files.
    kind
        Kind of the factors.
    lower
        Whether the method reads the lower triangle, if it reads only one.
    again
        Cuts a matrix for a budget as a stopped run did, from the header of its journal. With
        `None`, `geometry` cuts it for the run's tiles.
    cuts
        Returns the cuts that `again` needs.
    scratch_bytes
        Disk space beside the factors.
    """

    geometry: Callable[[int, np.dtype[Any], int, Tile, Order], G]
    storage: Callable[[Place, Metadata, Place, G, Journal], S]
    kind: Kind
    lower: bool = True
    again: Callable[[int, np.dtype[Any], int, Header], G] | None = None
    cuts: Callable[[G], dict[str, Any] | None] = lambda g: None
    scratch_bytes: Callable[[G], int] = lambda g: 0


@contextmanager
def open_storage(
    method: Method[G, S], job: Factoring, sharing: Sharing | None = None
) -> Iterator[S]:
    """Check the arguments of a factorization, and start it or resume the stopped one.

    If an error leaves nothing to resume, the target is cleared too. The first process does all
    this, and other processes of the call open the files that it has made. It holds the target until
    they have stopped.
    """
    check_threads(job.threads)
    check_if_exists(job.if_exists)
    source, target = place_of(job.A), job.target(method.kind)
    metadata = read_metadata(source)
    sharing = sharing or Sharing()
    with contextlib.ExitStack() as held, sharing.telling(), Team(sharing) as team:
        journal, (kernels, threads) = None, blas_choice.in_use()
        settings = team.all_of(Settings(kernels, int(job.threads or threads), job.memory_bytes))
        if team.rank == 0:
            journal = held.enter_context(_begun(method, job, source, metadata, target, settings))
        found = team.same(None if journal is None else (journal.header, journal.records))
        journal = journal or Journal(target, *(found or ()))
        g = _cut_for(method, job, metadata, journal.header)
        if order := dealing_order(g, target, method.kind, team):
            g = _cut_for(method, job, metadata, journal.header, order)
        storage = method.storage(source, metadata, target, g, journal)
        storage.team = team
        with contextlib.closing(storage):
            yield storage


def _cut_for(
    method: Method[G, S], job: Factoring, metadata: Metadata, header: Header, order: Order = ()
) -> G:
    """Cut a matrix for a budget as the run of a journal does."""
    n, made_in = method.kind.shape_of(metadata.shape)[1], factor_dtype(metadata.dtype, job.dtype)
    if method.again is not None:
        return method.again(n, made_in, job.memory_bytes, header)
    return method.geometry(n, made_in, job.memory_bytes, header.tile, order)


@contextmanager
def _begun(
    method: Method[G, S],
    job: Factoring,
    source: Place,
    metadata: Metadata,
    target: Place,
    settings: Sequence[Settings],
) -> Iterator[Journal]:
    """Start a factorization, or find the stopped one; hold its target."""
    kind, memory_bytes = method.kind, job.memory_bytes
    n = _shape(metadata, source.path, kind)[1]
    made_in = factor_dtype(metadata.dtype, job.dtype)
    if target.path == source.path:
        raise InvalidError(
            f"out= is the matrix itself, {source.path}; overwrite_a=True reuses its space"
        )
    if how_they_meet(target.path, source.path) == INSIDE:
        raise InvalidError(
            f"{job.argument} lies in the matrix, {source.path}; choose another directory"
        )
    tile = tile_to_reuse(source, metadata, made_in) if job.overwrite_a else None
    fresh = method.geometry(n, made_in, memory_bytes, tile, ())
    with exclusive(target, "factors", keep=True):
        journal = _find_journal(method, job, source, metadata, target, made_in)
        if journal is None:
            _check_content(source, metadata)
            if job.overwrite_a:
                _check_move(source, metadata, target, fresh)
            journal = _begin(method, job, source, metadata, target, fresh, settings)
        else:
            for half_written in (target, target.below(kind.array)):
                half_written.remove_half_written()
        mark(target, is_temporary=job.is_temporary)
        header = journal.header.gone_on_with(settings)
        if journal.is_torn or header != journal.header:
            if not journal.records:
                header = dataclasses.replace(header, is_mixed=False)
            journal.header = header
            journal.write()
        if journal.header.overwrite_a:
            _move_into(kind, source, metadata, target)
            if isinstance(job.A, Array):
                job.A.close()
        try:
            yield journal
        except OutcoreError as error:
            useless = isinstance(error, _HOPELESS) or not journal.records
            # A process that does not answer may still write there.
            is_lost = getattr(error, "is_lost", False)
            if useless and not is_lost and not journal.header.overwrite_a:
                with contextlib.suppress(OutcoreError):
                    _clear(target)
            raise


def _shape(metadata: Metadata, path: AnyPath, kind: Kind) -> tuple[int, int]:
    """Return the shape of the matrix to factor."""
    shape = metadata.shape
    if len(shape) != 2 or (kind.is_square and shape[0] != shape[1]):
        what = "square matrix" if kind.is_square else "matrix"
        raise InvalidError(f"need a {what}, have shape {shape} in {path}")
    return kind.shape_of(shape)


def tile_to_reuse(source: Place, metadata: Metadata, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the tile shape of factors that take the space of a matrix.

    Raises
    ------
    InvalidError
        If its type or layout does not allow that, or it is a transpose.
    """
    refuse_transpose(source)
    if metadata.dtype != dtype:
        raise InvalidError(
            f"overwrite_a needs a matrix of the factors' type, {dtype}, have {metadata.dtype}; "
            "leave out overwrite_a or dtype="
        )
    chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
    if (
        metadata.order != "F"
        or metadata.chunk_order != "column-major"
        or metadata.chunks[0] % metadata.chunks[1]
        or chunk_bytes % _SECTOR_BYTES
        or metadata.grid().shards != 1
    ):
        raise InvalidError(
            f"overwrite_a needs a matrix with order='F' and default chunks, have order="
            f"{metadata.order!r}, chunks {metadata.chunks}; copy it with oc.from_array(order='F') "
            "or leave overwrite_a out"
        )
    rows, columns = metadata.chunks
    return rows, columns


def _check_content(source: Place, metadata: Metadata) -> None:
    if metadata.state == "incomplete":
        raise IncompleteError(f"{source.path} is only half written: {metadata.why}")
    if metadata.state == "consumed":
        raise ConsumedError(f"the content of {source.path} was consumed: {metadata.why}")


def _check_move(source: Place, metadata: Metadata, target: Place, g: Geometry) -> None:
    """Refuse to take over a matrix whose file cannot be moved, or cannot grow by a slab."""
    shard = source.path / metadata.grid().shard_key(0)
    if not on_one_disk(shard, target.path):
        raise InvalidError(
            f"overwrite_a needs out= on the disk of the matrix, {source.path}; have {target.path}"
        )
    grid = tile_grid(
        metadata.shape[0], g.dtype, (g.rows, g.columns), shared_room(g, ()),
        target.volume.slot_align_bytes,
    )  # fmt: skip
    if grid.slot_bytes != metadata.grid().slot_bytes:
        raise InvalidError(
            f"overwrite_a needs tiles of {grid.slot_bytes} bytes on disk, {source.path} has some "
            f"of {metadata.grid().slot_bytes}; copy it with oc.from_array, or leave overwrite_a out"
        )
    if grid.shards != 1:
        raise InvalidError(
            f"overwrite_a needs one shard file for the matrix and a slab more, have {grid.shards}; "
            "copy it with oc.from_array in larger chunks, or leave overwrite_a out"
        )
    need, free = grid.shard_bytes - bytes_on_disk(shard), source.volume.free_bytes()
    if need > free:
        raise DiskFullError(
            f"need {need} bytes on disk for one slab beside the matrix in {source.path}; {free} "
            "are free; free some room or lower memory="
        )


def _find_journal(
    method: Method[G, S],
    job: Factoring,
    source: Place,
    metadata: Metadata,
    target: Place,
    made_in: np.dtype[Any],
) -> Journal | None:
    """Return the journal of the stopped run at `target` to resume; `None` to start one."""
    kind, another = method.kind, f"another {job.argument}"
    if not target.exists():
        _refuse_foreign(target, another)
        return None
    try:
        there, group = read_any_group(target)
    except CorruptError as error:
        raise ExistsError(
            f"{target.path} exists and is not overwritten ({error}); remove it yourself or choose "
            f"{another}"
        ) from None
    if group["state"] == "complete":
        if job.if_exists != "overwrite":
            raise ExistsError(
                f"{target.path} holds complete factors; open them with oc.linalg.open_factor, or "
                f"pass if_exists='open', if_exists='overwrite' or {another}"
            )
        return None
    holds_matrix = bool(group.get("overwrite_a"))
    journal = read_journal(target) if job.resume or holds_matrix else None
    if journal is None:
        return None
    header, dtype = journal.header, made_in.name
    fix = f"pass resume=False to restart, or {another}"
    if holds_matrix:
        fix = f"pass {another}, or first finish or remove the files in {target.path}"
    if there is not kind:
        raise JournalError(
            f"{target.path} holds a stopped factorization by {there.function}, not by "
            f"{kind.function} ({there.title}, not {kind.title}); {fix}"
        )
    if (header.cuts is None) != (method.again is None):
        raise JournalError(
            f"{target.path} holds a factorization that was stopped in another method; {fix}"
        )
    if header.lower != method.lower:
        raise JournalError(
            f"{target.path} holds a stopped factorization with lower={header.lower}; {fix}"
        )
    if header.source != source.source:
        raise JournalError(
            f"{target.path} holds a stopped factorization of {header.source}, not of "
            f"{source.source}; {fix}"
        )
    if holds_matrix and metadata.state != "consumed":
        if not target.exists(f"{kind.array}/{metadata.grid().shard_key(0)}"):
            return None  # stopped before it consumed the matrix
        raise JournalError(
            f"{source.path} was created again since its earlier content was consumed by the "
            f"stopped factorization in {target.path}; {fix}"
        )
    m, n = kind.shape_of(metadata.shape)
    if (header.n, header.dtype) != (n, dtype) or header.m not in (None, m):
        was, now_is = (kind.shape_of(shape) for shape in ((header.m or header.n, header.n), (m, n)))
        raise JournalError(
            f"{target.path} holds a stopped factorization of order {header.n} in {header.dtype}; "
            f"the matrix is now of order {n} in {dtype}; {fix}"
            if header.m is None
            else f"{target.path} holds a stopped factorization of {was[0]} x {was[1]} "
            f"{header.dtype}; the matrix is now {now_is[0]} x {now_is[1]} {dtype}; {fix}"
        )
    now = version_of(source)
    if header.generation != now.generation:
        raise JournalError(
            f"{source.path} was written to since its factorization was stopped (generation "
            f"{header.generation} then, {now.generation} now); {fix}"
        )
    if header.modified_ns != now.modified_ns and not holds_matrix:
        raise JournalError(
            f"{source.path} was written to, or created again, since its factorization began; {fix}"
        )
    if holds_matrix and not job.resume:
        raise ConsumedError(
            f"the content of {source.path} was consumed by the stopped factorization in "
            f"{target.path}, so it cannot restart; call with resume=True to finish it"
        )
    return journal


def _refuse_foreign(target: Place, another: str) -> None:
    """Refuse a directory with anything but the files of a call that was killed at its start."""
    for name, is_directory, _ in target.names():
        if is_lock(name) or name.endswith(".new") or is_kept_solve(name):
            continue
        inside = target.volume.list(target.inside(name)) if is_directory else []
        if name not in _PARTS or any(
            part not in _PARTS[name] and not part.endswith(".new") for part, *_ in inside
        ):
            raise ExistsError(
                f"{target.path} exists and holds {name}, which is not of factors, so it is not "
                f"overwritten; remove it yourself or choose {another}"
            )


def _clear(target: Place) -> None:
    """Remove factors. The file that declares them goes first."""
    there = {name for name, *_ in target.names()}
    beside = sorted(name for name in there if name.endswith(".new") or is_kept_solve(name))
    for name in ("zarr.json", *_PARTS, *beside):
        if name in there:
            target.volume.remove(target.inside(name))


def _begin(
    method: Method[G, S],
    job: Factoring,
    source: Place,
    metadata: Metadata,
    target: Place,
    g: G,
    settings: Sequence[Settings],
) -> Journal:
    kind, overwrite_a = method.kind, job.overwrite_a
    m, _ = kind.shape_of(metadata.shape)
    settle(source)
    version = version_of(source)
    header = Header(
        n=g.n,
        dtype=g.dtype.name,
        tile=(g.rows, g.columns),
        source=source.source,
        generation=version.generation,
        modified_ns=version.modified_ns,
        overwrite_a=overwrite_a,
        kind=kind.name,
        lower=method.lower,
        m=None if kind.is_square else m,
        cuts=method.cuts(g),
        **settings_of(settings),
    )
    journal = Journal(target, header)
    why = f"its factorization was stopped; call {kind.function} again to finish it"
    whole = tile_metadata(m, g.dtype, header.tile, g.n).on(target.volume)
    unfinished = dataclasses.replace(whole, state="incomplete", why=why)
    _clear(target)
    _check_room(job, target, unfinished.grid(), method.scratch_bytes(g))
    try:
        tiles = target.below(kind.array)
        grid, panel_bytes, base = unfinished.grid(), None, None
        if len(settings) > 1:
            # In a pool, panel by panel on the servers in turn, as processes hold them.
            panel_bytes, base = g.tiles * grid.slot_bytes, 0
        if not overwrite_a and kind.is_lower:
            create_lower(tiles, unfinished, panel_bytes, base)
        elif not overwrite_a:
            ArrayFile.create(
                tiles.volume, tiles.name, grid, True, stripe_unit_bytes=panel_bytes, base=base
            )
        write_metadata(tiles, unfinished)
        journal.write()
        values = {"n": g.n, "dtype": g.dtype.name, "tile": [g.rows, g.columns]}
        values |= {"source": source.source, "overwrite_a": overwrite_a}
        write_group(target, kind, "incomplete", values)
    except BaseException:
        with contextlib.suppress(OutcoreError):
            _clear(target)
        raise
    return journal


def _check_room(job: Factoring, target: Place, grid: Grid, scratch_bytes: int) -> None:
    """Refuse a call that lacks disk space. Without scratch files, creation reserves all space."""
    need, free = grid.shards * grid.shard_bytes + scratch_bytes, target.volume.free_bytes()
    if scratch_bytes and need > free:
        raise DiskFullError(
            f"need {need} bytes on disk in {target.path}, {scratch_bytes} of them for temporary "
            f"files; {free} are free; free some room, or choose another {job.argument}"
        )


def _move_into(kind: Kind, source: Place, metadata: Metadata, target: Place) -> None:
    """Consume the matrix: its shard file becomes that of the factors. Can be repeated."""
    key = metadata.grid().shard_key(0)
    if metadata.state != "consumed":
        why = f"overwrite_a=True gave its disk space to the factors in {target.path}"
        source.remove_half_written()
        write_metadata(source, dataclasses.replace(metadata, state="consumed", why=why))
    if not source.exists(key):
        return
    try:
        move(source.below(key), target.below(kind.array).below(key))
    except OutcoreError:
        if not target.exists(f"{kind.array}/{key}"):
            write_metadata(source, metadata)
        raise
