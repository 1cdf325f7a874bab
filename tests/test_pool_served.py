"""A pool that is served: the same from two clients at once, and who may write where."""

import signal
import subprocess
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import on_disk, one_thread, packed, random_matrix
from served import make_key

import outcore as oc
from outcore.errors import (
    BusyError,
    ClosedError,
    DeniedError,
    InvalidError,
    NotFoundError,
    OutcoreError,
)
from outcore.volumes import being_made, exclusive, is_held, place

__all__ = ["one_thread"]


def test_two_clients_share_a_pool(served: tuple[str, Path]) -> None:
    url, key = served
    with oc.connect(url, key=key) as one, oc.connect(url + "/", key=key) as other:
        data = np.random.default_rng(0).random((200, 300))
        with oc.from_array(data, one / "A", chunks=(64, 64), progress=False) as A:
            assert (oc.open_array(other / "A")[...] == data).all()
            A[3:5, 7] = 1
            A.flush()
        with oc.open_array(other / "A") as B:
            assert (B[3:5, 7] == 1).all()
        with one.open("f", "w", hints={"stripe_unit_bytes": 4096}) as file:
            file.write(bytes(range(256)) * 64)
            before = one.messages
            assert (file.read_strided(5, 0, 3, 16, 1024) == [5, 6, 7] * 16).all()
            assert one.messages - before == 2
        assert other.stat("f").nbytes == 256 * 64
        assert str(one / "f") == f"{url}/f"
    with pytest.raises(ClosedError):
        one.ls()


def test_lu_on_a_served_pool_is_the_same_to_the_bit(
    served: tuple[str, Path], tmp_path: Path
) -> None:
    url, key = served
    a, found = random_matrix(200, "c16"), []
    with oc.connect(url, key=key) as pool:
        for where in (tmp_path, pool):
            on_disk(where / "Z", a, (32, 16)).close()
            lu = oc.linalg.lu_factor(where / "Z", memory=400_000, threads=1, progress=False)
            found.append(packed(lu))
    assert (found[0] == found[1]).all()


def test_a_name_is_held_against_other_clients(served: tuple[str, Path]) -> None:
    url, key = served
    with oc.connect(url, key=key) as one, oc.connect(f"{url}/", key=key) as other:
        with exclusive(place(one / "A.lu"), "one"):
            assert is_held(other / "A.lu")
            with pytest.raises(BusyError, match="process"), exclusive(place(other / "A.lu"), "x"):
                pass
        with exclusive(place(other / "A.lu"), "other"):
            pass
        with being_made(place(one / "B"), "one"):
            pass
        assert one.ls() == []
        # Of a process that is gone, the lock is taken over.
        (one / "C" / "lock").write_bytes(b'{"host": "%s", "process": 1, "started": "-1"}' % host())
        with exclusive(place(other / "C"), "other"):
            pass
        (one / "C" / "lock").write_bytes(b'{"host": "elsewhere", "process": 1, "started": "-1"}')
        with pytest.raises(BusyError, match="elsewhere"), exclusive(place(other / "C"), "other"):
            pass


KILLED_WITH_A_LOCK = """
import os, signal, sys
import outcore as oc
from outcore.pool_file import PoolFile
from outcore.volumes import exclusive, place

PoolFile.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
pool = oc.connect(sys.argv[1], key=sys.argv[2])
with exclusive(place(pool / "E"), "a test"):
    pass
"""


def test_a_lock_says_whose_it_is_from_the_beginning(
    served: tuple[str, Path], run_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Its process is killed when it has made the file, and has written nothing into it."""
    url, key = served
    killed = run_python(KILLED_WITH_A_LOCK, url, str(key))
    _, errors = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, errors
    with oc.connect(url, key=key) as pool:
        assert (pool / "E" / "lock").read_bytes() == b""
        assert not is_held(pool / "E")
        with exclusive(place(pool / "E"), "a test"):
            assert is_held(pool / "E")
        assert pool.ls() == []


def test_of_many_that_find_an_owner_gone_one_takes_the_name(served: tuple[str, Path]) -> None:
    url, key = served
    pools = [oc.connect(url, key=key) for _ in range(5)]
    for turn in range(8):
        stale = b'{"host": "%s", "process": 1, "started": "-%d"}' % (host(), turn)
        (pools[0] / "D" / "lock").write_bytes(stale)
        begin, tried = threading.Barrier(len(pools)), threading.Barrier(len(pools))
        owners: list[int] = []

        def take(number: int, begin: Any = begin, tried: Any = tried, owners: Any = owners) -> None:
            begin.wait(5)
            try:
                with exclusive(place(pools[number] / "D"), "a test"):
                    owners.append(number)
                    tried.wait(5)
            except BusyError:
                tried.wait(5)

        threads = [threading.Thread(target=take, args=(n,)) for n in range(len(pools))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Who is in the middle of taking it makes others wait; two never have it.
        assert len(owners) == 1
    assert pools[0].ls() == []
    for pool in pools:
        pool.close()


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
    oc.pool_locks._remove(lock)
    assert removed == ["D/lock", "D"]


def host() -> bytes:
    return oc.pool_locks.socket.gethostname().encode()


def test_a_key_is_needed(served: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = served
    wrong = make_key(tmp_path / "wrong")
    with pytest.raises(DeniedError):
        oc.connect(url, key=wrong)
    with pytest.raises(OutcoreError):
        oc.connect(url)
    with pytest.raises(InvalidError, match="no address of a pool"):
        oc.connect("host:7171")
