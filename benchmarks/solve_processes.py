"""A process of a job that solves with factors in a pool: ``URL KEY_FILE N COLUMNS ROUNDS``.

It factors a matrix in both layouts, then solves from each in turn, and prints the seconds.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import random_array

MEMORY = 64 << 20
"""Bytes for a solve, far less than the factors."""


def main(url: str, key: str, n: int, columns: int, rounds: int) -> None:
    comm = MPI.COMM_WORLD
    b = np.random.default_rng(1).random((n, columns))
    own = slice(comm.rank * columns // comm.size, (comm.rank + 1) * columns // comm.size)
    with oc.connect(url, key=key) as pool:
        made: dict[str, Any] = {"memory": 2 * 8 * n * n, "threads": 1, "progress": False}
        logical = oc.linalg.lu_factor(
            matrix(pool, n, comm), out=pool / "logical.lu", comm=comm, method="slabs", **made
        )
        if comm.rank == 0:
            oc.linalg.lu_factor(pool / "A", out=pool / "striped.lu", method="slabs", **made)
        comm.barrier()
        striped: Any = oc.linalg.open_factor(pool / "striped.lu")
        solving: dict[str, Any] = {"memory": MEMORY, "threads": 1, "progress": False}
        touch_memory(MEMORY)

        def alone() -> Any:
            return oc.linalg.lu_solve(striped, b[:, own], **solving)

        def together() -> Any:
            return oc.linalg.lu_solve(logical, b, comm=comm, **solving)[:, own]

        ways = {"striped": alone, "logical": together}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            results = {}
            for way, solve in ways.items():
                seconds, results[way] = timed(solve, comm)
                found[way].append(seconds)
            if not np.allclose(results["striped"], results["logical"], rtol=1e-6):
                raise AssertionError("the solutions differ")
    if comm.rank == 0:
        print(json.dumps(found))


def matrix(pool: oc.Pool, n: int, comm: Any) -> oc.PoolPath:
    """Return the name of a random matrix, which the first process makes."""
    if comm.rank == 0:
        random_array(pool / "A", n, "f8").close()
    comm.barrier()
    return pool / "A"


def timed(solve: Callable[[], Any], comm: Any) -> tuple[float, Any]:
    """Return the time from the common start to the end of the last process, and the result."""
    comm.barrier()
    start = time.perf_counter()
    result = solve()
    comm.barrier()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
