"""The requests that calls on a mount cost, and the changes that one request makes atomic."""

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounted import Counted, counted, here, mount

import outcore as oc

__all__ = ["here", "mount"]  # fixtures

RENAME_NOREPLACE = 1


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with counted(tmp_path_factory.mktemp("pool")) as found:
        yield found


def requests_of(pool: Counted, call: Callable[[], object]) -> Counter[str]:
    """Return the manager's requests of a call."""
    before = pool.requests(manager=True)
    call()
    return pool.requests(manager=True) - before


def test_a_small_file_costs_few_requests(pool: Counted, here: Path) -> None:
    # The calls of `tar x`.
    path, before = here / "f", pool.requests()
    fds = []

    def create() -> None:
        fds.append(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    assert requests_of(pool, create) == {"stat": 1, "create": 1}
    fd = fds[0]
    assert requests_of(pool, lambda: os.write(fd, b"x" * 4096)) == {}
    asked = Counter[str]()
    asked += requests_of(pool, lambda: os.utime(fd, ns=(1, 1_700_000_000_000_000_000)))
    asked += requests_of(pool, lambda: os.fchmod(fd, 0o644))
    asked += requests_of(pool, lambda: os.close(fd))
    # On a busy machine the mount may send the first change before the second.
    assert asked["set_attributes"] in (1, 2)
    assert asked["wrote"] == 0
    assert (pool.requests() - before)["write"] == 1
    found = path.stat()
    assert (found.st_mtime_ns, found.st_mode & 0o777) == (1_700_000_000_000_000_000, 0o644)


def test_the_time_of_a_write_is_one_request(pool: Counted, here: Path) -> None:
    with (here / "f").open("wb", buffering=0) as file:
        file.write(b"x")
        cost = requests_of(pool, lambda: os.fstat(file.fileno()))
        assert cost["wrote"] == 1
        # A program that asks again, or closes the file, costs none.
        assert requests_of(pool, lambda: os.fstat(file.fileno()))["wrote"] == 0
        assert requests_of(pool, file.close)["wrote"] == 0


@pytest.mark.parametrize("is_open", [False, True])
def test_a_truncation_is_two_commits(pool: Counted, here: Path, is_open: bool) -> None:
    """The second one sets the time, too."""
    path = here / "f"
    path.write_bytes(b"abcdef")
    # A time that the manager and the client know, long ago.
    os.utime(path, ns=(1, 1_700_000_000_000_000_000))
    if is_open:
        with path.open("rb+") as file:
            cost = requests_of(pool, lambda: os.ftruncate(file.fileno(), 3))
            found = os.fstat(file.fileno())
    else:
        cost = requests_of(pool, lambda: os.truncate(path, 3))
        found = path.stat()
    commits = {kind: cost[kind] for kind in ("begin_cut", "end_cut", "wrote", "touch")}
    assert commits == {"begin_cut": 1, "end_cut": 1, "wrote": 0, "touch": 0}
    assert found.st_mtime_ns > 1_700_000_000_000_000_000
    assert found.st_size == 3


def test_a_rename_over_an_open_file_is_one_request(pool: Counted, here: Path) -> None:
    (here / "new").write_bytes(b"new")
    (here / "old").write_bytes(b"old")
    with (here / "old").open("rb") as file:
        # No program finds the directory without a file of this name.
        cost = requests_of(pool, lambda: (here / "new").rename(here / "old"))
        assert (cost["move"], cost["rename"]) == (1, 0)
        assert file.read() == b"old"
        assert (here / "old").read_bytes() == b"new"
    assert os.listdir(here) == ["old"]


def test_a_refused_rename_over_an_open_file_leaves_it(here: Path) -> None:
    (here / "d").mkdir()
    (here / "old").write_bytes(b"old")
    with (here / "old").open("rb+", buffering=0) as file:
        with pytest.raises(NotADirectoryError):
            (here / "d").rename(here / "old")
        with pytest.raises(FileNotFoundError):
            (here / "none").rename(here / "old")
        file.write(b"OLD")
        assert (here / "old").read_bytes() == b"OLD"
    assert sorted(os.listdir(here)) == ["d", "old"]


def rename_new(old: Path, new: Path) -> int:
    """Call renameat2(2) with ``RENAME_NOREPLACE``; return its error number, or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd = -100
    failed = libc.renameat2(at_cwd, bytes(old), at_cwd, bytes(new), RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def test_a_rename_may_refuse_to_replace(pool: Counted, here: Path) -> None:
    for name in ("a", "b"):
        (here / name).write_text(name)
    (here / "d").mkdir()
    # The kernel finds names that it knows itself; the manager finds those of other clients.
    with oc.connect(pool.served.url, key=pool.served.key) as client:
        assert not (here / "c").exists()
        with client.open(f"{here.name}/c", "xb"):
            pass
        for name in ("b", "c", "d"):
            assert rename_new(here / "a", here / name) == errno.EEXIST
    assert rename_new(here / "a", here / "new") == 0
    assert rename_new(here / "d", here / "e") == 0
    assert sorted(os.listdir(here)) == ["b", "c", "e", "new"]
    assert (here / "new").read_text() == "a"


def test_space_is_reserved_or_refused(pool: Counted, here: Path) -> None:
    with (here / "f").open("wb+") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        wide = ctypes.c_int64
        keep_size = 1
        assert libc.fallocate(file.fileno(), keep_size, wide(0), wide(100_000)) == -1
        assert ctypes.get_errno() == errno.EOPNOTSUPP
        before = pool.requests()
        os.posix_fallocate(file.fileno(), 0, 5_000_000)
        asked = pool.requests() - before
        assert (asked["reserve"], asked["write"]) == (2, 0)
        assert os.fstat(file.fileno()).st_size == 5_000_000
        assert file.read() == bytes(5_000_000)
