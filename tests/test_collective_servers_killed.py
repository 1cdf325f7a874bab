"""Collectives with a killed I/O server: each rank raises in time, no partial array is complete."""

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import make_key
from served_pools import in_memory

import outcore as oc
from outcore import _core
from outcore.collective.call import Call
from outcore.errors import IncompleteError, OutcoreError
from outcore.pool.fsck import fsck

RANKS = 3
SHAPE = (6144, 1024)
NBYTES = 8 * SHAPE[0] * SHAPE[1]
TIMEOUT_S = 2
"""Timeout of calls during which a server dies; it may pass before the server is back."""
LONG_S = 600
"""Timeout of all other calls."""
PART = 0.15
"""The server is killed after this share of the data has moved."""
BOUND_S = 300
"""Far beyond the duration of any step here, on a busy machine."""

DAEMON = """
import sys, threading
from outcore import _core
from outcore.collective.call import Call
daemon = _core.Daemon(sys.argv[1], sys.argv[2])
print(*daemon.addresses, flush=True)
sys.stdin.read()
"""


class Daemons:
    """A manager and two I/O servers, each a separate process that can be killed."""

    def __init__(self, home: Path) -> None:
        self._home, self.key = home, make_key(home / "pool.key")
        self._running: dict[str, subprocess.Popen[str]] = {}
        self.manager = self.start("manager", "a")
        self.start("io", "a")
        self.start("io", "b")

    def start(self, role: str, name: str) -> str:
        """Start or restart a daemon, and return its address."""
        config = self._home / f"{role}-{name}.conf"
        directory = self._home / name
        directory.mkdir(exist_ok=True)
        settings = {
            "directory": f'"{directory}"',
            "listen": f'["unix:{self._home}/{role}-{name}.sock"]',
            "key_file": f'"{self.key}"',
        }
        if role == "io":
            settings["manager"] = f'["{self.manager}"]'
        config.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON, role, config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running[role + name] = daemon
        assert daemon.stdout is not None
        return daemon.stdout.readline().split()[0]

    def kill(self, role: str, name: str) -> None:
        """Kill a daemon as ``kill -9`` does."""
        daemon = self._running.pop(role + name)
        daemon.kill()
        daemon.communicate(timeout=BOUND_S)

    def connect(self, timeout_s: int = LONG_S) -> oc.Pool:
        """Connect with this timeout for absent servers."""
        core = _core.Pool.connect([self.manager], patience_s=timeout_s)
        return oc.Pool(core, self.url + "::", is_shared=True)

    @property
    def url(self) -> str:
        """Address for clients."""
        return self.manager.replace("unix:", "outcore:")

    def close(self) -> None:
        """Kill all running daemons."""
        for daemon in self._running.values():
            daemon.kill()
            daemon.communicate(timeout=BOUND_S)


@pytest.fixture(scope="module")
def daemons() -> Iterator[Daemons]:
    with in_memory() as home:
        found = Daemons(home)
        try:
            yield found
        finally:
            found.close()


