"""Names that calls lock in a pool: one holder at a time, wherever a process is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from communicators import PATIENCE_S
from killed_writers import CONTEXT
from served import Served, serve
from served_pools import in_memory

import outcore as oc
from outcore.errors import BusyError, DeniedError, ExistsError, NotFoundError
from outcore.files.catalog import find, remove
from outcore.storage import pool_locks
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import as_path, being_made, exclusive, is_held, is_there, place


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with in_memory() as directory, serve(directory) as found:
        yield found


def claim(
    path: Any, host: str | None = None, numbered_in: str | None = None, *, is_file: bool = False
) -> None:
    """Leave the claim of a process that no longer exists, if `host` is this machine.

    Earlier versions made files.
    """
    host = pool_locks._host() if host is None else host
    space = pool_locks._numbered_in() if numbered_in is None else numbered_in
    left = path / f"lock.1.1.{space}.{random.randbytes(8).hex()}.{host}"
    if is_file:
        left.open("x").close()
    else:
        left.root.core.make_directory(left.inside)


def test_a_name_is_held_against_other_clients(served: Served) -> None:
    with (
        oc.connect(served.url, key=served.key) as one,
        oc.connect(f"{served.url}/", key=served.key) as other,
    ):
        with exclusive(place(one / "A.lu"), "one"):
            assert is_held(other / "A.lu")
            with pytest.raises(BusyError, match="process"), exclusive(place(other / "A.lu"), "x"):
                pass
            assert len(one.ls("A.lu")) == 1, "who is refused leaves nothing"
        with exclusive(place(other / "A.lu"), "other"):
            pass
        with being_made(place(one / "B"), "one"):
            pass
        assert one.ls() == []
        # A call takes over the name of dead processes.
        for number in range(3):
            claim(one / "C", is_file=number == 1)
        assert not is_held(one / "C")
        with exclusive(place(other / "C"), "other"):
            assert is_held(one / "C")
        assert one.ls() == []
        for elsewhere in ({"host": "else-where.org"}, {"numbered_in": "17"}):
            claim(one / "C", **elsewhere)
            assert is_held(one / "C")
            with pytest.raises(BusyError) as refused, exclusive(place(other / "C"), "other"):
                pass
            (left,) = one.ls("C")
            host = elsewhere.get("host", pool_locks._host())
            assert f"process 1 on {host} (if that is gone, remove {other / 'C' / left})" in str(
                refused.value
            )
            one.rm(f"C/{left}")
            with exclusive(place(other / "C"), "other"):
                pass


def test_a_claim_asks_the_manager_only(served: Served) -> None:
    with oc.connect(served.url, key=served.key) as pool:
        before = pool.messages
        with exclusive(place(pool / "A"), "a test"):
            pass
        assert pool.messages == before


def test_a_lock_of_another_kind_is_nobodys_claim(served: Served) -> None:
    with oc.connect(served.url, key=served.key) as pool:
        for name in ("lock", "lock.1.2.3", "locks"):
            (pool / "C" / name).write_bytes(b"")
        assert not is_held(pool / "C")
        with exclusive(place(pool / "C"), "a test"):
            assert is_held(pool / "C")
        assert pool.ls("C") == ["lock", "lock.1.2.3", "locks"]
        pool.rm("C", recursive=True)


def test_a_pool_in_this_process_removes_what_is_left(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        for path in (pool / "C", pool / "D"):
            claim(path)
            claim(path, "elsewhere")
        (pool / "D" / "x").write_bytes(b"")
        for name in "CDE":
            assert not is_held(pool / name)
            with exclusive(place(pool / name), "a test"):
                assert is_held(pool / name)
        assert pool.ls() == ["D"]
        assert pool.ls("D") == ["x"]


def test_what_is_left_is_listed_and_removed(served: Served) -> None:
    with oc.connect(served.url, key=served.key) as pool:
        oc.create_array(pool / "A", 5).close()
        left = [pool / name for name in (".A.filling", "B.lu", ".C.copying", "run/.writing")]
        oc.create_group(pool / "run")
        for path in left:
            claim(path, is_file=path.name == "B.lu")
        assert [(one.path, one.state) for one in find(pool / "")[0] if one.kind == "left-over"] == [
            (str(path), "incomplete") for path in sorted(left[1:])
        ]
        for path in left:
            claim(path, "elsewhere")
        found = {one.path: one for one in find(pool / "")[0] if one.path != str(pool / "run")}
        assert {one.state for one in found.values()} == {"in use"}
        assert found.keys() == {str(path) for path in [pool / "A", *left[1:]]}
        for path in left:
            for name in pool.ls(path.inside):
                if name.endswith("elsewhere"):
                    (path / name).root.core.remove_one((path / name).inside)
        for one in find(pool / "")[0]:
            if is_there(as_path(one.path)):
                remove(one)
        assert pool.ls() == []


def test_who_may_not_look_is_told_that_nobody_holds_a_name() -> None:
    def names(_: str) -> Any:
        raise DeniedError("not to be listed")

    core = types.SimpleNamespace(names=names)
    root: Any = types.SimpleNamespace(core=core, is_shared=True, is_held=lambda name: False)
    assert not is_held(PoolPath(root, "D"))


def test_a_process_that_was_killed_is_gone_before_its_parent_hears_of_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = pool_locks._started(process.pid)
        assert not pool_locks._is_gone(process.pid, started)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert pool_locks._is_gone(process.pid, started)
    finally:
        process.communicate()


def test_a_process_that_is_hidden_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc may hide the processes of other users."""

    def denied(*_: Any) -> None:
        raise PermissionError

    me, started = os.getpid(), pool_locks._started(os.getpid())
    assert started
    assert not pool_locks._is_gone(me, started)
    assert pool_locks._is_gone(me, "1")
    monkeypatch.setattr(pool_locks, "process_fields", lambda process: None)
    assert not pool_locks._is_gone(me, started)
    assert pool_locks._is_gone(999_999_999, "1")
    monkeypatch.setattr(os, "kill", denied)
    assert not pool_locks._is_gone(me, started)


