"""A mount follows POSIX in names, times, modes and groups."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mounted import here, mount, mounted
from served import Served, serve
from test_mount_failures import NOBODY, open_directory

import outcore as oc

__all__ = ["here", "mount", "open_directory"]  # fixtures

DAEMON = 1


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("pool")) as served:
        yield served


def error_of(call: Callable[[], Any]) -> str:
    """Return the name of the error that a call raises; empty if it raises none."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def test_a_name_has_at_most_255_bytes(here: Path) -> None:
    longest, longer = here / ("ä" * 127 + "x"), here / ("ä" * 128)
    longest.touch()
    calls: list[Callable[[], Any]] = [
        longer.touch, longer.mkdir, longer.unlink, longer.rmdir, longer.stat, longer.lstat,
        lambda: os.symlink("x", longer), lambda: longest.rename(longer),
        lambda: longer.rename(longest), lambda: os.truncate(longer, 0),
        lambda: os.link(longest, longer), lambda: os.mkfifo(longer),
    ]  # fmt: skip
    assert [error_of(call) for call in calls] == ["ENAMETOOLONG"] * len(calls)
    assert os.listdir(here) == [longest.name]


def test_a_change_of_length_changes_the_times_at_once(here: Path) -> None:
    path = here / "f"
    path.write_bytes(b"x" * 100)
    with path.open("rb+") as file:
        calls: list[Callable[[], Any]] = [
            lambda: os.ftruncate(file.fileno(), 5),
            lambda: os.truncate(path, 300),
            lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
        ]
        for call in calls:
            before = os.fstat(file.fileno())
            call()
            after = os.fstat(file.fileno())
            assert after.st_mtime_ns > before.st_mtime_ns
            assert after.st_ctime_ns > before.st_ctime_ns


def test_a_time_that_a_pool_cannot_have_becomes_the_nearest(here: Path) -> None:
    path = here / "f"
    path.touch()
    for seconds, found in (
        (-5, 0),
        (-(2**40), 0),
        (9_223_372_037, 9_223_372_036),
        (2**40, 9_223_372_036),
    ):
        os.utime(path, (0, seconds))
        assert path.stat().st_mtime_ns == found * 10**9


def test_a_removed_file_has_no_links(here: Path) -> None:
    with (here / "f").open("wb") as file:
        assert os.fstat(file.fileno()).st_nlink == 1
        (here / "f").unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
    with (here / "g").open("wb") as file:
        (here / "h").touch()
        (here / "h").rename(here / "g")
        assert os.fstat(file.fileno()).st_nlink == 0
        assert (here / "g").stat().st_nlink == 1


def test_a_directory_passes_on_its_group(here: Path, pool: Served) -> None:
    os.chown(here, -1, 44)
    here.chmod(0o2775)
    assert here.stat().st_mode & 0o7777 == 0o2775
    (here / "f").touch()
    (here / "d" / "e").mkdir(parents=True)
    os.symlink("f", here / "l")
    assert {(here / name).lstat().st_gid for name in ("f", "d", "d/e", "l")} == {44}
    assert (here / "d" / "e").stat().st_mode & 0o7000 == 0o2000
    assert (here / "f").stat().st_mode & 0o7000 == 0
    # A file keeps no such bit.
    (here / "f").chmod(0o6755)
    assert (here / "f").stat().st_mode & 0o7777 == 0o755
    with oc.connect(pool.url, key=pool.key) as client:
        assert client.stat(f"{here.name}/d").mode == (here / "d").stat().st_mode & 0o7777
    (here / "d").chmod(0o755)
    assert (here / "d").stat().st_mode & 0o7777 == 0o755


def as_user(uid: int, gid: int, *command: object) -> str:
    """Run a program as another user; return the error that it prints, without its own words."""
    done = subprocess.run(
        [str(word) for word in command], user=uid, group=gid, extra_groups=[], umask=0,
        capture_output=True, text=True, check=False, env={"LC_ALL": "C"},
    )  # fmt: skip
    return done.stderr.strip().rpartition(": ")[2]


