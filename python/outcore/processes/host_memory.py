"""Memory of each process that the other processes of its host use in place, with semaphores."""

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.processes.deaths import numbering
from outcore.processes.team import Team

_TOKEN_BYTES = 16

_SEMAPHORE_BYTES = 64
"""A semaphore takes at most 32 bytes. Each has a line of the cache for itself."""

_c = ctypes.CDLL(None, use_errno=True)

_CLOCK = time.CLOCK_MONOTONIC if hasattr(_c, "sem_clockwait") else time.CLOCK_REALTIME
"""The clock of waits. Older libraries of C only know one that may be set back during a wait."""

_NOT_NOW = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class HostMemory:
    """Memory of one process, and its semaphores of POSIX.

    A process that returns from `wait` sees all writes of another one before its `post`.

    Parameters
    ----------
    mapped
        The memory: semaphores, blocks from the next page on, and a token.
    semaphores
        Their number.
    """

    def __init__(self, mapped: mmap.mmap, semaphores: int) -> None:
        self._mapped = mapped
        self._semaphores = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._blocks = _pages(semaphores * _SEMAPHORE_BYTES)

    def set_up(self, values: Sequence[int]) -> None:
        """Give the semaphores their first values, before any process uses them."""
        for number, value in enumerate(values):
            if _c.sem_init(self._at(number), 1, value):
                raise OSError("cannot set up a semaphore")

    def post(self, number: int) -> None:
        """Add one to a semaphore."""
        _c.sem_post(self._at(number))

    def wait(self, number: int, most_s: float = 0.0) -> bool:
        """Subtract one from a semaphore; wait at most `most_s`, and return whether it was done."""
        at = self._at(number)
        if not _c.sem_trywait(at) or (most_s and not _wait_until(at, most_s)):
            return True
        error = ctypes.get_errno()
        if error not in _NOT_NOW:
            raise OSError(error, f"cannot wait for a semaphore: {os.strerror(error)}")
        return False

    def array(self, first: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return a column-major array at byte `first` of the blocks."""
        return np.ndarray(shape, dtype, self._mapped, self._blocks + first, order="F")

    def _at(self, number: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._semaphores + number * _SEMAPHORE_BYTES)


def _wait_until(at: ctypes.c_void_p, most_s: float) -> int:
    end = time.clock_gettime(_CLOCK) + most_s
    until = ctypes.byref(_Time(int(end), int(end % 1 * 1e9)))
    if _CLOCK == time.CLOCK_MONOTONIC:
        return int(_c.sem_clockwait(at, _CLOCK, until))
    return int(_c.sem_timedwait(at, until))


def host_memory(
    team: Team, nbytes: int, values: Sequence[int], more_s: float
) -> list[HostMemory] | None:
    """Return `nbytes` of each process, in the order of the ranks.

    All processes call this together. The system frees the memory when the last of them has ended,
    however it ends.

    Parameters
    ----------
    values
        First values of the semaphores of each process.
    more_s
        As for `Sharing.exchange`.

    Returns
    -------
    list of HostMemory, or None
        `None` if a process cannot use the memory of each other one: they run on several hosts, or
        the system refuses it.
    """
    size = _pages(len(values) * _SEMAPHORE_BYTES) + nbytes + _TOKEN_BYTES
    token, handle, own, here = os.urandom(_TOKEN_BYTES), -1, None, None
    try:
        try:
            handle = os.memfd_create("outcore", os.MFD_CLOEXEC)
            # Memory that the system did not reserve would kill a process that uses it.
            os.posix_fallocate(handle, 0, size)
            own = mmap.mmap(handle, size)
            own[-_TOKEN_BYTES:] = token
            HostMemory(own, len(values)).set_up(values)
            here = numbering(), os.getpid(), handle, token
        except OSError:
            pass  # The others learn it here.
        all_of = team.all_of(here, more_s)
        found = [
            own if rank == team.rank else _opened(size, here, there)
            for rank, there in enumerate(all_of)
        ]
        usable = [HostMemory(each, len(values)) for each in found if each is not None]
        is_usable = here is not None and len(usable) == team.size
        is_shared = all(team.all_of(is_usable, more_s))
    finally:
        if handle >= 0:
            os.close(handle)
    return usable if is_shared else None


def _opened(size: int, here: Any, there: Any) -> mmap.mmap | None:
    """Return the memory of another process."""
    if here is None or there is None or here[0] != there[0]:
        return None
    _, process, number, token = there
    try:
        handle = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(handle, size)
        finally:
            os.close(handle)
    except (OSError, ValueError):
        return None
    return mapped if mapped[-_TOKEN_BYTES:] == token else None


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
