"""One trace of all processes of a program and of the I/O servers that they use."""

import contextlib
import heapq
import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Trace
from outcore._util.communicator import TIMEOUT_S, Alone, Communicator
from outcore.errors import ExistsError, NotFoundError, OutcoreError, from_kind
from outcore.report import report_file, tracing
from outcore.report.spans import KINDS, LANES
from outcore.report.tracing import TracedCall
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_root import PoolRoot, close_observers, open_roots
from outcore.storage.volumes import AnyPath, PathLike, as_path
from outcore.version import VERSION

_NS_PER_US = 1e3

_BEGIN = b'{"displayTimeUnit": "ms", "otherData": {"outcore": '
"""The first bytes of each file."""

_FIRST_LANES = 1000
"""Lanes of a kind of spans that may overlap; each kind has its own range of numbers."""


@contextmanager
def chrome_trace(path: PathLike, comm: Any = None, *, timeout: float = TIMEOUT_S) -> Iterator[None]:
    """Record the work of all processes and I/O servers during a block, in a file for Perfetto.

    The file is in Chrome's trace event format. Open it at https://ui.perfetto.dev or in
    ``chrome://tracing``. It shows each process of `comm` with its long calls and collectives:
    arithmetic, waits, and reads and writes. Below them is each I/O server of the pools that
    process 0 closes in the block or has open at its end: the requests that it answered, and what
    its disk did. Reports of calls in the block name the file, and ``outcore report`` links it.

    All times are on one axis. On one host they agree within a millisecond, since all processes read
    one clock. Between hosts they agree as well as the hosts' clocks do (NTP).

    Parameters
    ----------
    path
        File to write, replacing an existing one. Process 0 writes it when all processes have ended
        their block. If a block raises an error, that process does not wait, and nothing is written.
    comm
        Communicator of the processes, as for `Array.write_all`; `None` means this process alone.
        All of its processes enter the block, and leave it.
    timeout
        Seconds to wait for the other processes at the end.

    Returns
    -------
    context manager
        It records its block.

    Raises
    ------
    BusyError
        If this process records a trace already.
    InvalidError, NotFoundError
        On each process, if `path` exists and is not a file, or its directory does not exist.
    OutcoreError
        On each process, if process 0 cannot write the file.

    Notes
    -----
    A server keeps its last 32,768 spans. If it has done more since the begin, the trace shows from
    where its record is complete. The trace has the work for a pool until process 0 closes it,
    unless an error leaves the ``with`` block of the pool. A pool of `Pool.embedded` has no servers
    of its own; their work is in the reads and writes of the process.
    """
    team = Communicator(Alone() if comm is None else comm, timeout)
    where = _checked(path, team)
    recording = tracing.begin(where)
    servers = _Servers()
    if team.rank == 0:
        close_observers.append(servers.read_closing)
    try:
        start = _clocks()
        yield
    finally:
        tracing.end()
        if team.rank == 0:
            close_observers.remove(servers.read_closing)
    mine = Process(team.rank, platform.node(), os.getpid(), start, _clocks(), recording.calls)
    processes = team.allgather(mine)
    error: tuple[str, str] | None = None
    if team.rank == 0:
        try:
            for root in open_roots():
                servers.read(root)
            document = trace_document(processes, servers.found())
            report_file.replace(path, json.dumps(document, allow_nan=False).encode())
        except OutcoreError as failure:
            error = failure.kind, str(failure)
    if error := team.bcast(error, 0):
        failed = from_kind(*error)
        vars(failed)["is_told"] = True  # All processes have this error.
        raise failed


_OTHER_CLOCK_NS = 60 * 10**9
"""Clocks that differ by more are those of two hosts: a host that sets its time changes it less."""


@dataclass(frozen=True)
class Clocks:
    """One moment by the clock of all traces of a machine, and in nanoseconds since 1970."""

    trace_ns: int
    unix_ns: int

    def unix(self, trace_ns: int) -> int:
        """Return a time of the traces in nanoseconds since 1970."""
        return trace_ns - self.trace_ns + self.unix_ns

    @property
    def ahead_ns(self) -> int:
        """How far the clock of the traces is ahead of the other one; much, and negative."""
        return self.trace_ns - self.unix_ns


@dataclass(frozen=True)
class Process:
    """The work of a process during a trace, and its clocks at the begin and at the end."""

    rank: int
    host: str
    pid: int
    start: Clocks
    end: Clocks
    calls: list[TracedCall]


