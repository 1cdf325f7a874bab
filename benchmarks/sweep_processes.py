"""A process of a job of Gauss-Seidel sweeps: ``URL KEY_FILE N ROWS SWEEPS BUDGET_BYTES``.

The first job makes the matrix, of blocks with the given number of rows, which stays in the pool.
"""

import json
import math
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import random_block


def main(url: str, key: str, n: int, rows: int, sweeps: int, memory: int) -> None:
    comm = MPI.COMM_WORLD
    with oc.connect(url, key=key) as pool:
        if comm.rank == 0 and not (pool / "A").exists():
            make(pool / "A", n, rows)
        touch_memory(memory)
        gauss_seidel = oc.linalg.gauss_seidel  # its imports are not timed
        comm.barrier()
        start = time.perf_counter()
        _, report = gauss_seidel(
            pool / "A", np.ones(n), block=rows, direction="forward", tol=None, max_sweeps=sweeps,
            memory=memory, threads=1, comm=comm if comm.size > 1 else None, progress=False,
        )  # fmt: skip
        comm.barrier()
        seconds = time.perf_counter() - start
    if comm.rank == 0:
        print(json.dumps({"seconds": seconds, "bytes_read": report.bytes_read}))


def make(path: oc.PoolPath, n: int, rows: int) -> None:
    """Make a random matrix for which sweeps converge, in chunks of a block's rows."""

    def fill(here: slice, across: slice) -> npt.NDArray[Any]:
        shape = (here.stop - here.start, across.stop - across.start)
        block = np.ascontiguousarray(random_block(shape, "c16", [here.start, across.start]))
        on_it = np.arange(max(here.start, across.start), min(here.stop, across.stop))
        block[on_it - here.start, on_it - across.start] += 2 * math.sqrt(n)
        return block

    # Chunks are equally wide, of at most 4 MiB, so the disk holds no more than the matrix.
    chunks = (rows, -(-n // -(-16 * rows * n // (4 << 20))))
    oc.create_array(path, (n, n), "c16", chunks=chunks, fill=fill, progress=False).close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
