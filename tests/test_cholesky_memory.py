"""Cholesky under a hard memory limit: the kernel kills whoever takes more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_lu_memory import FIXED, Limit, limit

__all__ = ["limit"]  # a fixture

SCRIPT = """
import os, sys
group, budget, n, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with open(os.path.join(group, "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))

import numpy as np
import outcore as oc
from outcore.linalg import cho_factor

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    return np.where(i >= j, np.minimum(i, j) + 1.0, np.nan)

A = oc.create_array("Z", (n, n), dtype, order="F", fill=fill, memory="48 MiB", progress=False)
found = cho_factor(A, memory=budget, progress=False)
assert found.report.peak_memory_bytes <= budget
L = oc.open_array(found.path / "l")
for first in range(0, n, 500):
    block = L[first : first + 500]
    i, j = np.arange(first, first + len(block))[:, None], np.arange(n)
    assert (block == (i >= j)).all(), first
print(found.report.method)
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


@pytest.mark.parametrize(
    ("n", "dtype", "budget"),
    [(3600, "f8", 13 << 20), (2500, "c16", 16 << 20), (3600, "f8", 2 << 20)],
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix of 100 MB with an eighth of it for a budget; and a 50th, so by square blocks."""
    limit.set(budget + FIXED)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(limit.path), str(budget), str(n), dtype],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert ("square blocks" in done.stdout) == (budget < 4 << 20)
    assert int(done.stdout.split()[-1]) << 10 < budget + FIXED
