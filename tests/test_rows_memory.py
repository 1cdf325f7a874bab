"""Methods that stream rows, under a hard memory limit: the kernel kills a call above it."""

from pathlib import Path

import pytest
from memory_limits import Limit

TALL = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import gram, lstsq, qr, svd

budget = int(sys.argv[1])

m, n = 150_000, 100
draw = np.random.default_rng(0)

def blocks():
    rows = draw.standard_normal((5000, n))
    for first in range(0, m, 5000):
        yield np.roll(rows, first // 100, axis=0)

options = {"memory": budget, "progress": False}
reports = []
A = oc.create_array("A", (m, n), chunks=(512, n))
for number, rows in enumerate(blocks()):
    A[5000 * number : 5000 * number + 5000] = rows
x, report = lstsq(A, np.ones(m), **options)
reports.append(report)
x, report = lstsq(((rows, rows.sum(axis=1)) for rows in blocks()), **options)
assert abs(x - 1).max() < 1e-10, abs(x - 1).max()
reports.append(report)
R, report = qr(A, **options)
reports.append(report)
Q, R2, report = qr(A, mode="economic", **options)
assert abs(abs(R) - abs(R2)).max() < 1e-9 * abs(R).max()
reports.append(report)
G, report = gram(A, **options)
assert abs(R.T @ R - G).max() < 1e-9 * abs(G).max()
reports.append(report)
reports.append(svd(A, 5, power=1, tol=None, out="U", **options)[3])
for report in reports:
    assert report.peak_memory_bytes <= budget, report
"""


WIDE = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import lstsq

budget = int(sys.argv[1])

m, n = 100, 250_000
draw = np.random.default_rng(0)
columns = draw.standard_normal((m, 5000))
A = oc.create_array("A", (m, n), chunks=(m, 512), order="F")
square = np.zeros((m, m))
for first in range(0, n, 5000):
    block = np.roll(columns, first // 100, axis=1) * (1 + first / n)
    A[:, first : first + 5000] = block
    square += block @ block.T
b = draw.standard_normal(m)
x, report = lstsq(A, b, memory=budget, progress=False)
assert report.method.startswith("solution of least norm"), report.method
assert report.peak_memory_bytes <= budget, report
# The solution of least norm is Aᴴ (A Aᴴ)⁻¹ b.
y = np.linalg.solve(square, b)
for first in range(0, n, 5000):
    some = slice(first, first + 5000)
    assert abs(x[some] - y @ A[:, some]).max() < 1e-10 * abs(x).max()
"""

GRAM = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import gram

budget = int(sys.argv[1])

m, n = 500, 5000
draw = np.random.default_rng(0)
A = oc.create_array("A", (m, n), chunks=(m, 64))
for first in range(0, n, 500):
    A[:, first : first + 500] = draw.standard_normal((m, 500))
G, report = gram(A, out="G", memory=budget, progress=False)
assert "a pass for each" in report.method, report.method
assert report.peak_memory_bytes <= budget, report
some = A[:, ::700]
for first in range(0, n, 500):
    found = G[::700, first : first + 500]
    assert abs(found - some.T @ A[:, first : first + 500]).max() < 1e-10
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [TALL, WIDE, GRAM], ids=["tall", "wide", "gram"])
def test_never_killed(tmp_path: Path, limit: Limit, script: str) -> None:
    """The matrix or product has 120 MB or more, more than the limit leaves, and the budget less."""
    budget = 16 << 20
    limit.survived(script, tmp_path, budget)
