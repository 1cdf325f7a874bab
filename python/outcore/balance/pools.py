"""The balance of a pool, as one client sees it.

The client moves bytes to and from each server, and to and from all of them. Without the disks
(`skip_disk` of a collective) this is the network's rate; a scrub gives the rate of a server's disk
without the network.
"""

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._core import PoolCheck
from outcore._util.packages import imported
from outcore._util.signals import stop_on_signals
from outcore.array.create import create_array
from outcore.balance.balance import Balance, Link, MeasuredHost, Use
from outcore.balance.connections import Moved, moved
from outcore.balance.directories import HERE
from outcore.balance.disks import Disk, Speeds
from outcore.balance.model import Cluster, shared_rate
from outcore.balance.processor_rates import measure_processor
from outcore.errors import DeniedError
from outcore.layout.schema import Schema
from outcore.layout.zarr_format import TILE_BYTES
from outcore.machine.disk_rates import PAGE_BYTES, ROWS, scratch_in, tiles_within
from outcore.machine.timing import median_rate
from outcore.storage.pool_future import PoolFuture
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import ServerStatus

_IN_FLIGHT = 8
_TILES_AT_ONCE = 16
_SCRUBS = 4
_HIDDEN = 0.8
"""A transfer that reaches this share of the network's rate may hide a faster disk."""


@dataclass(frozen=True)
class _Flow:
    """Bytes per second without the disks, also by each channel, named by the server's address."""

    bytes_s: float
    channels: dict[str, float]


@dataclass(frozen=True)
class _Rates:
    """The measured rates between the client and some servers, by ``"read"`` and ``"write"``."""

    flows: dict[str, _Flow]
    through: dict[str, float]
    scrub_bytes_s: float | None


