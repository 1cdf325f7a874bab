"""Scrubs a pool in use: compares every block of its servers with its checksum."""

import contextlib
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from outcore._core import PoolCheck, Stripes
from outcore._util.progress import Meter, ProgressLike
from outcore._util.sizes import format_bytes, format_seconds, parse_bytes
from outcore.errors import DeniedError, OutcoreError
from outcore.pool.pool import Pool
from outcore.pool.unchecked import Unchecked, away, summary

_MOST_BYTES = 16 << 20
_LEAST_BYTES = 64 << 10
_PIECES_PER_S = 8
_PAGE = 1000
_MOST_FAILURES = 100
"""Number of unreadable data files in succession after which a server counts as not checked."""
_PATHS = 100


@dataclass(frozen=True)
class Damage:
    """Damaged bytes.

    Attributes
    ----------
    server
        Number of the I/O server.
    handle
        Handle of the file, the name of its data file, in hexadecimal digits.
    path
        Its name in the pool; `None` if it no longer has one.
    offset, nbytes
        Range of bytes in its data file on that server; `nbytes` is 0 if the whole file is
        unreadable.
    file_offset
        Position of `offset` in the file; `None` if unknown.
    text
        Description of the damage.
    """

    server: int
    handle: str
    path: str | None
    offset: int
    nbytes: int
    file_offset: int | None
    text: str

    def __str__(self) -> str:
        name = self.path or f"file {self.handle}"
        where = f"server {self.server}, {name}, byte {self.offset} of its data file {self.handle}"
        if self.file_offset is not None:
            where += f" (byte {self.file_offset} of the file)"
        return f"{where}: {self.text}"