DENIED, NOT_PERMITTED = "Permission denied", "Operation not permitted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_users_of_one_mount(pool: Served, open_directory: Path) -> None:
    with mounted(pool, open_directory / "m", "--allow-other") as found:
        shared, sticky = found.place / "shared", found.place / "sticky"
        shared.mkdir()
        os.chown(shared, -1, 44)
        shared.chmod(0o2777)
        assert as_user(NOBODY, NOBODY, "touch", shared / "f") == ""
        assert as_user(NOBODY, NOBODY, "mkdir", shared / "d") == ""
        assert as_user(NOBODY, NOBODY, "ln", "-s", "f", shared / "l") == ""
        for name in ("f", "d", "l"):
            made = (shared / name).lstat()
            assert (made.st_uid, made.st_gid) == (NOBODY, 44), name
        assert (shared / "d").stat().st_mode & 0o7777 == 0o2777
        # Its owner is not in its group.
        assert as_user(NOBODY, NOBODY, "chmod", "2770", shared / "d") == ""
        assert (shared / "d").stat().st_mode & 0o7777 == 0o770
        assert as_user(NOBODY, 44, "chmod", "2770", shared / "d") == ""
        assert (shared / "d").stat().st_mode & 0o7777 == 0o2770

        sticky.mkdir()
        sticky.chmod(0o1777)
        for name in ("f", "own"):
            uid = NOBODY if name == "f" else DAEMON
            assert as_user(uid, uid, "touch", sticky / name) == ""
        (sticky / "f").chmod(0o666)
        for command in (
            ("rm", "-f", sticky / "f"), ("mv", sticky / "f", sticky / "g"),
            ("mv", "-f", sticky / "own", sticky / "f"), ("chmod", "600", sticky / "f"),
            ("chown", DAEMON, sticky / "f"), ("touch", "-d", "@5", sticky / "f"),
        ):  # fmt: skip
            assert as_user(DAEMON, DAEMON, *command) == NOT_PERMITTED, command
        assert as_user(DAEMON, DAEMON, "touch", "-c", sticky / "f") == ""
        (sticky / "f").chmod(0o644)
        for command in (("touch", "-c", sticky / "f"), ("truncate", "-s0", sticky / "f")):
            assert as_user(DAEMON, DAEMON, *command) == DENIED, command
        assert as_user(NOBODY, NOBODY, "mv", sticky / "f", sticky / "g") == ""
        assert sorted(os.listdir(sticky)) == ["g", "own"]


def test_only_the_owner_changes_attributes(pool: Served, tmp_path: Path) -> None:
    with oc.connect(pool.url, key=pool.key) as client:
        client.mkdir("of-ada", mode=0o777)
        client.chmod("of-ada", 0o777)
        with client.open("of-ada/f", "w") as file:
            file.write(b"abc")
        client.chmod("of-ada/f", 0o644)
    # The kernel checks nothing there: the mount belongs to this user and carries Ada's rights.
    ada = Served(pool.url, pool.key_of("ada", 1001, 100))
    with mounted(ada, tmp_path / "m", name="of-ada") as found:
        path = found.place / "f"
        calls: list[Callable[[], Any]] = [
            lambda: path.chmod(0o600), lambda: os.chown(path, 1001, -1),
            lambda: os.chown(path, -1, 100), lambda: os.utime(path, (5, 5)),
        ]  # fmt: skip
        assert [error_of(call) for call in calls] == ["EPERM"] * len(calls)
        for call in (lambda: os.utime(path), lambda: os.truncate(path, 0)):
            assert error_of(call) == "EACCES"
        assert path.read_bytes() == b"abc"
        (found.place / "own").touch()
        assert error_of(lambda: os.chown(found.place / "own", 0, -1)) == "EPERM"
        os.chown(found.place / "own", -1, 100)
        (found.place / "own").chmod(0o600)
