"""A mounted pool, used by programs of the system and compared with a directory of the disk."""

import contextlib
import errno
import json
import mmap
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from mounted import Mounted, client, here, mount, mounted
from served import Served, make_key, serve

import outcore as oc
from outcore.pool.mounting import mounted_at

__all__ = ["client", "here", "mount"]  # fixtures

MIB = 1 << 20


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("pool")) as served:
        yield served


def error_of(call: Callable[[], Any]) -> str:
    """Return the name of the error that a call raises."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    raise AssertionError("need an error, have none")


def test_bytes_are_those_of_the_client_library(here: Path, client: oc.Pool) -> None:
    values = np.random.default_rng(1).integers(0, 256, 5 * MIB + 77, np.uint8).tobytes()
    (here / "f").write_bytes(values)
    name = client / here.name / "f"
    with client.open(f"{here.name}/f", "rb") as file:
        assert file.read() == values
    assert (here / "f").stat().st_size == len(values) == name.stat().nbytes
    with client.open(f"{here.name}/f", "r+b") as file:
        file.seek(3 * MIB)
        file.write(b"other bytes")
    with (here / "f").open("rb") as file:
        file.seek(3 * MIB - 2)
        found = file.read(15)
    assert found == values[3 * MIB - 2 : 3 * MIB] + b"other bytes" + values[3 * MIB + 11 :][:2]


def test_programs_of_the_system(here: Path, tmp_path: Path) -> None:
    source = Path(__file__).parent
    subprocess.run(["cp", "-a", source / "golden", here], check=True)
    subprocess.run(["diff", "-r", source / "golden", here / "golden"], check=True)
    subprocess.run(["tar", "cf", here / "t.tar", "-C", source, "golden"], check=True)
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", here / "t.tar", "-C", tmp_path / "out"], check=True)
    subprocess.run(["diff", "-r", source / "golden", tmp_path / "out" / "golden"], check=True)
    kept = source / "golden"
    assert {p.name: p.stat().st_mode for p in kept.iterdir()} == {
        p.name: p.stat().st_mode for p in (here / "golden").iterdir()
    }


def test_a_write_through_a_mapping_is_read_by_others(here: Path, client: oc.Pool) -> None:
    with (here / "f").open("wb+") as file:
        file.truncate(3 * mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[mmap.PAGESIZE + 3 : mmap.PAGESIZE + 6] = b"abc"
            mapped.flush()
            with client.open(f"{here.name}/f", "rb") as other:
                other.seek(mmap.PAGESIZE + 2)
                assert other.read(5) == b"\0abc\0"


def test_a_file_is_readable_after_it_was_removed(here: Path, client: oc.Pool) -> None:
    with (here / "f").open("wb+") as file:
        file.write(b"kept")
        file.flush()
        (here / "f").unlink()
        assert list(here.iterdir()) == []
        file.write(b" and more")
        file.flush()
        file.seek(0)
        assert file.read() == b"kept and more"
        assert os.fstat(file.fileno()).st_size == 13
    here.rmdir()
    assert not (client / here.name).exists()


def test_a_file_that_is_open_is_replaced_by_a_rename(here: Path) -> None:
    (here / "new").write_bytes(b"new")
    (here / "old").write_bytes(b"old")
    with (here / "old").open("rb") as file:
        (here / "new").rename(here / "old")
        assert file.read() == b"old"
        assert (here / "old").read_bytes() == b"new"
    assert [path.name for path in here.iterdir()] == ["old"]
    here.joinpath("old").unlink()
    here.rmdir()


def test_a_removed_file_goes_with_its_last_close(here: Path, client: oc.Pool) -> None:
    (here / "d").mkdir()
    with (here / "d" / "f").open("wb"), (here / "d" / "f").open("rb"):
        (here / "d" / "f").unlink()
        # The hidden name moves along with its directory.
        (here / "d").rename(here / "e")
    sync_closes(here)
    assert list((client / here.name / "e").iterdir()) == []


def sync_closes(here: Path) -> None:
    """Wait until the mount has closed files; the system does not wait for that."""
    while True:
        with contextlib.suppress(OSError):
            return (here / "e").rmdir() or (here / "e").mkdir()


def test_a_shorter_file_ends_there_for_all_descriptors(here: Path) -> None:
    (here / "f").write_bytes(b"x" * 100)
    with (here / "f").open("rb", buffering=0) as file:
        assert len(file.read(100)) == 100
        os.truncate(here / "f", 7)
        file.seek(0)
        assert file.read(100) == b"x" * 7
        (here / "f").write_bytes(b"")
        file.seek(0)
        assert file.read(100) == b""


def test_calls_reach_a_file_that_another_client_has_renamed(here: Path, client: oc.Pool) -> None:
    mine, other = client / here.name / "f", client / here.name / "g"
    (here / "f").write_bytes(b"mine")
    with client.open(other.inside, "xb") as file:
        file.write(b"other")
    with (here / "f").open("rb+") as file:
        volume = mine.root.volume
        volume.rename(mine.inside, f"{here.name}/moved")
        volume.rename(other.inside, mine.inside)
        os.fchmod(file.fileno(), 0o600)
        os.setxattr(file.fileno(), "user.a", b"1")
        assert os.pwrite(file.fileno(), b"M", 0) == 1
        found = os.fstat(file.fileno())
        assert (found.st_mode & 0o777, found.st_size) == (0o600, 4)
    moved = client / here.name / "moved"
    assert moved.stat().mode & 0o777 == 0o600
    assert mine.stat().mode & 0o777 != 0o600
    with client.open(mine.inside, "rb") as file:
        assert file.read() == b"other"
    with client.open(f"{here.name}/moved", "rb") as file:
        assert file.read() == b"Mine"


def test_synchronous_writes(here: Path) -> None:
    fd = os.open(here / "f", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
    try:
        assert os.write(fd, b"durable") == 7
    finally:
        os.close(fd)
    assert (here / "f").read_bytes() == b"durable"


def test_appends_of_two_descriptors_follow_each_other(here: Path) -> None:
    with (here / "f").open("ab", buffering=0) as one, (here / "f").open("ab", buffering=0) as two:
        for number in range(20):
            (one if number % 2 else two).write(f"{number} ".encode())
    assert (here / "f").read_text() == "".join(f"{number} " for number in range(20))


def test_what_a_pool_cannot_do_has_its_error(here: Path) -> None:
    (here / "f").touch()
    assert error_of(lambda: os.link(here / "f", here / "g")) == "EPERM"
    assert error_of(lambda: os.mkfifo(here / "p")) == "EPERM"
    null = os.makedev(1, 3)
    assert error_of(lambda: os.mknod(here / "n", stat.S_IFCHR | 0o600, null)) == "EPERM"
    with socket.socket(socket.AF_UNIX) as listener:
        assert error_of(lambda: listener.bind(str(here / "s"))) == "EPERM"
    assert os.listdir(here) == ["f"]
    assert error_of(lambda: os.setxattr(here / "f", "trusted.x", b"1")) == "ENOTSUP"


def test_symbolic_links(here: Path, client: oc.Pool) -> None:
    (here / "d").mkdir()
    (here / "d" / "f").write_bytes(b"content")
    os.symlink("../d/f", here / "d" / "link")
    client.symlink("/etc/hostname", f"{here.name}/absolute")
    client.symlink("d", f"{here.name}/directory")
    assert client.readlink(f"{here.name}/d/link") == "../d/f"
    assert (here / "d" / "link").read_bytes() == b"content"
    assert (here / "directory" / "f").read_bytes() == b"content"
    found = os.lstat(here / "absolute")
    assert os.readlink(here / "absolute") == "/etc/hostname"
    assert (found.st_size, found.st_mode) == (len("/etc/hostname"), stat.S_IFLNK | 0o777)
    # The kernel follows it on this machine, where a client of the pool refuses it.
    assert (here / "absolute").exists() == Path("/etc/hostname").exists()
    os.chown(here / "absolute", 12, 34, follow_symlinks=False)
    os.utime(here / "absolute", ns=(7, 7), follow_symlinks=False)
    assert client.lstat(f"{here.name}/absolute").owner == 12
    assert os.lstat(here / "absolute").st_mtime_ns == 7
    kinds = {entry.name: entry.is_symlink() for entry in os.scandir(here)}
    assert kinds == {"d": False, "absolute": True, "directory": True}
    assert error_of(lambda: os.symlink("x", here / "absolute")) == "EEXIST"
    assert error_of(lambda: os.readlink(here / "d" / "f")) == "EINVAL"
    refused = error_of(lambda: os.setxattr(here / "absolute", "user.a", b"", follow_symlinks=False))
    assert refused == "EPERM"
    assert os.listxattr(here / "absolute", follow_symlinks=False) == []
    os.rename(here / "absolute", here / "d" / "f")
    assert os.readlink(here / "d" / "f") == "/etc/hostname"
    (here / "directory").unlink()
    assert (here / "d").is_dir()


def test_a_link_in_the_place_of_a_directory_leads_nobody_elsewhere(
    here: Path, client: oc.Pool
) -> None:
    (here / "d").mkdir()
    (here / "other").mkdir()
    (here / "other" / "f").write_bytes(b"other")
    fd = os.open(here / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        client.mv(f"{here.name}/d", f"{here.name}/moved")
        client.symlink("other", f"{here.name}/d")
        # As on a disk, the descriptor is that of the directory, whatever its name is.
        assert error_of(lambda: os.open("f", os.O_RDONLY, dir_fd=fd)) == "ENOENT"
        os.close(os.open("new", os.O_CREAT, dir_fd=fd))
        os.symlink("x", "link", dir_fd=fd)
        assert os.readlink("link", dir_fd=fd) == "x"
    finally:
        os.close(fd)
    assert os.listdir(here / "other") == ["f"]
    assert client.ls(f"{here.name}/moved") == ["link", "new"]


def test_a_mount_of_a_link_is_one_of_its_directory(
    pool: Served, here: Path, client: oc.Pool, tmp_path: Path
) -> None:
    (here / "d").mkdir()
    (here / "d" / "f").touch()
    client.symlink("d", f"{here.name}/link")
    with mounted(pool, tmp_path / "m", name=f"{here.name}/link") as other:
        assert os.listdir(other.place) == ["f"]


def test_extended_attributes(here: Path, pool: Served, client: oc.Pool) -> None:
    file = here / "f"
    file.touch()
    os.setxattr(file, "user.a", b"1")
    os.setxattr(file, "user.b", b"\0\xff", os.XATTR_CREATE)
    assert sorted(os.listxattr(file)) == ["user.a", "user.b"]
    assert os.getxattr(file, "user.b") == b"\0\xff"
    assert error_of(lambda: os.setxattr(file, "user.a", b"2", os.XATTR_CREATE)) == "EEXIST"
    assert error_of(lambda: os.setxattr(file, "user.c", b"2", os.XATTR_REPLACE)) == "ENODATA"
    os.removexattr(file, "user.a")
    assert error_of(lambda: os.removexattr(file, "user.a")) == "ENODATA"
    assert error_of(lambda: os.getxattr(file, "user.a")) == "ENODATA"
    # Drivers find the pool behind a path by this one. It is not listed, so copies do not keep it.
    address = os.getxattr(file, "user.outcore.address").decode()
    assert address == f"{pool.url}/{here.name}/f"


def test_times_and_modes(here: Path, client: oc.Pool) -> None:
    file = here / "f"
    fd = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o640)
    os.close(fd)
    assert file.stat().st_mode & 0o7777 == 0o640 & ~mask()
    file.chmod(0o604)
    os.utime(file, ns=(5, 1_700_000_000_123_456_789))
    found = (client / here.name / "f").stat()
    assert found.modified_ns == file.stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert found.mode & 0o7777 == 0o604
    os.chown(file, 12, 34)
    assert (file.stat().st_uid, file.stat().st_gid) == (12, 34)


def mask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def test_many_names_are_listed_once(here: Path, client: oc.Pool) -> None:
    wanted = {f"name-{number:04}" for number in range(1100)}
    for name in wanted:
        with client.open(f"{here.name}/{name}", "xb"):
            pass
    with os.scandir(here) as listing:
        first = next(listing).name
        # A name that comes or goes during the listing does not hide others.
        (here / "name-0500x").touch()
        rest = [entry.name for entry in listing]
    assert sorted([first, *rest]) == sorted(wanted)


OPERATIONS = 250


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_are_those_of_a_directory(here: Path, tmp_path: Path, seed: int) -> None:
    # The same calls on a directory of the disk give the answers.
    draw = random.Random(seed)
    real = tmp_path / "real"
    real.mkdir()
    for _ in range(OPERATIONS):
        operation = random_operation(draw)
        answers = [outcome(operation, root) for root in (real, here)]
        assert answers[0] == answers[1], operation
    assert tree(real) == tree(here)


def random_operation(draw: random.Random) -> tuple[Any, ...]:
    def name() -> str:
        return "/".join(draw.choice("abc") for _ in range(draw.choice([1, 1, 2, 3])))

    kind = draw.choice(
        ["write", "write", "mkdir", "mkdir", "unlink", "rmdir", "rename", "rename", "read", "list",
         "truncate", "create", "append", "stat", "symlink", "symlink", "readlink", "lstat"]
    )  # fmt: skip
    return kind, name(), name(), draw.randrange(200_000), draw.randrange(70_000)


def outcome(operation: tuple[Any, ...], root: Path) -> Any:
    """Do an operation, and return its result or the name of its error."""
    kind, name, other, offset, length = operation
    path = root / name
    try:
        match kind:
            case "write" | "append":
                flags = os.O_APPEND if kind == "append" else 0
                fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
                try:
                    data = bytes([offset % 251]) * length
                    return os.write(fd, data) if flags else os.pwrite(fd, data, offset)
                finally:
                    os.close(fd)
            case "create":
                return os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            case "mkdir":
                return path.mkdir()
            case "unlink":
                return path.unlink()
            case "rmdir":
                return path.rmdir()
            case "rename":
                return os.rename(path, root / other)
            case "read":
                return path.read_bytes()
            case "list":
                return sorted(os.listdir(path))
            case "truncate":
                return os.truncate(path, offset)
            case "symlink":
                return os.symlink(f"../{other}" if offset % 2 else other, path)
            case "readlink":
                return os.readlink(path)
            case "lstat":
                found = path.lstat()
                return found.st_mode, 0 if stat.S_ISDIR(found.st_mode) else found.st_size
            case "stat":
                found = path.stat()
                is_directory = path.is_dir()
                return is_directory, found.st_mode, 0 if is_directory else found.st_size
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    raise AssertionError(kind)


def tree(root: Path) -> dict[str, bytes | str | None]:
    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(root)): content(path) for path in sorted(root.rglob("*"))}


def test_a_directory_of_the_pool_is_mounted_for_reading(
    pool: Served, here: Path, tmp_path: Path
) -> None:
    (here / "d").mkdir()
    (here / "d" / "f").write_bytes(b"abc")
    with mounted(pool, tmp_path / "m", "--read-only", name=f"{here.name}/d") as other:
        assert os.listdir(other.place) == ["f"]
        assert (other.place / "f").read_bytes() == b"abc"
        assert error_of(lambda: (other.place / "g").touch()) == "EROFS"
        with (other.place / "f").open("rb"):
            busy = outcore("umount", other.place)
            assert busy.exit_code == 1
            assert "close the files that are open there, or give --lazy" in busy.output
        assert outcore("umount", other.place).exit_code == 0
        assert mounted_at(other.place) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may remount")
def test_a_remount_changes_whether_writes_are_refused(
    pool: Served, client: oc.Pool, tmp_path: Path
) -> None:
    """With ``-i``: without it, the helper of fuse3 takes the pool's address for a program."""

    def remount(place: Path, *options: str) -> int:
        command = ["mount", "-o", *options, place]
        return subprocess.run(command, capture_output=True, check=False).returncode

    with mounted(pool, tmp_path / "m", "--read-only") as found:
        file = found.place / "remounted"
        assert remount(found.place, "remount,rw", "-i") == 0
        with file.open("wb", buffering=0) as writer:
            writer.write(b"before")
            assert remount(found.place, "remount,ro", "-i") != 0, "a file is open for writing"
        assert remount(found.place, "remount,ro", "-i") == 0
        assert (client / "remounted").read_bytes() == b"before"
        assert error_of(lambda: file.write_bytes(b"after")) == "EROFS"
        has_helper = shutil.which("mount.fuse", path="/sbin:/usr/sbin") is not None
        assert (remount(found.place, "remount,rw") == 0) is not has_helper
        assert remount(found.place, "remount,rw", "-i") == 0
        file.write_bytes(b"after")
    assert (client / "remounted").read_bytes() == b"after"


