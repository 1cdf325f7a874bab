"""Joint work of a program's ranks on a group: agree, and transfer their parts of an array.

The parts travel by collectives, or box by box. The first rank does all other work on a group.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util.at_once import at_once
from outcore._util.communicator import TIMEOUT_S, Communicator
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.array_files.stored_array import NewArray, StoredArray
from outcore.collective.call import LEAST_BYTES_S
from outcore.collective.memory import arrays_of
from outcore.collective.several import write_several
from outcore.errors import DiskError, InvalidError, OutcoreError, from_kind
from outcore.layout.distribution import Distribution
from outcore.layout.schema import Schema
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place

T = TypeVar("T")

Own: TypeAlias = "npt.NDArray[Any] | list[npt.NDArray[Any]]"
"""A rank's part of an array: an array, or a list with one for each of its boxes."""


class Ranks:
    """The processes of a program, or this one alone.

    Parameters
    ----------
    comm
        As for `Communicator`; `None` for this process alone.
    timeout_s
        Seconds to wait for a rank; a rank with much data gets longer, see `LEAST_BYTES_S`.
    """

    def __init__(self, comm: Any = None, timeout_s: int = TIMEOUT_S) -> None:
        self.given = comm
        self.timeout_s = timeout_s
        self._comm = None if comm is None else Communicator(comm, timeout_s)
        self.rank = 0 if self._comm is None else self._comm.rank
        self.size = 1 if self._comm is None else self._comm.size
        self._lost: str | None = None

    def duplicate(self) -> "Ranks":
        """Return the same ranks with separate messages, for a thread beside the program.

        Raises
        ------
        InvalidError
            If the communicator cannot be duplicated.
        """
        if self._comm is None or self.size == 1:
            return Ranks()
        self._comm.check_duplicable()
        self.check()
        with self._noting_lost():
            return Ranks(self._comm.duplicate(), self.timeout_s)

    def free(self) -> None:
        """Free a duplicate, unless ranks are lost: all ranks have to free it together."""
        if self._lost is None and hasattr(self.given, "Free"):
            self.given.Free()

    def progress(self, progress: ProgressLike) -> ProgressLike:
        """Return the progress option of this rank: only the first rank shows a bar."""
        return progress if self.rank == 0 or callable(progress) else False

    def first(self, call: Callable[[], T], nbytes: int = 0) -> T:
        """Call a function on the first rank; every rank returns its result, or raises its error.

        Parameters
        ----------
        nbytes
            Bytes that the function reads or writes, if that may take long.
        """
        if self._comm is None or self.size == 1:
            return call()
        self.check()
        outcome: tuple[Any, tuple[str, str] | None] = (None, None)
        mine: BaseException | None = None
        if self.rank == 0:
            try:
                outcome = (call(), None)
            except BaseException as error:
                mine, outcome = error, (None, _told(error))
        found: T
        with self._noting_lost(mine):
            found, failed = self._comm.bcast(outcome, 0, nbytes / LEAST_BYTES_S)
        if mine is not None:
            try:
                raise mine
            finally:
                del mine  # it is in no cycle with this frame
        if failed is not None:
            raise from_kind(*failed)
        return found

    def any(self, mine: bool) -> bool:
        """Whether `mine` is true on any rank."""
        if self._comm is None or self.size == 1:
            return mine
        self.check()
        with self._noting_lost():
            return any(self._comm.allgather(mine))

    def each(self, call: Callable[[], T], doing: str = "", nbytes: int = 0) -> T:
        """Call a function on every rank; if it fails on one, it has failed on all.

        Parameters
        ----------
        doing
            Name of the call; if ranks make different calls, all of them raise an error.
        nbytes
            Bytes that all ranks read or write, if that may take long.
        """
        if self._comm is None or self.size == 1:
            return call()
        self.check()
        mine: BaseException | None = None
        try:
            value, failed = call(), None
        except BaseException as error:
            mine, failed = error, _told(error)
        with self._noting_lost(mine):
            all_of = self._comm.allgather((doing, failed), nbytes / LEAST_BYTES_S)
        if mine is not None:
            try:
                raise mine
            finally:
                del mine  # it is in no cycle with this frame
        for rank, (theirs, _) in enumerate(all_of):
            if theirs != all_of[0][0]:
                raise InvalidError(
                    f"need the same call on every rank, have {all_of[0][0]} on the first and "
                    f"{theirs} on rank {rank}; make the same calls in the same order"
                )
        for rank, (_, other) in enumerate(all_of):
            if other is not None:
                raise from_kind(other[0], f"rank {rank}: {other[1]}")
        return value

    def check(self) -> None:
        """Refuse to continue after a rank was lost.

        Raises
        ------
        DiskError
            If a rank was lost.
        """
        if self._lost is not None:
            raise DiskError(
                f"the ranks have lost their connections ({self._lost}); restart from the newest "
                "checkpoint"
            )

    @contextlib.contextmanager
    def _noting_lost(self, mine: BaseException | None = None) -> Iterator[None]:
        """Record a loss of ranks; an error of this rank takes precedence."""
        try:
            yield
        except BaseException as error:
            self._lost = str(error)
            if mine is not None:
                raise mine from error
            raise


