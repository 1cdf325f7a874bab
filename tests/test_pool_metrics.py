"""Metrics of a pool's daemons, read by Prometheus' own parsers, against the requests made."""

import contextlib
import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from click.testing import CliRunner
from own_daemons import OwnDaemons
from pool_files import data_files, flip
from prometheus_client.parser import text_string_to_metric_families
from started_pools import directories

import outcore as oc
from outcore.cli import main
from outcore.errors import CorruptError, NotFoundError
from outcore.pool import local_pool
from outcore.pool.scrub import scrub

__all__ = ["directories"]

FILES, NBYTES = 7, 100_000

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Daemon(Protocol):
    """A daemon with metrics."""

    @property
    def metrics(self) -> str | None:
        """Return the address of the metrics page."""


@pytest.fixture
def served(tmp_path: Path, directories: list[Path]) -> Iterator[OwnDaemons]:
    """A manager and two I/O servers in this process, with metrics at free ports."""
    daemons = OwnDaemons(tmp_path, directories, metrics=True)
    yield daemons
    daemons.stop()


def page(daemon: Daemon) -> str:
    assert daemon.metrics is not None
    with urllib.request.urlopen(daemon.metrics) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text: str = answer.read().decode()
    return text


def values(daemon: Daemon) -> Values:
    """Return all samples, and check that each has its family and the family's type."""
    found: Values = {}
    for family in text_string_to_metric_families(page(daemon)):
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation
        for sample in family.samples:
            assert sample.name.startswith("outcore_")
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(of: Values, name: str, **labels: str) -> float:
    return of[name, frozenset(labels.items())]


def total(of: Values, name: str, **labels: str) -> float:
    wanted = labels.items()
    return sum(value for (known, its), value in of.items() if known == name and its >= wanted)


def test_each_change_of_one_client_is_a_commit(served: OwnDaemons) -> None:
    manager = served.daemons[0]

    def commits() -> float:
        return value(values(manager), "outcore_commits_total")

    with served.connect() as pool:
        before = commits()
        for i in range(FILES):
            pool.mkdir(f"d{i}")
        assert commits() == before + FILES
        for i in range(FILES):
            pool.stat(f"d{i}")
        with pytest.raises(NotFoundError):
            pool.stat("none")
        assert commits() == before + FILES, "what changes nothing is no commit"


def test_counts_are_those_of_what_was_done(directories: list[Path], served: OwnDaemons) -> None:
    manager, first, second = served.daemons
    with served.connect() as pool:
        for i in range(FILES):
            with pool.open(f"f{i}", "w", hints={"stripe_count": 1, "base": 0}) as file:
                file.write(bytes(NBYTES))
        for i in range(FILES):
            with pool.open(f"f{i}") as file:
                assert file.read() == bytes(NBYTES)
        with pytest.raises(NotFoundError):
            pool.open("none")
        of = values(first)
        assert value(of, "outcore_requests_total", kind="write", outcome="ok") == FILES
        assert value(of, "outcore_requests_total", kind="read", outcome="ok") == FILES
        assert total(of, "outcore_requests_total", outcome="not_found") == 0
        for direction in ("in", "out"):
            moved = value(of, "outcore_payload_bytes_total", direction=direction)
            assert moved == FILES * NBYTES
            # Each frame has 48 bytes of header and a record of less than 500.
            over = total(of, "outcore_channel_bytes_total", direction=direction)
            frames = total(of, "outcore_requests_total")
            assert moved + 48 * frames <= over <= moved + 548 * frames
        assert total(of, "outcore_channel_connections") >= 1
        assert value(of, "outcore_requests_in_work") == 0
        assert value(of, "outcore_memory_limit_bytes") == 48 << 20
        assert value(of, "outcore_memory_bytes") == 0
        assert value(of, "outcore_damaged_blocks_total") == 0
        assert value(of, "outcore_log_replayed_files") == 0
        assert value(of, "outcore_writable") == 1
        free = os.statvfs(directories[0])
        free_bytes = value(of, "outcore_disk_free_bytes")
        assert free_bytes == pytest.approx(free.f_bavail * free.f_frsize, rel=0.2)
        assert total(values(second), "outcore_requests_total", kind="write") == 0

        of = values(manager)
        assert value(of, "outcore_requests_total", kind="create", outcome="ok") == FILES
        # A client that writes a new file first tries to open an existing one.
        assert value(of, "outcore_requests_total", kind="open", outcome="not_found") == FILES + 1
    info = [labels for name, labels in values(second) if name == "outcore_build_info"]
    assert [dict(labels) for labels in info] == [
        {"version": oc.__version__, "role": "io", "pool": _pool_id(directories), "server": "1"}
    ]
    up = [value(values(second), "outcore_uptime_seconds") for _ in range(2)]
    assert 0 < up[0] < up[1] < 1000


