"""A process of a job that factors a matrix.

Its arguments are ``FUNCTION DIRECTORY N BUDGET_BYTES THREADS [GROUP...]``. The servers of the pool
are threads of the job. The matrix stays in the pool for later runs. Each process enters the control
group of its rank, if there are groups, when the matrix is ready.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import threadpoolctl
from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import random_array
from outcore.blas.lapack import kernels

PRODUCTS = 3


def product_rate(comm: MPI.Comm, n: int, threads: int) -> float:
    """Return the rate of products of order n, in flops per second, while all processes multiply."""
    left, right = np.random.default_rng(comm.rank).random((2, n, n))
    product, times = np.zeros((n, n), order="F"), list[float]()
    with threadpoolctl.threadpool_limits(threads):
        for _ in range(PRODUCTS):
            comm.barrier()
            start = time.perf_counter()
            kernels(product.dtype).gemm(left.T, right.T, product, beta=0)
            times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times)


def main(function: str, directory: str, n: int, memory: int, threads: int, *groups: str) -> None:
    comm, is_positive = MPI.COMM_WORLD, function == "cho_factor"
    options = {} if is_positive else {"method": "slabs"}
    with oc.Pool.from_comm(comm, f"{directory}/{{rank}}") as pool:
        if comm.rank == 0 and not (pool / "A").exists():
            random_array(pool / "A", n, "f8", diagonal=n if is_positive else 0).close()
        comm.barrier()
        touch_memory(memory)
        factor_by = getattr(oc.linalg, function)  # its imports are not timed
        if groups:
            Path(groups[comm.rank]).write_text(str(os.getpid()))
        comm.barrier()
        start = time.perf_counter()
        factor = factor_by(
            pool / "A", memory=memory, out=pool / "factors", if_exists="overwrite",
            threads=threads, comm=comm if comm.size > 1 else None, progress=False, **options,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        # The pivots, or the last rows of L: the same for any number of processes.
        known = oc.open_array(factor.path / "l")[n - 8 : n, :n] if is_positive else factor.piv
    if factor.report is None:
        raise AssertionError("a factorization reports")
    rate = comm.reduce(product_rate(comm, min(n, 4_096), threads))
    found = {**factor.report.to_dict(), "seconds": seconds, "product_flops_s": rate}
    if comm.rank == 0:
        print(json.dumps(found | {"known": known.tolist()}))


if __name__ == "__main__":
    order, budget, threads = map(int, sys.argv[3:6])
    main(sys.argv[1], sys.argv[2], order, budget, threads, *sys.argv[6:])
