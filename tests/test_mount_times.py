"""A write through a mount moves the time of the file at once, not only when it is closed."""

import mmap
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest
from mounted import Mounted, here, mounted
from served import Served, serve

__all__ = ["here"]  # a fixture

LONG_AGO_NS = 5
MIB = 1 << 20


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("pool")) as served:
        yield served


@pytest.fixture(scope="module", params=[(), ("--strict",)], ids=["cached", "strict"])
def mount(
    pool: Served, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Mounted]:
    with mounted(pool, tmp_path_factory.mktemp("mount") / "m", *request.param) as found:
        yield found


def write_mapped(fd: int, _: Path) -> mmap.mmap:
    mapped = mmap.mmap(fd, 0)
    mapped[:3] = b"map"
    mapped.flush()
    return mapped


def write_durably(fd: int, _: Path) -> None:
    os.pwrite(fd, b"durable", 0)
    os.fsync(fd)


def append(_: int, path: Path) -> FileIO:
    file = path.open("ab", buffering=0)
    file.write(b"more")
    return file


# Takes a descriptor and the path. The test closes the result.
Change = Callable[[int, Path], mmap.mmap | FileIO | int | None]

CHANGES: dict[str, Change] = {
    "small": lambda fd, _: os.pwrite(fd, b"x", 3),
    "large": lambda fd, _: os.pwrite(fd, bytes(2 * MIB), 0),
    "vector": lambda fd, _: os.pwritev(fd, [b"ab", b"c"], 1),
    "append": append,
    "durable": write_durably,
    "mapped": write_mapped,
    "ftruncate": lambda fd, _: os.ftruncate(fd, os.fstat(fd).st_size // 2),
    "truncate": lambda fd, path: os.truncate(path, os.fstat(fd).st_size + 7),
    "fallocate": lambda fd, _: os.posix_fallocate(fd, 0, os.fstat(fd).st_size + 7),
}


def listed(path: Path) -> os.stat_result:
    """Return the attributes of a file that is alone in its directory, from a listing of it."""
    with os.scandir(path.parent) as listing:
        return next(listing).stat()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_moves_the_time_at_once(here: Path, change: Change) -> None:
    path = here / "f"
    path.write_bytes(bytes(100_000))
    fds = [os.open(path, flags) for flags in (os.O_RDWR, os.O_RDONLY)]
    ways: list[Callable[[], os.stat_result]] = [
        lambda: os.fstat(fds[0]),
        lambda: os.fstat(fds[1]),
        path.stat,
        lambda: listed(path),
    ]
    for way in ways:
        os.utime(fds[0], ns=(LONG_AGO_NS, LONG_AGO_NS))
        before = way()
        assert before.st_mtime_ns == LONG_AGO_NS
        kept = change(fds[0], path)
        found = way()
        if isinstance(kept, mmap.mmap | FileIO):
            kept.close()
        assert found.st_mtime_ns > LONG_AGO_NS
        assert found.st_ctime_ns > before.st_ctime_ns
    for fd in fds:
        os.close(fd)
    # Programs such as git compare the time of an open file with the one that they find later.
    closed = path.stat()
    assert (closed.st_mtime_ns, closed.st_size) == (found.st_mtime_ns, found.st_size)


def test_each_write_to_a_new_file_has_a_later_time(here: Path) -> None:
    """The mount knows the attributes of a file that it has just created."""
    fd = os.open(here / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    times = [os.fstat(fd).st_mtime_ns]
    for count in (1, 5000, 1, 2 * MIB, 1):
        os.pwrite(fd, b"x" * count, 0)
        times.append(os.fstat(fd).st_mtime_ns)
        # Without a write, the time stays, also after a change of the other attributes.
        os.fchmod(fd, 0o640)
        assert os.fstat(fd).st_mtime_ns == times[-1]
    assert times == sorted(set(times))
    os.utime(fd, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert os.fstat(fd).st_mtime_ns == LONG_AGO_NS
    os.close(fd)
    assert (here / "f").stat().st_mtime_ns == LONG_AGO_NS
