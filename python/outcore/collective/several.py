"""Several new arrays that all processes of a program write at the same time."""

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from outcore._util import budget
from outcore._util.communicator import TIMEOUT_S
from outcore.array_files.stored_array import NewArray
from outcore.collective.call import (
    LEAST_MEMORY_BYTES,
    MEMORY_BYTES,
    Call,
    begin,
    give_up,
    giving_up,
)
from outcore.collective.interleaved import is_interleaved, packed
from outcore.collective.memory import Local
from outcore.layout.schema import SchemaLike

AT_ONCE = 4
"""Arrays in transfer at the same time.

Servers transfer two and prepare others; one is then never idle while processes meet for the next.
"""

AGREED = 2 * AT_ONCE
"""Arrays on which the processes agree at a time.

While servers transfer these, process 0 makes the files of the next ones.
"""


def write_several(
    arrays: Sequence[NewArray],
    local: Sequence[Local],
    schemas: Sequence[SchemaLike],
    comm: Any = None,
    *,
    memory: int | str | None = None,
    timeout: float = TIMEOUT_S,
) -> None:
    """Write new arrays from the memory of all processes of a program; each of them makes this call.

    The call returns on every process when all arrays are durable. The servers direct a collective
    for each. The largest arrays come first: their transfer hides the making of the others' files.

    Parameters
    ----------
    local, schemas
        This process's part of each array, and its schema; see `write_all`.
    comm, timeout
        As for `write_all`.
    memory
        Bytes for copies of elements in short runs, for all arrays together; 64 MiB by default, at
        least 1 MiB.

    Raises
    ------
    OutcoreError
        As for `write_all`.
    """
    memory_bytes = MEMORY_BYTES if memory is None else budget.resolve(memory)
    several = max(min(AT_ONCE, len(arrays), memory_bytes // LEAST_MEMORY_BYTES), 1)
    # Half of the memory is for arrays that interleave, in two groups at a time.
    each_bytes = max(memory_bytes // (2 * several), LEAST_MEMORY_BYTES)
    group_bytes = (memory_bytes - several * each_bytes) // 2
    # All processes take the arrays in the same order, so the first one that has not ended is under
    # way on each of them.
    nbytes = [math.prod(array.shape) * array.dtype.itemsize for array in arrays]
    order = sorted(range(len(arrays)), key=nbytes.__getitem__, reverse=True)
    calls = [Call("write_all", arrays[i], schemas[i], comm, timeout, each_bytes) for i in order]
    doing = f"the write of {len(arrays)} arrays"
    begun: list[Future[None]] = []
    failed: BaseException | None = None
    # The threads end last, when the servers have told them of an error.
    with ThreadPoolExecutor(several, "outcore-several") as threads, giving_up(calls, doing):
        try:
            for first in range(0, len(order), AGREED):
                agreed = calls[first : first + AGREED]
                own = [local[i] for i in order[first : first + AGREED]]
                begin(agreed)
                if failed is None:
                    try:
                        _start(threads, begun, agreed, own, group_bytes)
                    except BaseException as error:
                        failed = error
                if failed is not None:
                    # The others agree on the next arrays, so this process does, too.
                    give_up(agreed, failed)
            if failed is not None:
                raise failed
            for one in begun:
                one.result()
        finally:
            for one in begun:
                one.cancel()
            del failed  # it is in no cycle with this frame


def _start(
    threads: ThreadPoolExecutor,
    begun: list[Future[None]],
    calls: Sequence[Call],
    local: Sequence[Local],
    most_bytes: int,
) -> None:
    """Start the transfer of arrays; pack those that interleave, in at most these bytes a group."""
    for at in range(0, len(calls), AT_ONCE):
        parts = list(local[at : at + AT_ONCE])
        if is_interleaved(parts, most_bytes):
            # Copies of two groups are in memory at most.
            wait(begun[:-AT_ONCE])
            parts = packed(parts)
        group = zip(calls[at : at + AT_ONCE], parts, strict=True)
        begun += [threads.submit(_exchange, *each) for each in group]


def _exchange(call: Call, local: Local) -> None:
    """Transfer an array. After an error, the other processes learn of it at once."""
    try:
        call.exchange(local)
    except BaseException as error:
        give_up([call], error)
        raise
