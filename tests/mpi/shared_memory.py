"""The memory that processes of MPI share."""

import re
from pathlib import Path

from mpi4py import MPI


def unlink_shared_memory() -> None:
    """Remove the names of MPICH's shared memory, which a process that is killed would leave.

    All processes call it at their start: each of them must have opened the memory before.
    """
    MPI.COMM_WORLD.Barrier()
    for name in set(re.findall(r"/dev/shm/mpich\S+", Path("/proc/self/maps").read_text())):
        Path(name).unlink(missing_ok=True)
