"""Rights, times, extended attributes and listings of names in a pool."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from served import Served

import outcore as oc
from outcore.errors import DeniedError, InvalidError, NotFoundError


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[oc.Pool]:
    with oc.Pool.embedded([tmp_path / "a", tmp_path / "b"]) as opened:
        yield opened


def write(pool: oc.Pool, name: str, data: bytes) -> None:
    with pool.open(name, "w") as file:
        file.write(data)


def test_a_listing_has_what_stat_tells(pool: oc.Pool) -> None:
    sizes = {f"f{number:04}": number * 777 for number in range(20)}
    for name, nbytes in sizes.items():
        with pool.open(f"d/{name}", "w", hints={"striping_unit": 4096}) as file:
            file.truncate(nbytes)
    pool.mkdir("d/sub")
    pool._root.core.tell_written()
    found = list(pool.scandir("d"))
    assert [path.name for path, _ in found] == [*sizes, "sub"]
    for path, status in found:
        assert status == pool.stat(path)
        assert status.nbytes == sizes.get(path.name, 0)
    assert (pool / "d").nbytes() == sum(sizes.values())
    assert list(pool.scandir("d/sub")) == []


def test_a_listing_of_many_files_is_few_messages(pool: oc.Pool) -> None:
    for number in range(1100):
        pool.open(f"d/f{number:04}", "w").close()
    before = pool.messages
    found = list(pool.scandir("d"))
    assert [path.name for path, _ in found] == [f"f{number:04}" for number in range(1100)]
    # Two pages, two servers.
    assert pool.messages - before == 4


def test_mode_owner_and_time_are_set(pool: oc.Pool) -> None:
    write(pool, "f", b"x" * 1000)
    created = pool.stat("f").changed_ns
    pool.chmod("f", 0o640)
    pool.chown("f", 12, 34)
    pool.chown("f", group=35)
    pool.utime("f", ns=(5, 1_234_567_890_123_456_789))
    found = pool.stat("f")
    assert (found.mode, found.owner, found.group) == (0o640, 12, 35)
    assert found.modified_ns == 1_234_567_890_123_456_789
    assert created < found.changed_ns
    with pytest.raises(InvalidError, match="0o1777"):
        pool.chmod("f", 0o4755)
    with pytest.raises(NotFoundError):
        pool.chmod("none", 0o600)
    pool.chmod(pool / "", 0o700)
    assert pool.stat("").mode == 0o700


def test_a_directory_passes_on_its_group(pool: oc.Pool, tmp_path: Path) -> None:
    pool.mkdir("d", mode=0o2777)
    pool.chown("d", group=44)
    pool.chmod("d", 0o2775)
    write(pool, "d/f", b"x")
    pool.mkdir("d/e/f")
    assert [pool.stat(name).group for name in ("d/f", "d/e", "d/e/f")] == [44] * 3
    assert [oct(pool.stat(name).mode & 0o7000) for name in ("d/f", "d/e", "d/e/f")] == [
        "0o0", "0o2000", "0o2000",
    ]  # fmt: skip
    with pytest.raises(InvalidError, match="0o1777 for a file"):
        pool.chmod("d/f", 0o2640)
    # Copies into it get the group and the bit, and copies with all attributes keep them.
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    (plain / "sub").chmod(0o700)
    oc.copy_files(plain, pool / "d/copy", recursive=True)
    found = pool.stat("d/copy/sub")
    assert (found.group, found.mode & 0o7777) == (44, 0o2700)
    oc.copy_files(pool / "d", tmp_path / "kept", recursive=True, preserve=True)
    assert (tmp_path / "kept" / "e").stat().st_mode & 0o7777 == pool.stat("d/e").mode & 0o7777
    oc.copy_files(tmp_path / "kept", pool / "again", recursive=True, preserve=True)
    assert pool.stat("again/e").mode & 0o7777 == pool.stat("d/e").mode & 0o7777


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002, 0o000, 0o277])
def test_new_names_get_no_bits_of_the_umask(
    pool: oc.Pool, tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    """New names follow the umask, as plain files do."""
    umask(mask)
    pool.open("f", "w").close()
    pool.open("g", "x", permissions=0o640).close()
    pool.mkdir("d")
    pool.mkdir("e", mode=0o1751)
    pool.mkdir("on/the/way")
    oc.create_array(pool / "A", 3).close()
    (pool / "small").write_bytes(b"1")
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, mode in (("f", 0o666), ("g", 0o640), ("small", 0o666)):
        os.close(os.open(plain / name, os.O_CREAT, mode))
        assert pool.stat(name).mode == (plain / name).stat().st_mode & 0o7777, name
    for name, mode in (("d", 0o777), ("e", 0o1751), ("A", 0o777)):
        os.mkdir(plain / name, mode)
        assert pool.stat(name).mode & ~0o300 == (plain / name).stat().st_mode & 0o7477, name
    assert pool.stat("on/the").mode & 0o077 == 0o077 & ~mask
    assert pool.stat("A/zarr.json").mode == 0o666 & ~mask
    with pytest.raises(InvalidError, match="permission bits"):
        pool.open("h", "w", permissions=0o2644)
    with pytest.raises(InvalidError, match="permission bits"):
        pool.mkdir("h", mode="rwx")
    assert not pool.exists("h")


def test_the_umask_of_a_fork_is_its_own(
    pool: oc.Pool, tmp_path: Path, umask: Callable[[int], int]
) -> None:
    pool.open("f", "x").close()

    def fork() -> None:
        umask(0o077)
        with oc.Pool.embedded([tmp_path / "other"]) as other:
            other.open("f", "x").close()
            assert other.stat("f").mode == 0o600

    process = multiprocessing.get_context("fork").Process(target=fork)
    process.start()
    process.join()
    assert process.exitcode == 0
    pool.open("g", "x").close()
    assert pool.stat("g").mode == 0o644


def test_a_time_that_is_set_stays_when_a_file_is_closed(pool: oc.Pool) -> None:
    with pool.open("f", "w") as file:
        file.write(b"12345")
        pool.utime("f", ns=(0, 77))
    assert pool.stat("f").modified_ns == 77
    with pool.open("f", "a") as file:
        file.write(b"6")
    pool._root.core.tell_written()
    assert pool.stat("f").modified_ns > 77


def test_times_are_set_as_of_plain_files(pool: oc.Pool, tmp_path: Path) -> None:
    write(pool, "f", b"x")
    plain = tmp_path / "plain"
    plain.touch()
    for times in ((1, 2), (0.5, 1_700_000_000.25), (0, 0.1)):
        os.utime(plain, times)
        pool.utime("f", times)
        assert pool.stat("f").modified_ns == plain.stat().st_mtime_ns
    before = time.time_ns()
    pool.utime("f")
    assert before <= pool.stat("f").modified_ns <= time.time_ns()
    pool.mkdir("d")
    pool.utime("d", None)
    for times in (5, (1,), (1, "x"), (0, 1e300)):
        with pytest.raises(InvalidError):
            pool.utime("f", times)
    for ns in ((1, 1.5), (1, -1), 5, (1, 1 << 64)):
        with pytest.raises(InvalidError):
            pool.utime("f", ns=ns)
    late = datetime(2262, 4, 11, 23, 47, 17, tzinfo=UTC)
    with pytest.raises(InvalidError, match="2262"):
        pool.utime("f", (0, int(late.timestamp())))
    with pytest.raises(InvalidError, match="2262-04-11T23:47:16Z"):
        pool.utime("f", ns=(0, (1 << 63) - 1))
    pool.utime("f", (0, int(late.timestamp()) - 1))
    assert np.datetime64(pool.stat("f").modified_ns, "ns") == np.datetime64("2262-04-11T23:47:16")
    with pytest.raises(InvalidError, match="have both"):
        pool.utime("f", (1, 2), ns=(1, 2))


def test_extended_attributes_are_kept(pool: oc.Pool) -> None:
    write(pool, "f", b"x")
    pool.mkdir("d")
    values = {"empty": b"", "zero": b"\0" * 100, "größe": os.urandom(64 << 10)}
    for path in ("f", "d", ""):
        for name, value in values.items():
            pool.setxattr(path, name, value)
        assert pool.listxattr(path) == sorted(values, key=str.encode)
        assert {name: pool.getxattr(path, name) for name in values} == values
        pool.setxattr(path, "zero", b"1")
        assert pool.getxattr(path, "zero") == b"1"
        pool.removexattr(path, "zero")
        assert pool.listxattr(path) == ["empty", "größe"]
        for missing in (pool.getxattr, pool.removexattr):
            with pytest.raises(NotFoundError, match="zero"):
                missing(path, "zero")
    with pytest.raises(InvalidError, match="64 KiB"):
        pool.setxattr("f", "large", bytes((64 << 10) + 1))
    for name in ("", "x" * 256, "a\0b"):
        with pytest.raises(InvalidError, match="name"):
            pool.setxattr("f", name, b"1")
    with pytest.raises(InvalidError):
        pool.getxattr("f", "")
    for number in range(256 - 2):
        pool.setxattr("f", f"a{number}", b"")
    with pytest.raises(InvalidError, match="256"):
        pool.setxattr("f", "one more", b"")
    pool.rm("f")
    write(pool, "f", b"x")
    assert pool.listxattr("f") == []


def test_unknown_hints_are_attributes(pool: oc.Pool) -> None:
    pool.open("f", "w", hints={"cb_nodes": 7}).close()
    assert pool.getxattr("f", "hint.cb_nodes") == b"7"


def test_a_directory_says_how_new_files_are_cut(pool: oc.Pool) -> None:
    pool.mkdir("d/e")
    pool.set_layout("d", {"striping_unit": "128 KiB", "stripe_count": 1})
    pool.set_layout("d/e", {"stripe_count": 2})
    for name, unit, count in [("d/f", 128 << 10, 1), ("d/e/f", 128 << 10, 2)]:
        write(pool, name, b"x")
        found = pool.stat(name)
        assert (found.stripe_unit_bytes, len(found.servers)) == (unit, count)
    with pytest.raises(InvalidError):
        pool.set_layout("d/f", {"stripe_count": 2})


def test_rights_are_those_that_posix_gives(served: Served) -> None:
    """EACCES and EPERM of chmod(), chown(), utimensat(), opendir() and similar calls."""
    ada, bob = served.key_of("ada", 1001, 100, 200), served.key_of("bob", 1002, 100)
    with oc.connect(served.url, key=served.key) as root:
        root.mkdir("home")
        root.chmod("home", 0o777)
        with oc.connect(served.url, key=ada) as hers, oc.connect(served.url, key=bob) as his:
            write(hers, "home/f", b"secret")
            assert (root.stat("home/f").owner, root.stat("home/f").group) == (1001, 100)
            hers.chmod("home/f", 0o600)
            assert his.stat("home/f").nbytes == 6, "stat needs no right to the file itself"
            for denied in (
                lambda: his.open("home/f"),
                lambda: his.chmod("home/f", 0o666),
                lambda: his.chown("home/f", 1002),
                lambda: his.utime("home/f", (1, 1)),
                lambda: his.utime("home/f"),
                # A call that would change nothing fails too.
                lambda: his.chown("home/f", 1001, 100),
                lambda: his.chown("home/f"),
                lambda: his.getxattr("home/f", "a"),
                lambda: his.listxattr("home/f"),
                lambda: his.setxattr("home/f", "a", b""),
                lambda: his.set_layout("home", {"stripe_count": 1}),
                # Owners cannot give a file away, and can choose only among their own groups.
                lambda: hers.chown("home/f", 1002),
                lambda: hers.chown("home/f", group=300),
            ):
                with pytest.raises(DeniedError):
                    denied()
            hers.chown("home/f", group=200)
            hers.setxattr("home/f", "a", b"1")
            hers.chown("home/f", group=100)
            hers.chmod("home/f", 0o640)
            assert his.getxattr("home/f", "a") == b"1", "a member of the group reads"
            with pytest.raises(DeniedError):
                his.setxattr("home/f", "a", b"2")
            # A writer may set the times to now, and a write updates them. Only the owner sets other
            # times.
            hers.chmod("home/f", 0o660)
            hers.utime("home/f", (1, 1))
            with pytest.raises(DeniedError):
                his.utime("home/f", (2, 2))
            his.utime("home/f")
            assert root.stat("home/f").modified_ns > 10**9
            hers.utime("home/f", (1, 1))
            with his.open("home/f", "r+") as file:
                file.write(b"shared")
            his._root.core.tell_written()
            assert root.stat("home/f").modified_ns > 10**9
            # Its owner can open a file that is write-only.
            hers.chmod("home/f", 0o222)
            with hers.open("home/f", "a") as file:
                file.write(b"!")
            with pytest.raises(DeniedError):
                his.open("home/f", "r+")
            with pytest.raises(DeniedError):
                hers.open("home/f")
            hers.chmod("home/f", 0o640)
            hers.mkdir("home/d")
            hers.chmod("home/d", 0o711)
            write(hers, "home/d/g", b"xy")
            with pytest.raises(DeniedError):
                his.ls("home/d")
            with pytest.raises(DeniedError):
                list(his.scandir("home/d"))
            assert his.stat("home/d/g").nbytes == 2, "what is in it may be searched for"
            hers.chmod("home/d", 0o700)
            with pytest.raises(DeniedError):
                his.stat("home/d/g")
            root.chown("home/f", 1002, 300)
            assert his.open("home/f", "r+").nbytes == 7


def test_a_key_of_a_user_is_that_users_alone(served: Served, tmp_path: Path) -> None:
    key = served.key_of("ada", 1001, 100)
    assert key.stat().st_mode & 0o777 == 0o600
    forged = tmp_path / "forged"
    forged.touch(0o600)
    forged.write_text(key.read_text().replace(":1001:", ":0:"))
    with pytest.raises(DeniedError):
        oc.connect(served.url, key=forged)
