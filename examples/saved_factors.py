"""Factor once, and solve later, in another process, for right-hand sides on disk.

    python examples/saved_factors.py [DIRECTORY]

The second half of the script runs in a separate process.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import outcore as oc

n, columns = 1000, 300
where = Path(sys.argv[1] if len(sys.argv) > 1 else "saved-factors")


def fill(rows, cols):
    """Return a random block, the same for the same slices, which resuming requires."""
    shape = (rows.stop - rows.start, cols.stop - cols.start)
    return np.random.default_rng([rows.start, cols.start]).standard_normal(shape)


def load(rows, cols):
    i, j = np.ogrid[rows, cols]
    return np.sin(i + 3 * j)


if "--solve" not in sys.argv:
    A = oc.create_array(where / "A", (n, n), order="F", fill=fill, if_exists="overwrite")
    lu = oc.linalg.lu_factor(A, memory="3 MB", out=where / "A.lu", if_exists="overwrite")
    print(lu.report)
    print(f"the first row swaps: {lu.piv[:5]}")
    B = oc.create_array(where / "B", (n, columns), order="F", fill=load, if_exists="overwrite")
    B.flush()
    subprocess.run([sys.executable, __file__, str(where), "--solve"], check=True)
else:
    lu = oc.linalg.open_factor(where / "A.lu")
    B = oc.open_array(where / "B")
    shutil.rmtree(where / "X", ignore_errors=True)  # an earlier solution is not overwritten
    # With a small budget the columns are solved for in groups, each with one pass over L and one
    # over U.
    X = oc.linalg.lu_solve(lu, B, memory="6 MB", out=where / "X")
    residual = oc.open_array(where / "A")[...] @ X[:, :3] - B[:, :3]
    print(f"{X.shape[1]} solutions in {X.path}; residual of three: {abs(residual).max():.1e}")
    # The transposed system needs no other factors.
    y = oc.linalg.lu_solve(lu, np.ones(n), trans="T", memory="6 MB")
    residual = y @ oc.open_array(where / "A")[...] - 1
    print(f"transposed: {abs(residual).max():.1e}")
    assert abs(residual).max() < 1e-10
