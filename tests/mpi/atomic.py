"""One of two processes that access a file in atomic mode at the same time.

Run it as ``atomic.py FILE EVENTS``, behind ``held_access.c``: process 0 is inside an access while
process 1 accesses the same file. Only an access to the same bytes waits for it.
"""

import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
events = Path(sys.argv[2])


def inside(turn: str) -> Path:
    """Wait until process 0 is inside its access; return the event that ends it."""
    while not (events / f"{turn}.inside").exists():
        time.sleep(0.01)
    os.environ["OTHER"] = str(events / turn)
    return events / f"{turn}.over"


def main() -> None:
    file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
    file.Set_atomicity(True)
    found = np.zeros(100, "u1")
    if comm.rank == 0:
        os.environ["HELD"] = str(events / "write")
        file.Write_at(0, np.full(100, 1, "u1"))
        os.environ["HELD"] = str(events / "read")
        file.Read_at(0, found)
        del os.environ["HELD"]
    else:
        over = inside("write")
        file.Write_at(100, np.full(50, 2, "u1"))
        file.Read_at(100, found)
        assert not over.exists(), "the bytes behind those of process 0 are free"
        file.Write_at(99, np.full(2, 3, "u1"))
        assert over.exists(), "the last byte of process 0 is not"
        over = inside("read")
        file.Read_at(0, found)
        assert not over.exists(), "reads do not exclude each other"
        over.touch()
    comm.Barrier()
    found = np.zeros(150, "u1")
    file.Read_at(0, found)
    assert found.tolist() == [1] * 99 + [3] * 2 + [2] * 49
    file.Close()


try:
    main()
    sys.stdout.write("well\n")
except BaseException:
    traceback.print_exc()
    os._exit(1)
