"""A served pool that is mounted for a test."""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import outcore
from served import Served, daemon, make_key
from test_pool_metrics import total, values

import outcore as oc
from outcore import _core
from outcore.pool.mounting import mounted_at, unmount


class Mounted(NamedTuple):
    """A mounted pool: its directory, and the process that serves it."""

    place: Path
    pid: int

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Counted(NamedTuple):
    """A served pool, and its daemons, which count requests: the manager and two I/O servers."""

    served: Served
    daemons: list[_core.Daemon]

    def requests(self, *, manager: bool = False) -> Counter[str]:
        """Return how many requests of each kind the I/O servers, or the manager, have answered.

        It leaves out *time*, which I/O servers ask every second.
        """
        found: Counter[str] = Counter()
        for each in self.daemons[:1] if manager else self.daemons[1:]:
            of = values(each)
            for kind in {dict(labels)["kind"] for name, labels in of if name == REQUESTS}:
                found[kind] += int(total(of, REQUESTS, kind=kind))
        del found["time"]
        return found

    def unaligned(self) -> int:
        """Return how many requests have read or written a part of a block of a data file."""
        name = "outcore_unaligned_requests_total"
        return int(sum(total(values(daemon), name) for daemon in self.daemons[1:]))

    def bytes_read(self) -> int:
        """Return how many bytes of files the I/O servers have sent."""
        each = self.daemons[1:]
        return int(sum(total(values(daemon), PAYLOAD, direction="out") for daemon in each))


REQUESTS, PAYLOAD = "outcore_requests_total", "outcore_payload_bytes_total"


@contextmanager
def counted(home: Path, *disks: Path) -> Iterator[Counted]:
    """Serve a pool with metrics below `home`; its servers store data there, or on `disks`."""
    key = make_key(home / "pool.key")
    daemons: list[_core.Daemon] = []
    more = {"metrics": '"127.0.0.1:0"'}
    try:
        daemons.append(daemon(home, key, "manager", "manager", **more))
        address = daemons[0].addresses[0]
        for place in disks or (home / "a", home / "b"):
            daemons.append(daemon(home, key, "io", str(place), manager=f'["{address}"]', **more))
        yield Counted(Served(address.replace("tcp:", "outcore://"), key), daemons)
    finally:
        for each in reversed(daemons):
            each.stop()


@contextmanager
def mounted(served: Served, place: Path, *options: str, name: str = "") -> Iterator[Mounted]:
    """Mount a directory of a pool at a new directory."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not (
        os.geteuid() == 0 or shutil.which("fusermount3")
    ):
        pytest.skip("mounting needs /dev/fuse, and root or fusermount3")
    if mounted_at(place) is None:
        place.mkdir(exist_ok=True)
    slash = "" if served.url.endswith("::") else "/"
    result = outcore(
        "mount", "--json", "--key", served.key, *options, f"{served.url}{slash}{name}", place
    )
    if "Operation not permitted" in result.output:
        pytest.skip(f"the system does not allow mounts: {result.output}")
    assert result.exit_code == 0, result.output
    try:
        yield Mounted(place, json.loads(result.output)["pid"])
    finally:
        if mounted_at(place) is not None:
            unmount(place, lazy=True)


def served_of(pool: Served | Counted) -> Served:
    return pool.served if isinstance(pool, Counted) else pool


@pytest.fixture(scope="module")
def mount(pool: Served | Counted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """Mount the pool of the test file."""
    with mounted(served_of(pool), tmp_path_factory.mktemp("mount") / "m") as found:
        yield found


@pytest.fixture
def here(mount: Mounted, request: pytest.FixtureRequest) -> Path:
    """Make a directory of the mount for one test."""
    place = mount.place / f"test-{abs(hash(request.node.name))}"
    place.mkdir()
    return place


@pytest.fixture
def client(pool: Served | Counted) -> Iterator[oc.Pool]:
    """Connect to the pool of the test file."""
    served = served_of(pool)
    with oc.connect(served.url, key=served.key) as connected:
        yield connected
