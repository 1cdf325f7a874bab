"""A process of a job that squares a matrix: ``DIRECTORY N BUDGET_BYTES THREADS``.

The servers of the pool are threads of the job. The matrix stays in the pool for later runs.
"""

import json
import sys
import time

from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import random_array


def main(directory: str, n: int, memory: int, threads: int) -> None:
    comm = MPI.COMM_WORLD
    with oc.Pool.from_comm(comm, f"{directory}/{{rank}}") as pool:
        if comm.rank == 0 and not (pool / "A").exists():
            random_array(pool / "A", n, "f8").close()
        comm.barrier()
        touch_memory(memory)
        matmul = oc.linalg.matmul  # its imports are not timed
        comm.barrier()
        start = time.perf_counter()
        C = matmul(
            pool / "A", pool / "A", memory=memory, out=pool / "C", if_exists="overwrite",
            threads=threads, comm=comm if comm.size > 1 else None, progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        found = {**C.report.to_dict(), "seconds": seconds, "row": C[n // 2].tolist()}
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    order, budget, threads = map(int, sys.argv[2:5])
    main(sys.argv[1], order, budget, threads)
