"""Processes that die during a call.

A process that was killed sends no error. The others would wait for the time that its work may take.
The system tells of the end of a process on the same host, and closes the connections of one on
another host.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from outcore._util.this_machine import process_fields, started_in
from outcore.errors import DiskError
from outcore.processes.links import Address, Links

_LAST_S = 1.0
"""Time for the last messages of a process that has ended, which may tell the reason."""


class Identity(NamedTuple):
    """A process, among all of this and other hosts.

    Attributes
    ----------
    numbering
        The host and the space of process numbers, where a number means one process.
    number
        The process number.
    began
        When the process began, so that a later one with the same number is another.
    """

    numbering: tuple[str, str]
    number: int
    began: str


def numbering() -> tuple[str, str]:
    """Identify the host and the space of process numbers, where a number means one process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")


def identity() -> Identity | None:
    """Identify this process; `None` if the system does not tell."""
    fields = process_fields(os.getpid())
    try:
        return Identity(numbering(), os.getpid(), started_in(fields)) if fields else None
    except OSError:
        return None


class Deaths:
    """The deaths of the other processes of a call, as far as the systems tell of them.

    Attributes
    ----------
    lost
        The ranks of those that are known to have died. MPI must send them nothing.
    """

    def __init__(self) -> None:
        self._ended: select.epoll | None = None
        self._ranks: dict[int, int] = {}
        self._links: Links | None = None
        self.lost: set[int] = set()
        self._lock = threading.Lock()  # Several threads of a process wait for others.
        # The first that has ended, and when this process noticed that.
        self._first: tuple[int, float] | None = None

    def watch(self, all_of: Sequence[Identity | None], rank: int) -> None:
        """Watch the processes of this host, of which this one is number `rank`."""
        own = all_of[rank]
        for other, each in enumerate(all_of):
            if own and each and each != own and each.numbering == own.numbering:
                # Old kernels, and some sandboxes, have no handles of processes.
                with contextlib.suppress(OSError, AttributeError):
                    self._watch(other, each)

    def watch_apart(
        self,
        all_of: Sequence[Identity | None],
        rank: int,
        timeout_s: float,
        exchange: Callable[[Address | None], Sequence[Address | None]],
    ) -> None:
        """Watch the processes of other hosts. All processes of a call meet here.

        Parameters
        ----------
        all_of, rank
            As for `watch`.
        timeout_s
            As for `Links.connect`.
        exchange
            Returns the values of all processes.
        """
        numberings = [each and each.numbering for each in all_of]
        if None not in numberings and len(set(numberings)) == 1:
            return
        with contextlib.suppress(OSError):
            self._links = Links()
        found = exchange(self._links.address if self._links else None)
        if self._links is not None:
            here = numberings[rank]
            others = [
                other
                for other, there in enumerate(numberings)
                if other != rank and (there != here or here is None)
            ]
            self._links.connect(found, rank, others, timeout_s)
            self._ended = self._ended or select.epoll()
            self._ended.register(self._links, select.EPOLLIN)

    def _watch(self, rank: int, process: Identity) -> None:
        handle = os.pidfd_open(process.number)
        try:
            fields = process_fields(process.number)
            if fields and started_in(fields) == process.began:
                self._ended = self._ended or select.epoll()
                self._ended.register(handle, select.EPOLLIN)
                self._ranks[handle] = rank
        finally:
            if handle not in self._ranks:
                os.close(handle)

    def check(self) -> None:
        """Raise if one of the processes has ended, and its last messages have had time to come.

        Raises
        ------
        DiskError
            If so. It has the attribute ``is_lost``.
        """
        with self._lock:
            self._look()
        if not self.lost:
            return
        self._first = self._first or (min(self.lost), time.monotonic())
        rank, noticed_s = self._first
        if time.monotonic() - noticed_s < _LAST_S:
            return
        error = DiskError(
            f"rank {rank} died during the call; look for its error, or for a "
            "message of the system that it had no memory for it"
        )
        vars(error)["is_lost"] = True
        raise error

    def _look(self) -> None:
        for handle, _ in self._ended.poll(0) if self._ended else ():
            if handle in self._ranks:
                self.lost.add(self._ranks[handle])
            elif self._links is not None:
                self.lost.update(self._links.ended())

    def close(self) -> None:
        """Stop watching."""
        for handle in self._ranks:
            os.close(handle)
        if self._ended:
            self._ended.close()
        if self._links:
            self._links.close()
        self._ended, self._links, self._ranks, self.lost = None, None, {}, set()
