"""QR by slabs and least squares with it under a hard memory limit: who takes more is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_lu_memory import FIXED, Limit, limit

__all__ = ["limit"]  # a fixture

SCRIPT = """
import os, sys
group, budget, m, n, dtype = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
with open(os.path.join(group, "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))

import numpy as np
import outcore as oc
from outcore.linalg import lstsq

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    block = np.sin(1.0 + i * 0.37 + j * j % 1013) + 40 * (i == j)
    return block if dtype == "f8" else block * (1 + 0.5j)

A = oc.create_array("Z", (m, n), dtype, order="F", fill=fill, memory="48 MiB", progress=False)
b = np.zeros((m, 2), dtype)
for first in range(0, m, 500):
    b[first : first + 500] = A[first : first + 500].sum(axis=1)[:, None] * [1, 2]
x, report = lstsq(A, b, memory=budget, progress=False)
assert report.method.startswith("QR by slabs")
assert report.peak_memory_bytes <= budget
assert report.bytes_read == report.planned_bytes_read or m % 2048
assert abs(x - [1, 2]).max() < 1e-9, abs(x - [1, 2]).max()
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


@pytest.mark.parametrize(
    ("m", "n", "dtype", "budget"),
    [(4400, 2800, "f8", 13 << 20), (2600, 2400, "c16", 16 << 20)],
)
def test_never_killed(
    tmp_path: Path, limit: Limit, m: int, n: int, dtype: str, budget: int
) -> None:
    """A matrix of 100 MB with an eighth of it for a budget."""
    limit.set(budget + FIXED)
    arguments = [str(limit.path), str(budget), str(m), str(n), dtype]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) << 10 < budget + FIXED