def write(
    array: Array,
    local: Own,
    schema: Any,
    ranks: Ranks,
    progress: ProgressLike = False,
    memory: int | None = None,
) -> None:
    """Write each rank's part of a new array; it is durable on every rank when this returns.

    In a pool the servers direct the transfer. On a plain path each rank writes its own boxes, since
    disjoint writes do not disturb each other.

    Parameters
    ----------
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``. On a plain path
        progress advances by whole arrays.
    memory
        As for `Array.write_all`.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not state the part of each.
    """
    if ranks.size > 1 or has_boxes(schema):
        is_collective = isinstance(array.path, PoolPath)
        parts = [local] if is_collective else None
        _check_schemas([array], [schema], ranks, parts, is_write=True)
        if is_collective:
            write_all = functools.partial(array.write_all, timeout=ranks.timeout_s, memory=memory)
            ranks.each(lambda: write_all(local, schema, ranks.given, progress=progress))
            return
    ranks.each(lambda: _write_own(array, local, schema, ranks, progress), nbytes=array.nbytes)


def write_new(
    arrays: Mapping[str, tuple[Place, Metadata]],
    local: Mapping[str, Own],
    schemas: Mapping[str, Any],
    ranks: Ranks,
    make: Callable[[str], None],
) -> None:
    """Write each rank's parts of arrays that nobody reads yet, as `write` does.

    In a pool, several ranks write all arrays together: they agree on many at once, and mark
    nothing.

    Parameters
    ----------
    make
        Creates the files of an array; the first rank calls it, also from several threads.
    """
    together, alone = {}, {}
    for name, (where, metadata) in arrays.items():
        if isinstance(where.path, PoolPath) and (ranks.size > 1 or has_boxes(schemas.get(name))):
            together[name] = NewArray(where, metadata, functools.partial(make, name))
        else:
            alone[name] = where, metadata
    if alone:
        ranks.first(lambda: at_once(make, alone))
        for name, (where, metadata) in alone.items():
            with ranks.each(lambda w=where, m=metadata: Array(w, m, "r+")) as array:  # type: ignore[misc]
                write(array, local[name], schemas.get(name), ranks)
    if not together:
        return
    new = list(together.values())
    given: list[Any] = [schemas.get(name) for name in together]
    parts = [local[name] for name in together]
    _check_schemas(new, given, ranks, parts, is_write=True)
    ranks.each(lambda: write_several(new, parts, given, ranks.given, timeout=ranks.timeout_s))


def read(array: Array, schema: Any, ranks: Ranks, progress: ProgressLike = False) -> Own:
    """Read each rank's part of an array, as `write` writes it.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not state the part of each.
    """
    if ranks.size > 1 or has_boxes(schema):
        _check_schemas([array], [schema], ranks, is_write=False)
        if isinstance(array.path, PoolPath):
            read_all = functools.partial(array.read_all, timeout=ranks.timeout_s)
            found: Own | None = ranks.each(
                lambda: read_all(None, schema, ranks.given, progress=progress)
            )
            # A rank beyond the mesh has no elements.
            return np.empty((0,) * array.ndim, array.dtype) if found is None else found
    return ranks.each(lambda: _read_own(array, schema, ranks, progress), nbytes=array.nbytes)


def schemas_of(schema: Any, names: Collection[str]) -> dict[str, Any]:
    """Map the arrays of a group to their schemas: the same one, or one by name.

    Raises
    ------
    InvalidError
        If there are schemas for other arrays.
    """
    if not isinstance(schema, Mapping):
        return dict.fromkeys(names, schema)
    if not set(schema) <= set(names):
        raise InvalidError(
            f"need schemas of the arrays {list(names)}, have {sorted(map(str, schema))}; give "
            "those of the group"
        )
    return dict(schema)


