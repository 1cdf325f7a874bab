"""A mount whose pool fails, whose users are several, or whose arguments are wrong."""

import contextlib
import errno
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounted import mounted
from own_daemons import OwnDaemons
from served import Served

MIB = 1 << 20
NOBODY = 65534


def errno_of(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises; empty if it raises none."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def test_a_mount_outlives_the_daemons_of_its_pool(tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    for disk in disks:
        disk.mkdir()
    state = tmp_path / "state"
    state.mkdir()
    daemons = OwnDaemons(state, disks)
    served = Served(f"{daemons.url}::", daemons.key)
    with mounted(served, tmp_path / "m", "--timeout", "1") as mount:
        path = mount.place / "f"
        path.write_bytes(b"before" * MIB)
        fd = os.open(path, os.O_RDWR | os.O_DSYNC)
        daemons.stop()
        # Each call fails after the timeout of the mount.
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: os.pread(fd, 2 * MIB, 0),
            "write": lambda: os.pwrite(fd, b"before" * MIB, 0),
            "fsync": lambda: os.fsync(fd),
            "create": (mount.place / "g").touch,
            "list": lambda: os.listdir(mount.place),
        }
        found = {name: errno_of(call) for name, call in calls.items()}
        assert found == dict.fromkeys(calls, "EIO")
        daemons = OwnDaemons(state, disks)
        try:
            assert os.pread(fd, 6, 0) == b"before"
            with contextlib.suppress(OSError):
                # The failed write may have been lost in the restart; one sync reports that.
                os.fsync(fd)
            os.pwrite(fd, b"after!", 0)
            os.close(fd)
            assert path.read_bytes() == b"after!" + b"before" * (MIB - 1)
            assert os.listdir(mount.place) == ["f"]
        finally:
            daemons.stop()


def write_all(fd: int, data: bytes) -> None:
    """Write in as many calls as necessary: one may end where the first failure begins."""
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], at)


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize(
    ("number", "fails", "works"),
    [(0, ["create", "list", "stat"], ["read", "write"]),
     (2, ["read", "write", "stat"], ["create", "list"])],
)  # fmt: skip
def test_a_mount_outlives_each_daemon(
    tmp_path: Path, number: int, fails: list[str], works: list[str]
) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    state = tmp_path / "state"
    for each in (*disks, state):
        each.mkdir()
    daemons = OwnDaemons(state, disks)
    try:
        served = Served(f"{daemons.url}::", daemons.key)
        with mounted(served, tmp_path / "m", "--timeout", "1", "--strict") as mount:
            path = mount.place / "f"
            path.write_bytes(b"before" * MIB)
            fd = os.open(path, os.O_RDWR)
            os.pread(fd, 2 * MIB, 0)
            calls: dict[str, Callable[[], object]] = {
                "read": lambda: os.pread(fd, 2 * MIB, 0),
                "write": lambda: write_all(fd, b"before" * MIB),
                "stat": path.stat,
                "create": (mount.place / "g").touch,
                "list": lambda: os.listdir(mount.place),
            }
            daemons.stop_one(number)
            found = {name: errno_of(call) for name, call in calls.items()}
            assert found == dict.fromkeys(fails, "EIO") | dict.fromkeys(works, "")
            daemons.start_one(number)
            assert {errno_of(call) for call in calls.values()} == {""}
            with contextlib.suppress(OSError):
                # The failed write may have been lost in the restart; one sync reports that.
                os.fsync(fd)
            os.close(fd)
            assert path.read_bytes() == b"before" * MIB
    finally:
        daemons.stop()


def as_nobody(*command: object) -> str:
    """Run a program as another user; return its output, or that it is not permitted."""
    done = subprocess.run(
        [str(word) for word in command], user=NOBODY, group=NOBODY, extra_groups=[],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "denied" if "Permission denied" in done.stderr else done.stdout + done.stderr


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Make a directory that all users may reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_other_users(served: Served, open_directory: Path) -> None:
    with mounted(served, open_directory / "m") as mine:
        assert as_nobody("ls", mine.place) == "denied"
    with mounted(served, open_directory / "m", "--allow-other") as shared:
        place = shared.place
        (place / "open").mkdir()
        (place / "open").chmod(0o777)
        (place / "secret").write_text("secret")
        (place / "secret").chmod(0o600)
        assert as_nobody("cat", place / "secret") == "denied"
        assert as_nobody("touch", place / "f") == "denied"
        assert as_nobody("rm", "-f", place / "secret") == "denied"
        assert as_nobody("dd", "if=/dev/null", f"of={place}/open/f", "status=none") == ""
        found = (place / "open" / "f").stat()
        assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)
        assert as_nobody("mkdir", "-m", "700", place / "open" / "d") == ""
        assert stat.S_IMODE((place / "open" / "d").stat().st_mode) == 0o700
        assert as_nobody("ln", "-s", "f", place / "open" / "l") == ""
        for name in ("d", "l"):
            assert (place / "open" / name).lstat().st_uid == NOBODY, name
        (place / "open" / "f").write_text("by root")
        assert as_nobody("cat", place / "open" / "f") == "by root"
