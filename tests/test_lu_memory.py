"""LU and solve under a hard memory limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import FIXED, Limit

FIXED_SMALL = 125 << 20
"""For a budget of 4 MiB. An idle process takes 64 MiB."""

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import lu_factor, lu_solve, solve

budget, n, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

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
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("n", "dtype", "budget"), [(4224, "f8", 17 << 20), (2720, "c16", 17 << 20)]
)
def test_never_killed(tmp_path: Path, limit: Limit, n: int, dtype: str, budget: int) -> None:
    """A matrix larger than the limit allows, with an eighth of it as budget."""
    limit.survived(SCRIPT, tmp_path, budget, str(n), dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n", "dtype"), [(5000, "f8"), (4200, "c16")])
def test_never_killed_with_large_slabs(tmp_path: Path, limit: Limit, n: int, dtype: str) -> None:
    """A slab exceeds the rest of the limit, so that a copied or retained slab is detected."""
    limit.survived(SCRIPT, tmp_path, 128 << 20, str(n), dtype)


COLUMNS = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import lu_factor, lu_solve

budget, n, method = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
places = np.arange(n) * 1001 % n

def fill(rows, cols):
    # Kac, Murdock and Szego, whose inverse is tridiagonal, with rows in another order.
    return 0.5 ** abs(places[rows, None] - np.arange(cols.start, cols.stop))

A = oc.create_array("Z", (n, n), "f8", order="C", fill=fill, memory="16 MiB", progress=False)
lu = lu_factor(A, memory=budget, method=method, progress=False)
assert lu.report.peak_memory_bytes <= budget
assert lu.report.method != "slabs"
b = np.random.default_rng(0).standard_normal(n)
x = lu_solve(lu, b, memory=budget, progress=False)
back = b[np.argsort(places)]
expected = 1.25 * back
expected[[0, -1]] = back[[0, -1]]
expected[1:] -= 0.5 * back[:-1]
expected[:-1] -= 0.5 * back[1:]
assert abs(x - expected / 0.75).max() < 1e-12
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_never_killed_by_block_columns(tmp_path: Path, limit: Limit, method: str) -> None:
    """A matrix of 104 MB with a 25th of it as budget, whose rows are swapped."""
    limit.survived(COLUMNS, tmp_path, 4 << 20, "3600", method, fixed=FIXED_SMALL)


@pytest.mark.parametrize(
    ("n", "budget", "fixed"), [(3600, 4 << 20, FIXED_SMALL), (4224, 17 << 20, FIXED)]
)
def test_a_whole_matrix_is_noticed(
    tmp_path: Path, limit: Limit, n: int, budget: int, fixed: int
) -> None:
    """The kernel kills the call; where page cache is not counted, its own peak shows the excess.

    The excess is 30 MiB: the system may take back pages of an idle interpreter.
    """
    script = COLUMNS[: COLUMNS.index("lu = ")] + "whole = A[...]"
    with pytest.raises(AssertionError):
        limit.survived(script, tmp_path, budget, str(n), "", fixed=fixed)


def test_the_limit_is_real(tmp_path: Path, limit: Limit) -> None:
    """The kernel kills a process that allocates the whole matrix."""
    limit.set(FIXED)
    assert limit.run('held = b"x" * (400 << 20)', tmp_path).returncode == -9
