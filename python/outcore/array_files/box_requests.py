"""Reads and writes of several boxes of one array for plain indexing, in flight together."""

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore.array_files import growing
from outcore.layout.selection import Selection
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import Place

_MOST_AT_ONCE = 32


class BoxRequests:
    """Requests for the boxes of one selection.

    Reads on a plain path come from the page cache, one after another. Other requests are in flight
    together, at most `_MOST_AT_ONCE`; the caller ends with `finish`.
    """

    def __init__(
        self,
        file: ArrayFile,
        metadata: Metadata,
        where: Place,
        before_writing: Callable[[], None],
    ) -> None:
        self._file, self._metadata = file, metadata
        self._before_writing = before_writing
        self._is_local = not isinstance(where.path, PoolPath)
        self._pending: deque[tuple[Ticket, Callable[[], None] | None]] = deque()

    def read(
        self, box: Selection, target: npt.NDArray[Any], then: Callable[[], None] | None = None
    ) -> None:
        """Read a box into memory; call `then` after the data have arrived."""
        for start, rows in growing.parts(self._metadata, box):
            if self._is_local:
                self._file.read(start, box.step, target[rows])
            else:
                self._add(self._file.submit_read(start, box.step, target[rows]))
        if then is None:
            return
        if self._pending:
            self._pending[-1] = (self._pending[-1][0], then)
        else:
            then()

    def write(self, box: Selection, source: npt.NDArray[Any]) -> None:
        """Write a box; the caller leaves the elements unchanged until `finish` returns."""
        self._before_writing()
        for start, rows in growing.parts(self._metadata, box):
            self._add(self._file.submit_write(start, box.step, source[rows]))
            if self._metadata.growing:
                # Written files stay open until they are synced.
                self.finish()
                self._file.submit_sync().wait()

    def finish(self) -> None:
        """Wait for all requests in flight."""
        while self._pending:
            self._wait()

    def _add(self, ticket: Ticket) -> None:
        if len(self._pending) == _MOST_AT_ONCE:
            self._wait()
        self._pending.append((ticket, None))

    def _wait(self) -> None:
        ticket, then = self._pending.popleft()
        ticket.wait()
        if then is not None:
            then()
