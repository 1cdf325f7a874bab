"""Cholesky under a hard memory limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import Limit

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import cho_factor

budget, n, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

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
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("n", "dtype", "budget"),
    [(3600, "f8", 13 << 20), (2500, "c16", 16 << 20), (3600, "f8", 2 << 20)],
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix of 100 MB with budgets of an eighth, and of a 50th, which takes square blocks."""
    said = limit.survived(SCRIPT, tmp_path, budget, str(n), dtype)
    assert ("square blocks" in said) == (budget < 4 << 20)