def test_any_name_of_a_machine_is_in_a_claim(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        oc.connect(served.url, key=served.key) as one,
        oc.connect(f"{served.url}/", key=served.key) as other,
    ):
        for host in ("", "a.b-c_d", "a/b", "a\nb", "a\udcff", "x" * 64, "\u00e9" * 32):
            monkeypatch.setattr(pool_locks.socket, "gethostname", lambda host=host: host)
            with exclusive(place(one / "D"), "a test"):
                (name,) = one.ls("D")
                assert pool_locks.is_lock(name)
                with pytest.raises(BusyError), exclusive(place(other / "D"), "a test"):
                    pass
            assert one.ls() == []


class Killed:
    """The calls of a pool, with a kill before or after one of them."""

    def __init__(self, core: Any, call: int, *, after: bool) -> None:
        self._core, self._left, self._after = core, call, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            done = found(*given, **named)
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return call


def hold(url: str, key: str, number: int, after: bool) -> None:
    with oc.connect(url, key=key) as pool:
        pool._root.core = Killed(pool._root.core, number, after=after)
        with exclusive(place(pool / "D"), "a test"):
            pass
        pool._root.core = pool._root.core._core


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_wherever_a_process_is_killed_the_next_has_the_name(
    served: Served, is_left: bool, after: bool
) -> None:
    """Kill the process also while it takes over the name of a dead process."""
    with oc.connect(served.url, key=served.key) as pool:
        for number in range(100):
            if is_left:
                claim(pool / "D")
            given = (served.url, str(served.key), number, after)
            process = CONTEXT.Process(target=hold, args=given)
            process.start()
            process.join()
            if process.exitcode == 0:
                assert pool.ls() == []
                break
            assert process.exitcode == -signal.SIGKILL
            with exclusive(place(pool / "D"), "a test"):
                assert is_held(pool / "D")
            assert pool.ls() == []
        assert number >= 4, "it made as many calls"