def _pool_id(directories: list[Path]) -> str:
    document: dict[str, Any] = json.loads((directories[0] / "server.json").read_text())
    return str(document["pool"])


def test_unaligned_requests_are_those_of_parts_of_blocks(served: OwnDaemons) -> None:
    block = 64 << 10

    def count() -> float:
        return total(values(served.daemons[1]), "outcore_unaligned_requests_total")

    with (
        served.connect() as pool,
        pool.open("f", "w+b", hints={"stripe_count": 1, "base": 0}) as file,
    ):
        for offset, length in ((0, 3 * block), (block, block)):
            file.write_at(offset, bytes(length))
            file.read_at(offset, length)
        assert count() == 0
        for offset, length in ((1, block), (0, block - 1), (block - 1, 2 * block + 2)):
            before = count()
            file.write_at(offset, bytes(length))
            file.read_at(offset, length)
            assert count() == before + 2


def test_each_request_is_in_a_bucket(served: OwnDaemons) -> None:
    daemons = served.daemons
    with served.connect() as pool:
        for _ in range(5):
            pool.servers()
        pool.mkdir("d")
    for daemon, kind, count in ((daemons[1], "status", 5), (daemons[0], "make_directory", 1)):
        of = values(daemon)
        name = "outcore_request_seconds"
        buckets = sorted(
            (float(dict(labels)["le"]), number)
            for (known, labels), number in of.items()
            if known == f"{name}_bucket" and dict(labels)["kind"] == kind
        )
        assert len(buckets) == 22
        assert [number for _, number in buckets] == sorted(number for _, number in buckets)
        assert buckets[-1] == (float("inf"), count)
        assert value(of, f"{name}_count", kind=kind) == count
        assert 0 < value(of, f"{name}_sum", kind=kind) < 60


def test_percentiles_follow_from_the_documented_buckets(served: OwnDaemons) -> None:
    with served.connect() as pool:
        for _ in range(50):
            pool.servers()
    page = (Path(__file__).parent.parent / "docs" / "operations.md").read_text()
    (said,) = re.findall(r"The buckets end at ([0-9.µms, and\n]+)\.", page)
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
    documented = [float(n) * units[unit] for n, unit in re.findall(r"([0-9.]+)\s(µs|ms|s)\b", said)]
    of = values(served.daemons[1])
    name = "outcore_request_seconds_bucket"
    counts = {
        float(dict(labels)["le"]): number
        for (known, labels), number in of.items()
        if known == name and dict(labels)["kind"] == "status"
    }
    assert sorted(counts) == pytest.approx([*documented, np.inf])
    # A bound is at most 2.5 times the one before, so each percentile is known up to that factor.
    assert all(b <= 2.5 * a for a, b in pairwise(documented))
    assert counts[np.inf] == 50


def test_queues_are_empty_when_nothing_is_asked(served: OwnDaemons) -> None:
    manager, first, _ = (values(daemon) for daemon in served.daemons)
    queues = {dict(labels)["queue"] for name, labels in first if name == "outcore_queue_length"}
    assert queues == {"calls", "pieces", "disk", "names"}
    assert total(first, "outcore_queue_length") == total(manager, "outcore_queue_length") == 0
    assert value(manager, "outcore_queue_length", queue="commit") == 0


def test_clients_are_counted_by_their_user(served: OwnDaemons) -> None:
    def clients() -> float:
        return total(values(served.daemons[0]), "outcore_clients")

    before = clients()
    with served.connect(), served.connect():
        assert clients() == before + 2


def test_each_operation_of_the_disk_is_timed(served: OwnDaemons) -> None:
    name = "outcore_disk_seconds_count"
    before = values(served.daemons[1])
    with served.connect() as pool, pool.open("f", "w", hints={"stripe_count": 1, "base": 0}) as f:
        f.write(bytes(NBYTES))
        f.sync()
    after = values(served.daemons[1])
    for operation in ("write", "sync"):
        assert value(after, name, operation=operation) > value(before, name, operation=operation)