@dataclass(frozen=True)
class Server:
    """The work of an I/O server during a trace.

    Attributes
    ----------
    name
        Its number and its pool.
    error
        Why its spans, or the last of them, are missing; `None` if they are there.
    clocks
        Its clocks.
    complete_after_ns
        The time of its traces from which `rows` is complete.
    names
        Names of spans.
    rows
        Rows (place of the name, start_ns, end_ns, offset, bytes).
    """

    name: str
    error: str | None
    clocks: Clocks
    complete_after_ns: int
    names: list[str]
    rows: npt.NDArray[np.uint64]


def joined(earlier: Server, later: Server) -> Server:
    """Return the work of an I/O server that two readings of its record show."""
    if later.error is not None:
        return replace(earlier, error=later.error)
    if later.names != earlier.names:
        return later  # The server did not answer before, or it was upgraded.
    # The clock of another host has begun at another time. No time may become negative.
    ahead_ns = later.clocks.ahead_ns - earlier.clocks.ahead_ns
    if ahead_ns > _OTHER_CLOCK_NS:
        earlier = _moved(earlier, ahead_ns)
    elif ahead_ns < -_OTHER_CLOCK_NS:
        later = _moved(later, -ahead_ns)
    # If the second record starts after the first reading, the server may have worked in between.
    has_gap = later.complete_after_ns > earlier.clocks.trace_ns
    return replace(
        later,
        complete_after_ns=later.complete_after_ns if has_gap else earlier.complete_after_ns,
        rows=np.unique(np.concatenate([earlier.rows, later.rows]), axis=0),
    )


def _moved(server: Server, by_ns: int) -> Server:
    """Return the same work by a clock of traces that is ahead of the server's."""
    rows, clocks = server.rows.copy(), server.clocks
    rows[:, 1:3] += np.uint64(by_ns)
    return replace(
        server, rows=rows, complete_after_ns=server.complete_after_ns + by_ns,
        clocks=Clocks(clocks.trace_ns + by_ns, clocks.unix_ns),
    )  # fmt: skip


def trace_document(processes: list[Process], servers: list[Server]) -> dict[str, Any]:
    """Return the trace of some processes and servers as a document in Chrome's format."""
    begin = min(each.start.unix_ns for each in processes)
    end = max(each.end.unix_ns for each in processes)
    events = _Events(begin)
    notes = []
    for each in processes:
        events.start_track(f"process {each.rank} on {each.host}, pid {each.pid}")
        _add_process(events, each)
    for server in servers:
        if server.error is not None:
            is_missing = len(server.rows) == 0
            what = "missing" if is_missing else "incomplete"
            notes.append(f"{server.name} is {what}: {server.error}")
            if is_missing:
                continue
        events.start_track(server.name)
        _add_server(events, server, begin, end)
        late = server.clocks.unix(server.complete_after_ns)
        if late > begin:
            events.mark("the record of this server is complete from here", late)
            seconds = (late - begin) / 1e9
            notes.append(f"{server.name} may lack spans of the first {seconds:.3f} s")
    started = datetime.fromtimestamp(begin / 1e9, UTC).isoformat()
    other = {"outcore": VERSION, "started": started, "started_unix_ns": begin, "notes": notes}
    return {"displayTimeUnit": "ms", "otherData": other, "traceEvents": events.found}


def _checked(path: PathLike, team: Communicator) -> str:
    """Return the full path of the trace on process 0; on each process, refuse an impossible one."""
    error: tuple[str, str] | None = None
    full = ""
    if team.rank == 0:
        where = as_path(path)
        full = str(where) if isinstance(where, PoolPath) else os.path.abspath(where)
        try:
            report_file.check_file(where, "trace")
            if not where.parent.is_dir():
                raise NotFoundError(f"there is no directory {where.parent}; make it first")
        except OutcoreError as failure:
            error = failure.kind, str(failure)
    failed, agreed = team.bcast((error, full), 0)
    if failed:
        raise from_kind(*failed)
    return str(agreed)


def check_replaceable(path: AnyPath) -> None:
    """Refuse to replace an existing file that is no trace of this module.

    Raises
    ------
    ExistsError
        If it is another file.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        begin = file.read(len(_BEGIN))
    if begin != _BEGIN:
        raise ExistsError(f"{path} exists and is no trace; choose another name")


def _clocks() -> Clocks:
    return Clocks(*Trace.clocks())


class _Servers:
    """The work of I/O servers, by the records that they keep."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Server] = {}
        self._lock = threading.Lock()

    def read(self, root: PoolRoot) -> None:
        """Ask the servers of an open pool for their records."""
        pool = root.core.id
        answers = root.core.spans()
        with self._lock:
            for number, error, (*now, late), names, rows in answers:
                name = f"I/O server {number} of pool {pool[:8]}"
                server = Server(name, error, Clocks(*now), late, names, rows)
                earlier = self._found.get((pool, number))
                self._found[pool, number] = server if earlier is None else joined(earlier, server)

    def read_closing(self, root: PoolRoot) -> None:
        """Ask the servers of a pool that closes; an error must not reach the caller of `close`."""
        with contextlib.suppress(OutcoreError):
            self.read(root)

    def found(self) -> list[Server]:
        """List the servers, those of each pool by their numbers."""
        pools = list(dict.fromkeys(pool for pool, _ in self._found))
        order = sorted(self._found, key=lambda key: (pools.index(key[0]), key[1]))
        return [self._found[key] for key in order]


