"""A mount sends the attributes of a new file in few requests, and never too late."""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounted import Counted, client, counted, here, mount, mounted

import outcore as oc

__all__ = ["client", "here", "mount"]  # fixtures

TIME_NS = 1_600_000_000_123_456_789


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with counted(tmp_path_factory.mktemp("pool")) as found:
        yield found


def commits_of(pool: Counted, call: Callable[[], object]) -> Counter[str]:
    """Return the manager's requests of a call that change something."""
    before = pool.requests(manager=True)
    call()
    cost = pool.requests(manager=True) - before
    for kind in ("stat", "look", "list", "open", "describe", "get_extended"):
        del cost[kind]
    return cost


def make(path: Path, mode: int = 0o600) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)


def test_tar_costs_few_commits_for_each_file(pool: Counted, here: Path, tmp_path: Path) -> None:
    source, count = tmp_path / "source", 30
    source.mkdir()
    for number in range(count):
        (source / f"f{number}").write_bytes(b"x" * number)
        (source / f"f{number}").chmod(0o640 + number % 8)
        os.utime(source / f"f{number}", ns=(0, TIME_NS + number))
    names = sorted(os.listdir(source))
    archive = ["tar", "cf", tmp_path / "t.tar", "--format=posix", "-C", source, *names]
    subprocess.run(archive, check=True)

    def unpack() -> None:
        subprocess.run(["tar", "xpf", tmp_path / "t.tar", "-C", here], check=True)

    cost = commits_of(pool, unpack)
    assert cost.keys() == {"create", "set_attributes"}
    assert cost["create"] == count
    # Time, owner and mode are one request. A busy machine sends some before a file is closed.
    assert count <= cost["set_attributes"] < 2 * count
    for name in names:
        mine, there = (source / name).stat(), (here / name).stat()
        for of in ("st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_size"):
            assert getattr(mine, of) == getattr(there, of), (name, of)


def test_programs_see_kept_changes_at_once(pool: Counted, here: Path) -> None:
    fd = make(here / "f")

    def change() -> None:
        os.utime(fd, ns=(0, TIME_NS))
        os.chown(fd, os.geteuid(), -1)
        os.fchmod(fd, 0o640)

    commits_of(pool, change)
    for found in (os.fstat(fd), (here / "f").stat()):
        assert (found.st_mode & 0o7777, found.st_mtime_ns) == (0o640, TIME_NS)
    with os.scandir(here) as listing:
        assert next(listing).stat().st_mode & 0o7777 == 0o640
    os.close(fd)
    assert (here / "f").stat().st_mtime_ns == TIME_NS


def test_a_right_is_taken_away_at_once(here: Path, client: oc.Pool) -> None:
    fd = make(here / "f", 0o666)
    before = os.fstat(fd).st_ctime_ns
    os.fchmod(fd, 0o600)
    assert os.fstat(fd).st_ctime_ns > before
    assert client.stat(f"{here.name}/f").mode == 0o600
    os.fchmod(fd, 0o640)
    # The second change was kept; this one is sent with it.
    os.fchmod(fd, 0o200)
    assert client.stat(f"{here.name}/f").mode == 0o200
    os.close(fd)


def test_others_see_the_changes_although_the_file_stays_open(here: Path, client: oc.Pool) -> None:
    fd = make(here / "f")
    os.utime(fd, ns=(0, TIME_NS))
    os.fchmod(fd, 0o644)
    found = client.stat(f"{here.name}/f")
    while (found.mode, found.modified_ns) != (0o644, TIME_NS):
        found = client.stat(f"{here.name}/f")
    os.close(fd)


