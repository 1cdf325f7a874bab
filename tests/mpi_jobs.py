"""Programs run as jobs of MPI."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mpi4py
import pytest
from timeouts import HANG_S

PREFIX = Path(mpi4py.__file__).parents[4]
"""The folder with the directories bin, lib and include of the package mpich."""


RAISED = """

def raised(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} on rank {comm.rank}")
"""
"""A function of programs for `run_job`: it returns the text of the error that a call must raise."""


@dataclass(frozen=True)
class Mpi:
    """The commands and the library of an MPI."""

    mpicc: Path
    launcher: Path
    library: Path


def of_debian(name: str, library: str) -> Mpi:
    found = [*Path("/usr/lib").glob(f"*/{library}"), Path("missing")]
    return Mpi(Path(f"/usr/bin/mpicc.{name}"), Path(f"/usr/bin/mpiexec.{name}"), found[0])


MPICH = Mpi(PREFIX / "bin/mpicc", PREFIX / "bin/mpiexec", PREFIX / "lib/libmpi.so.12")
MPICH_4 = of_debian("mpich", "libmpich.so.12")
OPEN_MPI = of_debian("openmpi", "libmpi.so.40")


def skip_without(mpi: Mpi) -> None:
    """Skip a test where an MPI of Debian is missing."""
    for file in (mpi.mpicc, mpi.launcher, mpi.library):
        if not file.exists():
            pytest.skip(f"need {file.name} of Debian's packages")


def mpiexec(
    size: int,
    script: Path,
    *arguments: str,
    options: Sequence[str] = (),
    mpi: Mpi = MPICH,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run a Python script by an MPI, with `more` in the environment."""
    with tempfile.TemporaryDirectory() as folder:
        if mpi is MPICH_4:
            # mpi4py has been linked to this name.
            (Path(folder) / "libmpi.so.12").symlink_to(mpi.library)
            more |= {"LD_LIBRARY_PATH": folder}
        more |= {"MPI4PY_LIBMPI": str(mpi.library)}
        command = [sys.executable, str(script), *arguments]
        return mpi_program(size, *command, options=options, mpi=mpi, **more)


def run_job(tmp_path: Path, size: int, job: str, options: object, *, is_well: bool = True) -> None:
    """Run a Python program by MPI, which takes the directory and its options in JSON.

    Each process must get to its end; without `is_well`, the job must fail.
    """
    script = tmp_path / "job.py"
    script.write_text(job + '\nprint("well")\n')
    done = mpiexec(size, script, str(tmp_path), json.dumps(options))
    assert (done.returncode == 0) == is_well, done.stdout + done.stderr
    if is_well:
        all_say("well", size, done)


def all_say(word: str, size: int, done: subprocess.CompletedProcess[str]) -> None:
    """Check that each process has printed a word, and nothing else; their lines may mix."""
    assert "".join(done.stdout.split()) == word * size, done.stdout + done.stderr


def mpi_program(
    size: int, *command: str, options: Sequence[str] = (), mpi: Mpi = MPICH, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a program by an MPI, with `more` in the environment.

    `options` are those of mpiexec.
    """
    environment = os.environ | {
        "UCX_TLS": "self,sm,tcp",
        # MPI would read the memory of other processes, and fails if the system refuses it.
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        # Processes share the processors, also for what their NumPy computes.
        "OPENBLAS_NUM_THREADS": "1",
        # Tests may run as root, and with more processes than processors.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return subprocess.run(
        [mpi.launcher, *options, "-n", str(size), *command],
        env=environment | more, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
