"""A process of a job that solves least squares: ``DIRECTORY BUDGET_BYTES THREADS``.

The directory has A, and b as ``b.npy``, for a solution of ones.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory


def main(directory: str, memory: int, threads: int) -> None:
    comm, b = MPI.COMM_WORLD, np.load(f"{directory}/b.npy")
    touch_memory(memory)
    lstsq = oc.linalg.lstsq  # its imports are not timed
    comm.barrier()
    start = time.perf_counter()
    x, report = lstsq(
        f"{directory}/A", b, memory=memory, threads=threads,
        comm=comm if comm.size > 1 else None, progress=False,
    )  # fmt: skip
    found = {**report.to_dict(), "seconds": time.perf_counter() - start}
    if comm.rank == 0:
        print(json.dumps(found | {"error": float(np.abs(x - 1).max())}))


if __name__ == "__main__":
    budget, count = map(int, sys.argv[2:4])
    main(sys.argv[1], budget, count)
