"""Calls on two processes, each under a hard limit of its budget and 200 MiB."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from memory_limits import memory_limit
from mpi_jobs import all_say, mpiexec

N = 5120
"""Order of a matrix of 200 MiB. Both budgets together hold an eighth of it."""
BUDGET, LEFT = N * N // 2, 200 << 20

JOB = """
import os
import sys

rank = int(os.environ["PMI_RANK"])
with open(os.path.join(sys.argv[2 + rank], "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))

import numpy as np
import outcore as oc
from mpi4py import MPI
from outcore.linalg import cho_factor, cho_solve, lstsq, lu_factor, lu_solve, matmul

comm, home, n = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[4])
same = {"memory": int(sys.argv[5]), "threads": 1, "progress": False}
"""

FACTOR = """
is_positive = sys.argv[6] == "cholesky"
rows_of = np.arange(n) if is_positive else np.random.default_rng(0).permutation(n)


def fill(rows, cols):
    # Kac, Murdock and Szego, with its rows in another order.
    i, j = rows_of[rows][:, None], np.arange(cols.start, cols.stop)
    return 0.5 ** abs(i - j)


if comm.rank == 0:
    oc.create_array(f"{home}/A", (n, n), order="F", fill=fill, **same)
comm.barrier()
f = (cho_factor if is_positive else lu_factor)(f"{home}/A", comm=comm, **same)
order = rows_of.copy()
for i, swapped in enumerate(() if is_positive else f.piv):
    order[[i, swapped]] = order[[swapped, i]]
assert (order == np.arange(n)).all(), "the pivots undo the order"
b = fill(slice(0, n), slice(7, 8))
x = (cho_solve if is_positive else lu_solve)(f, b, comm=comm, **same)
x[7] -= 1
assert abs(x).max() < 1e-13
assert f.report.peak_memory_bytes <= f.report.memory_bytes
print("well")
"""

MULTIPLY = """
order = np.random.default_rng(0).permutation(n)
if comm.rank == 0:
    oc.create_array(
        f"{home}/A", (n, n), fill=lambda i, j: np.add.outer(n * np.r_[i], np.r_[j]), **same
    )
    oc.create_array(
        f"{home}/P", (n, n), fill=lambda i, j: np.equal.outer(order[i], np.r_[j]), **same
    )
comm.barrier()
C = matmul(f"{home}/A", f"{home}/P", out=f"{home}/C", comm=comm, **same)
for i in range(0, n, 97):
    assert (C[i][order] == n * i + np.arange(n)).all(), i
assert C.report.peak_memory_bytes <= C.report.memory_bytes
print("well")
"""

SQUARES = """
rows, columns = 80 * n // 8, n // 10
if comm.rank == 0:
    draw = np.random.default_rng(0).standard_normal
    oc.create_array(
        f"{home}/A", (rows, columns),
        fill=lambda i, j: draw((i.stop - i.start, j.stop - j.start)), **same,
    )
comm.barrier()
b = oc.open_array(f"{home}/A") @ np.ones(columns)
x = np.ravel(lstsq(f"{home}/A", b, comm=comm, **same)[0])
assert abs(x - 1).max() < 1e-11, abs(x - 1).max()
report = oc.last_report()
assert report.peak_memory_bytes <= report.memory_bytes
print("well")
"""


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize(
    ("method", "job"),
    [("lu", FACTOR), ("cholesky", FACTOR), ("matmul", MULTIPLY), ("lstsq", SQUARES)],
)
def test_no_process_is_killed(method: str, job: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + job)
    with ExitStack() as stack:
        groups = []
        for _ in range(2):
            limit = stack.enter_context(memory_limit())
            limit.set(BUDGET + LEFT)
            groups.append(str(limit.path))
        done = mpiexec(2, script, str(tmp_path), *groups, str(N), str(BUDGET), method)
        assert done.returncode == 0, done.stdout + done.stderr
    all_say("well", 2, done)
