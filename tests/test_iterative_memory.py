"""Iterative methods under a hard memory limit: the kernel kills whoever takes more."""

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
from outcore.linalg import cg, gauss_seidel, gmres, jacobi

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    return np.exp2(-np.abs(i - j)) + 4.0 * (i == j)

A = oc.create_array(
    "Z", (n, n), dtype, chunks=(128, 1024), fill=fill, memory="32 MiB", progress=False
)
b = np.ones((n, 3), dtype)
tol = 1e-8
reference = None
for method, options in (
    (gauss_seidel, {}), (gauss_seidel, {"storage": "f4", "tol": 1e-7}),
    (gauss_seidel, {"block": 640}), (jacobi, {"omega": 0.9}), (cg, {"preconditioner": "ssor"}),
    (cg, {"storage": "f4"}), (gmres, {}), (gmres, {"preconditioner": "sweep"}),
):
    x, report = method(A, b, **{"tol": tol, "memory": budget, "progress": False, **options})
    assert report.peak_memory_bytes <= budget
    assert report.bytes_read == report.planned_bytes_read
    if reference is None:
        reference = x
    assert abs(x - reference).max() < 1e-5 * abs(x).max(), (method, options)
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


@pytest.mark.parametrize(
    ("n", "dtype", "budget"), [(3584, "f8", 13 << 20), (2560, "c16", 22 << 20)]
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix of 100 MB with less than a quarter of it for a budget."""
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
    assert int(done.stdout.split()[-1]) << 10 < budget + FIXED
