"""Collectives in which servers read the memory of processes on their machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from communicators import ThreadComm, ThreadJob
from direct_memory import children_are_read, is_read_by_itself
from served import daemon, make_key, serve
from served_pools import in_memory, some_pool
from timeouts import HANG_S

import outcore as oc
from outcore.errors import InvalidError

RATES: Any = type("Rates", (), {"read_bytes_s": 1e9, "write_bytes_s": 5e8})()


@pytest.fixture(scope="module")
def pool() -> Iterator[oc.Pool]:
    with some_pool("unix") as found:
        yield found


def write(
    pool: oc.Pool, name: str, arrays: list[npt.NDArray[Any]], schema: str
) -> list[oc.CollectiveReport]:
    """Write an array with one thread for each of its parts."""

    def job(comm: ThreadComm) -> oc.CollectiveReport:
        with oc.open_array(pool / name, "r+") as u:
            return u.write_all(arrays[comm.rank], schema, comm, timeout=60)

    found = ThreadJob(len(arrays)).run(job)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def content(pool: oc.Pool, name: str) -> npt.NDArray[Any]:
    with oc.open_array(pool / name) as u:
        return np.asarray(u[...])


def test_messages_are_as_planned_both_ways(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 1000 bytes, of two processes; only single elements are too far apart on disk."""
    values = np.arange(900 * 125.0).reshape(900, 125)
    for schema, arrays in [
        ("block,*", [values[:450], values[450:]]),
        ("*,block", [np.ascontiguousarray(values[:, :63]), np.ascontiguousarray(values[:, 63:])]),
        ("cyclic,*", [np.ascontiguousarray(values[i::2]) for i in range(2)]),
        ("*,cyclic", [np.ascontiguousarray(values[:, i::2]) for i in range(2)]),
    ]:
        oc.create_array(pool / "m", values.shape, chunks=(300, 125), if_exists="overwrite").close()
        plan = oc.plan("write_all", array=pool / "m", schema=schema, processes=2, rates=RATES)
        expected = [2 * 6 if schema != "*,cyclic" else sum(each.values()) for each in plan.messages]
        assert [sum(each.values()) for each in plan.direct_messages] == expected
        assert f"{plan.total_messages}, or {plan.total_direct_messages} if" in str(plan)
        direct = write(pool, "m", arrays, schema)
        is_read = is_read_by_itself()
        messages = plan.direct_messages if is_read else plan.messages
        assert [each.messages for each in direct] == list(messages)
        assert (content(pool, "m") == values).all()
        is_read = is_read and schema != "*,cyclic"
        bytes_read = [array.nbytes if is_read else 0 for array in arrays]
        assert [each.direct_bytes for each in direct] == bytes_read
        with monkeypatch.context() as patch:
            patch.setenv("OUTCORE_DIRECT_MEMORY", "off")
            given = write(pool, "m", [array + 1 for array in arrays], schema)
        assert [each.messages for each in given] == list(plan.messages)
        assert [each.direct_bytes for each in given] == [0, 0]
        assert [each.bytes_moved for each in given] == [each.bytes_moved for each in direct]
        assert (content(pool, "m") == values + 1).all()


def test_memory_with_strides(pool: oc.Pool) -> None:
    """Servers read ghost cells and reversed planes directly; fields and columns are short runs."""
    values = np.arange(12 * 40 * 300.0).reshape(12, 40, 300)
    ghosts = np.zeros((14, 42, 304))[1:-1, 1:-1, 2:-2]
    backwards = np.zeros((12, 40, 300))[::-1]
    fields = np.zeros((12, 40, 300), [("a", "f8"), ("x", "f8")])["x"]
    columns = np.zeros((12, 40, 300), order="F")
    for memory, is_read in [(ghosts, True), (backwards, True), (fields, False), (columns, False)]:
        memory[...] = values
        oc.create_array(
            pool / "s", values.shape, chunks=(5, 40, 300), if_exists="overwrite"
        ).close()
        (report,) = write(pool, "s", [memory], "*,*,*")
        assert report.direct_bytes == (values.nbytes if is_read and is_read_by_itself() else 0)
        assert (content(pool, "s") == values).all()


def test_a_pool_by_tcp_is_offered_nothing(tmp_path: Path) -> None:
    with some_pool("served") as pool:
        oc.create_array(pool / "u", (100, 100)).close()
        (report,) = write(pool, "u", [np.ones((100, 100))], "*,*")
        assert report.direct_bytes == 0


