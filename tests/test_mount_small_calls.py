"""Reads and writes of a mounted pool that the mount joins, divides, gathers and expects."""

import contextlib
import errno
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mounted import Counted, client, counted, here, mount, mounted
from stopping import fill_up

import outcore as oc

__all__ = ["client", "here", "mount"]  # fixtures

KIB, MIB = 1 << 10, 1 << 20
CALL = 4 * KIB
CALLS = 3 * MIB // CALL


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with counted(tmp_path_factory.mktemp("pool")) as found:
        yield found


def some_bytes(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes()


def bytes_of(client: oc.Pool, path: Path) -> bytes:
    """Return the bytes that another client finds in a file of the mount."""
    with client.open(f"{path.parent.name}/{path.name}", "rb") as file:
        found: bytes = file.read()
    return found


def test_small_calls_are_few_requests(pool: Counted, here: Path, client: oc.Pool) -> None:
    data, before = some_bytes(CALLS * CALL), pool.requests()
    with (here / "f").open("wb", buffering=0) as file:
        for at in range(0, len(data), CALL):
            file.write(data[at : at + CALL])
    # One message for each mebibyte, and a few more if the machine is slow.
    assert 3 <= (pool.requests() - before)["write"] <= CALLS // 4
    assert bytes_of(client, here / "f") == data
    before = pool.requests()
    with (here / "f").open("rb", buffering=0) as file:
        found = b"".join(iter(lambda: file.read(CALL), b""))
    assert found == data
    assert (pool.requests() - before)["read"] <= CALLS // 4


def test_a_strict_mount_keeps_nothing(pool: Counted, tmp_path: Path, client: oc.Pool) -> None:
    with mounted(pool.served, tmp_path / "m", "--strict") as strict:
        path = strict.place / "strict"
        path.mkdir()
        with (path / "f").open("wb+", buffering=0) as file:
            file.write(b"ab")
            assert bytes_of(client, path / "f") == b"ab"
            assert os.pread(file.fileno(), 1, 0) == b"a"
            with client.open("strict/f", "r+b") as other:
                other.write(b"AB")
            assert os.pread(file.fileno(), 1, 1) == b"B"
            with client.open("strict/f", "r+b") as other:
                other.truncate(1)
            assert os.pread(file.fileno(), 9, 0) == b"A"


@pytest.mark.parametrize("flag", [os.O_APPEND, os.O_DSYNC, os.O_SYNC, os.O_DIRECT])
def test_some_writes_are_at_the_servers_at_once(here: Path, client: oc.Pool, flag: int) -> None:
    fd = os.open(here / "f", os.O_CREAT | os.O_WRONLY | flag)
    try:
        os.write(fd, b"one")
        assert bytes_of(client, here / "f") == b"one"
    finally:
        os.close(fd)


def test_another_client_shortens_a_file(here: Path, client: oc.Pool) -> None:
    (here / "f").write_bytes(b"long")
    with (here / "f").open("rb", buffering=0) as file:
        assert file.read() == b"long"
        with client.open(f"{here.name}/f", "r+b") as other:
            other.truncate(1)
        # The mount knows an earlier length for a second.
        while os.pread(file.fileno(), 9, 0) != b"l":
            os.sched_yield()


@pytest.mark.parametrize("by_path", [False, True])
def test_a_time_that_is_set_outlasts_gathered_bytes(here: Path, by_path: bool) -> None:
    with (here / "f").open("wb", buffering=0) as file:
        file.write(b"gathered")
        os.utime(here / "f" if by_path else file.fileno(), ns=(1, 1_000_000_000))
    assert (here / "f").stat().st_mtime_ns == 1_000_000_000


def test_reads_between_writes_move_few_bytes(pool: Counted, here: Path) -> None:
    (here / "f").write_bytes(some_bytes(2 * MIB))
    moved = pool.bytes_read()
    with (here / "f").open("rb+", buffering=0) as file:
        for number in range(100):
            assert len(file.read(100)) == 100
            os.pwrite(file.fileno(), b"x", MIB + number)
    # Without a change between them, the reads would take 128 KiB each time.
    assert pool.bytes_read() - moved <= 2 * 128 * KIB + 100 * 100


def test_other_descriptors_see_gathered_bytes(here: Path) -> None:
    with (here / "f").open("wb", buffering=0) as one, (here / "f").open("rb", buffering=0) as two:
        one.write(b"abc")
        assert os.fstat(two.fileno()).st_size == (here / "f").stat().st_size == 3
        assert two.read(10) == b"abc"
        os.pwrite(one.fileno(), b"BC", 1)
        assert os.pread(two.fileno(), 10, 0) == b"aBC"
        with (here / "f").open("ab", buffering=0) as three:
            one.write(b"d")
            three.write(b"e")
        assert os.pread(two.fileno(), 10, 0) == b"aBCde"
        one.write(b"D")
        os.truncate(here / "f", 3)
        assert os.pread(two.fileno(), 10, 0) == b"aBC"
        os.pwrite(one.fileno(), b"x" * 2 * MIB, 1)
        os.pwrite(one.fileno(), b"y", 2)
        assert os.pread(two.fileno(), 3 * MIB, 0) == b"axy" + b"x" * (2 * MIB - 2)


def test_large_calls_are_as_few_requests(pool: Counted, here: Path, client: oc.Pool) -> None:
    data, before, began = some_bytes(16 * MIB), pool.requests(), time.monotonic()
    with (here / "f").open("wb", buffering=0) as file:
        for at in range(0, len(data), MIB):
            file.write(data[at : at + MIB])
    # The kernel divides each of these calls, since the bytes are not aligned with pages. If the
    # machine is slow, the mount sends bytes of an age of 0.3 s.
    old = (time.monotonic() - began) / 0.3
    assert 16 <= (pool.requests() - before)["write"] <= 18 + 2 * old
    assert bytes_of(client, here / "f") == data
    before, began = pool.requests(), time.monotonic()
    with (here / "f").open("rb", buffering=0) as file:
        assert b"".join(iter(lambda: file.read(MIB), b"")) == data
    # The mount drops bytes that were read ahead a second before.
    dropped = 10 * (time.monotonic() - began)
    assert 16 <= (pool.requests() - before)["read"] <= 18 + dropped


def test_later_bytes_replace_those_on_their_way(here: Path) -> None:
    """Requests for the same bytes reach the servers in the order of the calls."""
    random_ = random.Random(5)
    model = bytearray(6 * MIB)
    with (here / "f").open("wb", buffering=0) as file:
        for number in range(150):
            offset = random_.randrange(4 * MIB)
            data = bytes([number]) * random_.randrange(1, 2 * MIB)
            os.pwrite(file.fileno(), data, offset)
            model[offset : offset + len(data)] = data
    length = (here / "f").stat().st_size
    assert (here / "f").read_bytes() == model[:length]


def test_threads_share_a_descriptor(here: Path) -> None:
    """Each thread has every fourth call, of a size that fits neither pages nor requests."""
    data, call = some_bytes(20 * MIB), MIB - 12_345
    fd = os.open(here / "f", os.O_RDWR | os.O_CREAT)

    def write(thread: int) -> None:
        for at in range(thread * call, len(data), 4 * call):
            os.pwrite(fd, data[at : at + call], at)

    def read(thread: int) -> bool:
        places = range(thread * call, len(data), 4 * call)
        return all(os.pread(fd, call, at) == data[at : at + call] for at in places)

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
            assert all(threads.map(read, range(4)))
        assert (here / "f").read_bytes() == data
    finally:
        os.close(fd)


def test_more_files_than_there_is_memory_for(here: Path, client: oc.Pool) -> None:
    """300 files have bytes that wait, and read ahead; the mount has memory for fewer."""
    data = some_bytes(300 * KIB)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((here / f"f{i}").open("wb+", buffering=0)) for i in range(300)]
        for at in range(0, len(data), 100 * KIB):
            for file in files:
                file.write(data[at : at + 100 * KIB])
        for file in files:
            file.seek(0)
        for at in range(0, len(data), 100 * KIB):
            assert all(file.read(100 * KIB) == data[at : at + 100 * KIB] for file in files)
    assert bytes_of(client, here / "f299") == data


