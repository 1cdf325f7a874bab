"""Communicators: what outcore needs of mpi4py's, torch.distributed, or whatever is like them."""

import time
from collections.abc import Callable
from typing import Any

from outcore.errors import DiskError, InvalidError

_POLL_S = 0.002


class Alone:
    """The communicator of a program of one process."""

    rank, size = 0, 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Wait for nobody."""


class Communicator:
    """The same four things of any communicator.

    Parameters
    ----------
    comm
        What has a rank (``Get_rank()``, ``get_rank()`` or ``rank``), a size (``Get_size()``,
        ``get_world_size()`` or ``size``), ``bcast(value, root)`` or
        ``broadcast_object_list([value], src)``, and ``barrier()`` or ``Barrier()``; such as a
        communicator of mpi4py, or the module ``torch.distributed``.

    Raises
    ------
    InvalidError
        If it lacks one of them, or its rank is none of its ranks.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank = _number(comm, ("Get_rank", "get_rank", "rank"))
        self.size = _number(comm, ("Get_size", "get_world_size", "get_size", "size"))
        if not 0 <= self.rank < self.size:
            raise InvalidError(f"rank {self.rank} is none of the {self.size} of a communicator")
        self._barrier = _method(comm, ("barrier", "Barrier"))
        self._bcast = _method(comm, ("bcast", "broadcast_object_list"))
        self._in_place = not hasattr(comm, "bcast")

    def bcast(self, value: Any, root: int) -> Any:
        """Return the value that the rank `root` gives."""
        if not self._in_place:
            return self._bcast(value, root)
        values = [value]
        self._bcast(values, root)
        return values[0]

    def allgather(self, value: Any) -> list[Any]:
        """Return what each rank gives, in the order of the ranks."""
        return [self.bcast(value, root) for root in range(self.size)]

    def barrier(self, timeout_s: float) -> None:
        """Return when every rank has come here.

        Parameters
        ----------
        timeout_s
            How long to wait for the others. It counts where the communicator has ``Ibarrier``, as
            MPI's do; another barrier takes as long as it takes.

        Raises
        ------
        DiskError
            If they did not come.
        """
        start = getattr(self._comm, "Ibarrier", None)
        if start is None:
            self._barrier()
            return
        request, until = start(), time.monotonic() + timeout_s
        while not request.Test():
            if time.monotonic() > until:
                raise DiskError(
                    f"rank {self.rank} waited {timeout_s:g} s for the others in vain; one of them "
                    "has failed, or never came here: look for its error"
                )
            time.sleep(_POLL_S)


def _number(comm: Any, names: tuple[str, ...]) -> int:
    for name in names:
        found = getattr(comm, name, None)
        if found is not None:
            return int(found() if callable(found) else found)
    raise _lacking(comm, names)


def _method(comm: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    for name in names:
        found = getattr(comm, name, None)
        if callable(found):
            method: Callable[..., Any] = found
            return method
    raise _lacking(comm, names)


def _lacking(comm: Any, names: tuple[str, ...]) -> InvalidError:
    return InvalidError(
        f"need a communicator with {' or '.join(names)}, have {type(comm).__name__}; give one of "
        "mpi4py, or what is like it"
    )
