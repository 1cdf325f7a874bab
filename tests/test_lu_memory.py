"""LU and solve under a hard memory limit: the kernel kills whoever takes more."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

BASE = Path("/sys/fs/cgroup")
FIXED = 150 << 20
"""What a process takes beside its budget: the interpreter, NumPy, SciPy, threads' stacks."""

SCRIPT = """
import os, sys
group, budget, n, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with open(os.path.join(group, "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))

import numpy as np
import outcore as oc
from outcore.linalg import lu_factor, lu_solve, solve

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    block = np.sin(1.0 + i * 0.37 + j * j % 1013) + n * (i == j)
    return block if dtype == "f8" else block * (1 + 0.5j)

A = oc.create_array("Z", (n, n), dtype, order="F", fill=fill, memory="48 MiB", progress=False)
lu = lu_factor(A, memory=budget, progress=False)
assert lu.report.peak_memory_bytes <= budget
x = lu_solve(lu, np.ones(n), memory=budget, progress=False)
b = oc.create_array("b", (n, 400), dtype)
for first in range(0, n, 100):
    b[first : first + 100] = 1
y, report = solve(A, b, memory=budget, out="y", progress=False)
assert report.backward_error < 1e-14, report.backward_error
assert abs(y[:, 17] - x).max() < 1e-12 * abs(x).max()
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


class Limit:
    """A control group with a hard limit, of either version of the interface."""

    def __init__(self) -> None:
        self.version = 2 if (BASE / "cgroup.controllers").exists() else 1
        base = BASE if self.version == 2 else BASE / "memory"
        self.path = base / f"outcore-test-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()

    def set(self, limit: int) -> None:
        names = ["memory.max", "memory.swap.max"]
        if self.version == 1:
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        (self.path / names[0]).write_text(str(limit))
        if (self.path / names[1]).exists():
            (self.path / names[1]).write_text("0" if self.version == 2 else str(limit))

    def remove(self) -> None:
        for pid in (self.path / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        self.path.rmdir()


@pytest.fixture
def limit() -> Iterator[Limit]:
    if os.geteuid() != 0:
        pytest.skip("a memory limit needs root")
    try:
        found = Limit()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        try:
            found.set(1 << 30)
        except OSError as error:
            pytest.skip(f"memory control groups have no limit here: {error}")
        yield found
    finally:
        found.remove()


def run(
    limit: Limit, budget: int, directory: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    limit.set(budget + FIXED)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(limit.path), str(budget), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
    )


@pytest.mark.parametrize(
    ("n", "dtype", "budget"), [(3600, "f8", 13 << 20), (2500, "c16", 16 << 20)]
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix of 100 MB with an eighth of it for a budget."""
    done = run(limit, budget, tmp_path, str(n), dtype)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("most KiB ")
    assert int(done.stdout.split()[-1]) << 10 < budget + FIXED


COLUMNS = """
import os, sys
group, budget, n, method = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with open(os.path.join(group, "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))

import numpy as np
import outcore as oc
from outcore.linalg import lu_factor

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    return np.sin(1.0 + i * i * 0.37 + j * j % 1013)

A = oc.create_array("Z", (n, n), "f8", order="C", fill=fill, memory="8 MiB", progress=False)
lu = lu_factor(A, memory=budget, method=method, progress=False)
assert lu.report.peak_memory_bytes <= budget
assert lu.report.method != "slabs"
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_never_killed_by_block_columns(tmp_path: Path, limit: Limit, method: str) -> None:
    """A matrix of 47 MB with a sixteenth of it for a budget."""
    budget = 3 << 20
    limit.set(budget + FIXED)
    done = subprocess.run(
        [sys.executable, "-c", COLUMNS, str(limit.path), str(budget), "2432", method],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) << 10 < budget + FIXED


def test_the_limit_is_real(tmp_path: Path, limit: Limit) -> None:
    """A process that takes the whole matrix is killed by it."""
    limit.set(FIXED)
    script = """
import os, sys
with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))
held = b"x" * (400 << 20)
"""
    done = subprocess.run([sys.executable, "-c", script, str(limit.path)], timeout=60, check=False)
    assert done.returncode == -9
