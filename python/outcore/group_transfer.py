"""What the ranks of a program do together for a group: agree, and move their parts of an array.

This is where a group's arrays meet collective I/O: all else of a group is done by the first rank.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore.array import Array
from outcore.communicator import Communicator
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
    """Write what each rank has of a new array; it is durable when this returns.

    Raises
    ------
    InvalidError
        If there are several ranks.
    """
    _check_alone(ranks)
    array[...] = local
    array.flush()


def read(array: Array, schema: Any, ranks: Ranks) -> npt.NDArray[Any]:
    """Read what each rank is to have of an array.

    Raises
    ------
    InvalidError
        If there are several ranks.
    """
    _check_alone(ranks)
    return np.asarray(array[...])


def _check_alone(ranks: Ranks) -> None:
    if ranks.size > 1:
        raise InvalidError(
            f"groups are written and read by one process so far, have {ranks.size} ranks; gather "
            "the arrays on one of them and leave comm= out"
        )


def _told(error: BaseException) -> tuple[str, str]:
    if isinstance(error, OutcoreError):
        return error.kind, str(error)
    return InvalidError.kind, f"it was stopped: {error!r}"
