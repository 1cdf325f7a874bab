"""Arrays written and read by all processes of a parallel program in one call.

The I/O servers direct it: each walks its own file in order, and asks the processes for what of it
they have. The functions are methods of `outcore.Array`. Source: Seamons et al. 1995.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outcore.collective_call import Call
from outcore.collective_memory import Local
from outcore.collective_report import CollectiveReport
from outcore.communicator import TIMEOUT_S
from outcore.errors import Interrupted
from outcore.progress import ProgressLike
from outcore.schema import Schema, SchemaLike
from outcore.signals import stop_on_signals

if TYPE_CHECKING:
    from outcore.array import Array


def write_all(
    self: "Array",
    local: Local,
    schema: SchemaLike,
    comm: Any = None,
    *,
    memory: int | str | None = None,
    timeout: float = TIMEOUT_S,
    atomic: bool = False,
    skip_disk: bool = False,
    progress: ProgressLike = True,
) -> CollectiveReport:
    """Write the array from the memory of all processes of a program, which all call this.

    Each returns when all of it is durable. Until then the array is marked incomplete on disk,
    and so it stays after a failure, which every process is told of.

    Parameters
    ----------
    local
        What this process has: an array of any strides, which is not copied where its elements
        lie in long runs; with `Schema.boxes` a list of one for each box. `None` is nothing.
    schema
        Which elements that are: a `Schema`, or its rules alone.
    comm
        Communicator of the processes: mpi4py's, or what has a rank, a size, ``bcast`` and
        ``barrier``; see `outcore.communicator.Communicator`. `None` is this process alone.
    memory
        Bytes for copies of what lies in short runs; 64 MiB by default, at least 1 MiB.
    timeout
        Seconds after which a process that is waited for counts as lost.
    atomic
        Write to other files, which take the place of the array's at the end, all at once. After a
        failure the array is what it was. It takes the room twice. The files keep group, mode and
        extended attributes, and belong to who is process 0. What is left of a call whose
        process 0 was killed is removed by the next, so only one such call of an array may be under
        way. It fails if a step was appended meanwhile.
    skip_disk
        Move everything, and write nothing: a measurement of all but the disks. It leaves
        the array as it is.
    progress
        See `outcore.progress.ProgressLike`; a bar is shown by rank 0. It is by what the pool's
        servers say they have moved, for whomever: beside other calls it is too fast.

    Returns
    -------
    CollectiveReport

    Raises
    ------
    InvalidError
        If the processes do not agree, or what one of them has does not fit the schema.
    BudgetError
        If `memory` is too little.
    BusyError
        If another call appends to the array, or has done so where that matters.
    OutcoreError
        On every process, if one of them, or a server, fails.
    """
    started = time.perf_counter()
    call = Call(
        "write_all", self, schema, comm, timeout, memory, progress,
        atomic=atomic, skip_disk=skip_disk,
    )  # fmt: skip
    with _giving_up(call, f"write_all of {self.path}"):
        call.begin()
        call.exchange(local)
        call.end()
    self.collective_report = call.report(time.perf_counter() - started)
    return self.collective_report


def read_all(
    self: "Array",
    local: Local,
    schema: SchemaLike,
    comm: Any = None,
    *,
    memory: int | str | None = None,
    timeout: float = TIMEOUT_S,
    skip_disk: bool = False,
    progress: ProgressLike = True,
) -> Any:
    """Read the array into the memory of all processes of a program, which all call this.

    Parameters
    ----------
    local
        Where to: as of `write_all`; `None` for new arrays in C order.
    schema, comm, memory, timeout, progress
        As of `write_all`.
    skip_disk
        Read nothing, and move what happens to be in memory: a measurement.

    Returns
    -------
    ndarray or list of ndarray or None
        `local`, or the new arrays: one, or with `Schema.boxes` a list; `None` for a process
        beyond the mesh. What was exchanged is in ``collective_report``.

    Raises
    ------
    InvalidError, BudgetError, OutcoreError
        As of `write_all`; if `local` is read-only.
    """
    started = time.perf_counter()
    call = Call("read_all", self, schema, comm, timeout, memory, progress, skip_disk=skip_disk)
    with _giving_up(call, f"read_all of {self.path}"):
        call.begin()
        arrays = call.exchange(local)
    self.collective_report = call.report(time.perf_counter() - started)
    if local is not None:
        return local
    return arrays if Schema.of(schema).is_boxes else arrays[0] if arrays else None


@contextlib.contextmanager
def _giving_up(call: Call, doing: str) -> Iterator[None]:
    """Let others know of a failure, and how to go on after Ctrl-C."""
    try:
        with stop_on_signals():
            yield
    except BaseException as error:
        call.give_up(error)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"{doing} was stopped; call it again on all processes") from None
        raise
