"""One of two processes that access the same bytes of a file at the same time.

Run it as ``atomic.py FILE EVENTS``, behind ``held_access.c``. In a collective write, each block of
64 KiB gets the bytes of one process. In atomic mode, process 0 is inside an access while process 1
accesses the same file: only an access to the same bytes waits for it.
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


def overlap(file: MPI.File) -> None:
    """Write runs of 8 bytes by process 1 into the bytes of process 0."""
    whole = np.zeros((40, 1 << 12, 16), "u1")
    if comm.rank == 1:
        file.Set_view(0, MPI.BYTE, MPI.BYTE.Create_vector(whole.size // 16, 8, 16).Commit())
    else:
        file.Set_view(0, MPI.BYTE, MPI.BYTE)
    file.Write_all(np.full(whole.size >> comm.rank, 1 + comm.rank, "u1"))
    file.Set_view(0, MPI.BYTE, MPI.BYTE)
    file.Read_all(whole)
    assert (whole[..., 8:] == 1).all()
    for block in whole[..., :8]:
        assert block[0, 0] in {1, 2}
        assert (block == block[0, 0]).all()
    file.Set_size(0)


def main() -> None:
    file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
    overlap(file)
    file.Set_atomicity(True)
    found = np.zeros(100, "u1")
    if comm.rank == 0:
        os.environ["HELD"] = str(events / "write")
        file.Write_at(0, np.full(100, 1, "u1"))
        comm.Barrier()
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
        # Otherwise the next access of process 0 might exclude this write.
        comm.Barrier()
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