@dataclass
class _Events:
    """Events of a trace that begins at a time, in nanoseconds since 1970."""

    begin_ns: int
    found: list[dict[str, Any]] = field(default_factory=list)
    _track: int = -1

    def start_track(self, name: str) -> None:
        """Begin the events of a process or server."""
        self._track += 1
        self._name("process", 0, name)
        self.found.append(
            {"ph": "M", "name": "process_sort_index", "pid": self._track, "tid": 0,
             "args": {"sort_index": self._track}}
        )  # fmt: skip

    def name_lane(self, lane: int, name: str) -> None:
        """Name a lane of the present track."""
        self._name("thread", lane, name)

    def _name(self, of: str, lane: int, name: str) -> None:
        self.found.append(
            {"ph": "M", "name": f"{of}_name", "pid": self._track, "tid": lane,
             "args": {"name": name}}
        )  # fmt: skip

    def add(self, name: str, lane: int, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a span in a lane; times are nanoseconds since 1970."""
        self.found.append(
            {"ph": "X", "name": name, "pid": self._track, "tid": lane, "ts": self._us(start_ns),
             "dur": max(end_ns - start_ns, 0) / _NS_PER_US, "args": args}
        )  # fmt: skip

    def mark(self, name: str, at_ns: int) -> None:
        """Add a mark over all lanes of the track."""
        self.found.append(
            {"ph": "i", "name": name, "pid": self._track, "tid": 0, "ts": self._us(at_ns), "s": "p"}
        )  # fmt: skip

    def _us(self, at_ns: int) -> float:
        return (at_ns - self.begin_ns) / _NS_PER_US


def _add_process(events: _Events, process: Process) -> None:
    def unix(at_ns: int) -> int:
        return process.end.unix(at_ns)

    calls = np.array([(0, call.start_ns, call.end_ns) for call in process.calls], np.uint64)
    for call, lane in zip(process.calls, _lanes(calls.reshape(-1, 3)[:, 1:]), strict=True):
        events.name_lane(lane, "calls")
        events.add(call.title, lane, unix(call.start_ns), unix(call.end_ns))
    rows = [call.rows for call in process.calls]
    titles = [call.title for call in process.calls for _ in range(len(call.rows))]
    whole = np.concatenate([np.empty((0, 6), np.uint64), *rows])
    for number, kind in enumerate(KINDS):
        chosen = np.flatnonzero(whole[:, 0] == number)
        label = LANES[kind][0]
        for at, lane in zip(chosen, _lanes(whole[chosen, 2:4]), strict=True):
            _, array, start, stop, offset, nbytes = map(int, whole[at])
            tid = (1 + number) * _FIRST_LANES + lane
            events.name_lane(tid, label)
            events.add(kind, tid, unix(start), unix(stop), call=titles[at], array=array,
                       offset=offset, bytes=nbytes)  # fmt: skip


def _add_server(events: _Events, server: Server, begin: int, end: int) -> None:
    unix, rows = server.clocks.unix, server.rows
    # Python's integers: times since 1970 would overflow with an offset of the other sign.
    times = [(unix(int(row[1])), unix(int(row[2]))) for row in rows]
    inside = [start <= end and stop >= begin for start, stop in times]
    for number, name in enumerate(server.names):
        chosen = [at for at in np.flatnonzero(rows[:, 0] == number) if inside[at]]
        for at, lane in zip(chosen, _lanes(rows[chosen, 1:3]), strict=True):
            tid = number * _FIRST_LANES + lane
            events.name_lane(tid, name.replace("_", " "))
            events.add(name, tid, *times[at], offset=int(rows[at, 3]), bytes=int(rows[at, 4]))


def _lanes(times: npt.NDArray[np.uint64]) -> list[int]:
    """Return a lane for each span, so that spans of one lane do not overlap; lanes are few."""
    lanes = [0] * len(times)
    ends: list[tuple[int, int]] = []
    for at in np.argsort(times[:, 0], kind="stable"):
        start, end = int(times[at, 0]), int(times[at, 1])
        lane = heapq.heappop(ends)[1] if ends and ends[0][0] <= start else len(ends)
        lanes[at] = lane
        heapq.heappush(ends, (end, lane))
    return lanes
