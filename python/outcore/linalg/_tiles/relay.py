"""Blocks that are read, processed and written, a few of them in memory at a time."""

import contextlib
from collections.abc import Callable, Sequence

from outcore._core import Trace
from outcore._util.streams import Pending, wait
from outcore.errors import OutcoreError


class Relay:
    """The order in which blocks, by their numbers, use places in memory.

    Block `i` uses place ``i % places``. Its read starts as soon as the previous block of that place
    is written.

    Parameters
    ----------
    places
        Number of blocks that fit in memory.
    count
        Total number of blocks.
    arrive
        Starts to read a block into its place.
    trace
        Records the waits.
    first
        Number of the first block. Then `count` is the number after the last block.
    """

    def __init__(
        self,
        places: int,
        count: int,
        arrive: Callable[[int], Pending],
        trace: Trace,
        first: int = 0,
    ) -> None:
        self._places, self._count, self._arrive, self._trace = places, count, arrive, trace
        self._arriving: dict[int, Pending] = {}
        self._leaving: dict[int, Sequence[Pending]] = {}
        self._begun = self._worked_on = first

    def poll(self) -> None:
        """Start to read into free places."""
        while self._begun < min(self._count, self._worked_on + self._places):
            place = self._begun % self._places
            if not all(ticket.done() for ticket in self._leaving.get(place, ())):
                return
            self._free(place)
            self._arriving[place] = self._arrive(self._begun)
            self._begun += 1

    def allow(self, count: int) -> None:
        """Allow reads of blocks below `count`, if that is more than before."""
        self._count = max(self._count, count)
        self.poll()

    def must_leave_before(self, number: int) -> bool:
        """Whether the previous block of this block's place is still to be processed."""
        return number >= self._worked_on + self._places

    def is_there(self, number: int) -> bool:
        """Whether a block has arrived."""
        self.poll()
        return self._begun > number and self._arriving[number % self._places].done()

    def take(self, number: int) -> None:
        """Wait until a block has arrived. Blocks are taken in order."""
        while self._begun <= number:
            self._free(self._begun % self._places)
            self.poll()
        wait(self._arriving[number % self._places], self._trace)

    def leave(self, number: int, tickets: Sequence[Pending]) -> None:
        """Mark a block as processed. Its writes are in flight."""
        self._leaving[number % self._places] = tickets
        self._worked_on = number + 1
        self.poll()

    def drain(self) -> None:
        """Wait until every block is written."""
        for place in list(self._leaving):
            self._free(place)

    def abandon(self) -> None:
        """Wait for all requests in flight, and ignore their errors."""
        for tickets in (*self._leaving.values(), list(self._arriving.values())):
            for ticket in tickets:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()

    def _free(self, place: int) -> None:
        for ticket in self._leaving.get(place, ()):
            wait(ticket, self._trace)
        # Remove the entry last. If an interrupt ends the wait, `abandon` still waits for all of
        # them.
        self._leaving.pop(place, None)
