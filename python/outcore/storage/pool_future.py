"""Background requests to a pool's file: their results, and the report of their errors."""

import threading
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outcore._core import Ticket
from outcore.errors import OutcoreError

T = TypeVar("T")


@dataclass(eq=False)
class _Claim:
    """A request, without its memory; it also reports the errors of the requests in `before`."""

    ticket: Ticket
    before: "list[_Claim]" = field(default_factory=list)
    is_told: bool = False

    def error(self, until: float | None) -> OutcoreError | None:
        """Wait for the end; return the error of this request alone."""
        try:
            if until is None:
                self.ticket.wait()
            elif not self.ticket.wait_for(until - time.monotonic()):
                raise TimeoutError("the request is still pending; ask for its result again")
        except OutcoreError as error:
            return error.with_traceback(None)  # its frames would keep those of all callers
        return None

    def with_earlier(self) -> "list[_Claim]":
        """List the requests whose errors it reports, in the order of their start."""
        found, rest = [], [self]
        while rest:
            claim = rest.pop()
            found.append(claim)
            rest.extend(claim.before)
        return found[::-1]

    def is_settled(self) -> bool:
        """Whether the request has ended without an unreported error."""
        return all(
            claim.ticket.done() and (claim.is_told or claim.error(None) is None)
            for claim in self.with_earlier()
        )


def _outcome(
    claims: list[_Claim], until: float | None, own: _Claim | None = None
) -> OutcoreError | None:
    """Wait for requests; return the first error that is unreported, or belongs to `own`."""
    # Errors are marked as reported only after the wait, because a timeout may end it early.
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
    """A pending request, similar to `concurrent.futures.Future`.

    The request keeps the array that it reads into or writes from until it ends, even if the future
    is dropped. `result` raises the error of the request. If nothing calls `result`, the file's next
    `PoolFile.sync` or `PoolFile.close` raises it.
    """

    def __init__(self, claim: _Claim, value: T, file: object) -> None:
        self._claim = claim
        self._file = file  # keeps the file open while a caller waits for its requests
        self._value = value
        self._error: OutcoreError | None = None
        self._is_over = False

    def done(self) -> bool:
        """Whether the request has ended, successfully or not."""
        return self._claim.ticket.done()

    def running(self) -> bool:
        """Whether the request is pending."""
        return not self.done()

    def exception(self, timeout: float | None = None) -> OutcoreError | None:
        """Wait for the end, and return the error of the request, or `None`.

        Parameters
        ----------
        timeout
            Seconds to wait; by default without limit.

        Raises
        ------
        TimeoutError
            If the request is still pending after the timeout; it continues.
        """
        if not self._is_over:
            until = None if timeout is None else time.monotonic() + timeout
            self._error = _outcome(self._claim.with_earlier(), until, self._claim)
            self._is_over = True
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end, and return the array that was read, or `None` after a write or a sync.

        Ctrl-C ends the wait, not the request: a later call of `result` waits again.

        Parameters
        ----------
        timeout
            Seconds to wait; by default without limit.

        Raises
        ------
        TimeoutError
            If the request is still pending after the timeout; it continues.
        OutcoreError
            The error of the request.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the error is in no cycle with this frame
        return self._value


class Claims:
    """The requests of one file whose outcome no call has reported yet."""

    __slots__ = ("_claims", "_enough", "_lock")

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._lock = threading.Lock()
        self._enough = 16

    def future(self, ticket: Ticket, value: T, file: object) -> PoolFuture[T]:
        """Record a request that was started."""
        return self._note(_Claim(ticket), value, file)

    def under_way(self) -> list[Ticket]:
        """List the pending requests."""
        with self._lock:
            return [claim.ticket for claim in self._claims if not claim.ticket.done()]

    def future_after(self, ticket: Ticket, file: object) -> PoolFuture[None]:
        """Record a sync, which also reports the errors of all earlier requests."""
        with self._lock:
            before, self._claims = self._claims, []
        return self._note(_Claim(ticket, before), None, file)

    def settle(self) -> None:
        """Wait for all requests; raise the first unreported error."""
        if not self._claims:  # most new files are closed without a request
            return
        with self._lock:
            claims, self._claims = self._claims, []
        error = _outcome([each for claim in claims for each in claim.with_earlier()], None)
        if error is not None:
            try:
                raise error
            finally:
                del error, claims  # the error is in no cycle with this frame

    def _note(self, claim: _Claim, value: T, file: object) -> PoolFuture[T]:
        with self._lock:
            if len(self._claims) >= self._enough:
                self._claims = [each for each in self._claims if not each.is_settled()]
                self._enough = max(2 * len(self._claims), 16)
            self._claims.append(claim)
        return PoolFuture(claim, value, file)
