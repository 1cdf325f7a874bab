"""Locks of files in mounts that die, or lose the manager of their pool."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from lockers import lockers
from mounted import mounted
from served import Gate, Served, daemon, make_key

import outcore as oc
from outcore import _core
from outcore.errors import InvalidError


class Pool:
    """A pool of one server, whose leases last for some seconds."""

    def __init__(self, home: Path, seconds: int) -> None:
        self._home, self._key, self._seconds = home, make_key(home / "pool.key"), seconds
        self.manager = self._start()
        address = self.manager.addresses[0]
        self._server = daemon(home, self._key, "io", "io", manager=f'["{address}"]')
        self.served = Served(address.replace("unix:", "outcore:") + "::", self._key)

    def _start(self) -> _core.Daemon:
        listen = f'["unix:{self._home}/socket", "tcp:127.0.0.1:0"]'
        more = {"listen": listen, "lease_seconds": str(self._seconds)}
        return daemon(self._home, self._key, "manager", "manager", **more)

    def restart(self) -> None:
        """Start the manager again, at the same socket."""
        self.manager = self._start()

    def gated(self, gate: Gate) -> Served:
        """Return the address of the pool behind a gate."""
        host, _, port = self.manager.addresses[1].removeprefix("tcp:").rpartition(":")
        gate.target = (host, int(port))
        return Served(gate.address.replace("tcp:", "outcore://"), self._key)

    def stop(self) -> None:
        """Stop both daemons."""
        self._server.stop()
        self.manager.stop()


@contextmanager
def pool_at(home: Path, seconds: int) -> Iterator[Pool]:
    pool = Pool(home, seconds)
    try:
        yield pool
    finally:
        pool.stop()


def test_locks_end_some_seconds_after_their_mount_was_killed(tmp_path: Path) -> None:
    with (
        pool_at(tmp_path, 2) as pool,
        mounted(pool.served, tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        lockers(one.place / "f", two.place / "f") as (first, second),
    ):
        assert first.ask("x 0 1") == first.ask("flockx") == "done"
        one.kill()
        assert second.ask("wait 0 1") == second.ask("wait-flock") == "done"


def test_a_mount_that_is_cut_off_loses_its_locks_with_errors(tmp_path: Path) -> None:
    with (
        closing(Gate()) as gate,
        pool_at(tmp_path, 2) as pool,
        mounted(pool.gated(gate), tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        lockers(*[one.place / "f"] * 4, two.place / "f") as (first, flocks, closes, other, second),
    ):
        assert first.ask("x 0 10") == flocks.ask("flockx") == closes.ask("s 15 1") == "done"
        assert first.ask("write") == "done"
        gate.shut()
        assert second.ask("wait 0 1") == second.ask("wait-flock") == "done"
        # The mount reaches the I/O servers, but not the manager.
        assert other.ask("write") == "done", "it has no locks"
        first.send("write")
        flocks.send("write")
        closes.send("close")
        gate.open()
        assert first.answer() == flocks.answer() == closes.answer() == "EIO"
        for verb in ("read", "write", "sync", "truncate 0 5", "reserve 0 5"):
            assert first.ask(verb) == flocks.ask(verb) == "EIO", verb
        assert first.ask("s 20 1") == flocks.ask("flocks") == "EIO"
        # The call that unlocks reports the loss too. Then the program may take locks again.
        assert first.ask("u 0 5") == first.ask("u 5 5") == flocks.ask("flocku") == "EIO"
        assert first.ask("u 0 10") == flocks.ask("flocku") == "done"
        assert first.ask("x 0 10") == flocks.ask("flockx") == "EAGAIN"
        assert first.ask("x 20 1") == first.ask("write 20") == flocks.ask("read") == "done"


def test_a_close_reports_lost_locks_of_every_kind(tmp_path: Path) -> None:
    with (
        closing(Gate()) as gate,
        pool_at(tmp_path, 2) as pool,
        mounted(pool.gated(gate), tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        lockers(*[one.place / "f"] * 3, two.place / "f") as (first, flocks, ofds, second),
    ):
        assert first.ask("x 0 1") == flocks.ask("flockx") == ofds.ask("ofdx 1 1") == "done"
        assert flocks.ask("write") == ofds.ask("write 1") == "done"
        gate.shut()
        assert second.ask("wait 0 2") == second.ask("wait-flock") == "done"
        gate.open()
        assert first.ask("u 0 1") == flocks.ask("close") == ofds.ask("close") == "EIO"


def test_a_descriptor_is_no_longer_that_of_an_owner_that_closed_it(tmp_path: Path) -> None:
    with (
        closing(Gate()) as gate,
        pool_at(tmp_path, 2) as pool,
        mounted(pool.gated(gate), tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        (one.place / "f").open("wb", buffering=0) as file,
        lockers(one.place / "f", two.place / "f", inherited=file.fileno()) as (first, second),
    ):
        # A process locks through this descriptor, closes it, and locks through its own.
        assert first.ask("inherited-x 0 1") == first.ask("inherited-u 0 1") == "done"
        assert first.ask("inherited-close") == first.ask("x 0 1") == "done"
        gate.shut()
        assert second.ask("wait 0 1") == "done"
        gate.open()
        assert first.ask("sync") == "EIO"
        os.fsync(file.fileno())


def test_writes_do_not_wait_in_the_mount_when_the_lease_may_end(tmp_path: Path) -> None:
    # A lease of a second may always end before gathered writes reach the servers.
    with (
        pool_at(tmp_path, 1) as pool,
        mounted(pool.served, tmp_path / "one") as one,
        oc.connect(pool.served.url, key=pool.served.key) as client,
        (one.place / "f").open("wb", buffering=0) as file,
    ):
        for number in range(1, 20):
            fcntl.flock(file, fcntl.LOCK_SH)
            file.write(b"x")
            assert (client / "f").stat().nbytes == number


def test_a_mount_that_returns_within_its_lease_keeps_its_locks(tmp_path: Path) -> None:
    with (
        closing(Gate()) as gate,
        pool_at(tmp_path, 3600) as pool,
        mounted(pool.gated(gate), tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        lockers(one.place / "f", two.place / "f") as (first, second),
    ):
        assert first.ask("x 0 10") == first.ask("flockx") == "done"
        gate.shut()
        assert first.ask("write") == first.ask("read") == "done"
        first.send("u 5 5")
        gate.open()
        assert first.answer() == "done"
        assert second.ask("x 4 1") == second.ask("flocks") == "EAGAIN"
        assert second.ask("x 5 5") == first.ask("u 0 5") == second.ask("x 0 10") == "done"


def test_the_term_of_leases_has_limits(tmp_path: Path) -> None:
    for seconds in (0, 3601):
        with pytest.raises(InvalidError, match=f"lease_seconds from 1 to 3600, have {seconds}"):
            Pool(tmp_path, seconds)


def test_mounts_reclaim_their_locks_when_the_manager_restarts(tmp_path: Path) -> None:
    with (
        pool_at(tmp_path, 5) as pool,
        mounted(pool.served, tmp_path / "one") as one,
        mounted(pool.served, tmp_path / "two") as two,
        lockers(one.place / "f", two.place / "f") as (first, second),
    ):
        assert first.ask("s 0 10") == first.ask("x 2 2") == first.ask("flockx") == "done"
        pool.manager.stop()
        pool.restart()
        # The mount learns of the restart. The manager waits for all mounts to reclaim their locks.
        assert first.ask("x 50 1") == second.ask("x 80 1") == second.ask("test 80 1") == "EAGAIN"
        assert second.ask("wait 60 1") == "done"
        assert [second.ask(f"test {byte} 1") for byte in (0, 2, 5)] == ["s 0 2", "x 2 2", "s 4 6"]
        assert second.ask("flocks") == second.ask("x 0 1") == "EAGAIN"
        assert first.ask("write") == first.ask("u 0 10") == first.ask("flocku") == "done"
        assert second.ask("x 0 10") == second.ask("flockx") == "done"


def test_locks_are_lost_if_the_manager_is_away_for_too_long(tmp_path: Path) -> None:
    with (
        pool_at(tmp_path, 1) as pool,
        mounted(pool.served, tmp_path / "m", "--timeout", "1") as mount,
        lockers(*[mount.place / "f"] * 2) as (one, two),
    ):
        # The I/O server asks the manager for the time before its first write.
        assert one.ask("x 0 10") == one.ask("write") == one.ask("sync") == "done"
        pool.manager.stop()
        # For a second, the lock certainly excludes others.
        while one.ask("write") != "EIO":
            pass
        assert two.ask("x 50 1") == "EIO"
        assert two.ask("write") == "done"
        pool.restart()
        assert one.ask("u 0 10") == "EIO"
        assert one.ask("wait 0 10") == "done"
        assert two.ask("x 0 1") == "EAGAIN"
