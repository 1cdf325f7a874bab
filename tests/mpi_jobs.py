"""Programs run as jobs of MPI."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import mpi4py

PREFIX = Path(mpi4py.__file__).parents[4]
"""The folder with the directories bin, lib and include of the package mpich."""


def mpiexec(
    size: int, script: Path, *arguments: str, options: Sequence[str] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python script by the MPI of the package mpich, with `more` in the environment."""
    return mpi_program(size, sys.executable, str(script), *arguments, options=options, **more)


def mpi_program(
    size: int, *command: str, options: Sequence[str] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a program by the MPI of the package mpich, with `more` in the environment.

    `options` are those of mpiexec.
    """
    environment = os.environ | {
        "UCX_TLS": "self,sm,tcp",
        # MPI would read the memory of other processes, and fails if the system refuses it.
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
        "MPI4PY_LIBMPI": str(PREFIX / "lib/libmpi.so.12"),
    }
    return subprocess.run(
        [PREFIX / "bin/mpiexec", *options, "-n", str(size), *command],
        env=environment | more, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
