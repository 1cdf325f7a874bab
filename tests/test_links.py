"""Connections between processes of several hosts, which end when one of them dies."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from timeouts import HANG_S

from outcore.processes import links
from outcore.processes.deaths import Deaths
from outcore.processes.links import Address, Links


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_unreachable", set())
    monkeypatch.setattr(links, "own_host", lambda: "127.0.0.1")
    monkeypatch.setattr(links, "_MOST_S", HANG_S)


@contextlib.contextmanager
def connected(
    size: int, strange: Callable[[list[Links]], None] = lambda _: None
) -> Iterator[list[Links]]:
    """Connect this many to each other, after `strange` has done something with them."""
    made = [Links() for _ in range(size)]
    strange(made)
    all_of = [each.address for each in made]
    with ThreadPoolExecutor(size) as threads:
        for done in [
            threads.submit(each.connect, all_of, rank, {*range(size)} - {rank}, 60)
            for rank, each in enumerate(made)
        ]:
            done.result()
    try:
        yield made
    finally:
        for each in made:
            each.close()


def ranks(of: Links) -> list[int]:
    return sorted(rank for rank, _ in of._linked.values())


def ended(of: Links, count: int = 1) -> list[int]:
    """Wait for the end of so many connections, and return the ranks that have died."""
    left, end = len(ranks(of)) - count, time.monotonic() + HANG_S
    found: list[int] = []
    while len(ranks(of)) > left:
        found += of.ended()
        assert time.monotonic() < end
    return found


@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_hears_of_a_death_and_not_of_a_farewell(size: int) -> None:
    with connected(size) as made:
        for rank, each in enumerate(made):
            assert ranks(each) == sorted({*range(size)} - {rank})
            assert each.ended() == []
        # The system of a process that died closes its connections.
        for _, connection in made[1]._linked.values():
            connection.close()
        made[1]._linked.clear()
        assert ended(made[0]) == [1]
        made[0].close()
        for each in made[2:]:
            assert ended(each, 2) == [1]


def test_a_connection_that_is_reset_is_a_death() -> None:
    with connected(2) as made:
        ((_, connection),) = made[0]._linked.values()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        made[0]._linked.clear()
        assert ended(made[1]) == [0]


def test_a_process_that_gave_up_before_the_other_came_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, early = Links(), Links()
    all_of = [late.address, early.address]
    monkeypatch.setattr(links, "_MOST_S", 0.05)
    early.connect(all_of, 1, [0], 60)
    assert ranks(early) == []
    monkeypatch.setattr(links, "_MOST_S", HANG_S)
    links._unreachable.clear()
    late.connect(all_of, 0, [1], 60)
    assert ranks(late) == [1]
    assert ended(late) == []
    early.close()
    late.close()


def test_strangers_are_not_heard() -> None:
    """One says nothing, one has another secret, one says too little and leaves."""
    strangers: list[socket.socket] = []

    def strange(made: list[Links]) -> None:
        for said in (b"", bytes(16) + b"\1\0\0\0", b"abc"):
            stranger = socket.create_connection(made[0].address[:2])
            stranger.send(said)
            strangers.append(stranger)
        strangers[-1].shutdown(socket.SHUT_WR)

    with connected(3, strange) as made:
        assert [ranks(each) for each in made] == [[1, 2], [0, 2], [0, 1]]
        for stranger in strangers:
            stranger.settimeout(HANG_S)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(99) in (b"", b".")  # never a secret
            stranger.close()
        assert made[0].ended() == []


def test_a_host_that_cannot_be_reached_is_left_out_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_MOST_S", 0.1)
    for others in ([0], [2]):  # this one would connect to the first, and wait for the last
        one = Links()
        closed = socket.create_server(("127.0.0.2", 0))
        address = Address(f"127.0.0.{2 + others[0]}", closed.getsockname()[1], bytes(16))
        closed.close()
        one.connect([address, one.address, address], 1, others, 60)
        assert ranks(one) == []
        assert address.host in links._unreachable
        one.close()
        monkeypatch.setattr(links, "_MOST_S", HANG_S)
        again, before = Links(), time.monotonic()
        again.connect([address, again.address, address], 1, others, 60)
        assert time.monotonic() - before < HANG_S
        again.close()
        monkeypatch.setattr(links, "_MOST_S", 0.1)
    one = Links()
    one.connect([None, one.address], 1, [0], 60)
    assert ranks(one) == []
    one.close()


@pytest.mark.parametrize(("timeout_s", "most_s"), [(0, 4), (60, 60), (600, 120)])
def test_the_system_notices_a_host_without_power(timeout_s: float, most_s: int) -> None:
    with socket.socket() as connection:
        links._end_after(connection, timeout_s)
        idle, step, count = (
            connection.getsockopt(socket.IPPROTO_TCP, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle + step * count <= most_s


def test_a_process_that_cannot_listen_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Links:
        raise OSError

    monkeypatch.setattr("outcore.processes.deaths.Links", refuse)
    deaths = Deaths()
    deaths.watch_apart([None, None], 0, 60, lambda mine: [mine, Address("127.0.0.1", 1, b"")])
    deaths.check()
    deaths.close()
