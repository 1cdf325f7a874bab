"""I/O servers that restart at another address while clients are connected."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import daemon, make_key
from served_pools import in_memory

import outcore as oc
from outcore import _core

SHAPE = (2048, 256)
SIZE = 2


class Moving:
    """A pool of two I/O servers that a test can move, and a client."""

    def __init__(self, home: Path) -> None:
        self._home, self._key = home, make_key(home / "pool.key")
        self._manager = daemon(home, self._key, "manager", "m")
        self._servers = {name: self._start(name) for name in "ab"}
        address = self._manager.addresses[0].replace("tcp:", "outcore://")
        self.pool = oc.connect(address, key=self._key)

    def _start(self, name: str) -> _core.Daemon:
        manager = f'["{self._manager.addresses[0]}"]'
        return daemon(self._home, self._key, "io", name, manager=manager)

    def move(self, name: str) -> None:
        """Stop a server, and start it again at another port."""
        before = self._servers[name]
        before.stop()
        self._servers[name] = self._start(name)
        assert self._servers[name].server == before.server
        assert self._servers[name].addresses != before.addresses

    def close(self) -> None:
        self.pool.close()
        for each in (*self._servers.values(), self._manager):
            each.stop()


@pytest.fixture
def moving() -> Iterator[Moving]:
    with in_memory() as home:
        found = Moving(home)
        yield found
        found.close()


def test_files_that_are_open_go_on(moving: Moving) -> None:
    data = np.random.default_rng(1).bytes(3_000_000)
    with moving.pool.open("f", "w+", hints={"stripe_unit_bytes": 65536}) as file:
        file.write(data)
        file.sync()
        moving.move("a")
        assert file.read_at(0, len(data)).tobytes() == data
        moving.move("b")
        file.write_at(len(data), data[::-1])
        file.sync()
        moving.move("a")
        moving.move("b")
        assert file.read_at(0, 2 * len(data)).tobytes() == data + data[::-1]


def test_a_stream_goes_on(moving: Moving) -> None:
    data = np.random.default_rng(2).random(SHAPE)
    with oc.from_array(data, moving.pool / "A", chunks=(64, 256), progress=False) as A:
        found = np.zeros(SHAPE)
        for number, (index, block) in enumerate(A.stream(memory="1 MiB")):
            found[index] = block
            if number in (3, 10):
                moving.move("ab"[number % 2])
    assert (found == data).all()


def test_a_collective_finds_servers_where_they_are(moving: Moving) -> None:
    data = np.random.default_rng(3).random(SHAPE)
    oc.create_array(moving.pool / "u", SHAPE, chunks=(64, 256)).close()

    def job(comm: ThreadComm) -> None:
        rows = SHAPE[0] // SIZE
        mine = data[comm.rank * rows :][:rows]
        with oc.open_array(moving.pool / "u", "r+") as u:
            for name in "ab":
                u.write_all(mine, "block,*", comm)
                comm.barrier()
                if comm.rank == 0:
                    moving.move(name)
                comm.barrier()
            assert (u.read_all(None, "block,*", comm) == mine).all()

    ThreadJob(SIZE).run(job)
    with oc.open_array(moving.pool / "u") as u:
        assert (u[...] == data).all()
