"""Programs run as jobs of MPI."""

import os
import subprocess
import sys
from pathlib import Path

import mpi4py


def mpiexec(size: int, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program by the MPI of the package mpich."""
    site = Path(mpi4py.__file__).parent.parent
    library = site.parent.parent
    environment = os.environ | {
        "UCX_TLS": "self,sm,tcp",
        # MPI would read the memory of other processes, and fails if the system refuses it.
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
        "MPI4PY_LIBMPI": str(library / "libmpi.so.12"),
    }
    return subprocess.run(
        [library.parent / "bin/mpiexec", "-n", str(size), sys.executable, script, *arguments],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
