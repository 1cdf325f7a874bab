"""Rechunk and permute under a hard limit: the kernel kills a call above it."""

from pathlib import Path

from memory_limits import Limit

ROWS, COLUMNS = 4096, 2048
LEFT = 110 << 20
"""Memory besides the budget, of the 150 MiB that are promised. An idle process takes 64 MiB."""

SCRIPT = """
import sys

import numpy as np
import outcore as oc

budget, rows, columns = map(int, sys.argv[1:])
number = lambda i, j: 1.0 * columns * np.arange(rows)[i, None] + np.arange(columns)[j]
A = oc.create_array("A", (rows, columns), fill=number, memory="16 MB", progress=False)

def check(B, first, memory=budget):
    assert (B[5] == first).all(), B[5]
    assert B.report.peak_memory_bytes <= memory

a = number(slice(None), slice(None, 8))
check(oc.rechunk(A, "B", chunks=(rows, 1), memory=budget, progress=False), A[5])
check(oc.permute(A, "C", "transpose", memory=budget, progress=False), a[:, 5])
# The bits of the row 5, of 12, are the low ones of the old index in reverse.
old = int(f"{5:012b}"[::-1], 2) + sum(
    (np.arange(columns) >> t & 1) << (22 - t) for t in range(11)
)
D = oc.permute(A, "D", "bit-reversal", memory=budget // 2, progress=False)
check(D, old, budget // 2)
"""


def test_never_killed(tmp_path: Path, limit: Limit) -> None:
    """Move arrays of 64 MiB with a sixteenth of it, and with half of that."""
    budget = 8 * ROWS * COLUMNS // 16
    limit.survived(SCRIPT, tmp_path, budget, str(ROWS), str(COLUMNS), fixed=LEFT)
