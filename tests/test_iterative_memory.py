"""Iterative methods under a hard memory limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import Limit

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import cg, gauss_seidel, gmres, jacobi

budget, n, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

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
B = oc.create_array(
    "b", (n, 160), dtype, chunks=(n, 8), fill=fill, memory="32 MiB", progress=False
)
x, report = cg(A, B, x0=B, out="x", tol=tol, memory=budget, progress=False)
assert "groups of" in report.method
assert report.peak_memory_bytes <= budget
assert max(report.residuals) <= tol
e = x[:, 5]  # B's columns are the first of A
assert abs(e - (np.arange(n) == 5)).max() < 1e-6
"""


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize(
    ("n", "dtype", "budget"), [(3584, "f8", 13 << 20), (2560, "c16", 22 << 20)]
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix of 100 MB with less than a quarter of it as budget."""
    limit.survived(SCRIPT, tmp_path, budget, str(n), dtype)