def rows(rank: int, value: float) -> Any:
    return np.full((SHAPE[0] // RANKS, SHAPE[1]), value + rank)


def whole(value: float) -> Any:
    return np.concatenate([rows(rank, value) for rank in range(RANKS)])


class Held:
    """Delays rank 1 before the collective that moves data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.others = threading.Semaphore(0)
        self.may_come = threading.Event()
        go_on = Call._run

        def run(call: Any, work: Any, file: Any, arrays: Any) -> None:
            if arrays and call._comm.rank != 1:
                self.others.release()
            elif arrays:
                assert self.may_come.wait(BOUND_S)
            go_on(call, work, file, arrays)

        monkeypatch.setattr(Call, "_run", run)


class Together:
    """All ranks write or read in the background; `found` has their results."""

    def __init__(self, daemons: Daemons, value: float, verb: str, timeout_s: int = LONG_S) -> None:
        self._daemons, self._value, self._verb = daemons, value, verb
        self._timeout_s = timeout_s
        self._begun = threading.Event()
        self._found: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._begun.wait(BOUND_S)
        self._since = time.monotonic()

    def _run(self) -> None:
        self._found.extend(ThreadJob(RANKS, BOUND_S).run(self._job))

    def _job(self, comm: ThreadComm) -> Any:
        with self._daemons.connect(self._timeout_s) as pool:
            u = oc.open_array(pool / "u", "r+", allow_incomplete=True)
            comm.barrier()
            self._begun.set()
            mine = rows(comm.rank, self._value)
            if self._verb == "write":
                u.write_all(mine, "block,*", comm, timeout=self._timeout_s)
            else:
                mine[...] = -1
                u.read_all(mine, "block,*", comm, timeout=self._timeout_s)
            return mine

    def end(self) -> tuple[list[Any], float]:
        """Return the rows or the exception of each rank, and the seconds it took."""
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive(), "somebody hangs"
        return self._found, time.monotonic() - self._since


def is_told(each: Any) -> bool:
    """Whether a rank raised an error with a message; otherwise it must have its rows."""
    if not isinstance(each, BaseException):
        return False
    assert isinstance(each, OutcoreError), each
    assert re.search(r"server \d|process \d|no connection to", str(each)), each
    assert not isinstance(each, FileNotFoundError), "that would be another matter"
    return True


def check(daemons: Daemons, found: list[Any], before: float, value: float, verb: str) -> None:
    """Check the results, and that the next call succeeds."""
    told = [is_told(each) for each in found]
    if verb == "read":
        assert all(
            (each == rows(rank, before)).all() for rank, each in enumerate(found) if not told[rank]
        )
    with daemons.connect() as pool:
        try:
            with oc.open_array(pool / "u") as u:
                content = u[...]
        except IncompleteError:
            assert all(told), "nobody may rely on it"
            assert verb == "write"
        else:
            # Complete, old or new, whatever some ranks reported.
            assert (content == whole(value)).all() or (
                (content == whole(before)).all() and (verb == "read" or all(told))
            )
    again, _ = Together(daemons, value if verb == "write" else before, verb).end()
    assert not [each for each in again if is_told(each)]


@pytest.fixture
def array(daemons: Daemons) -> float:
    """Create the array, and return the value of its first element."""
    with daemons.connect() as pool:
        u = oc.create_array(pool / "u", SHAPE, chunks=(384, 1024), if_exists="overwrite")
        u[...] = whole(1.0)
        u.flush()
        u.close()
    return 1.0


@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_server_that_is_back(daemons: Daemons, array: float, verb: str) -> None:
    draw = random.Random(verb)
    found, took_s = Together(daemons, array, verb).end()
    assert not any(is_told(each) for each in found)
    before, value = array, array
    for _ in range(2):
        if verb == "write":
            before, value = value, value + 10
        at_work = Together(daemons, value, verb, TIMEOUT_S)
        time.sleep(draw.random() * took_s)
        daemons.kill("io", "b")
        daemons.start("io", "b")
        found, _ = at_work.end()
        check(daemons, found, before, value, verb)


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["write", "read"])
def test_a_server_that_stays_away(
    daemons: Daemons, array: float, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = array + 10 if verb == "write" else array
    with monkeypatch.context() as patched:
        held = Held(patched)
        at_work = Together(daemons, value, verb, TIMEOUT_S)
        for _ in range(RANKS - 1):
            assert held.others.acquire(timeout=BOUND_S)
        daemons.kill("io", "b")
        held.may_come.set()
        found, took_s = at_work.end()
    assert [is_told(each) for each in found] == [True] * RANKS, found
    assert took_s < BOUND_S / 2
    daemons.start("io", "b")
    with daemons.connect() as pool:
        if verb == "write":
            with pytest.raises(IncompleteError, match="write_all was stopped, or failed"):
                oc.open_array(pool / "u")
        else:
            oc.open_array(pool / "u").close()
    check(daemons, found, array, value, verb)


def bytes_written(pool: oc.Pool) -> int:
    return sum(server.bytes_written for server in pool.servers())


class Replacing:
    """All ranks replace the data atomically, by `verb`; `value` is the new value."""

    def __init__(self, daemons: Daemons, verb: str) -> None:
        self._daemons, self._verb = daemons, verb
        with daemons.connect() as pool:
            if verb == "checkpoint":
                specs = {"u": oc.ArraySpec(SHAPE, chunks=(384, 1024))}
                oc.ArrayGroup(pool / "run", specs).close()

    def __call__(self, value: float, timeout_s: int = LONG_S) -> list[Any]:
        """Return the exception of each rank, or `None` after success."""

        def job(comm: ThreadComm) -> None:
            mine = rows(comm.rank, value)
            with self._daemons.connect(timeout_s) as pool:
                if self._verb == "atomic":
                    with oc.open_array(pool / "u", "r+") as u:
                        u.write_all(mine, "block,*", comm, timeout=timeout_s, atomic=True)
                    return
                with oc.ArrayGroup(pool / "run", comm=comm, timeout=timeout_s) as run:
                    run.checkpoint({"u": mine}, schema="block,*")

        return ThreadJob(RANKS, BOUND_S).run(job)

    def found(self) -> Any:
        """Read the current values."""
        with self._daemons.connect() as pool:
            if self._verb == "atomic":
                with oc.open_array(pool / "u") as u:
                    return u[...]
            with oc.ArrayGroup(pool / "run") as run:
                checkpoint = run.restart()
                assert checkpoint.damaged == {}
                return checkpoint["u"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", ["atomic", "checkpoint"])
def test_what_is_replaced_stays_or_is_new(daemons: Daemons, array: float, verb: str) -> None:
    """Kill a server during the transfer; it restarts at once, or after all ranks returned."""
    replacing, before = Replacing(daemons, verb), array
    assert replacing(array) == [None] * RANKS
    for turn in range(2):
        value, told = array + 10 * (turn + 1), list[Any]()
        at_work = threading.Thread(
            target=lambda value=value, told=told: told.extend(replacing(value, TIMEOUT_S)),
            daemon=True,
        )
        with daemons.connect() as pool:
            first = bytes_written(pool)
            at_work.start()
            while at_work.is_alive() and bytes_written(pool) - first < PART * NBYTES:
                time.sleep(0.0002)
        daemons.kill("io", "b")
        if turn % 2 == 0:
            daemons.start("io", "b")
        at_work.join(BOUND_S)
        assert not at_work.is_alive(), "somebody hangs"
        if turn % 2:
            daemons.start("io", "b")
        have = replacing.found()
        is_new = (have == whole(value)).all()
        assert is_new or (have == whole(before)).all()
        # A rank without an error relies on the new values.
        assert is_new or all(is_told(each) for each in told), told
        before = value
        assert replacing(value) == [None] * RANKS
        assert (replacing.found() == whole(value)).all()
    with daemons.connect() as pool:
        assert fsck(pool).findings == ()
