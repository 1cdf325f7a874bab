"""Arrays written and read by all processes of a parallel program in one call.

The I/O servers direct the transfer: each walks its own file in order, and requests each process's
share of it. The functions are methods of `outcore.Array`. Source: Seamons et al. 1995.
"""

import time
from typing import Any

from outcore._util.communicator import TIMEOUT_S
from outcore._util.progress import ProgressLike
from outcore.array_files.stored_array import StoredArray
from outcore.collective.call import Call, begin, giving_up
from outcore.collective.memory import Local
from outcore.layout.schema import Schema, SchemaLike
from outcore.report.collective_report import CollectiveReport


def write_all(
    self: StoredArray,
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
    """Write the array from the memory of all processes of a program; each of them makes this call.

    The call returns on every process when the whole array is durable. Until then the array is
    marked incomplete on disk. After a failure it stays incomplete, and every process raises an
    error.

    Parameters
    ----------
    local
        This process's part: an array of any strides, which is not copied where its elements lie in
        long runs; with `Schema.boxes` a list with one array for each box. `None` means no elements.
    schema
        Distribution of the array over the processes: a `Schema`, or its rules alone.
    comm
        Communicator of the processes: mpi4py's, or an object with a rank, a size, ``bcast`` and
        ``barrier``, such as ``torch.distributed``. `None` means this process alone.
    memory
        Bytes for copies of elements in short runs; 64 MiB by default, at least 1 MiB.
    timeout
        Seconds until a process that does not answer counts as lost.
    atomic
        Write to new files, which replace those of the array all at once at the end. After a failure
        the array is unchanged. The call needs the disk space twice. The new files keep group, mode
        and extended attributes, and belong to the user of process 0. If process 0 is killed, the
        next call removes its files; so only one such call of an array may run at a time. The call
        fails if another process has appended a step meanwhile.
    skip_disk
        Exchange all messages, but write nothing: a measurement of everything except the disks. The
        array is unchanged.
    progress
        Whether rank 0 shows progress, or a function ``f(fraction, seconds_left)``. The servers
        report the bytes that they have moved for all calls: the bar is too fast beside other calls.

    Returns
    -------
    CollectiveReport

    Raises
    ------
    InvalidError
        If the processes do not agree, or the part of one of them does not fit the schema.
    BudgetError
        If `memory` is too small.
    BusyError
        If another call is appending to the array, or has appended to it since, where that matters.
    OutcoreError
        On every process, if a process or a server fails.
    """
    started = time.perf_counter()
    call = Call(
        "write_all", self, schema, comm, timeout, memory, progress,
        atomic=atomic, skip_disk=skip_disk,
    )  # fmt: skip
    with giving_up([call], f"write_all of {self.path}"):
        begin([call])
        call.exchange(local)
        call.end()
    self.collective_report = call.report(time.perf_counter() - started)
    return self.collective_report


def read_all(
    self: StoredArray,
    local: Local,
    schema: SchemaLike,
    comm: Any = None,
    *,
    memory: int | str | None = None,
    timeout: float = TIMEOUT_S,
    skip_disk: bool = False,
    progress: ProgressLike = True,
) -> Any:
    """Read the array into the memory of all processes of a program; each of them makes this call.

    Parameters
    ----------
    local
        Target arrays, in the form of `write_all`; `None` for new arrays in C order.
    schema, comm, memory, timeout, progress
        As for `write_all`.
    skip_disk
        Read nothing from disk, and exchange arbitrary bytes: a measurement.

    Returns
    -------
    ndarray or list of ndarray or None
        `local`, or the new arrays: a single one, or with `Schema.boxes` a list; `None` for a
        process beyond the mesh. ``collective_report`` describes the exchange.

    Raises
    ------
    InvalidError, BudgetError, OutcoreError
        As for `write_all`; also if `local` is read-only.
    """
    started = time.perf_counter()
    call = Call("read_all", self, schema, comm, timeout, memory, progress, skip_disk=skip_disk)
    with giving_up([call], f"read_all of {self.path}"):
        begin([call])
        arrays = call.exchange(local)
    self.collective_report = call.report(time.perf_counter() - started)
    if local is not None:
        return local
    return arrays if Schema.of(schema).is_boxes else arrays[0] if arrays else None
