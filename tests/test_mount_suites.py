"""Public test suites of file systems, and programs that need much of one, on a mount."""

import grp
import os
import pwd
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from mounted import Mounted, mounted
from served import Served, serve
from served_pools import in_memory
from test_mount_failures import open_directory

__all__ = ["open_directory"]

SKIPPED = Path(__file__).with_name("pjdfstest-skipped.txt")
FSX_OPERATIONS = 100_000
FSX_WEIGHTS = (
    "close_open = 2\ninvalidate = 1\ntruncate = 5\nfsync = 1\nfdatasync = 1\n"
    "posix_fallocate = 2\nsendfile = 2\nposix_fadvise = 1\ncopy_file_range = 2\n"
    "read = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\n"
)


@pytest.fixture
def served() -> Iterator[Served]:
    """Serve a pool in memory: the suites wait for its disks many thousand times."""
    with in_memory() as directory, serve(directory) as running:
        yield running


@pytest.fixture
def mount(served: Served, open_directory: Path) -> Iterator[Mounted]:
    """Mount a pool for all users of this machine."""
    with mounted(served, open_directory / "m", "--allow-other") as found:
        yield found


def installed(program: str, how: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    return shutil.which(program) or pytest.skip(f"{program} is not installed; run: {how}")


def users() -> list[str]:
    """Return two users, each with the user's own group, in the notation of TOML."""
    groups = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    found = {
        user.pw_gid: f'["{user.pw_name}", "{groups[user.pw_gid]}"]'
        for user in pwd.getpwall()
        if user.pw_uid and user.pw_gid in groups
    }
    return list(found.values())[:2]


def reasons() -> dict[str, str]:
    """Return the patterns of the cases that may fail, each with its reason."""
    lines = [line for line in SKIPPED.read_text().splitlines() if line and line[0] != "#"]
    return dict(re.split(r" {2,}", line, maxsplit=1) for line in lines)  # type: ignore[misc]


def test_each_skipped_case_has_a_reason() -> None:
    assert all(reason.strip() for reason in reasons().values())


@pytest.mark.exhaustive(keep=0)
@pytest.mark.skipif(os.geteuid() != 0, reason="pjdfstest needs root")
def test_pjdfstest(mount: Mounted, tmp_path: Path) -> None:
    program = installed("pjdfstest", "cargo install pjdfstest")
    found: dict[str, str] = {}
    # If fuse3 is installed, `mount` passes remounts to its helper, which runs the pool's address.
    shim = tmp_path / "bin" / "mount"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {shutil.which("mount")} --internal-only "$@"\n')
    shim.chmod(0o755)
    environment = {"NO_COLOR": "1", "PATH": f"{shim.parent}:{os.environ['PATH']}"}
    # The suite leaves files open, and cannot make the mount read-only in the same run.
    for patterns in ([], ["erofs"]):
        config = tmp_path / "pjdfstest.toml"
        config.write_text(
            "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutimensat = {}\nutime_now = {}\n"
            f"[settings]\nnaptime = 0.002\nallow_remount = {str(bool(patterns)).lower()}\n"
            f"[dummy_auth]\nentries = [{', '.join(users())}]\n"
        )
        done = subprocess.run(
            [program, "-c", config, "-p", mount.place, "-s", tmp_path, *patterns],
            capture_output=True, text=True, check=False, env=os.environ | environment,
        )  # fmt: skip
        found |= dict(re.findall(r"^(\S+) +(ok|FAILED|skipped)$", done.stdout, re.MULTILINE))
    assert len(found) > 300, done.stderr
    failed = {name for name, result in found.items() if result != "ok"}
    matched = {
        pattern: {name for name in found if fnmatchcase(name, pattern)} for pattern in reasons()
    }
    allowed = set().union(*matched.values())
    assert sorted(failed - allowed) == []
    assert [pattern for pattern, names in matched.items() if not names & failed] == []


def fsx(directory: Path, operations: int, *words: object) -> list[str]:
    """Return a command of fsx, which writes its artifacts into `directory`."""
    program = installed("fsx", "cargo install fsx")
    config = directory / "fsx.toml"
    config.write_text(f"[weights]\n{FSX_WEIGHTS}")
    fixed = [program, "-f", config, "-N", operations, "-S", 1, "-P", directory]
    return [str(word) for word in (*fixed, *words)]


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("options", [(), ("--strict",)])
def test_fsx(served: Served, tmp_path: Path, options: tuple[str, ...]) -> None:
    with mounted(served, tmp_path / "m", *options) as found:
        run(*fsx(tmp_path, FSX_OPERATIONS, "-q", found.place / "f"))


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("options", [(), ("--strict",)])
def test_fsx_alternates_between_two_mounts(
    served: Served, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Its file has the path of a link, which leads to the other mount at each opening."""
    link, new_link = tmp_path / "link", tmp_path / "new"
    with (
        mounted(served, tmp_path / "one", *options) as one,
        mounted(served, tmp_path / "two", *options) as two,
    ):
        link.symlink_to(one.place)
        command = fsx(tmp_path, FSX_OPERATIONS // 2, "-v", link / "f")
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            # The last lines are the operations before a failure.
            lines = deque[str](maxlen=1000)
            for line in running.stderr or ():
                lines.append(line)
                if line.endswith("close/open\n"):
                    new_link.symlink_to(two.place if link.readlink() == one.place else one.place)
                    new_link.replace(link)
        assert running.returncode == 0, "".join(lines)
        assert min(calls_of(one), calls_of(two)) > FSX_OPERATIONS / 8


def calls_of(mount: Mounted) -> int:
    """Return how many calls a mount has answered, at least: it reads each one from the kernel."""
    reads = dict(re.findall(r"(\w+): (\d+)", Path(f"/proc/{mount.pid}/io").read_text()))
    return int(reads["syscr"])


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a program that must succeed; return its output."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_tree(root: Path) -> None:
    """Make small files of several modes and times, directories and links."""
    for number in range(40):
        path = root / f"d{number % 4}" / f"e{number % 3}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (number * 97))
        path.chmod(0o600 | number)
        os.utime(path, ns=(0, 1_600_000_000_123_456_789 + number))
    os.symlink("d0/e0/f0", root / "link")
    os.symlink("nowhere", root / "d1" / "dangling")
    (root / "empty").mkdir(mode=0o2750)
    (root / "empty").chmod(0o2750)
    # rsync leaves the time of a directory that was made in the same second.
    for path in (root, *root.rglob("*/")):
        os.utime(path, ns=(0, 1_600_000_000_123_456_789), follow_symlinks=False)


def listed(root: Path) -> dict[str, tuple[object, ...]]:
    """Describe every name below a directory: mode, owner, time and content."""
    found = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and content is None:
            content = path.read_bytes().hex()
        name = str(path.relative_to(root))
        modified_ns = None if path.is_symlink() else status.st_mtime_ns
        found[name] = (status.st_mode, status.st_uid, status.st_gid, modified_ns, content)
    return found


def test_tar_keeps_everything(served: Served, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    run("tar", "cf", tmp_path / "t.tar", "--format=posix", "-C", tmp_path / "tree", ".")
    with mounted(served, tmp_path / "m") as found:
        there = found.place / "there"
        there.mkdir()
        run("tar", "xpf", tmp_path / "t.tar", "-C", there)
        assert listed(there) == listed(tmp_path / "tree")
        run("tar", "cf", found.place / "again.tar", "--format=posix", "-C", there, ".")
        (tmp_path / "back").mkdir()
        run("tar", "xpf", found.place / "again.tar", "-C", tmp_path / "back")
    assert listed(tmp_path / "back") == listed(tmp_path / "tree")


@pytest.mark.exhaustive(keep=0)
def test_rsync_keeps_everything(served: Served, tmp_path: Path) -> None:
    program = installed("rsync", "apt-get install rsync")
    make_tree(tmp_path / "tree")
    os.setxattr(tmp_path / "tree" / "d0" / "e0" / "f0", "user.a", b"1")
    with mounted(served, tmp_path / "m") as found:
        there = found.place / "there"
        run(program, "-aHAX", f"{tmp_path}/tree/", f"{there}/")
        assert listed(there) == listed(tmp_path / "tree")
        assert os.getxattr(there / "d0" / "e0" / "f0", "user.a") == b"1"
        changes = run(program, "-aHAXi", f"{tmp_path}/tree/", f"{there}/")
        assert changes == "", "the second run changes nothing"


@pytest.mark.exhaustive(keep=0)
def test_git_works_on_a_mount(served: Served, tmp_path: Path) -> None:
    program = installed("git", "apt-get install git")
    git = [program, "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    source = tmp_path / "tree"
    make_tree(source)
    run(*git, "init", "-q", cwd=source)
    run(*git, "add", ".", cwd=source)
    run(*git, "commit", "-qm", "first", cwd=source)
    with mounted(served, tmp_path / "m") as found:
        there = found.place / "there"
        run(*git, "clone", "-q", source, there)
        run(*git, "fsck", "--strict", cwd=there)
        assert run(*git, "status", "--porcelain", cwd=there) == ""
        (there / "d0" / "new").write_text("new")
        run(*git, "mv", "d1", "d9", cwd=there)
        run(*git, "add", ".", cwd=there)
        run(*git, "commit", "-qm", "second", cwd=there)
        run(*git, "gc", "-q", cwd=there)
        run(*git, "fsck", "--strict", cwd=there)
        run(*git, "push", "-q", "origin", "HEAD:refs/heads/back", cwd=there)
        assert run(*git, "log", "--format=%s", "back", cwd=source) == "second\nfirst\n"


@pytest.mark.exhaustive(keep=0)
def test_cargo_builds_the_project_on_a_mount(tmp_path: Path) -> None:
    """Cargo and rustc lock, map and link files, and run programs that they have just written."""
    program = installed("cargo", "curl https://sh.rustup.rs | sh")
    root = Path(__file__).parents[1]

    def cargo(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [program, *words], cwd=there, env=here, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    with serve(tmp_path) as pool, mounted(pool, tmp_path / "m") as found:
        there = found.place / "there"
        there.mkdir()
        for name in ("Cargo.toml", "Cargo.lock"):
            shutil.copy(root / name, there / name)
        shutil.copytree(root / "crates", there / "crates")
        here = {**os.environ, "CARGO_TARGET_DIR": str(found.place / "target")}
        # The packages are there since the build of this project.
        offline = ("--offline", "--locked")
        for _ in range(2):
            tested = cargo("test", "--quiet", *offline, "-p", "outcore-core", "--lib")
            assert "test result: ok" in tested.stdout
        assert "Compiling outcore-py" in cargo("build", *offline, "--workspace").stderr
        again = cargo("build", *offline, "--workspace", "--verbose").stderr
        assert "Compiling" not in again, "the times of files are kept"
        assert "Fresh outcore-py" in again