def test_gathered_bytes_survive_a_rename_and_a_removal(here: Path) -> None:
    with (here / "f").open("wb+", buffering=0) as file:
        file.write(b"abc")
        (here / "f").rename(here / "g")
        assert (here / "g").stat().st_size == 3
        assert (here / "g").read_bytes() == b"abc"
        file.write(b"d")
        (here / "g").unlink()
        assert os.pread(file.fileno(), 9, 0) == b"abcd"


def test_bytes_reach_the_servers_without_a_close(
    pool: Counted, client: oc.Pool, tmp_path: Path
) -> None:
    with mounted(pool.served, tmp_path / "m") as killed:
        path = killed.place / "killed"
        path.mkdir()
        fd = os.open(path / "f", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"abc")
        # The mount sends them on its own, within a second.
        while bytes_of(client, path / "f") != b"abc":
            os.sched_yield()
        killed.kill()
        for call in (lambda: os.write(fd, b"lost"), lambda: os.close(fd)):
            with pytest.raises(OSError, match=r"not connected|aborted"):
                call()
    assert bytes_of(client, path / "f") == b"abc"


def test_the_error_of_a_gathered_write_is_reported(small_disk: Path, tmp_path: Path) -> None:
    disks = [small_disk / "a", small_disk / "b"]
    with counted(tmp_path, *disks) as pool, mounted(pool.served, tmp_path / "m") as mount:
        path = mount.place / "f"
        fill_up(small_disk / "filler")
        for finish in (os.fsync, os.close):
            fd = os.open(path, os.O_CREAT | os.O_WRONLY)
            assert os.write(fd, some_bytes(900 * KIB)) == 900 * KIB
            with pytest.raises(OSError, match="No space left") as caught:
                finish(fd)
            assert caught.value.errno == errno.ENOSPC
            if finish is os.fsync:
                # Each descriptor learns of it once.
                os.close(fd)
        fd = os.open(path, os.O_WRONLY)
        with pytest.raises(OSError, match="No space left"):
            write_pieces(fd)
        with contextlib.suppress(OSError):
            # Another request may have failed since.
            os.close(fd)
        (small_disk / "filler").unlink()
        path.write_bytes(b"room again")
        assert path.read_bytes() == b"room again"


