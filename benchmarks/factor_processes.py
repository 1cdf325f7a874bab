"""A process of a job that factors a matrix: ``DIRECTORY N BUDGET_BYTES THREADS [GROUP...]``.

The servers of the pool are threads of the job. The matrix stays in the pool for later runs. Each
process enters the control group of its rank, if there are groups, when the matrix is ready.
"""

import json
import os
import sys
import time
import zlib
from pathlib import Path

from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import random_array


def main(directory: str, n: int, memory: int, threads: int, *groups: str) -> None:
    comm = MPI.COMM_WORLD
    with oc.Pool.from_comm(comm, f"{directory}/{{rank}}") as pool:
        if comm.rank == 0 and not (pool / "A").exists():
            random_array(pool / "A", n, "f8").close()
        comm.barrier()
        touch_memory(memory)
        lu_factor = oc.linalg.lu_factor  # its imports are not timed
        if groups:
            Path(groups[comm.rank]).write_text(str(os.getpid()))
        comm.barrier()
        start = time.perf_counter()
        factor = lu_factor(
            pool / "A", memory=memory, out=pool / "A.lu", if_exists="overwrite", method="slabs",
            threads=threads, comm=comm if comm.size > 1 else None, progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
    if factor.report is None:
        raise AssertionError("a factorization reports")
    found = {**factor.report.to_dict(), "seconds": seconds}
    if comm.rank == 0:
        print(json.dumps(found | {"piv": zlib.crc32(factor.piv.tobytes())}))


if __name__ == "__main__":
    order, budget, threads = map(int, sys.argv[2:5])
    main(sys.argv[1], order, budget, threads, *sys.argv[5:])
