"""A checkpoint in the background: copies, and a thread that writes them while the program runs."""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore.collective.call import LEAST_MEMORY_BYTES, MEMORY_BYTES
from outcore.errors import BudgetError
from outcore.layout.zarr_format import Metadata
from outcore.series.checkpoints import read_back_bytes
from outcore.series.group_transfer import Own

_NICENESS = 19


class BackgroundCheckpoint:
    """A checkpoint that a thread writes while the program continues.

    `wait` raises the error of a failed checkpoint. If the program does not call it, the group's
    next call raises the error.
    """

    def __init__(self, write: Callable[[], int]) -> None:
        self._number = -1
        self._error: BaseException | None = None
        self.is_told = False
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="outcore-checkpoint", daemon=False
        )
        self._thread.start()

    def _run(self, write: Callable[[], int]) -> None:
        # On Linux each thread has its own priority; the program's threads go first.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            self._number = write()
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether the checkpoint has ended, successfully or not."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the checkpoint is durable; return its number.

        Ctrl-C ends the wait, but not the checkpoint.

        Parameters
        ----------
        timeout
            Seconds to wait; by default without a limit.

        Raises
        ------
        TimeoutError
            If the checkpoint is still being written after `timeout`. Writing continues.
        OutcoreError
            If the checkpoint failed: it does not exist, and earlier ones are unchanged.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the checkpoint is still being written; wait for it again")
        self.is_told = True
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error is in no cycle with this frame
        return self._number


def copies(own: Own, given: Any) -> Own:
    """Copy those arrays of a rank that the program could still change."""
    if isinstance(own, list):
        return [_copy(one, its) for one, its in zip(own, given, strict=True)]
    return _copy(own, given)


def _copy(array: npt.NDArray[Any], given: npt.ArrayLike) -> npt.NDArray[Any]:
    """Copy an array that shares memory with the caller's; a converted one is already a copy."""
    is_shared = isinstance(given, np.ndarray) and np.may_share_memory(array, given)
    return array.copy(order="K") if is_shared or not isinstance(given, np.ndarray) else array


def check_budget(
    given: Mapping[str, Own],
    metadata: Mapping[str, Metadata],
    memory: int | str | None,
    *,
    is_collective: bool,
) -> int | None:
    """Refuse copies larger than the budget; return the budget left for collectives."""
    read_back = max(map(read_back_bytes, metadata.values()))
    copied = 0
    for name, own in given.items():
        elements_of = sum(each.size for each in (own if isinstance(own, list) else [own]))
        copied += elements_of * metadata[name].dtype.itemsize
    # The read-back starts after the collective has ended, so the larger of the two counts.
    beside = max(read_back, LEAST_MEMORY_BYTES) if is_collective else read_back
    need, have = copied + beside, budget.resolve(memory)
    if need > have:
        raise BudgetError(
            f"need {need} bytes for a copy of the arrays and {beside} that are moved or read back "
            f"at a time, have {have}; give memory={need} or more, or background=False"
        )
    return min(have - copied, MEMORY_BYTES) if is_collective else None
