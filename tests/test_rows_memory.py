"""Methods whose rows go by, under a hard memory limit: the kernel kills whoever takes more."""

from pathlib import Path

from memory_limits import Limit

SCRIPT = """
import sys

import numpy as np
import outcore as oc
from outcore.linalg import gram, lstsq, qr, svd

budget = int(sys.argv[1])

m, n = 300_000, 100
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
reports.append(svd(A, 5, power=1, out="U", **options)[3])
for report in reports:
    assert report.peak_memory_bytes <= budget, report
"""


def test_never_killed(tmp_path: Path, limit: Limit) -> None:
    """A matrix of 240 MB with a fifteenth of it for a budget."""
    budget = 16 << 20
    limit.survived(SCRIPT, tmp_path, budget)
