"""One process of a job in which the last process dies, before calls of all processes.

Run it as ``deaths.py FILE FOLDER``, below processes that the launcher of MPI starts, and that
outlive it. Each other process leaves its result in a file of the folder, named for its rank.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from errors_of import error_of
from mpi4py import MPI
from shared_memory import unlink_shared_memory

comm, results = MPI.COMM_WORLD, Path(sys.argv[2])
rank, last = comm.rank, comm.size - 1


def check(lost: int, error: MPI.Exception) -> None:
    """Check that an error says which process is gone."""
    assert error.Get_error_class() == MPI.ERR_IO, error
    assert f"process {lost} has died or left" in error.Get_error_string(), error


def wait_for(*names: str) -> None:
    while not all((results / name).exists() for name in names):
        time.sleep(0.01)


def error_beside_opening(
    path: str, lost: int, call: Callable[..., Any], *arguments: Any
) -> MPI.Exception:
    """Return the error of a call, while an opening by all processes fails as well."""
    with ThreadPoolExecutor(1) as thread:
        mode = MPI.MODE_CREATE | MPI.MODE_RDWR
        opening = thread.submit(error_of, MPI.File.Open, comm, f"{path}.next", mode)
        error = error_of(call, *arguments)
        check(lost, opening.result())
    return error


def survive(path: str) -> None:
    """Go through the death of the last process."""
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    mine = np.full(1000, rank, "u1")
    # A process may be late by the timeout, and the sign of life of a closed file is not expected.
    if rank == 1:
        time.sleep(float(os.environ["OUTCORE_TIMEOUT"]))
    file.Write_at_all(1000 * rank, mine)
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_RDWR)
    if rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        # It comes late, to the close and to the next opening, and first finds that the next process
        # has left.
        wait_for("noticed-1", "noticed-2")
        file.Write_at(0, mine + 100)
        error = error_beside_opening(path, 1, file.Close)
        (results / "noticed-0").touch()
        check(1, error)
    else:
        check(last, error_beside_opening(path, last, file.Write_at_all, 1000 * rank, mine))
        (results / f"noticed-{rank}").touch()
        # Nothing waits again. Calls of one process work.
        for call in (
            lambda: file.Read_at_all(0, mine), lambda: file.Write_ordered(mine), file.Sync,
            lambda: file.Set_size(10), lambda: file.Preallocate(10),
            lambda: file.Set_atomicity(True), lambda: file.Set_view(0, MPI.INT),
            lambda: file.Seek_shared(0), lambda: file.Set_info(MPI.INFO_NULL),
        ):  # fmt: skip
            check(last, error_of(call))
        file.Write_at(1000 * rank, mine + 100)
        wait_for("noticed-0")
        check(last, error_of(file.Close))
    assert file == MPI.FILE_NULL
    own = MPI.File.Open(MPI.COMM_SELF, path, MPI.MODE_RDONLY)
    found = np.zeros(1000 * comm.size, "u1")
    own.Read_at_all(0, found)
    assert (found[1000 * rank : 1000 * (rank + 1)] == rank + 100).all()
    own.Close()


unlink_shared_memory()
try:
    survive(sys.argv[1])
    result = "well"
except BaseException:
    result = traceback.format_exc()
(results / f"{rank}.new").write_text(result)
(results / f"{rank}.new").rename(results / str(rank))
# MPI_Finalize would wait for the dead process.
wait_for(*map(str, range(last)))
os._exit(0)