def test_a_server_of_both_is_reached_by_its_socket() -> None:
    """A server has two addresses: the client joins by the one that identifies its process."""
    with in_memory() as home:
        key = make_key(home / "pool.key")
        manager = daemon(home, key, "manager", "a")
        servers = []
        try:
            for name in "ab":
                (home / name).mkdir(exist_ok=True)
                ways = f'["tcp:127.0.0.1:0", "unix:{home / name}/io.sock"]'
                where = f'["{manager.addresses[0]}"]'
                servers.append(daemon(home, key, "io", name, listen=ways, manager=where))
            url = manager.addresses[0].replace("tcp:", "outcore://")
            for _ in range(10):
                with oc.connect(url, key=key) as pool:
                    oc.create_array(pool / "u", (300, 100), if_exists="overwrite").close()
                    (report,) = write(pool, "u", [np.ones((300, 100))], "*,*")
                    read = report.bytes_moved if is_read_by_itself() else 0
                    assert report.direct_bytes == read
        finally:
            for each in reversed([manager, *servers]):
                each.stop()


def test_a_server_may_be_told_not_to() -> None:
    with in_memory() as home:
        key = make_key(home / "pool.key")
        manager = daemon(home, key, "manager", "a", listen=f'["unix:{home}/m.sock"]')
        server = None
        try:
            where = f'["{manager.addresses[0]}"]'
            more = {"listen": f'["unix:{home}/io.sock"]', "manager": where}
            with pytest.raises(InvalidError, match='direct_memory = "on", or "off"'):
                daemon(home, key, "io", "a", direct_memory='"maybe"', **more)
            server = daemon(home, key, "io", "a", direct_memory='"off"', **more)
            with oc.connect(f"outcore:{home}/m.sock", key=key) as pool:
                oc.create_array(pool / "u", (100, 100)).close()
                (report,) = write(pool, "u", [np.full((100, 100), 2.0)], "*,*")
                assert report.direct_bytes == 0
                assert (content(pool, "u") == 2).all()
        finally:
            if server is not None:
                server.stop()
            manager.stop()


def test_what_the_variable_may_say(pool: oc.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTCORE_DIRECT_MEMORY", "perhaps")
    with oc.create_array(pool / "v", (4, 4), if_exists="overwrite") as u:
        with pytest.raises(InvalidError, match="need OUTCORE_DIRECT_MEMORY=on or off"):
            u.write_all(np.zeros((4, 4)), "*,*")
        assert u.info().state == "whole"


RANK = """
import ctypes, sys
import numpy as np
import outcore as oc

# PR_SET_DUMPABLE (prctl(2)): nobody but a process with CAP_SYS_PTRACE reads its memory from now on.
if sys.argv[2] == "hidden":
    assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
with oc.connect(sys.argv[1]) as pool, oc.open_array(pool / "u", "r+") as u:
    report = u.write_all(np.full((300, 100), 3.0), "*,*", timeout=60)
print(report.direct_bytes)
"""


def run_rank(url: str, how: str) -> int:
    """Write an array from another process; return how many of its bytes servers read."""
    ran = subprocess.run(
        [sys.executable, "-c", RANK, url, how], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_memory() as home, serve(home, "unix") as (url, key), oc.connect(url, key=key) as pool:
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        oc.create_array(pool / "u", (300, 100)).close()
        assert run_rank(url, "plain") == (300 * 100 * 8 if children_are_read() else 0)
        assert (content(pool, "u") == 3).all()


SERVER = """
import ctypes, struct, sys
from pathlib import Path

# Without capabilities, of which root has that to read any memory (capset(2), version 3).
libc = ctypes.CDLL(None, use_errno=True)
assert libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0] * 6)) == 0
sys.path.insert(0, sys.argv[1])
from served import serve

with serve(Path(sys.argv[2]), "unix") as (url, key):
    print(url, key, flush=True)
    sys.stdin.read()
"""


def test_what_the_system_refuses_goes_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the system does not let servers read sends its data instead."""
    tests = str(Path(__file__).parent)
    with in_memory() as home:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, tests, str(home)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url, key = server.stdout.readline().split()
            monkeypatch.setenv("OUTCORE_KEY", key)
            with oc.connect(url, key=key) as pool:
                oc.create_array(pool / "u", (300, 100)).close()
                assert run_rank(url, "hidden") == 0
                assert (content(pool, "u") == 3).all()
        finally:
            server.communicate(timeout=HANG_S)
        assert server.returncode == 0
