"""The memory that processes of MPI share."""

import re
from pathlib import Path


def unlink_shared_memory() -> None:
    """Remove the names of MPICH's shared memory, which a process that is killed would leave."""
    for name in set(re.findall(r"/dev/shm/mpich\S+", Path("/proc/self/maps").read_text())):
        Path(name).unlink(missing_ok=True)