class _Files:
    """A file and an array on some servers, to measure the way to these servers.

    Parameters
    ----------
    directory
        A new directory for both.
    tiles
        Size of the file, and of the array.
    index
        Position of the single server among those of the pool; `None` for all servers.
    """

    def __init__(self, directory: PoolPath, tiles: int, index: int | None = None) -> None:
        core = directory.root.core
        core.make_directory(directory.inside)
        if index is not None:
            core.set_default_layout(directory.inside, count=1, base=index)
        self._tiles, self._written = tiles, 0
        self._core, self._name = core, (directory / "file").inside
        self._file = (directory / "file").open("x")
        shape = (tiles * ROWS, PAGE_BYTES)
        self._array = create_array(directory / "array", shape, "u1", chunks=(ROWS, PAGE_BYTES))
        # Random bytes, because a disk or link with compression would look fast on zeros.
        bits = imported("numpy.random").default_rng(1).bytes(TILE_BYTES)
        self._data = np.frombuffer(bits * _TILES_AT_ONCE, np.uint8).reshape(-1, PAGE_BYTES).copy()

    def close(self) -> None:
        """Close the file and the array."""
        self._file.close()
        self._array.close()

    def measure(self, seconds: float, server: int | None = None) -> _Rates:
        """Measure for about `seconds`; with the number of a server also its disk alone."""
        share = seconds / 5
        flows = {verb: self._flow(verb, share) for verb in ("read", "write")}
        write = median_rate(self._write, share, most=self._tiles) * TILE_BYTES
        through = {"write": write, "read": median_rate(self._read, share) * TILE_BYTES}
        scrub = None if server is None else self._scrub(server, share)
        return _Rates(flows, through, scrub)

    def _flow(self, verb: str, seconds: float) -> _Flow:
        call = self._array.read_all if verb == "read" else self._array.write_all
        field = "received" if verb == "read" else "sent"
        most = min(self._tiles, _TILES_AT_ONCE)

        def exchange(count: int) -> None:
            for begin in range(0, count, most):
                rows = min(count - begin, most) * ROWS
                schema = Schema.boxes([[(slice(0, rows), slice(0, PAGE_BYTES))]])
                call([self._data[:rows]], schema, skip_disk=True, progress=False)

        before = moved()
        bytes_s = median_rate(exchange, seconds) * TILE_BYTES
        grown = {
            address: getattr(now, field) - getattr(before.get(address, Moved(0, 0)), field)
            for address, now in moved().items()
        }
        # The manager's connection, and those of other servers, move little.
        least, total = 0.02 * max(grown.values(), default=0), sum(grown.values())
        channels = {
            address: bytes_s * nbytes / total
            for address, nbytes in grown.items()
            if nbytes > max(least, TILE_BYTES // 2)
        }
        return _Flow(bytes_s, channels)

    def _write(self, count: int) -> None:
        # Each block is written once, as in `disk_rates`.
        first, data = self._written, self._data[:ROWS]
        self._move(
            self._file.start_write_at(number * TILE_BYTES, data)
            for number in range(first, first + count)
        )
        self._file.sync()
        self._written += count

    def _read(self, count: int) -> None:
        targets = self._data[: _IN_FLIGHT * ROWS].reshape(_IN_FLIGHT, ROWS, PAGE_BYTES)
        self._move(
            self._file.start_read_at(
                number % self._written * TILE_BYTES, out=targets[number % _IN_FLIGHT]
            )
            for number in range(count)
        )

    @staticmethod
    def _move(futures: Iterable[PoolFuture[Any]]) -> None:
        """Wait for transfers, several of which are in flight."""
        flying: deque[PoolFuture[Any]] = deque()
        for future in futures:
            flying.append(future)
            if len(flying) == _IN_FLIGHT:
                flying.popleft().result()
        for future in flying:
            future.result()

    def _scrub(self, server: int, seconds: float) -> float | None:
        """Let the server read the file, and send nothing; `None` for a user's key."""
        check, handle = PoolCheck(self._core), self._core.handle(self._name)

        def one(number: int) -> None:
            check.scrub(server, handle, number % self._written * TILE_BYTES, TILE_BYTES)

        with ThreadPoolExecutor(_SCRUBS) as threads:
            try:
                found = median_rate(lambda count: list(threads.map(one, range(count))), seconds)
            except DeniedError:
                return None
        return found * TILE_BYTES


def balance_of_pool(path: PoolPath, seconds: float) -> Balance:
    """Measure a pool from this machine, with files in a directory of it.

    Parameters
    ----------
    path
        A directory of the pool in which the caller may write.
    seconds
        Approximate time for each server, and for all of them at once.

    Raises
    ------
    DiskError
        If a server does not answer.
    DiskFullError
        If a server has too little free space.
    DeniedError
        If the caller may not write there.
    """
    core = path.root.core
    status = {one.id: one for one in (ServerStatus(*each) for each in core.servers())}
    found: dict[int, _Rates] = {}
    with stop_on_signals(), scratch_in(path) as scratch:
        assert isinstance(scratch, PoolPath), "it is below a pool's directory"
        core.make_directory(scratch.inside)

        def measured(name: str, free: int, index: int | None = None, **given: int) -> _Rates:
            files = _Files(scratch / name, tiles_within(free, f"{path}, {name}"), index)
            with contextlib.closing(files):
                return files.measure(seconds, **given)

        for index, server in enumerate(core.server_ids):
            free = status[server].free_bytes
            found[server] = measured(f"server {server}", free, index, server=server)
        every = found[core.server_ids[0]]
        if len(found) > 1:
            every = measured("all servers", min(one.free_bytes for one in status.values()))
    return _judged(path.root.url, found, every, seconds)


def _judged(url: str, found: dict[int, _Rates], every: _Rates, seconds: float) -> Balance:
    hosts: dict[str, list[int]] = {}
    for server, rates in found.items():
        hosts.setdefault(_host_of(rates), []).append(server)
    measured = tuple(
        MeasuredHost(name, tuple(_disk(server, found[server]) for server in servers))
        for name, servers in hosts.items()
    )
    links, uses, notes = [], [], []
    for verb in ("read", "write"):
        channels = {
            name: _channels([found[server].flows[verb] for server in servers])
            for name, servers in hosts.items()
        }
        for name, rates_of in channels.items():
            ends = (name, HERE) if verb == "read" else (HERE, name)
            links += [Link(*ends, address, rate) for address, rate in rates_of.items()]
        has_network = any(name != HERE for name in hosts)
        models = tuple(
            host.model(verb, tuple(channels[host.name].values()) if has_network else ())
            for host in measured
        )
        hidden = [server for server, rates in found.items() if _is_hidden(rates, verb)]
        if has_network and hidden:
            notes.append(
                f"the network hides the {verb} rate of the disks of servers "
                f"{', '.join(map(str, hidden))}; run outcore balance --dirs on their hosts"
            )
        shared = shared_rate(models, every.flows[verb].bytes_s) if has_network else math.inf
        cluster = Cluster(models, shared, is_bound=has_network and bool(hidden))
        uses.append(Use(verb, cluster, every.through[verb]))
    pairs = sum(name != HERE for name in hosts)
    here = MeasuredHost(HERE, (), measure_processor(seconds / 2))
    subject = f"pool {url} from {HERE}"
    return Balance(
        subject, (*measured, here), tuple(links), pairs, pairs, tuple(uses), tuple(notes)
    )


def _host_of(rates: _Rates) -> str:
    """Return the name of a server's host: its first address, or this machine."""
    return min(rates.flows["write"].channels, default=HERE)


def _channels(flows: Sequence[_Flow]) -> dict[str, float]:
    """Return the best rate of each channel of a host; memory counts as one."""
    found: dict[str, float] = {}
    for flow in flows:
        for address, rate in (flow.channels or {"memory": flow.bytes_s}).items():
            found[address] = max(rate, found.get(address, 0.0))
    return found


def _disk(server: int, rates: _Rates) -> Disk:
    read = max(rates.through["read"], rates.scrub_bytes_s or 0.0)
    speeds = Speeds(read, rates.through["write"], None)
    return Disk(f"server {server}", server, speeds, speeds)


def _is_hidden(rates: _Rates, verb: str) -> bool:
    """Whether the network may be slower than a server's disk, whose own rate is unknown."""
    if verb == "read" and rates.scrub_bytes_s is not None:
        return False
    return rates.through[verb] > _HIDDEN * rates.flows[verb].bytes_s
