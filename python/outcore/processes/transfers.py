"""How far transfers of blocks between processes overlap with the work on earlier blocks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from outcore.report.spans import KINDS, TRANSFER

Clock = Callable[[], int]
"""Returns nanoseconds."""

_MOST_SPANS = 1 << 15
"""At this number of spans, each is merged with the next."""

_NO_ARRAY = 2**32 - 1


class Transfers:
    """Times of one process: its thread moves blocks, and its caller waits for those of others.

    Processes that use each other's blocks in place move none, but wait for them too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moving_ns = self._hidden_ns = self._waited_ns = 0
        self._waits_since_ns: int | None = None
        # Start, end and bytes of each transfer.
        self._spans: list[tuple[int, int, int]] = []

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

    def ended(self, start: tuple[int, int], now: Clock, nbytes: int) -> None:
        """Record a transfer. It is hidden while the caller does not wait."""
        with self._lock:
            end_ns = now()
            moving_ns, waited_ns = end_ns - start[0], self._waited_until(end_ns) - start[1]
            self._moving_ns += moving_ns
            self._hidden_ns += moving_ns - waited_ns
            self._spans.append((start[0], end_ns, nbytes))
            if len(self._spans) == _MOST_SPANS:
                pairs = zip(self._spans[::2], self._spans[1::2], strict=True)
                self._spans = [(a[0], b[1], a[2] + b[2]) for a, b in pairs]

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

    def spans(self) -> npt.NDArray[np.uint64]:
        """Return the transfers since the last call, as rows of a trace."""
        with self._lock:
            found, self._spans = self._spans, []
        kind = KINDS.index(TRANSFER)
        rows = [(kind, _NO_ARRAY, first, end, 0, nbytes) for first, end, nbytes in found]
        return np.array(rows, np.uint64).reshape(-1, 6)

    def _waited_until(self, now_ns: int) -> int:
        since_ns = self._waits_since_ns
        return self._waited_ns + (0 if since_ns is None else now_ns - since_ns)