def test_repairs_and_scrubs_are_counted(directories: list[Path], served: OwnDaemons) -> None:
    def state() -> list[float]:
        of = values(served.daemons[2])
        names = ("damaged_blocks", "repaired_blocks_total", "scrubs_total", "lost_files")
        return [value(of, f"outcore_{name}") for name in names]

    with (
        served.connect() as pool,
        pool.open("f", "w+b", hints={"stripe_count": 1, "base": 1}) as file,
    ):
        file.write(bytes(NBYTES))
        file.sync()
        assert state() == [0, 0, 0, 0]
        flip(data_files(directories[1])[0], 5)
        assert scrub(pool, progress=False).damage
        assert state() == [1, 0, 1, 0]
        of = values(served.daemons[2])
        # Only whole blocks count as compared, and only one of the two is damaged.
        assert 0 < value(of, "outcore_scrubbed_bytes_total") <= NBYTES
        file.write_at(0, bytes(64 << 10))
        assert state() == [0, 1, 1, 0]
        assert not scrub(pool, progress=False).damage
        assert state() == [0, 1, 2, 0]


def test_damage_is_told(directories: list[Path], served: OwnDaemons) -> None:
    with served.connect() as pool:
        with pool.open("f", "w", hints={"stripe_count": 1, "base": 1}) as file:
            file.write(bytes(NBYTES))
            file.sync()
        flip(data_files(directories[1])[0], 5)
        with pool.open("f") as file, pytest.raises(CorruptError):
            file.read()
    of = values(served.daemons[2])
    assert value(of, "outcore_damaged_blocks_total") == 1
    assert value(of, "outcore_requests_total", kind="read", outcome="corrupt") == 1


def ask(daemon: Daemon, request: bytes) -> bytes:
    """Send a request, and return the bytes up to the end of the connection."""
    assert daemon.metrics is not None
    host, port = re.findall(r"//(.*):(\d+)/", daemon.metrics)[0]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request)
        found = b""
        while some := connection.recv(4096):
            found += some
    return found


def test_nothing_else_is_answered(served: OwnDaemons) -> None:
    manager = served.daemons[0]
    for request, status in (
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /metrics?name=a HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/../key HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 3000, b"431 Request Header Fields Too Large"),
    ):
        answer = ask(manager, request)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n"), answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"Connection: close" in head
    # A silent client delays the page by a few seconds at most.
    host, port = re.findall(r"//(.*):(\d+)/", str(manager.metrics))[0]
    with socket.create_connection((host, int(port))):
        assert "outcore_build_info" in page(manager)
    served.stop()
    with pytest.raises(urllib.error.URLError):
        page(manager)


@pytest.mark.parametrize("count", [1, 40])
def test_clients_that_say_nothing_keep_nobody_waiting(served: OwnDaemons, count: int) -> None:
    """The page arrives before the server times out the silent connections."""
    daemon = served.daemons[-1]
    assert daemon.metrics is not None
    host, port = daemon.metrics.removeprefix("http://").removesuffix("/metrics").split(":")

    def comes_before_the_end() -> bool:
        silent = [socket.create_connection((host, int(port))) for _ in range(count)]
        try:
            values(daemon)
            silent[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                silent[-1].recv(1)
                return False
            return True
        finally:
            for each in silent:
                each.close()

    # On a machine that stalls for seconds, a silent connection may time out first.
    assert any(comes_before_the_end() for _ in range(5))


def test_they_are_off_unless_asked_for(tmp_path: Path, directories: list[Path]) -> None:
    daemons = OwnDaemons(tmp_path, directories)
    assert [daemon.metrics for daemon in daemons.daemons] == [None] * 3
    daemons.stop()


def test_daemons_on_this_machine_say_where_they_are(directories: list[Path]) -> None:
    arguments = ["pool", "up", "--listen", "127.0.0.1:0", "--metrics", "0", "--dirs"]
    result = CliRunner().invoke(main, [*arguments, *map(str, directories)])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if "process" in line]
    assert len(lines) == 3
    for line, daemon in zip(lines, local_pool.running(directories[0]), strict=True):
        assert line.endswith(f", metrics at {daemon.metrics}")
        assert "outcore_uptime_seconds" in page(daemon)


def test_a_port_that_is_taken_is_said(directories: list[Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(oc.OutcoreError, match=f"cannot serve the metrics at 127.0.0.1:{port}"):
            list(local_pool.start(directories[:1], "127.0.0.1:0", port))
