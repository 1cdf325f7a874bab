"""Plain indexing maps files for reading, and a process survives damage to a mapped file."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore._core import limit_mapped_bytes
from outcore._util import budget

SHAPE = (300, 300, 40)

READER = """
import faulthandler, os, signal, sys
import numpy as np
import outcore as oc
{first}
A = oc.open_array(sys.argv[1])
model = np.arange(A.size, dtype="f8").reshape(A.shape)
part = np.s_[10:290:7, 3:250, 5:9]
assert (A[part] == model[part]).all()
{then}
"""


def run(path: Path, *, first: str = "", then: str) -> subprocess.CompletedProcess[str]:
    """Read an array in its own process, with other code before and after."""
    return subprocess.run(
        [sys.executable, "-c", READER.format(first=first, then=then), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with oc.create_array(tmp_path / "A", SHAPE, "f8") as A:
        A[...] = np.arange(A.size, dtype="f8").reshape(SHAPE)
    return tmp_path / "A"


def shard_file(path: Path) -> Path:
    (found,) = (found for found in path.rglob("*") if found.is_file() and "c" in found.parts[-4:-1])
    return found


def test_a_file_that_another_process_truncates_is_an_error(path: Path) -> None:
    then = f"""
os.truncate({str(shard_file(path))!r}, 5000)
for _ in range(2):
    try:
        A[...]
    except oc.errors.TruncatedError as error:
        print(error.kind)
"""
    done = run(path, then=then)
    assert (done.returncode, done.stdout) == (0, "truncated\n" * 2), done.stderr


@pytest.mark.parametrize("first", ["", "faulthandler.enable()"])
def test_other_bus_errors_end_the_process_as_before(path: Path, first: str) -> None:
    done = run(path, first=first, then="os.kill(os.getpid(), signal.SIGBUS)")
    assert done.returncode == -signal.SIGBUS
    assert ("Bus error" in done.stderr) == bool(first)


def test_files_are_not_mapped_where_another_has_taken_over_bus_errors(path: Path) -> None:
    maps = f"""
def is_mapped():
    with open("/proc/self/maps") as maps:
        return {str(shard_file(path))!r} in maps.read()
before = is_mapped()
faulthandler.enable()
A.close()
with oc.open_array(sys.argv[1]) as B:
    assert (B[part] == model[part]).all()
    print(before, is_mapped())
"""
    done = run(path, then=maps)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr


def test_a_process_without_address_space_for_the_file_reads_it_too(path: Path) -> None:
    # The file has 29 MB.
    then = """
import resource
A.close()
room = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (room + (20 << 20), resource.RLIM_INFINITY))
with oc.open_array(sys.argv[1]) as B:
    assert (B[part] == model[part]).all()
"""
    done = run(path, then=then)
    assert done.returncode == 0, done.stderr


def test_a_forked_process_is_told_that_it_cannot_read(path: Path) -> None:
    then = """
pid = os.fork()
if pid == 0:
    try:
        A[...]
    except oc.errors.OutcoreError as error:
        os._exit(7 if error.kind == "forked" else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(path, then=then).stdout == "7\n"


def test_what_zarr_and_memmap_write_to_the_file_is_seen(path: Path) -> None:
    file = shard_file(path)
    with oc.open_array(path) as A, oc.open_array(path, "r+") as B:
        model = A[...]
        first = np.memmap(file, "f8", "r+", shape=(1000,))
        first[0] = model[0, 0, 0] = -1
        assert A[0, 0, 0] == -1
        B[:, 5, 3:30] = model[:, 5, 3:30] = 7
        B[:150] = model[:150] = np.sqrt(np.abs(model[:150]))
        first[:2] = model[0, 0, :2] = [8, 9]
        np.testing.assert_array_equal(A[...], model)
        np.testing.assert_array_equal(B[...], model)
    assert os.path.getsize(file) > model.nbytes


@pytest.fixture
def few_mapped_bytes() -> Iterator[int]:
    """Limit the mapping of a file by plain indexing to 6 MiB."""
    limit_mapped_bytes(6 << 20)
    yield 6 << 20
    limit_mapped_bytes(budget.mapped_bytes())


def mapped_bytes(path: Path) -> int:
    """Return the bytes of a file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [
        next(line for line in lines if line.startswith("Rss:"))
        for line in lines
        if str(path) in line
    ]
    return sum(int(line.split()[1]) << 10 for line in sizes)


def columns_read(array: oc.Array, model: np.ndarray) -> int:
    """Read single columns, and return the number of page faults of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for at in range(0, 100, 4):
        assert np.array_equal(array[:, at], model[:, at])
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_pages_that_were_read_stay_mapped_within_a_limit(
    tmp_path: Path, few_mapped_bytes: int
) -> None:
    model = np.arange(2048 * 2048, dtype="f8").reshape(2048, 2048)
    with oc.create_array(tmp_path / "A", model.shape, "f8") as A:
        A[...] = model
    with oc.open_array(tmp_path / "A") as A:
        for row in range(0, 2048, 100):
            assert np.array_equal(A[row], model[row])
            # A chunk has 4 MiB, and the limit counts units of 2 MiB.
            assert mapped_bytes(shard_file(tmp_path / "A")) <= few_mapped_bytes + (6 << 20)
    limit_mapped_bytes(64 << 20)
    with oc.open_array(tmp_path / "A") as A:
        columns_read(A, model)
        # A column has elements on 2048 pages.
        assert columns_read(A, model) < 2048
        assert mapped_bytes(shard_file(tmp_path / "A")) > 8 << 20


def test_short_runs_that_fill_the_disk_are_an_error(small_disk: Path) -> None:
    """A full disk raises an error, without a signal or a change of other elements."""
    strips = range(0, 4096, 128)

    def write(A: oc.Array) -> None:
        for first in strips:
            A[:, first : first + 12] = first + 1

    with oc.create_array(small_disk / "A", (4096, 4096), "f8", reserve=False) as A:
        with pytest.raises(oc.errors.DiskFullError):
            write(A)
        assert np.array_equal(A[:, :12], np.ones((4096, 12)))
        assert np.unique(A[:, strips[5] :]).tolist() == [
            0,
            *(at + 1 for at in strips[5:] if A[0, at]),
        ]
        assert not any(A[:, first + 12 : first + 128].any() for first in strips)
