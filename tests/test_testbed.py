"""The testbed: disks and links keep their limits, and no traces remain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks.testbed import Testbed, clean, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

MB = 1_000_000

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as s:
    s.sendall(bytes(int(sys.argv[2])))
    s.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b"k"
"""
RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as listening:
    print("ready", flush=True)
    s, peer = listening.accept()
    while s.recv(1 << 16):
        pass
    s.sendall(b"k")
    print(peer[0])
"""


def traces(scratch: Path) -> set[str]:
    """Return the traces that testbeds of this process left."""
    return left_of(os.getpid(), scratch)


def left_of(pid: int, scratch: Path) -> set[str]:
    """Return the traces that one process left."""
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (["ip", "netns"], ["losetup"])
    ]
    mounts = Path("/proc/mounts").read_text()
    groups = os.listdir("/sys/fs/cgroup/blkio")
    words = " ".join([*printed, mounts, *groups, *map(str, scratch.iterdir())]).split()
    return {word for word in words if f"outcore-bed-{pid}" in word}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    assert not traces(tmp_path)
    yield tmp_path
    assert not traces(tmp_path), "something is left"


def test_disks_are_limited(scratch: Path) -> None:
    with Testbed(scratch, disks=2, disk_bytes=64 << 20, disk_bytes_s=20 * MB) as bed:
        command = ["dd", "if=/dev/zero", "bs=1M", "count=10", "oflag=direct", "status=none"]
        start = time.monotonic()
        bed.run([*command, f"of={bed.disks[0].path}/x"])
        assert time.monotonic() - start > 0.35, "10 MiB at 20 MB/s"
        first, second = (os.stat(disk.path).st_dev for disk in bed.disks)
        assert first != second
        assert (bed.disks[0].path / "x").stat().st_size == 10 << 20


def test_links_are_limited_and_networks_apart(scratch: Path) -> None:
    with Testbed(scratch, hosts=2, networks=2, link_bits_s=80 * MB) as bed:
        a, b = bed.hosts
        for network in range(2):
            address = b.addresses[network]
            receiver = bed.start(
                [sys.executable, "-c", RECEIVE, address], b, stdout=subprocess.PIPE, text=True
            )
            assert receiver.stdout is not None
            with receiver.stdout as printed:
                assert printed.readline() == "ready\n"
                start = time.monotonic()
                bed.run([sys.executable, "-c", SEND, address, str(5 * MB)], a)
                assert time.monotonic() - start > 0.35, "5 MB at 80 Mbit/s"
                assert printed.read().strip() == a.addresses[network]


def send(bed: Testbed, source: int, target: int, nbytes: int) -> None:
    """Send bytes from one host to another in the first network."""
    address = bed.hosts[target].addresses[0]
    receiver = bed.start(
        [sys.executable, "-c", RECEIVE, address],
        bed.hosts[target], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert receiver.stdout is not None
    with receiver.stdout as printed:
        assert printed.readline() == "ready\n"
        bed.run([sys.executable, "-c", SEND, address, str(nbytes)], bed.hosts[source])


def test_hosts_share_a_medium(scratch: Path) -> None:
    with Testbed(scratch, hosts=4, shared_bits_s=80 * MB) as bed:
        start = time.monotonic()
        with ThreadPoolExecutor(2) as threads:
            each = [threads.submit(send, bed, *ends, 4 * MB) for ends in ((0, 1), (2, 3))]
            assert [one.result() for one in each] == [None, None]
        assert time.monotonic() - start > 0.7, "two times 4 MB at 80 Mbit/s together"


def test_processes_end_with_the_testbed(scratch: Path) -> None:
    with Testbed(scratch, hosts=1) as bed:
        process = bed.start(["sleep", "1000"], bed.hosts[0])
    assert process.returncode == -signal.SIGTERM


def test_what_a_killed_one_left_is_cleaned(tmp_path: Path) -> None:
    make = (
        "import os, pathlib, sys, time; from benchmarks.testbed import Testbed\n"
        "Testbed(pathlib.Path(sys.argv[1]), disks=1, disk_bytes=8 << 20, hosts=1)\n"
        "print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", make, tmp_path], capture_output=True, text=True, check=False
    )
    pid = int(ended.stdout)
    assert len(left_of(pid, tmp_path)) > 4
    clean(tmp_path)
    assert not left_of(pid, tmp_path)


def test_a_failure_while_it_is_made_leaves_nothing(scratch: Path) -> None:
    with pytest.raises(OSError, match=r"tc .*rate"):
        Testbed(scratch, disks=1, disk_bytes=8 << 20, hosts=1, link_bits_s=-1)
