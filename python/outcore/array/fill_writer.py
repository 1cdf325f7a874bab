"""Writes of an assembly, and their durability."""

from collections import deque
from typing import Any

import numpy.typing as npt

from outcore._core import ArrayFile, Ticket, Trace
from outcore._util.streams import Box, wait


class Writer:
    """Write blocks of an array in order, and make them durable."""

    def __init__(self, file: ArrayFile, trace: Trace) -> None:
        self.durable = 0
        """Number of durable blocks."""
        self.unsynced = 0
        """Bytes written since the last sync."""
        self._done = 0
        self._file, self._trace = file, trace
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._is_doubtful = False  # whether written blocks may be lost

    def write(self, box: Box, data: npt.NDArray[Any], most: int) -> None:
        """Start a write, when fewer than `most` are in flight."""
        while len(self._tickets) >= most:
            self._reap()
        ticket = self._file.submit_write([s.start for s in box], [1] * len(box), data)
        self._tickets.append((ticket, data.nbytes))

    def _reap(self) -> None:
        ticket, nbytes = self._tickets[0]
        wait(ticket, self._trace)
        self._tickets.popleft()
        self._done += 1
        self.unsynced += nbytes

    def sync(self) -> None:
        """Wait for the blocks in flight, and make them durable.

        After a failed sync no block counts as durable any more: the system may have dropped the
        data, and may not report that again.
        """
        try:
            while self._tickets:
                self._reap()
        finally:
            # Blocks written before the failed one count.
            if not self._is_doubtful:
                self._is_doubtful = True
                wait(self._file.submit_sync(), self._trace)
                self._is_doubtful = False
                self.durable, self.unsynced = self._done, 0
