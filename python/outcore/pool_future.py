"""Requests to a pool's file in the background: what becomes of them, and who is told."""

import threading
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outcore._core import Ticket
from outcore.errors import OutcoreError

T = TypeVar("T")


@dataclass(eq=False)
class _Claim:
    """A request, without its memory; `before` are requests whose errors it tells too."""

    ticket: Ticket
    before: "list[_Claim]" = field(default_factory=list)
    is_told: bool = False

    def error(self, until: float | None) -> OutcoreError | None:
        """Wait for the end; return what the request itself failed with."""
        try:
            if until is None:
                self.ticket.wait()
            elif not self.ticket.wait_for(until - time.monotonic()):
                raise TimeoutError("the request is still under way; ask for its result again")
        except OutcoreError as error:
            return error
        return None

    def with_earlier(self) -> "list[_Claim]":
        """List the requests that it tells of, in the order in which they were started."""
        found, rest = [], [self]
        while rest:
            claim = rest.pop()
            found.append(claim)
            rest.extend(claim.before)
        return found[::-1]

    def is_settled(self) -> bool:
        """Whether it is over, and there is nothing to tell."""
        return all(
            claim.ticket.done() and (claim.is_told or claim.error(None) is None)
            for claim in self.with_earlier()
        )


def _outcome(
    claims: list[_Claim], until: float | None, own: _Claim | None = None
) -> OutcoreError | None:
    """Wait for requests; return the first error that nobody was told of, or that is of `own`."""
    # Nobody is told of anything before the wait is over: it may end early.
    ends = [(claim, claim.error(until)) for claim in claims]
    errors = [
        error for claim, error in ends if error is not None and (claim is own or not claim.is_told)
    ]
    for claim in claims:
        claim.is_told = True
    if len(errors) > 1:
        errors[0].add_note(f"{len(errors) - 1} other requests failed too, the last: {errors[-1]}")
    return errors[0] if errors else None


class PoolFuture(Generic[T]):
    """A request under way, in the manner of `concurrent.futures.Future`.

    The array that is read into or written from is kept until the request is over, whether the
    future is kept or not. What a request fails with is raised by `result`; if nobody asks for it,
    by the file's next `PoolFile.sync` or `PoolFile.close`.
    """

    def __init__(self, claim: _Claim, value: T, file: object) -> None:
        self._claim = claim
        self._file = file  # stays open as long as its requests are waited for
        self._value = value
        self._error: OutcoreError | None = None
        self._is_over = False

    def done(self) -> bool:
        """Whether the request is over, well or not."""
        return self._claim.ticket.done()

    def running(self) -> bool:
        """Whether the request is under way."""
        return not self.done()

    def exception(self, timeout: float | None = None) -> OutcoreError | None:
        """Wait for the end, and return what the request failed with, or `None`.

        Parameters
        ----------
        timeout
            Seconds to wait; by default as long as it takes.

        Raises
        ------
        TimeoutError
            If the request is still under way then; it goes on.
        """
        if not self._is_over:
            until = None if timeout is None else time.monotonic() + timeout
            self._error = _outcome(self._claim.with_earlier(), until, self._claim)
            self._is_over = True
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end, and return the array that was read, `None` after a write or a sync.

        Ctrl-C ends the wait, not the request: the result can be asked for again.

        Parameters
        ----------
        timeout
            Seconds to wait; by default as long as it takes.

        Raises
        ------
        TimeoutError
            If the request is still under way then; it goes on.
        OutcoreError
            What the request failed with.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value


class Claims:
    """The requests of one file of which nobody was told how they ended."""

    __slots__ = ("_claims", "_enough", "_lock")

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._lock = threading.Lock()
        self._enough = 16

    def future(self, ticket: Ticket, value: T, file: object) -> PoolFuture[T]:
        """Note a request that was started."""
        return self._note(_Claim(ticket), value, file)

    def under_way(self) -> list[Ticket]:
        """List the requests that are not over."""
        with self._lock:
            return [claim.ticket for claim in self._claims if not claim.ticket.done()]

    def future_after(self, ticket: Ticket, file: object) -> PoolFuture[None]:
        """Note a sync: it also tells what became of the requests that were started before it."""
        with self._lock:
            before, self._claims = self._claims, []
        return self._note(_Claim(ticket, before), None, file)

    def settle(self) -> None:
        """Wait for all requests; raise the first error that nobody was told of."""
        if not self._claims:  # most files that are made are closed at once
            return
        with self._lock:
            claims, self._claims = self._claims, []
        error = _outcome([each for claim in claims for each in claim.with_earlier()], None)
        if error is not None:
            raise error

    def _note(self, claim: _Claim, value: T, file: object) -> PoolFuture[T]:
        with self._lock:
            if len(self._claims) >= self._enough:
                self._claims = [each for each in self._claims if not each.is_settled()]
                self._enough = max(2 * len(self._claims), 16)
            self._claims.append(claim)
        return PoolFuture(claim, value, file)
