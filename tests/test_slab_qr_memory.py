"""QR by slabs and its least squares under a hard limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import Limit

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import lstsq

budget, m, n = map(int, sys.argv[1:4])
dtype = sys.argv[4]

def fill(rows, cols):
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    block = np.sin(1.0 + i * 0.37 + j * j % 1013) + 40 * (i == j)
    return block if dtype == "f8" else block * (1 + 0.5j)

A = oc.create_array("Z", (m, n), dtype, order="F", fill=fill, memory="48 MiB", progress=False)
b = np.zeros((m, 2), dtype)
for first in range(0, m, 500):
    b[first : first + 500] = A[first : first + 500].sum(axis=1)[:, None] * [1, 2]
x, report = lstsq(A, b, memory=budget, progress=False)
assert " by slabs of " in report.method
assert report.peak_memory_bytes <= budget
assert report.bytes_read == report.planned_bytes_read or m % 2048
if m >= n:
    assert abs(x - [1, 2]).max() < 1e-9, abs(x - [1, 2]).max()
else:
    for first in range(0, m, 500):
        rest = A[first : first + 500] @ x - b[first : first + 500]
        assert abs(rest).max() < 1e-9 * abs(b).max(), abs(rest).max()
    assert (np.linalg.norm(x, axis=0) < np.array([1, 2]) * n**0.5).all()
"""


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize(
    ("m", "n", "dtype", "budget"),
    [
        (4400, 2800, "f8", 13 << 20),
        (2600, 2400, "c16", 16 << 20),
        (2800, 4400, "f8", 13 << 20),
        (2400, 2600, "c16", 16 << 20),
    ],
)
def test_never_killed(
    tmp_path: Path, limit: Limit, m: int, n: int, dtype: str, budget: int
) -> None:
    """Factor a matrix of 100 MB with a budget of an eighth of it."""
    limit.survived(SCRIPT, tmp_path, budget, str(m), str(n), dtype)