@dataclass(frozen=True)
class ScrubReport:
    """The result of `scrub`: numbers of files and bytes, the damage, and the duration.

    `unchecked` servers were not scrubbed completely. `retired` servers have nothing to scrub.
    """

    servers: int
    files: int
    nbytes: int
    seconds: float
    damage: tuple[Damage, ...]
    unchecked: tuple[Unchecked, ...] = ()
    retired: tuple[int, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether every server was scrubbed completely, and nothing is damaged."""
        return not self.damage and not self.unchecked

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, and `is_well`."""
        return asdict(self) | {"is_well": self.is_well}

    def __str__(self) -> str:
        found = f"{len(self.damage)} places are damaged"
        if not self.damage:
            found = f"nothing {'that was read ' if self.unchecked else ''}is damaged"
        return (
            f"{self.files} data files on {self.servers} servers, {format_bytes(self.nbytes)} in "
            f"{format_seconds(self.seconds)}: {found}{summary(self.unchecked, self.retired)}"
        )


def scrub(
    pool: Pool, *, rate: int | str | None = None, progress: ProgressLike = True
) -> ScrubReport:
    """Compare every block on the servers of a pool with its checksum.

    The pool stays in use. A block that is being written does not count as damaged. The caller
    requests one piece after the other from each server, from all servers in parallel. If the caller
    stops, the scrub ends and leaves nothing behind. The scrub skips servers that it cannot reach.

    Parameters
    ----------
    pool
        A pool that the caller runs, or whose key the caller has.
    rate
        Largest number of bytes per second that each server reads for the scrub, such as
        ``"50 MB"``; by default unlimited.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.

    Raises
    ------
    DeniedError
        If the caller has only the key of a user.
    """
    bytes_per_s = None if rate is None else parse_bytes(rate)
    check = PoolCheck(pool.core)
    started = time.monotonic()
    stop = threading.Event()
    unchecked = away(pool)
    there = [server for server in check.servers if server not in unchecked]
    total = sum(_length(check, server) for server in there)
    with (
        Meter("scrub", total, progress) as meter,
        ThreadPoolExecutor(max(len(there), 1), "outcore-scrub") as threads,
    ):
        walks = [_Walk(check, server, bytes_per_s, stop) for server in there]
        running = [threads.submit(walk.run) for walk in walks]
        try:
            _watch(walks, running, meter)
        finally:
            stop.set()
    found = [(walk.server, each) for walk in walks for each in walk.damage]
    unchecked |= {walk.server: walk.error for walk in walks if walk.error is not None}
    return ScrubReport(
        len(check.servers) - len(unchecked), sum(walk.files for walk in walks),
        sum(walk.nbytes for walk in walks), time.monotonic() - started,
        tuple(_named(check, found)), Unchecked.each(unchecked), tuple(check.retired),
    )  # fmt: skip


def _length(check: PoolCheck, server: int) -> int:
    """Return the total bytes of a server's data files, as far as it answers."""
    total, after, more = 0, 0, True
    with contextlib.suppress(OutcoreError):
        while more:
            files, more = check.data_files(server, after, _PAGE)
            total += sum(length or 0 for _, length in files)
            after = files[-1][0] if files else after
    return total


class _Walk:
    """The scrub of one server, on a thread of its own."""

    def __init__(
        self, check: PoolCheck, server: int, bytes_per_s: int | None, stop: threading.Event
    ) -> None:
        self.server = server
        self.files = self.nbytes = 0
        self.damage: list[tuple[int, int, int, str]] = []
        self.error: str | None = None
        self._check, self._bytes_per_s, self._stop = check, bytes_per_s, stop
        self._place = (0, 0)
        """Handle and offset of the next piece."""

    def run(self) -> None:
        """Scrub the server; skip unreadable data files as long as the server answers."""
        place: tuple[int, int] | None = (0, 0)
        failures = 0
        while place is not None:
            self._place = place
            try:
                self._go()
                return
            except DeniedError:
                raise
            except OutcoreError as error:
                failures = failures + 1 if self._place == place else 1
                handle = self._next_file()
                if handle is None or failures > _MOST_FAILURES:
                    self.error = str(error)
                    return
                self.damage.append((handle, 0, 0, str(error)))
                place = (handle + 1, 0)

    def _next_file(self) -> int | None:
        """Return the first data file at or after the place; `None` without an answer."""
        with contextlib.suppress(OutcoreError):
            files, _ = self._check.data_files(self.server, max(self._place[0] - 1, 0), 1)
            return files[0][0] if files else None
        return None

    def _go(self) -> None:
        rate = self._bytes_per_s
        piece = min(max(rate // _PIECES_PER_S, _LEAST_BYTES), _MOST_BYTES) if rate else _MOST_BYTES
        place: tuple[int, int] | None = self._place
        started = time.monotonic()
        while place is not None and not self._stop.is_set():
            self._place = place
            place, files, nbytes, damage = self._check.scrub(self.server, *place, piece)
            self.files += files
            self.nbytes += nbytes
            self.damage += damage
            if rate:
                early = started + self.nbytes / rate - time.monotonic()
                self._stop.wait(max(early, 0.0))


def _watch(walks: list[_Walk], running: "list[Future[None]]", meter: Meter) -> None:
    """Wait for the threads, and show their progress. The first error stops all threads."""
    done = 0
    while True:
        is_over = all(each.done() for each in running)
        before, done = done, sum(walk.nbytes for walk in walks)
        meter.advance(done - before)
        for each in running:
            if each.done():
                each.result()
        if is_over:
            return
        time.sleep(0.02)


def _named(check: PoolCheck, found: list[tuple[int, tuple[int, int, int, str]]]) -> list[Damage]:
    """Add the names and layouts of the files, as the manager knows them."""
    handles = sorted({handle for _, (handle, *_) in found})
    paths: dict[int, str | None] = {}
    layouts: dict[int, tuple[Stripes, list[int]]] = {}
    for first in range(0, len(handles), _PATHS):
        some = handles[first : first + _PATHS]
        paths |= zip(some, check.paths(some), strict=True)
        for handle, state, stripes, servers, *_ in check.know(some):
            if state == "file" and stripes is not None:
                layouts[handle] = (stripes, servers)
    named = []
    for server, (handle, offset, nbytes, text) in found:
        file_offset = None
        if handle in layouts:
            stripes, servers = layouts[handle]
            if server in servers:
                file_offset = stripes.offset_of(servers.index(server), offset)
        digits = f"{handle:016x}"
        named.append(Damage(server, digits, paths[handle], offset, nbytes, file_offset, text))
    return named