def write_pieces(fd: int) -> None:
    for at in range(0, 8 * MIB, 512 * KIB):
        os.pwrite(fd, some_bytes(512 * KIB), at)


OPERATIONS = 400
FLAGS = (os.O_RDWR, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DSYNC)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_several_descriptors_of_a_file(here: Path, tmp_path: Path, seed: int) -> None:
    # The same calls on a file of the disk give the answers.
    draw = random.Random(seed)
    places = [tmp_path / "f", here / "f"]
    for place in places:
        place.touch()
    open_files = [[os.open(place, flags) for flags in FLAGS] for place in places]
    try:
        for _ in range(OPERATIONS):
            operation = random_operation(draw)
            answers = [outcome(operation, *of) for of in zip(places, open_files, strict=True)]
            assert answers[0] == answers[1], operation[:4]
    finally:
        for fd in (fd for each in open_files for fd in each):
            os.close(fd)
    assert places[0].read_bytes() == places[1].read_bytes()


def random_operation(draw: random.Random) -> tuple[Any, ...]:
    kind = draw.choice(
        ["pwrite", "pwrite", "pwrite", "write", "write", "pread", "read", "read", "truncate",
         "stat", "fsync", "seek", "reopen"]
    )  # fmt: skip
    length = draw.choice([1, 100, 5000, 5000, 5000, 70_000, 70_000, MIB + 5])
    return kind, draw.randrange(len(FLAGS)), draw.randrange(300_000), length, draw.randrange(256)


def outcome(operation: tuple[Any, ...], place: Path, fds: list[int]) -> Any:
    """Do an operation, and return its result."""
    kind, number, offset, length, value = operation
    fd = fds[number]
    match kind:
        case "pwrite" if number != FLAGS.index(os.O_RDWR | os.O_APPEND):
            return os.pwrite(fd, bytes([value]) * length, offset)
        case "pwrite" | "write":
            return os.write(fd, bytes([value]) * length)
        case "pread":
            return os.pread(fd, length, offset)
        case "read":
            return os.read(fd, length)
        case "truncate":
            return os.ftruncate(fd, offset)
        case "stat":
            return os.fstat(fd).st_size, place.stat().st_size
        case "fsync":
            return os.fsync(fd)
        case "seek":
            return os.lseek(fd, offset // 2, os.SEEK_SET)
        case "reopen":
            os.close(fd)
            fds[number] = os.open(place, FLAGS[number])
            return None
    raise AssertionError(kind)
