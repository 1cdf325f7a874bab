"""Calls that use factors and products, under a hard limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import Limit

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore import linalg

budget, n = int(sys.argv[1]), int(sys.argv[2])

def fill(rows, cols):
    # Kac, Murdock and Szego: positive definite, with an inverse that is tridiagonal.
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
    return 0.5 ** abs(i - j)

def inverse_times(b):
    x = np.array(b, float)
    x[1:-1] *= 1.25
    x[1:] -= 0.5 * b[:-1]
    x[:-1] -= 0.5 * b[1:]
    return x / 0.75

options = {"memory": budget, "progress": False}
A = oc.create_array("Z", (n, n), order="F", fill=fill, memory="16 MB", progress=False)
b = oc.from_array(np.random.default_rng(0).standard_normal((n, 300)), "b", **options)
"""

MIXED = """
x, report = linalg.solve(A, b, factor_dtype="f4", out="x", **options)
assert "float32" in report.method
assert abs(x[:, :9] - inverse_times(b[:, :9])).max() < 1e-10
"""

CHO_SOLVE = """
x = linalg.cho_solve(linalg.cho_factor(A, **options), b, out="x", **options)
assert abs(x[:, :9] - inverse_times(b[:, :9])).max() < 1e-10
assert x.report.peak_memory_bytes <= budget
"""

QR = """
qr = linalg.qr_factor(A, **options)
x = linalg.qr_solve(qr, b, out="x", **options)
assert abs(x[:, :9] - inverse_times(b[:, :9])).max() < 1e-10
Q, _ = linalg.form_q(qr, out="Q", **options)
some = Q[:, :50]
assert abs(some.T @ some - np.eye(50)).max() < 1e-12
"""

MATMUL = """
C = linalg.matmul(A, A, out="C", **options)
some = np.zeros(n)
for columns in range(0, n, 300):
    some[columns : columns + 300] = A[7] @ A[:, columns : columns + 300]
assert abs(C[7] - some).max() < 1e-12
"""

TRIANGULAR = """
X = linalg.solve_triangular(A, b, lower=True, out="x", **options)
# The lower triangle of this matrix has an inverse of two diagonals.
right = b[:, :9]
expected = right.copy()
expected[1:] -= 0.5 * right[:-1]
assert abs(X[:, :9] - expected).max() < 1e-10
"""

LU = """
lu = linalg.lu_factor(A, **options)
assert np.array_equal(lu.piv, np.arange(n)), "a dominant diagonal needs no swaps"
condition, _ = linalg.cond_est(lu, **options)
# Row sums of the matrix are below 3, those of its inverse below 3: these in the middle.
assert abs(condition - 9) < 1e-6, condition
found = linalg.slogdet(linalg.open_factor(lu.path), **options)
assert found.sign == 1
assert abs(found.logabsdet / ((n - 1) * np.log(0.75)) - 1) < 1e-12
assert found.report.peak_memory_bytes <= budget
whole, piv, _ = linalg.export_lapack(lu, "exported", **options)
assert abs(whole[0] - 0.5 ** np.arange(n)).max() < 1e-15
"""


N = 3600
"""Order of a matrix that exceeds the rest of the limit, with an eighth of it as budget."""
LEFT = 110 << 20
"""Memory besides the budget. An idle process takes 64 MiB, these scripts take 69 to 84."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "script",
    [MIXED, CHO_SOLVE, QR, MATMUL, TRIANGULAR, LU],
    ids=["mixed", "cho_solve", "qr", "matmul", "triangular", "lu"],
)
def test_never_killed(tmp_path: Path, limit: Limit, script: str) -> None:
    limit.survived(SCRIPT + script, tmp_path, N * N, str(N), fixed=LEFT)


def test_a_whole_matrix_is_noticed(tmp_path: Path, limit: Limit) -> None:
    """The kernel kills the call; where page cache is not counted, its own peak shows the excess.

    The excess is 35 MiB: the system may take back pages of an idle interpreter.
    """
    with pytest.raises(AssertionError):
        limit.survived(SCRIPT + "whole = A[...]", tmp_path, N * N, str(N), fixed=LEFT)