def test_of_many_at_once_one_takes_the_name(served: Served) -> None:
    pools = [oc.connect(served.url, key=served.key) for _ in range(5)]
    for _ in range(20):
        claim(pools[0] / "D")
        begin, tried = threading.Barrier(len(pools)), threading.Barrier(len(pools))
        owners: list[int] = []

        def take(number: int, begin: Any = begin, tried: Any = tried, owners: Any = owners) -> None:
            begin.wait(PATIENCE_S)
            try:
                with exclusive(place(pools[number] / "D"), "a test"):
                    owners.append(number)
                    tried.wait(PATIENCE_S)
            except BusyError:
                tried.wait(PATIENCE_S)

        threads = [threading.Thread(target=take, args=(n,)) for n in range(len(pools))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(owners) == 1
    assert pools[0].ls() == []
    for pool in pools:
        pool.close()


class Death(BaseException):
    """A process ends here."""


class Names:
    """A directory as the manager keeps it, with a scheduler that runs one process at a time.

    Each process may die at a call. Its last request then succeeds, is dropped, or arrives much
    later.
    """

    def __init__(self, seed: int, processes: int) -> None:
        self.draw = random.Random(seed)
        self.clock = 0
        self.names: dict[str, int] = {}
        self.alive = set(range(processes))
        self.late: list[Callable[[], Any]] = []
        self.owner: int | None = None
        self.taken = 0
        self._turns = [threading.Semaphore(0) for _ in range(processes)]
        self._done = threading.Semaphore(0)
        self._me = threading.local()
        self.failed: list[BaseException] = []

    def run(self, job: Callable[["Names", int], None]) -> None:
        threads = [threading.Thread(target=self._one, args=(job, n)) for n in sorted(self.alive)]
        for thread in threads:
            thread.start()
        running = set(self.alive)
        while running := {n for n in running if threads[n].is_alive()}:
            if self.late and self.draw.random() < 0.1:
                with contextlib.suppress(ExistsError, NotFoundError):
                    self.late.pop(self.draw.randrange(len(self.late)))()
            self._turns[self.draw.choice(sorted(running))].release()
            self._done.acquire()
        if self.failed:
            raise self.failed[0]

    def _one(self, job: Callable[["Names", int], None], number: int) -> None:
        self._me.number = number
        self._turns[number].acquire()
        try:
            job(self, number)
        except Death:
            pass
        except BaseException as error:
            self.failed.append(error)
        finally:
            self._done.release()

    def pause(self, *_: Any) -> None:
        """Let other processes run."""
        self._done.release()
        self._turns[self._me.number].acquire()

    def ask(self, do: Callable[[], Any]) -> Any:
        """Run a call as one step."""
        me = self._me.number
        if me not in self.alive:
            raise Death
        self.pause()
        if self.draw.random() < 0.03:
            fate = self.draw.randrange(3)
            self.alive.discard(me)
            if self.owner == me:
                self.owner = None
            if fate == 0:
                do()
            elif fate == 1:
                self.late.append(do)
            raise Death
        return do()

    # The part of a pool's interface that locks use.

    def make(self, name: str) -> None:
        if name in self.names:
            raise ExistsError(name)
        # An administrator may set the clock back.
        self.clock += self.draw.randrange(-1, 3)
        self.names[name] = self.clock

    def remove(self, name: str) -> None:
        if name == "D" and self.names:
            raise ExistsError(name)
        if name != "D" and self.names.pop(name.removeprefix("D/"), None) is None:
            raise NotFoundError(name)

    def listed(self, _: str) -> list[tuple[str, Any]]:
        return [
            (n, (True, 0, 0, 0, 0, at, 0, None, (), None)) for n, at in sorted(self.names.items())
        ]


def take_and_let_go(names: Names, number: int) -> None:
    """Take and release the name a few times, each time for some steps of other processes."""
    core = types.SimpleNamespace(
        names=lambda path: names.ask(lambda: names.listed(path)),
        make_directory=lambda path: names.ask(lambda: names.make(path.removeprefix("D/"))),
        remove_one=lambda path: names.ask(lambda: names.remove(path)),
    )
    held: set[str] = set()
    root: Any = types.SimpleNamespace(
        core=core, is_shared=True, url="", hold=lambda name: True, let_go=held.discard
    )
    for _ in range(4):
        with contextlib.suppress(BusyError), pool_locks.held(PoolPath(root, "D"), "a test"):
            assert names.owner is None, "two hold it"
            names.owner = number
            names.taken += 1
            for _ in range(names.draw.randrange(6)):
                names.ask(lambda: None)
            assert names.owner == number
            names.owner = None


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)])
def test_two_never_hold_a_name(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the order in which the manager serves requests, and the moments of death."""
    taken = 0
    for seed in seeds:
        names = Names(seed, 4)
        numbers = threading.local()

        def is_gone(process: int, _: str, names: Names = names) -> bool:
            return process not in names.alive

        monkeypatch.setattr(pool_locks, "_is_gone", is_gone)
        monkeypatch.setattr(pool_locks, "_started", lambda _: "1")
        monkeypatch.setattr(pool_locks, "_numbered_in", lambda: "1")
        monkeypatch.setattr(pool_locks, "_host", lambda: "here")
        monkeypatch.setattr(pool_locks, "os", types.SimpleNamespace(getpid=lambda n=numbers: n.me))
        monkeypatch.setattr(pool_locks, "time", types.SimpleNamespace(sleep=names.pause))

        def job(names: Names, number: int, numbers: Any = numbers) -> None:
            numbers.me = number
            take_and_let_go(names, number)

        names.run(job)
        taken += names.taken
    assert taken > 2 * len(seeds)


def test_of_two_that_give_up_a_name_one_finds_no_directory_any_more() -> None:
    removed = []

    def remove_one(path: str) -> None:
        removed.append(path)
        if path == "D":
            raise NotFoundError("another was faster")

    root = types.SimpleNamespace(core=types.SimpleNamespace(remove_one=remove_one))
    lock: Any = types.SimpleNamespace(
        root=root, inside="D/lock", parent=types.SimpleNamespace(inside="D")
    )
    pool_locks._remove(lock)
    assert removed == ["D/lock", "D"]


def test_what_the_files_are_called() -> None:
    assert pool_locks.is_lock("lock")
    assert pool_locks.is_lock(f"lock.{pool_locks.new_owner()}")
    for other in ("lock.", "locks", "lock.1.2.3", "a lock", "lock.turn"):
        assert not pool_locks.is_lock(other)
