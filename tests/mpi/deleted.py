"""A process that looks at a file of a mount, deletes it by MPI-IO, and looks again."""

import sys
from pathlib import Path

from mpi4py import MPI
from shared_memory import unlink_shared_memory

unlink_shared_memory()
path = Path(sys.argv[1])
MPI.File.Open(MPI.COMM_SELF, str(path), MPI.MODE_CREATE | MPI.MODE_WRONLY).Close()
# The kernel now keeps the name for a second.
assert path.exists()
MPI.File.Delete(str(path))
print("still there" if path.exists() else "well")
