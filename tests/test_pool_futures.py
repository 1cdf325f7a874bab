"""Background requests to a pool's files: overlap, errors, and their delivery to callers."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from served import Gate, daemon, make_key
from timeouts import HANG_S

import outcore as oc
from outcore import _core
from outcore.errors import ClosedError, CorruptError, InvalidError

PATIENCE_S = HANG_S


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as opened:
        yield opened


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[oc.Pool, Gate]]:
    """A pool of one server, with a gate in front of it."""
    key, gate = make_key(tmp_path / "key"), Gate()
    manager = daemon(tmp_path, key, "manager", "a")
    where = f'["{manager.addresses[0]}"]'
    server = daemon(tmp_path, key, "io", "a", manager=where, advertise=f'["{gate.address}"]')
    host, port = server.addresses[0].removeprefix("tcp:").rsplit(":", 1)
    gate.target = host, int(port)
    with oc.connect(manager.addresses[0].replace("tcp:", "outcore://"), key=key) as opened:
        yield opened, gate
    gate.close()
    server.stop()
    manager.stop()


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8)


def test_each_kind_of_access_has_its_future(pool: oc.Pool) -> None:
    data = noise(54_000)
    with pool.open("f", "w", hints={"stripe_unit_bytes": 1000}) as file:
        assert file.start_write_at(0, data).result() is None
        assert file.start_sync().result() is None
        assert (file.start_read(_core.Regions.contiguous(5, 9)).result() == data[5:14]).all()
        assert (file.start_read_at(100, 50).result() == data[100:150]).all()
        out = np.empty((3, 1000), np.uint8)
        future = file.start_read_strided(20_000, 0, 1000, 3, 6000, out=out)
        assert future.result() is out
        assert future.done()
        assert not future.running()
        assert future.exception() is None
        assert (out == data.reshape(9, 6000)[3:6, 2000:3000]).all()
        found = file.start_read_list([7, 30], [2, 3]).result(PATIENCE_S)
        assert (found == data[[7, 8, 30, 31, 32]]).all()
        view = file.view(100, 30, 110)
        assert (view.start_read_at(35, 10).result() == data[215:225]).all()
        futures = [
            file.start_write_strided(20_000, 0, 1000, 3, 6000, data=255 - out),
            file.start_write_list([7, 30], [2, 3], data=b"abcde"),
            view.start_write_at(35, noise(10)),
        ]
        for each in futures:
            each.result()
        data.reshape(9, 6000)[3:6, 2000:3000] ^= 255
        data[[7, 8, 30, 31, 32]] = list(b"abcde")
        data[215:225] = noise(10)
        assert (file.read_at(0, len(data)) == data).all()


def test_requests_overlap_and_are_waited_for(gated: tuple[oc.Pool, Gate]) -> None:
    pool, gate = gated
    data = noise(1 << 16)
    with pool.open("f", "w") as file:
        file.write_at(0, data)
        gate.shut()
        reads = [file.start_read_at(at, 100) for at in (0, 1000)]
        write = file.start_write_at(2000, data[:5])
        sync = file.start_sync()
        for future in (*reads, write, sync):
            with pytest.raises(TimeoutError, match="still pending"):
                future.result(timeout=0.02)
            with pytest.raises(TimeoutError):
                future.exception(0)
            assert future.running()
        gate.open()
        sync.result(PATIENCE_S)
        assert write.done()
        for at, future in zip((0, 1000), reads, strict=True):
            assert (future.result() == data[at : at + 100]).all()
        assert (file.read_at(2000, 5) == data[:5]).all()


def test_closing_waits_for_what_is_under_way(gated: tuple[oc.Pool, Gate]) -> None:
    pool, gate = gated
    file = pool.open("f", "w")
    gate.shut()
    written, read = file.start_write_at(0, b"abc"), pool.open("f", "r+").start_write_at(3, b"d")
    timer = threading.Timer(0.1, gate.open)
    timer.start()
    file.close()
    assert written.done()
    timer.join()
    with pytest.raises(ClosedError):
        file.start_read_at(0, 3)
    read.result(PATIENCE_S)  # only this future refers to its file object
    assert (pool / "f").read_bytes() == b"abcd"


def damaged(pool: oc.Pool, tmp_path: Path, name: str) -> None:
    """Make a file of 3 blocks, and damage the second on disk."""
    with pool.open(name, "w", hints={"stripe_count": 1, "base": 0}) as file:
        file.write(noise(3 << 16))
        file.sync()
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file() and path.stat().st_size >= 3 << 16:
            content = path.read_bytes()
            at = content.find(noise(3 << 16)[:1000].tobytes())
            if at == 0:
                with path.open("r+b") as raw:
                    raw.seek((1 << 16) + 17)
                    raw.write(bytes([255 ^ content[(1 << 16) + 17]]))
                return
    raise AssertionError("the data file was not found")


def test_an_error_is_raised_to_who_asks(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        damaged(pool, tmp_path, "f")
        with pool.open("f", "r+") as file:
            future, other = file.start_read_at(1 << 16, 10), file.start_read_at(0, 10)
            for _ in range(2):
                with pytest.raises(CorruptError, match="damaged"):
                    future.result()
            assert isinstance(future.exception(), CorruptError)
            assert (other.result() == noise(3 << 16)[:10]).all()
            file.sync()  # the caller already got the error


@pytest.mark.parametrize("end", ["sync", "start_sync", "close"])
def test_an_error_that_nobody_asked_for_comes_later(tmp_path: Path, end: str) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        damaged(pool, tmp_path, "f")
        file = pool.open("f", "r+")
        file.start_read_at(1 << 16, 10)
        file.start_read_at((1 << 16) + 5, 10)
        kept = file.start_read_at((1 << 16) + 9, 10)
        for at in range(100):  # the list of undelivered errors does not grow
            file.read_at(at, 10)
        finish: Callable[[], object] = getattr(file, end)
        with pytest.raises(CorruptError, match="damaged") as raised:
            finish().result() if end == "start_sync" else finish()
        assert "2 other requests failed too" in raised.value.__notes__[0]
        assert isinstance(kept.exception(), CorruptError)
        file.close()  # the error was raised once
        assert file.closed


def test_a_sync_that_nobody_asks_for_passes_errors_on(tmp_path: Path) -> None:
    with oc.Pool.embedded([tmp_path / "a"]) as pool:
        damaged(pool, tmp_path, "f")
        file = pool.open("f", "r+")
        file.start_write_at((1 << 16) + 3, b"abc")  # the server needs the rest of the damaged block
        for _ in range(3000):
            file.start_sync()
        with pytest.raises(CorruptError, match="damaged"):
            file.sync()
        file.close()


def test_memory_lives_as_long_as_the_request(gated: tuple[oc.Pool, Gate]) -> None:
    pool, gate = gated

    class Watched(np.ndarray):
        pass

    with pool.open("f", "w") as file:
        file.write_at(0, bytes(100))
        gate.shut()
        array = noise(100).view(Watched)
        gone = weakref.ref(array)
        file.start_write_at(0, array)
        del array
        gc.collect()
        assert gone() is not None
        gate.open()
        file.sync()
        file.read_at(0, 1)
        gc.collect()
        assert gone() is None
        assert (file.read_at(0, 100) == noise(100)).all()


def test_a_dropped_file_is_not_waited_for(gated: tuple[oc.Pool, Gate]) -> None:
    pool, gate = gated
    gate.shut()
    pool.open("f", "w").start_write_at(0, b"abc")
    gc.collect()
    gate.open()
    pool.close()


def test_what_cannot_be_started_is_refused_at_once(pool: oc.Pool) -> None:
    with pool.open("f", "w") as file:
        for call in (
            lambda: file.start_read_at(0),
            lambda: file.start_write_list([0, 1], 2, data=b"abc"),
            lambda: file.view(0, 4, 8).start_read_at(-1, 2),
        ):
            with pytest.raises(InvalidError, match="need"):
                call()