@pytest.mark.parametrize("how", ["fsync", "close", "rename", "open", "setxattr"])
def test_some_calls_send_the_changes(here: Path, client: oc.Pool, how: str) -> None:
    path = here / "f"
    fd = make(path)
    os.write(fd, b"abc")
    os.utime(fd, ns=(0, TIME_NS))
    os.fchmod(fd, 0o644)
    match how:
        case "fsync":
            os.fsync(fd)
        case "close":
            os.close(os.dup(fd))
        case "rename":
            path.rename(here / "g")
        case "open":
            path.open("rb").close()
        case _:
            os.setxattr(path, "user.a", b"1")
    name = "g" if how == "rename" else "f"
    found = client.stat(f"{here.name}/{name}")
    assert (found.mode, found.modified_ns) == (0o644, TIME_NS)
    os.close(fd)
    found = client.stat(f"{here.name}/{name}")
    assert (found.mode, found.modified_ns, found.nbytes) == (0o644, TIME_NS, 3)


@pytest.mark.parametrize("how", ["small", "large", "append", "truncate", "touch"])
def test_a_later_write_has_the_later_time(here: Path, how: str) -> None:
    flags = os.O_APPEND if how == "append" else 0
    fd = os.open(here / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR | flags, 0o600)
    os.write(fd, b"abc")
    os.utime(fd, ns=(0, TIME_NS))
    os.fchmod(fd, 0o644)
    match how:
        case "small" | "append":
            os.write(fd, b"def")
        case "large":
            os.pwrite(fd, bytes(3 << 20), 0)
        case "truncate":
            os.ftruncate(fd, 1)
        case _:
            os.utime(fd)
    os.close(fd)
    found = (here / "f").stat()
    assert found.st_mtime_ns > TIME_NS
    assert found.st_mode & 0o7777 == 0o644
    sizes = {"small": 6, "append": 6, "large": 3 << 20, "truncate": 1, "touch": 3}
    assert found.st_size == sizes[how]


def test_a_new_file_has_the_length_that_programs_wrote(here: Path) -> None:
    fd = make(here / "f")
    expected = 0
    for number in range(1, 50):
        at = number * 977 % 30_000
        os.pwrite(fd, b"x" * (number * 100), at)
        expected = max(expected, at + number * 100)
        os.fchmod(fd, 0o600)
        assert os.fstat(fd).st_size == expected
        if number % 10 == 0:
            os.ftruncate(fd, expected := expected // 2)
            assert os.fstat(fd).st_size == expected
    os.close(fd)
    assert (here / "f").stat().st_size == expected


def test_a_file_that_is_removed_meanwhile_is_closed_without_an_error(
    here: Path, client: oc.Pool
) -> None:
    fd = make(here / "f")
    os.utime(fd, ns=(0, TIME_NS))
    client.rm(f"{here.name}/f")
    os.close(fd)
    assert os.listdir(here) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_owner_is_kept_while_nobody_else_has_a_right(
    pool: Counted, here: Path, client: oc.Pool
) -> None:
    def given(name: str, mode: int) -> Counter[str]:
        fd = make(here / name, mode)
        os.fchmod(fd, mode)
        before = os.fstat(fd).st_uid
        cost = commits_of(pool, lambda: os.chown(fd, 12, 34))
        assert (before, os.fstat(fd).st_uid, os.fstat(fd).st_gid) == (os.geteuid(), 12, 34)
        os.close(fd)
        found = client.stat(f"{here.name}/{name}")
        assert (found.owner, found.group, found.mode) == (12, 34, mode)
        return cost

    # The first one shows that the pool allows it.
    assert given("first", 0o600)["set_attributes"] >= 1
    given("private", 0o600)
    assert given("shared", 0o640)["set_attributes"] >= 1


def test_a_strict_mount_keeps_no_attributes(pool: Counted, tmp_path: Path, client: oc.Pool) -> None:
    with mounted(pool.served, tmp_path / "m", "--strict") as found:
        fd = make(found.place / "strict")
        os.utime(fd, ns=(0, TIME_NS))
        os.fchmod(fd, 0o644)
        record = client.stat("strict")
        assert (record.mode, record.modified_ns) == (0o644, TIME_NS)
        os.close(fd)