def has_boxes(schema: Any) -> bool:
    """Whether a schema names the boxes of each rank, whose part is then a list of arrays."""
    return isinstance(schema, Schema) and schema.is_boxes


def _write_own(array: Array, local: Own, schema: Any, ranks: Ranks, progress: ProgressLike) -> None:
    if isinstance(local, list):
        boxes = schema.boxes_of(array.shape, ranks.size, ranks.rank)
        need = [_shape(box) for box in boxes]
        have = [each.shape for each in local]
        if have != need:
            raise InvalidError(
                f"need arrays of the shapes {need} on rank {ranks.rank}, have {have}; give one for "
                "each of its boxes"
            )
        for box, mine in zip(boxes, local, strict=True):
            array[box] = mine
    elif ranks.size == 1:
        array[...] = local
    else:
        over = _distribution(array, schema, ranks)
        shape = over.local_shape(ranks.rank)
        if local.shape != shape:
            raise InvalidError(
                f"need an array of shape {shape} on rank {ranks.rank}, have {local.shape}; give "
                "the rank's share by the schema"
            )
        for box, part in over.parts(ranks.rank):
            array[box] = local[part]
    array.flush()
    _count(progress)


def _read_own(array: Array, schema: Any, ranks: Ranks, progress: ProgressLike) -> Own:
    found: Own
    if has_boxes(schema):
        boxes = schema.boxes_of(array.shape, ranks.size, ranks.rank)
        found = [np.asarray(array[box]) for box in boxes]
    elif ranks.size == 1:
        found = np.asarray(array[...])
    else:
        over = _distribution(array, schema, ranks)
        found = np.empty(over.local_shape(ranks.rank), array.dtype)
        for box, mine in over.parts(ranks.rank):
            found[mine] = array[box]
    _count(progress)
    return found


def _shape(box: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in box)


def _count(progress: ProgressLike) -> None:
    """Report an array as done."""
    if callable(progress):
        progress(1.0, 0.0)


def _check_schemas(
    arrays: Sequence[StoredArray | NewArray],
    schemas: Sequence[Any],
    ranks: Ranks,
    parts: Sequence[Own] | None = None,
    *,
    is_write: bool,
) -> None:
    """Raise an error on all ranks if one has a wrong schema or part, before any opens the files.

    A schema is wrong if it is missing, or differs from the first rank's. The parts of a rank are
    checked if they are given. If a single rank failed later, it could, as the first, remove files
    that the others are about to open.
    """
    agreed = ranks.first(lambda: [None if s is None else Schema.of(s).key() for s in schemas])

    def check() -> None:
        for array, schema, key in zip(arrays, schemas, agreed, strict=True):
            if schema is None:
                _refuse(array, ranks)
            mine = Schema.of(schema)
            if mine.key() != key:
                raise InvalidError(
                    f"need the same schema= of {array.path} on every rank, have {mine} and on the "
                    "first another; give the same everywhere"
                )
            mine.on(array.shape, ranks.size, is_write=is_write)
        for array, schema, part in zip(arrays, schemas, parts or (), strict=False):
            shapes = Schema.of(schema).local_shapes(array.shape, ranks.size, ranks.rank)
            arrays_of(part, shapes, array.dtype, ranks.rank, is_write=True)

    ranks.each(check)


def _refuse(array: StoredArray | NewArray, ranks: Ranks) -> None:
    raise InvalidError(
        f"{ranks.size} ranks need a schema= that says what each has of {array.path}; give an "
        "oc.Schema, such as oc.Schema('block,*')"
    )


def _distribution(array: Array, schema: Any, ranks: Ranks) -> Distribution:
    if isinstance(schema, Distribution):
        found = schema
    else:
        found = Schema.of(schema).distribution(array.shape, ranks.size)
    if (found.shape, found.size) != (array.shape, ranks.size):
        raise InvalidError(
            f"need a schema= of an array of shape {array.shape} over {ranks.size} ranks, have one "
            f"of {found.shape} over {found.size}"
        )
    return found


def _told(error: BaseException) -> tuple[str, str]:
    if isinstance(error, OutcoreError):
        return error.kind, str(error)
    return InvalidError.kind, f"it was stopped: {error!r}"
