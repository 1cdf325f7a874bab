"""The balance of disks and networks: the model by closed forms, and measurements that add up."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Never
from xml.etree import ElementTree

import pytest
from benchmarks.testbed import Testbed, why_not
from browser import faults_of, picture_of
from command_line import outcore
from served import Served
from served_pools import pool

from outcore.balance import connections
from outcore.balance.balance import Balance, Link, MeasuredHost, Use
from outcore.balance.disks import USES, Disk, Speeds
from outcore.balance.hosts import HostName, balance_of_hosts, sample
from outcore.balance.model import Cluster, Host, gains
from outcore.balance.page import html_page
from outcore.balance.processor_rates import ProcessorRates
from outcore.errors import DiskError, InvalidError, NotFoundError
from outcore.machine import disk_rates, machine

__all__ = ["pool"]

MB = 1e6
RUN = f"{sys.executable} -c 'from outcore.cli import main; main()'"
"""Runs outcore on this machine, in place of a host."""


def switched(disk: float, link: float, hosts: int = 16) -> Cluster:
    """Return equal hosts, each with one disk and one link to a switch, in MB/s."""
    return Cluster(tuple(Host(f"h{n}", (disk * MB,), (link * MB,)) for n in range(hosts)))


def totals(cluster: Cluster) -> list[float]:
    """Return the totals of 16 transfers of which 0, 4, 8 and 16 are remote, in MB/s."""
    return [cluster.total(remote / 16) / MB for remote in (0, 4, 8, 16)]


def test_links_faster_than_disks_change_nothing() -> None:
    cluster = switched(2, 3)
    assert totals(cluster) == [32, 32, 32, 32]
    assert [cluster.limit(f) for f in (0, 0.5, 1)] == ["disks"] * 3
    assert (cluster.flat_share, cluster.ratio) == (1, 1.5)


def test_slow_links_cost_a_share_for_each_remote_transfer() -> None:
    cluster = switched(2, 0.5)
    # 12 local ones of 2 MB/s and 4 remote ones of 0.5 MB/s, and so on.
    assert totals(cluster) == [32, 12 * 2 + 4 * 0.5, 8 * 2 + 8 * 0.5, 16 * 0.5]
    assert [cluster.limit(f) for f in (0, 0.5, 1)] == ["disks", "network", "network"]
    # Each remote transfer loses 1.5 of 32 MB/s; 5 % are 1.6.
    assert cluster.flat_share == pytest.approx(1.6 / 24)
    assert cluster.ratio == 0.25


def test_a_shared_medium_is_flat_until_it_is_full() -> None:
    # The paper's two networks: 1.25 and 12.5 MB/s for all, here with disks of 0.5 MB/s.
    hosts = switched(0.5, 12.5).hosts
    slow, fast = Cluster(hosts, 1.25 * MB), Cluster(hosts, 12.5 * MB)
    assert totals(slow) == [8, 12 * 0.5 + 1.25, 8 * 0.5 + 1.25, 1.25]
    assert totals(fast) == [8, 8, 8, 8]
    # 16 f 0.5 - 1.25 = 0.05 * 8.
    assert slow.flat_share == pytest.approx((0.4 + 1.25) / 8)
    assert fast.flat_share == 1
    assert (slow.ratio, fast.ratio) == (1.25 / 8, 12.5 / 8)


def test_unequal_hosts_add_up_one_by_one() -> None:
    fast, slow = Host("fast", (6 * MB, 4 * MB), (5 * MB,)), Host("slow", (2 * MB,), (8 * MB,))
    cluster = Cluster((fast, slow))
    assert cluster.total(0) == 12 * MB
    assert cluster.total(1) == (5 + 2) * MB
    assert cluster.total(0.5) == (0.5 * 12 + 0.5 * 7) * MB


def factors(cluster: Cluster) -> dict[str, list[float | None]]:
    return {gain.part: [gain.local, gain.mixed, gain.remote] for gain in gains(cluster)}


def test_gains_by_hand() -> None:
    found = factors(switched(4, 3, hosts=2))
    # Now: 8, 7 and 6 MB/s.
    assert found["channel"] == [1, pytest.approx(8 / 7), pytest.approx(8 / 6)]
    assert found["disk"] == [2, pytest.approx((8 + 3) / 7), 1]
    assert found["host"] == [1.5, 1.5, 1.5]


def test_gains_on_a_shared_medium() -> None:
    cluster = Cluster(switched(4, 6, hosts=3).hosts, 6 * MB)
    # Now: 12 local, 6 + 6 mixed, 6 remote.
    found = factors(cluster)
    assert found["channel"] == [1, 1, 2]
    assert found["disk"] == [2, pytest.approx((12 + 6) / 12), 1]
    # The medium is full with three hosts already.
    assert found["host"] == [pytest.approx(16 / 12), pytest.approx((8 + 6) / 12), 1]


def test_hidden_disks_leave_gains_open() -> None:
    cluster = Cluster(switched(3, 3, hosts=2).hosts, is_bound=True)
    assert factors(cluster) == {
        "channel": [1, None, None], "disk": [2, None, 1], "host": [1.5, 1.5, 1.5],
    }  # fmt: skip
    assert [cluster.limit(f) for f in (0, 0.5, 1)] == ["disks", "network", "network"]


def test_without_a_network_only_local_transfers_have_gains() -> None:
    cluster = Cluster((Host("h", (3 * MB, 1 * MB)),))
    assert factors(cluster) == {"disk": [1.5, None, None], "host": [2, None, None]}
    assert not cluster.has_network


@pytest.mark.parametrize("hosts", [2, 3, 8, 9, 40])
def test_each_host_is_in_the_sample(hosts: int) -> None:
    pairs = sample(hosts, 28)
    everyone = hosts * (hosts - 1) // 2
    assert len(pairs) == len(set(pairs)) == min(everyone, 28)
    assert {host for pair in pairs for host in pair} == set(range(hosts))
    assert all(first < second for first, second in pairs)
    assert pairs == sample(hosts, 28)


def test_names_of_hosts() -> None:
    assert HostName.parse("ada@pc1") == HostName("ada@pc1", ("pc1",))
    assert HostName.parse("pc1=10.0.0.1,10.1.0.1").addresses == ("10.0.0.1", "10.1.0.1")
    for text in ("", "pc1=", "=a", "pc1=a,", "-oProxyCommand=x"):
        with pytest.raises(InvalidError, match="need HOST or HOST=ADDRESS"):
            HostName.parse(text)
    with pytest.raises(InvalidError, match="named twice"):
        balance_of_hosts(["a", "a=b"], ["/"], 1)


@pytest.fixture
def few_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk_rates, "_MOST_TILES", 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name}-cache"))


@pytest.mark.usefixtures("few_bytes")
def test_two_directories(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
    page = tmp_path / "page.html"
    result = outcore("balance", "--json", "--seconds", 0.1, "-o", page, "--dirs", *places)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (host,) = found["hosts"]
    assert [disk["place"] for disk in host["disks"]] == list(map(str, places))
    at_once = {"read": 0.0, "write": 0.0, "copy": 0.0}
    for disk in host["disks"]:
        assert all(disk["alone"][use] > 0 for use in at_once)
        at_once = {use: at_once[use] + disk["at_once"][use] for use in at_once}
    assert host["processor"]["memory_bytes_s"] > 0
    assert host["processor"]["gemm_flops_s"] > 0
    for use in found["uses"]:
        # Both are on one disk: its rate is the sum, and another disk doubles it.
        assert use["totals_bytes_s"] == {"local": pytest.approx(at_once[use["use"]])}
        assert use["limits"] == {"local": "disks"}
        gain = {each["part"]: each["local"] for each in use["gains"]}
        assert gain == {"disk": pytest.approx(2), "host": pytest.approx(2)}
    assert (found["pairs"], found["all_pairs"]) == (0, 0)
    assert "are on one disk" in found["notes"][0]
    assert [list(place.iterdir()) for place in places] == [[], []]
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.exhaustive(keep=0)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_copy_has_the_rates_of_reads_and_writes_at_once(tmp_path: Path) -> None:
    code = "import sys; from outcore.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "balance", "--json", "--seconds", 6, "--dirs"]
    with Testbed(tmp_path, disks=1, disk_bytes=320 << 20, disk_bytes_s=20_000_000) as bed:
        found = json.loads(bed.run([*words, bed.disks[0].path]))
    # The testbed limits reads and writes separately.
    (disk,) = found["hosts"][0]["disks"]
    assert disk["alone"] == pytest.approx({"read": 20e6, "write": 20e6, "copy": 20e6}, rel=0.15)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("is_user", [False, True])
def test_a_pool_on_one_host_has_no_network(pool: Served, is_user: bool) -> None:
    key = pool.key_of("ada", os.getuid(), os.getgid()) if is_user else pool.key
    args = ("balance", pool.url, "--key", key, "--seconds", 0.1)
    result = outcore(*args, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    host, client = found["hosts"]
    assert [disk["place"] for disk in host["disks"]] == ["server 0", "server 1"]
    assert host["disks"][0]["alone"]["copy"] is None
    assert client["processor"]["memory_bytes_s"] > 0
    assert (found["pairs"], found["all_pairs"]) == (0, 0)
    assert [use["use"] for use in found["uses"]] == ["read", "write"]
    for use in found["uses"]:
        assert use["totals_bytes_s"] == {"local": use["disks_bytes_s"]}
        assert use["measured_remote_bytes_s"] > 0
    assert outcore("ls", pool.url, "--key", key).stdout == ""


@pytest.mark.usefixtures("few_bytes")
def test_two_agents_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    hosts = ("a=127.0.0.2,127.0.0.3,127.0.0.6", "b=127.0.0.4,127.0.0.5")
    options = ("--directory", tmp_path / "disk", "--seconds", 0.1, "--run", RUN)
    result = outcore("balance", "--json", *options, "--hosts", *hosts)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    ends = [(link["source"], link["target"], link["channel"]) for link in found["links"]]
    assert ends == [
        ("a", "b", "127.0.0.4"), ("a", "b", "127.0.0.5"),
        ("b", "a", "127.0.0.2"), ("b", "a", "127.0.0.3"),
    ]  # fmt: skip
    assert [host["name"] for host in found["hosts"]] == ["a", "b"]
    assert (found["pairs"], found["all_pairs"]) == (1, 1)
    (use,) = found["uses"]
    assert list(use["totals_bytes_s"]) == ["local", "mixed", "remote"]
    assert [gain["part"] for gain in use["gains"]] == ["channel", "disk", "host"]
    assert list((tmp_path / "disk").iterdir()) == []
    assert found["notes"] == [
        "a: 127.0.0.6 not measured; name as many addresses of each host",
    ]


def test_findings_name_the_limit() -> None:
    (slow,) = Use("copy", switched(2, 3)).findings()
    assert "balanced, the network carries 1.50 of the disks' rate" in slow
    limited, best = Use("copy", switched(4, 1)).findings()
    assert "the network limits remote transfers" in limited
    assert "0.25 of the disks' rate, enough for 7% of the transfers" in limited
    assert "another channel speeds up remote transfers most" in best


@pytest.mark.exhaustive(keep=0)
def test_an_agent_reports_its_error() -> None:
    with pytest.raises(NotFoundError, match=r"a: there is no directory /no/where; give one"):
        balance_of_hosts(["a"], ["/no/where"], 1, run=RUN)


def test_the_page_draws_the_totals_and_escapes_names() -> None:
    cluster = switched(4, 1, hosts=2)
    hosts = tuple(MeasuredHost(name, ()) for name in ("<a>", "b"))
    links = (Link("<a>", "b", "10.0.0.2", MB),)
    found = Balance("2 hosts", hosts, links, 1, 1, (Use("copy", cluster),), ("a & b",))
    page = html_page(found)
    assert "<a>" not in page
    assert "&lt;a&gt; to b" in page
    assert "a &amp; b" in page
    root = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    assert root.findtext("desc") == "From 8 MB/s, all local, to 2 MB/s, all remote."
    # With another disk, with another channel, and as it is: each from all local to all remote.
    curves = [each.attrib["points"].split() for each in root.iter("polyline")]
    heights = [[float(points[i].split(",")[1]) for i in (0, -1)] for points in curves]
    # 16 MB/s are 200 pixels high, and the top is at 10.
    expected = [(16, 2), (8, 4), (8, 2)]
    assert heights == [[210 - 200 * total / 16 for total in ends] for ends in expected]


def rates(*values: float | None) -> Speeds:
    return Speeds(*(value and value * MB for value in values))


def test_a_browser_shows_the_pages_of_a_machine_a_cluster_and_a_pool(tmp_path: Path) -> None:
    alone, at_once = rates(3512, 2998, 1710), rates(998, 1204, 801)
    disks = [Disk(f"/mnt/disk-{n}/scratch/ada", n, alone, at_once) for n in range(2)]
    names = [f"node{n}.cluster.example.org" for n in range(3)]
    power = ProcessorRates(11.5e9, 187.4e9)
    hosts = tuple(MeasuredHost(name, tuple(disks), power) for name in names)
    links = tuple(Link(a, b, "10.10.0.12", 117 * MB) for a in names for b in names if a != b)
    machine_only = Use("copy", Cluster((hosts[0].model("copy"),)))
    cluster = [
        Use(use, Cluster(tuple(host.model(use, (117 * MB, 940 * MB)) for host in hosts)))
        for use in USES
    ]
    measured = rates(99, 98, None)
    server = MeasuredHost("server 0", (Disk("server 0", 0, measured, measured),))
    bound = Cluster((server.model("write", (98 * MB,)),), is_bound=True)
    of_pool = [
        Use("read", Cluster((server.model("read", (117 * MB,)),)), 92 * MB),
        Use("write", bound, 91 * MB),
    ]
    url = "outcore://node0.cluster.example.org:7171"
    pages = [
        html_page(Balance("this machine", hosts[:1], (), 0, 0, (machine_only,), ("on one disk",))),
        html_page(Balance("3 hosts", hosts, links, 3, 3, tuple(cluster))),
        html_page(Balance(url, (server, hosts[0]), links[:1], 1, 1, tuple(of_pool))),
    ]
    page = tmp_path / "balance.html"
    page.write_text(pages[1])
    picture_of(page.as_uri(), tmp_path)
    assert faults_of(pages, tmp_path) == []


def test_hosts_and_directories_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"host a does not answer: it said nothing; check that"):
        balance_of_hosts(["a"], ["/"], 1, run="false")
    with pytest.raises(DiskError, match=r"host a does not answer: no-such-program: No such file"):
        balance_of_hosts(["a"], ["/"], 1, run="no-such-program {host}")
    for given in (("--dirs", tmp_path / "none"), (tmp_path,)):
        result = outcore("balance", *given)
        assert result.exit_code == 1
        assert str(given[-1]) in result.stderr
    assert "start it with: outcore pool up" in result.stderr
    for wrong in (("--dirs", "--hosts"), ("--hosts",), ("a", "b"), ("--directory", "x")):
        assert outcore("balance", *wrong).exit_code == 2


def test_disks_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk_rates, "_MOST_TILES", 1)
        full = outcore("balance", "--dirs", tmp_path)
    assert (full.exit_code, "need 33554432 bytes" in full.stderr) == (1, True)

    def refuse(**given: object) -> Never:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(machine.tempfile, "mkstemp", refuse)
    refused = outcore("balance", "--dirs", tmp_path)
    assert (refused.exit_code, "check its permissions" in refused.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive(keep=0)
def test_ctrl_c_leaves_no_files(
    tmp_path: Path, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
    script = (
        "import outcore.machine.disk_rates as r\n"
        "from outcore.cli import main\n"
        "passes = r._passes\n"
        "def measure(*given):\n"
        "    print('measuring', flush=True)\n"
        "    return passes(*given)\n"
        "r._passes = measure\n"
        "main(['balance', '--dirs', 'a', 'b'])\n"
    )
    process = run_python(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert [list(place.iterdir()) for place in places] == [[], []]


def test_bytes_of_connections_count_by_address() -> None:
    with (
        socket.create_server(("127.0.0.2", 0)) as listening,
        socket.create_connection(listening.getsockname(), source_address=("127.0.0.3", 0)) as one,
        listening.accept()[0] as other,
    ):
        one.sendall(bytes(1000))
        assert other.recv(1000, socket.MSG_WAITALL) == bytes(1000)
        found = connections.moved()
        assert found["127.0.0.3"].received == 1000
        # The acknowledgement may still be under way.
        assert found["127.0.0.2"].sent in (0, 1, 1000, 1001)
    assert not {"127.0.0.2", "127.0.0.3"} & set(connections.moved())
