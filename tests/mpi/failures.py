"""One process of a job that opens a file in a pool, and prints the error class and its text."""

import sys

from mpi4py import MPI
from shared_memory import unlink_shared_memory

unlink_shared_memory()
try:
    file = MPI.File.Open(MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2]) | MPI.MODE_RDWR)
    file.Close()
except MPI.Exception as error:
    # By one write: lines of several processes may mix.
    kind = MPI.Get_error_string(error.Get_error_class())
    sys.stdout.write(f"{kind}: {error.Get_error_string()}\n")
else:
    sys.stdout.write("opened\n")
