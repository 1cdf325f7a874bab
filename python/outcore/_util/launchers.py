"""Launchers of parallel jobs, such as mpiexec, and the processes that they start."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from outcore._util.packages import load
from outcore.errors import InvalidError

_LAUNCHERS = {
    "PMI_SIZE": "mpiexec of MPICH",
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "MV2_COMM_WORLD_SIZE": "mpirun of MVAPICH",
    "SLURM_STEP_NUM_TASKS": "srun",
    "WORLD_SIZE": "torchrun",
}
"""Environment variables in which launchers give the number of processes."""


_ANOTHER = (
    "the launcher is not that of the MPI library that mpi4py uses; start the job with the mpiexec "
    "of that library (of the package mpich, say, beside python)"
)


def check_launcher(size: int, environment: Mapping[str, str], mpi: Any) -> None:
    """Refuse a communicator of size 1 in a job for which a launcher started several processes.

    Parameters
    ----------
    size
        Number of ranks of the communicator.
    environment
        Environment variables, including those of launchers.
    mpi
        The module ``mpi4py.MPI``, if it is loaded: one process of several may have a communicator
        of its own.

    Raises
    ------
    InvalidError
        If a launcher started several processes, and each has a communicator of size 1.
    """
    if size > 1 or (mpi is not None and mpi.COMM_WORLD.Get_size() > 1):
        return
    for variable, launcher in _LAUNCHERS.items():
        said = environment.get(variable, "")
        if said.isdigit() and int(said) > 1:
            raise InvalidError(
                f"{launcher} started {said} processes ({variable}), but each of them finds itself "
                f"alone: {_ANOTHER}"
            )


def world() -> Any:
    """Return MPI's communicator of all processes, if a launcher started several; else `None`.

    Raises
    ------
    MissingPackageError
        If mpi4py is missing.
    InvalidError
        As for `check_launcher`.
    """
    # Other programs than MPI's set WORLD_SIZE too.
    variables = (variable for variable in _LAUNCHERS if variable != "WORLD_SIZE")
    counts = [os.environ.get(variable, "") for variable in variables]
    if not any(count.isdigit() and int(count) > 1 for count in counts):
        return None
    why = "a command on several processes"
    if "mpi4py.MPI" not in sys.modules:
        settings = load("mpi4py", why).rc
        settings.initialize, settings.finalize = False, True
    mpi = load("mpi4py.MPI", why)
    if not mpi.Is_initialized():
        # MPICH ends a process at once that Open MPI has started.
        started, (vendor, _) = os.environ.get("OMPI_COMM_WORLD_SIZE"), mpi.get_vendor()
        if started not in (None, "1") and vendor == "MPICH":
            raise InvalidError(
                f"{_LAUNCHERS['OMPI_COMM_WORLD_SIZE']} started {started} processes, but mpi4py "
                f"uses {vendor}: {_ANOTHER}"
            )
        mpi.Init_thread()
    check_launcher(mpi.COMM_WORLD.Get_size(), os.environ, mpi)
    return mpi.COMM_WORLD