def test_another_mount_sees_closed_files(pool: Served, here: Path, tmp_path: Path) -> None:
    with mounted(pool, tmp_path / "m", "--strict", name=here.name) as other:
        (here / "f").write_bytes(b"first")
        assert (other.place / "f").read_bytes() == b"first"
        (here / "f").write_bytes(b"second one")
        assert (other.place / "f").read_bytes() == b"second one"
        (here / "f").unlink()
        assert not (other.place / "f").exists()


def test_mounting_again_cleans_up_after_a_killed_process(pool: Served, tmp_path: Path) -> None:
    place = tmp_path / "m"
    with mounted(pool, place) as first:
        first.kill()
        assert error_of(lambda: os.listdir(place)) == "ENOTCONN"
        with mounted(pool, place) as second:
            assert second.pid != first.pid
            os.listdir(place)


def test_sigterm_unmounts(pool: Served, tmp_path: Path) -> None:
    with mounted(pool, tmp_path / "m") as found:
        link = tmp_path / "link"
        link.symlink_to(tmp_path)
        assert mounted_at(link / "m") is not None
        (found.place / "f").touch()
        with (found.place / "f").open("rb"):
            os.kill(found.pid, signal.SIGTERM)
            # The file that is open keeps no mount there.
            while mounted_at(found.place) is not None:
                os.sched_yield()
        os.waitpid(found.pid, 0)


def test_bad_arguments(pool: Served, mount: Mounted, tmp_path: Path) -> None:
    def refused(place: Path, name: str = "", *options: str) -> str:
        result = outcore("mount", "--key", pool.key, *options, f"{pool.url}/{name}", place)
        assert result.exit_code == 1
        return result.output

    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "file").touch()
    (mount.place / "plain").touch()
    (tmp_path / "empty").mkdir()
    none, file, full = (tmp_path / name for name in ("none", "file", "full"))
    at = "need a directory to mount at"
    assert f"{at}, have nothing at {none}; create it first" in refused(none)
    assert f"{at}, have the file {file}; create a directory" in refused(file)
    assert "need an empty directory" in refused(full)
    umount = f"is mounted; run: outcore umount {mount.place}"
    assert umount in refused(mount.place)
    assert "none" in refused(tmp_path / "empty", "none")
    assert "mount the directory above it" in refused(tmp_path / "empty", "plain")
    wrong = make_key(tmp_path / "wrong.key")
    result = outcore("mount", "--json", "--key", wrong, pool.url, tmp_path / "empty")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "denied"
    gone = outcore("umount", tmp_path / "empty")
    assert "no pool is mounted at" in gone.output
