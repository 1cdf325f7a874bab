"""What the ranks of a program do together for a group: agree, and move their parts of an array.

Their parts go by collectives, or box by box. All else of a group is done by the first rank.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outcore.array import Array
from outcore.collective_memory import arrays_of
from outcore.communicator import TIMEOUT_S, Communicator
from outcore.distribution import Distribution
from outcore.errors import DiskError, InvalidError, OutcoreError, from_kind
from outcore.pool_path import PoolPath
from outcore.progress import ProgressLike
from outcore.schema import Schema

T = TypeVar("T")

Own: TypeAlias = "npt.NDArray[Any] | list[npt.NDArray[Any]]"
"""What a rank has of an array: an array, or one for each of its boxes."""

LEAST_BYTES_S = 16 << 20
"""Who reads or writes is waited for a second longer for so many bytes of all ranks."""


class Ranks:
    """The processes of a program, or this one alone.

    Parameters
    ----------
    comm
        As of `Communicator`; `None` for this process alone.
    timeout_s
        How long others wait for a rank, unless it has much to do; see `LEAST_BYTES_S`.
    """

    def __init__(self, comm: Any = None, timeout_s: int = TIMEOUT_S) -> None:
        self.given = comm
        self.timeout_s = timeout_s
        self._comm = None if comm is None else Communicator(comm, timeout_s)
        self.rank = 0 if self._comm is None else self._comm.rank
        self.size = 1 if self._comm is None else self._comm.size
        self._lost: BaseException | None = None

    def duplicate(self) -> "Ranks":
        """Return the same ranks with messages of their own, for a thread beside the program.

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
        """Give a duplicate back, unless ranks are lost that would have to do so too."""
        if self._lost is None and hasattr(self.given, "Free"):
            self.given.Free()

    def progress(self, progress: ProgressLike) -> ProgressLike:
        """Progress as this rank has it: a bar is shown by the first."""
        return progress if self.rank == 0 or callable(progress) else False

    def first(self, call: Callable[[], T], nbytes: int = 0) -> T:
        """Have the first rank call; every rank gets what it returns, or raises.

        Parameters
        ----------
        nbytes
            How much it reads or writes, if that may take long.
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
            raise mine
        if failed is not None:
            raise from_kind(*failed)
        return found

    def any(self, mine: bool) -> bool:
        """Whether it is so on some rank."""
        if self._comm is None or self.size == 1:
            return mine
        self.check()
        with self._noting_lost():
            return any(self._comm.allgather(mine))

    def each(self, call: Callable[[], T], doing: str = "", nbytes: int = 0) -> T:
        """Call on every rank; if that fails on one, it has failed on all.

        Parameters
        ----------
        doing
            What all ranks are to do; another on one of them is an error on all.
        nbytes
            How much all of them read or write, if that may take long.
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
            raise mine
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
        """Refuse to go on without a rank that was waited for in vain.

        Raises
        ------
        DiskError
            If there was one.
        """
        if self._lost is not None:
            raise DiskError(
                f"the ranks have lost one another ({self._lost}); begin anew from the newest "
                "checkpoint"
            )

    @contextlib.contextmanager
    def _noting_lost(self, mine: BaseException | None = None) -> Iterator[None]:
        """Note that the ranks have lost one another; what this one failed with is told first."""
        try:
            yield
        except BaseException as error:
            self._lost = error
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
    """Write what each rank has of a new array; it is durable on every rank when this returns.

    In a pool the servers direct it. On a plain path each rank writes its own boxes: disjoint writes
    do not disturb each other.

    Parameters
    ----------
    progress
        See `outcore.progress.ProgressLike`. On a plain path an array counts when it is done.
    memory
        As of `Array.write_all`.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not say what each has.
    """
    if ranks.size > 1 or has_boxes(schema):
        is_collective = isinstance(array.path, PoolPath)
        _check_schema(array, schema, ranks, local if is_collective else None, is_write=True)
        if is_collective:
            write_all = functools.partial(array.write_all, timeout=ranks.timeout_s, memory=memory)
            ranks.each(lambda: write_all(local, schema, ranks.given, progress=progress))
            return
    ranks.each(lambda: _write_own(array, local, schema, ranks, progress), nbytes=array.nbytes)


def read(array: Array, schema: Any, ranks: Ranks, progress: ProgressLike = False) -> Own:
    """Read what each rank is to have of an array, as `write` writes it.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not say what each is to have.
    """
    if ranks.size > 1 or has_boxes(schema):
        _check_schema(array, schema, ranks, is_write=False)
        if isinstance(array.path, PoolPath):
            read_all = functools.partial(array.read_all, timeout=ranks.timeout_s)
            found: Own | None = ranks.each(
                lambda: read_all(None, schema, ranks.given, progress=progress)
            )
            # A rank beyond the mesh has nothing.
            return np.empty((0,) * array.ndim, array.dtype) if found is None else found
    return ranks.each(lambda: _read_own(array, schema, ranks, progress), nbytes=array.nbytes)


def schemas_of(schema: Any, names: Collection[str]) -> dict[str, Any]:
    """Give each array of a group its schema: the same one, or one by its name.

    Raises
    ------
    InvalidError
        If there are schemas of other arrays.
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
    """Whether a schema names the boxes of each rank, which then has a list of arrays."""
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
                "what the rank has by the schema"
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
    """Count an array as done."""
    if callable(progress):
        progress(1.0, 0.0)


def _check_schema(
    array: Array, schema: Any, ranks: Ranks, local: "Own | None" = None, *, is_write: bool
) -> None:
    """Refuse on all ranks what one refuses, before one of them opens the array's files.

    That is a schema that is missing, or is not that of the first rank; and what a rank has, where
    that is given, if it does not fit. A rank alone would give up and, being the first, remove what
    the others are to open.
    """
    agreed = ranks.first(lambda: None if schema is None else Schema.of(schema).key())

    def check() -> None:
        if schema is None:
            _refuse(array, ranks)
        mine = Schema.of(schema)
        if mine.key() != agreed:
            raise InvalidError(
                f"need the same schema= of {array.path} on every rank, have {mine} and on the "
                "first another; give the same everywhere"
            )
        mine.on(array.shape, ranks.size, is_write=is_write)
        if local is not None:
            shapes = mine.local_shapes(array.shape, ranks.size, ranks.rank)
            arrays_of(local, shapes, array.dtype, ranks.rank, is_write=True)

    ranks.each(check)


def _refuse(array: Array, ranks: Ranks) -> None:
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
