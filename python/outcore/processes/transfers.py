"""How far transfers of blocks between processes overlap with the work on earlier blocks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], int]
"""Returns nanoseconds."""


class Transfers:
    """Times of one process: its thread moves blocks, and its caller waits for those of others.

    Processes that use blocks of one another in place move none, and wait all the same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moving_ns = self._hidden_ns = self._waited_ns = 0
        self._waits_since_ns: int | None = None

    @contextmanager
    def waiting(self, now: Clock) -> Iterator[None]:
        """Record a wait of the caller."""
        with self._lock:
            self._waits_since_ns = now()
        try:
            yield
        finally:
            with self._lock:
                self._waited_ns = self._waited_until(now())
                self._waits_since_ns = None

    def started(self, now: Clock) -> tuple[int, int]:
        """Return the start of a transfer, for `ended`."""
        with self._lock:
            start_ns = now()
            return start_ns, self._waited_until(start_ns)

    def ended(self, start: tuple[int, int], now: Clock) -> None:
        """Record a transfer. It is hidden while the caller does not wait."""
        with self._lock:
            end_ns = now()
            moving_ns, waited_ns = end_ns - start[0], self._waited_until(end_ns) - start[1]
            self._moving_ns += moving_ns
            self._hidden_ns += moving_ns - waited_ns

    def figures(self) -> dict[str, float]:
        """Return the figures of ``Report.processes`` since the last call of this method."""
        with self._lock:
            found = {
                "block_wait_seconds": self._waited_ns / 1e9,
                "transfer_seconds": self._moving_ns / 1e9,
                "hidden_transfer_seconds": self._hidden_ns / 1e9,
            }
            self._moving_ns = self._hidden_ns = self._waited_ns = 0
        return found

    def _waited_until(self, now_ns: int) -> int:
        since_ns = self._waits_since_ns
        return self._waited_ns + (0 if since_ns is None else now_ns - since_ns)
