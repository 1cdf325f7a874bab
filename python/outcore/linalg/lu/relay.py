"""Blocks that arrive, are worked on, and leave: a few of them in memory at a time."""

import contextlib
from collections.abc import Callable, Sequence

from outcore._core import Trace
from outcore.errors import OutcoreError
from outcore.streams import Pending, wait


class Relay:
    """The order in which blocks, by their numbers, use places in memory.

    Block `i` uses place ``i % places``: it begins to arrive as soon as the block before it there
    has left.

    Parameters
    ----------
    places
        Blocks that memory holds.
    count
        Blocks in all.
    arrive
        Starts reading a block to its place.
    trace
        For what is waited for.
    first
        Number of the first block; `count` is the number after the last.
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
        """Start reading to places that are free."""
        while self._begun < min(self._count, self._worked_on + self._places):
            place = self._begun % self._places
            if not all(ticket.done() for ticket in self._leaving.get(place, ())):
                return
            self._free(place)
            self._arriving[place] = self._arrive(self._begun)
            self._begun += 1

    def allow(self, count: int) -> None:
        """Let blocks below a number arrive, if more than so far."""
        self._count = max(self._count, count)
        self.poll()

    def must_leave_before(self, number: int) -> bool:
        """Whether the block before it at its place was not yet worked on."""
        return number >= self._worked_on + self._places

    def is_there(self, number: int) -> bool:
        """Whether a block has arrived."""
        self.poll()
        return self._begun > number and self._arriving[number % self._places].done()

    def take(self, number: int) -> None:
        """Wait until a block is there; blocks are taken in order."""
        while self._begun <= number:
            self._free(self._begun % self._places)
            self.poll()
        wait(self._arriving[number % self._places], self._trace)

    def leave(self, number: int, tickets: Sequence[Pending]) -> None:
        """Note that a block was worked on, and is being written."""
        self._leaving[number % self._places] = tickets
        self._worked_on = number + 1
        self.poll()

    def drain(self) -> None:
        """Wait until every block has left."""
        for place in list(self._leaving):
            self._free(place)

    def abandon(self) -> None:
        """Wait for what is in flight, whatever becomes of it."""
        for tickets in (*self._leaving.values(), list(self._arriving.values())):
            for ticket in tickets:
                with contextlib.suppress(OutcoreError):
                    ticket.wait()

    def _free(self, place: int) -> None:
        for ticket in self._leaving.get(place, ()):
            wait(ticket, self._trace)
        # Not before: who is interrupted here gives up, and waits for all of them.
        self._leaving.pop(place, None)
