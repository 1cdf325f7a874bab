"""A dense system, solved in a quarter of the matrix's memory.

    python examples/quick_start.py [DIRECTORY]

The matrix stays in DIRECTORY/A (default: quick-start here); the call removes the factors at its
end.
"""

import sys
from pathlib import Path

import numpy as np

import outcore as oc

n = 1500
where = Path(sys.argv[1] if len(sys.argv) > 1 else "quick-start")


def fill(rows, cols):
    """Return one block of the matrix. It is called for each block, never for the whole matrix."""
    i, j = np.ogrid[rows, cols]
    return 1 / (1 + abs(i - j)) + (i == j)


A = oc.create_array(where / "A", (n, n), "f8", order="F", fill=fill, if_exists="overwrite")
b = np.ones(n)

x, report = oc.linalg.solve(A, b, memory=A.nbytes // 4)

print(report)
