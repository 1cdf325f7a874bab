"""What the ranks of a program do together for a group: agree, and move their parts of an array.

Each rank writes its own boxes: disjoint writes do not disturb each other. All else of a group is
done by the first rank.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore.array import Array
from outcore.communicator import Communicator
from outcore.distribution import Distribution
from outcore.errors import InvalidError, OutcoreError, from_kind

T = TypeVar("T")


class Ranks:
    """The processes of a program, or this one alone.

    Parameters
    ----------
    comm
        As of `Communicator`; `None` for this process alone.
    """

    def __init__(self, comm: Any = None) -> None:
        self.given = comm
        self._comm = None if comm is None else Communicator(comm)
        self.rank = 0 if self._comm is None else self._comm.rank
        self.size = 1 if self._comm is None else self._comm.size

    def duplicate(self) -> "Ranks":
        """Return the same ranks with messages of their own, for a thread beside the program.

        Raises
        ------
        InvalidError
            If the communicator cannot be duplicated.
        """
        if self.size == 1:
            return Ranks()
        if not hasattr(self.given, "Dup"):
            raise InvalidError(
                "a checkpoint in the background by several ranks needs a communicator with Dup, as "
                "MPI's have; make it with background=False"
            )
        return Ranks(self.given.Dup())

    def first(self, call: Callable[[], T]) -> T:
        """Have the first rank call; every rank gets what it returns, or raises."""
        if self._comm is None or self.size == 1:
            return call()
        outcome: tuple[Any, tuple[str, str] | None] = (None, None)
        try:
            if self.rank == 0:
                outcome = (call(), None)
        except BaseException as error:
            self._comm.bcast((None, _told(error)), 0)
            raise
        found: T
        found, failed = self._comm.bcast(outcome, 0)
        if failed is not None:
            raise from_kind(*failed)
        return found

    def each(self, call: Callable[[], T]) -> T:
        """Call on every rank; if that fails on one, it has failed on all."""
        if self._comm is None or self.size == 1:
            return call()
        try:
            value, failed = call(), None
        except BaseException as error:
            self._comm.allgather(_told(error))
            raise
        for rank, other in enumerate(self._comm.allgather(failed)):
            if other is not None:
                raise from_kind(other[0], f"rank {rank}: {other[1]}")
        return value


def write(array: Array, local: npt.NDArray[Any], schema: Any, ranks: Ranks) -> None:
    """Write what each rank has of a new array; it is durable on every rank when this returns.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not say what each has.
    """

    def work() -> None:
        parts = _parts(array, schema, ranks)
        _check_local(array, local, schema, ranks)
        for box, mine in parts:
            array[box] = local[mine]
        array.flush()

    ranks.each(work)


def read(array: Array, schema: Any, ranks: Ranks) -> npt.NDArray[Any]:
    """Read what each rank is to have of an array.

    Raises
    ------
    InvalidError
        If there are several ranks, and `schema` does not say what each is to have.
    """

    def work() -> npt.NDArray[Any]:
        if ranks.size == 1:
            return np.asarray(array[...])
        parts = _parts(array, schema, ranks)
        local = np.empty(schema.local_shape(ranks.rank), array.dtype)
        for box, mine in parts:
            local[mine] = array[box]
        return local

    return ranks.each(work)


def _parts(array: Array, schema: Any, ranks: Ranks) -> Iterator[tuple[Any, Any]]:
    """Boxes of the array that this rank has, each with where it lies in what the rank has."""
    if ranks.size == 1:
        return iter([(..., ...)])
    if not isinstance(schema, Distribution):
        raise InvalidError(
            f"{ranks.size} ranks need a schema= that says what each has, have {schema!r}; give one "
            "of outcore.distribution.distribute"
        )
    if (schema.shape, schema.size) != (array.shape, ranks.size):
        raise InvalidError(
            f"need a schema= of an array of shape {array.shape} over {ranks.size} ranks, have one "
            f"of {schema.shape} over {schema.size}"
        )
    return schema.parts(ranks.rank)


def _check_local(array: Array, local: npt.NDArray[Any], schema: Any, ranks: Ranks) -> None:
    need = array.shape if ranks.size == 1 else schema.local_shape(ranks.rank)
    if local.shape != need:
        raise InvalidError(
            f"need an array of shape {need} on rank {ranks.rank}, have {local.shape}; give what "
            "the rank has by the schema"
        )


def _told(error: BaseException) -> tuple[str, str]:
    if isinstance(error, OutcoreError):
        return error.kind, str(error)
    return InvalidError.kind, f"it was stopped: {error!r}"
