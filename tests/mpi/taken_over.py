"""Processes that share files of a pool before and after its manager is killed.

Run it as ``taken_over.py URL EVENTS``. Process 0 makes the event ``begun``, and all wait for the
event ``go``.
"""

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
comm = MPI.COMM_WORLD
url, events = sys.argv[1], Path(sys.argv[2])
PIECE = 1 << 16
ANY = MPI.MODE_CREATE | MPI.MODE_RDWR


def write(file: MPI.File, step: int) -> None:
    file.Write_at_all((step * comm.size + comm.rank) * PIECE, np.full(PIECE, 1 + step, "u1"))


shared = MPI.File.Open(comm, f"{url}/shared", ANY)
ordered = MPI.File.Open(comm, f"{url}/ordered", ANY)
write(shared, 0)
ordered.Write_ordered(np.full(3, comm.rank, "u1"))
comm.Barrier()
if comm.rank == 0:
    (events / "begun").touch()
while not (events / "go").exists():
    time.sleep(0.01)

# No process knows of the other manager's turn: the next requests of each find it.
write(shared, 1)
ordered.Write_ordered(np.full(3, 10 + comm.rank, "u1"))
shared.Sync()
assert shared.Get_size() == 2 * comm.size * PIECE
shared.Set_size(2 * comm.size * PIECE + 5)
new = MPI.File.Open(comm, f"{url}/new", ANY | MPI.MODE_EXCL)
write(new, 0)
found = np.empty(PIECE, "u1")
shared.Read_at_all((comm.size + comm.rank) * PIECE, found)
assert (found == 2).all()
for file in (shared, ordered, new):
    file.Close()
if comm.rank == 0:
    MPI.File.Delete(f"{url}/new")
sys.stdout.write("well\n")
