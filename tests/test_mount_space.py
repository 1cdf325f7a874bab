"""Disk space of a mount: its size, and reservations. Listings with attributes."""

import ctypes
import errno
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mounted import counted, mounted
from served import Served
from served_pools import in_memory

import outcore as oc

MIB = 1 << 20
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def fallocate(fd: int, mode: int, offset: int, length: int) -> int:
    """Call fallocate(2); return the number of its error, 0 if it has none."""
    library = ctypes.CDLL(None, use_errno=True)
    ended = library.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    return 0 if ended == 0 else ctypes.get_errno()


def test_the_size_is_that_of_all_servers(served: Served, tmp_path: Path) -> None:
    with mounted(served, tmp_path / "m") as found:
        disk, pool = os.statvfs(served.key.parent), os.statvfs(found.place)
    # Both servers use this disk.
    bytes_of_disk = disk.f_blocks * disk.f_frsize
    assert pool.f_blocks * pool.f_frsize == 2 * (bytes_of_disk // pool.f_frsize * pool.f_frsize)
    assert pool.f_files == disk.f_files
    assert 0 < pool.f_bavail <= pool.f_bfree < pool.f_blocks
    assert pool.f_ffree <= pool.f_files
    assert (pool.f_ffree > 0) == (disk.f_favail > 0)
    assert pool.f_namemax == 255


def test_space_is_reserved(served: Served, tmp_path: Path) -> None:
    with mounted(served, tmp_path / "m") as found:
        path = found.place / "f"
        with path.open("wb+") as file:
            fd = file.fileno()
            os.posix_fallocate(fd, 0, 3 * MIB + 5)
            assert os.fstat(fd).st_size == 3 * MIB + 5
            stored = [each for each in served.key.parent.glob("[ab]/data/*/*") if not each.suffix]
            allocated = sum(each.stat().st_blocks * 512 for each in stored)
            assert allocated >= 3 * MIB + 5
            # Gathered bytes, bytes behind the range and the length stay.
            os.pwrite(fd, b"gathered", 2 * MIB)
            assert fallocate(fd, 0, 1, 10) == 0
            os.pwrite(fd, b"end", 5 * MIB)
            assert fallocate(fd, 0, 4 * MIB, 100) == 0
            assert os.fstat(fd).st_size == 5 * MIB + 3
            assert fallocate(fd, 0, 5 * MIB, 100) == 0
        content = bytes(2 * MIB) + b"gathered" + bytes(3 * MIB - 8) + b"end" + bytes(97)
        assert path.read_bytes() == content


def test_a_reservation_cuts_nothing_that_another_client_wrote(
    served: Served, tmp_path: Path
) -> None:
    with mounted(served, tmp_path / "m") as found, (found.place / "f").open("wb+") as file:
        file.write(b"mine")
        file.flush()
        os.fsync(file.fileno())
        with oc.connect(served.url, key=served.key) as client:
            with client.open("f", "r+b") as other:
                other.seek(200_000)
                other.write(b"theirs")
            assert fallocate(file.fileno(), 0, 0, 100) == 0
            assert client.stat("f").nbytes == 200_006


def test_what_a_pool_cannot_reserve_is_refused(served: Served, tmp_path: Path) -> None:
    with mounted(served, tmp_path / "m") as found, (found.place / "f").open("wb+") as file:
        file.write(b"x" * 5000)
        file.flush()
        for mode in (KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE):
            assert fallocate(file.fileno(), mode, 0, 10_000) == errno.EOPNOTSUPP, mode
        assert fallocate(file.fileno(), 0, 2**63 - 10, 20) in (errno.EFBIG, errno.EINVAL)
        assert (found.place / "f").read_bytes() == b"x" * 5000


def test_a_listing_with_attributes_is_a_few_requests(tmp_path: Path) -> None:
    with counted(tmp_path) as pool, mounted(pool.served, tmp_path / "m") as found:
        (found.place / "d").mkdir()
        for number in range(150):
            (found.place / "d" / f"f{number}").write_bytes(b"x" * number)
        os.symlink("f7", found.place / "d" / "link")
        (found.place / "d" / "sub").mkdir()
        # Another mount knows nothing of them.
        (tmp_path / "other").mkdir()
        with mounted(pool.served, tmp_path / "other") as other:
            before = pool.requests(manager=True) + pool.requests()
            sizes = {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in os.scandir(other.place / "d")
            }
            asked = pool.requests(manager=True) + pool.requests() - before
            wanted = {f"f{number}": number for number in range(150)} | {"link": 2, "sub": 0}
            assert sizes == wanted
            # 150 files would need 150 of each.
            assert asked["stat"] < 20
            assert asked["look"] < 20
            assert asked["lengths"] < 40
            assert os.readlink(other.place / "d" / "link") == "f7"


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_listings_of_any_length_are_whole(served: Served, tmp_path: Path, count: int) -> None:
    names = {f"{'long-' * (number % 30)}{number}" for number in range(count)}
    with oc.connect(served.url, key=served.key) as client:
        client.mkdir("d")
        for name in names:
            client.symlink("x", f"d/{name}")
    with mounted(served, tmp_path / "m") as found:
        listed = sorted(
            (entry.name, entry.stat(follow_symlinks=False).st_size)
            for entry in os.scandir(found.place / "d")
        )
        assert listed == sorted((name, 1) for name in names)
        assert sorted(os.listdir(found.place / "d")) == sorted(names)


def test_a_listing_leaves_out_no_name_behind_hidden_and_new_ones(
    served: Served, tmp_path: Path
) -> None:
    names = {f"name-{number:04}" for number in range(600)}
    with oc.connect(served.url, key=served.key) as client:
        client.mkdir("d")
        for name in names:
            client.symlink("x", f"d/{name}")
        with mounted(served, tmp_path / "m") as found:
            place = found.place / "d"
            # Files that are open lose their names, and stay under hidden ones.
            open_files = [(place / f"removed-{number}").open("wb") for number in range(9)]
            for file in open_files:
                os.unlink(file.name)
            assert sorted(os.listdir(place)) == sorted(names)
            # New names sort between those that were there when the program opened the directory,
            # and one of these is gone.
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                for number in range(0, 600, 50):
                    for letter in "abcdefgh":
                        client.symlink("x", f"d/name-{number:04}{letter}")
                client.rm("d/name-0300")
                listed = {name for name in os.listdir(fd) if len(name) == len("name-0000")}
            finally:
                os.close(fd)
            assert listed == names - {"name-0300"}
            for file in open_files:
                file.close()


def listed_with_lengths(directory: Path) -> list[str]:
    """List a directory like `os.listdir`, with the lengths of the names of six digits."""

    def has_length(entry: os.DirEntry[str]) -> bool:
        return len(entry.name) > 6 or entry.stat(follow_symlinks=False).st_size == 1

    return [entry.name for entry in os.scandir(directory) if has_length(entry)]


@pytest.mark.exhaustive(keep=0)
def test_changes_by_another_client_leave_the_other_names_of_a_large_listing() -> None:
    """POSIX.1-2017, `readdir()`: names that stay are listed once, whatever happens to others."""
    names, is_over = [f"{number:06}" for number in range(100_000)], threading.Event()

    def change() -> None:
        draw, number = random.Random(1), 0
        while not is_over.is_set():
            number += 1
            new, moved = (f"d/{draw.choice(names)}-{number}{letter}" for letter in "ab")
            client.symlink("x", new)
            client.mv(new, moved)
            client.rm(moved)

    with (
        in_memory() as home,
        counted(home) as pool,
        oc.connect(pool.served.url, key=pool.served.key) as client,
        mounted(pool.served, home / "m") as found,
        ThreadPoolExecutor(8) as team,
    ):
        client.mkdir("d")
        list(team.map(lambda name: client.symlink("x", f"d/{name}"), names))
        changing = team.submit(change)
        try:
            for walk in (os.listdir, listed_with_lengths):
                before = pool.requests(manager=True)
                while (pool.requests(manager=True) - before)["rename"] < 100:
                    listed = Counter(walk(found.place / "d"))
                    assert all(listed[name] == 1 for name in names)
        finally:
            is_over.set()
        changing.result()
