"""The programs that write files of FLASH: two in C by Debian's packages, and one in Python."""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpi4py

from benchmarks.testbed import Testbed

SOURCES = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
MPICC, MPIEXEC = "mpicc.openmpi", "mpiexec.openmpi"

PACKAGES = {
    "hdf5": ("hdf5-openmpi", "libhdf5-openmpi-dev"),
    "pnetcdf": ("pnetcdf", "libpnetcdf-dev"),
}
"""Names for pkg-config, and Debian's packages. Its PnetCDF has been built for Open MPI."""

OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    # Processes that wait leave the two processors to the servers.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Containers may forbid it.
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


def why_not(name: str) -> str | None:
    """Return the missing requirement of a program in C; `None` if there is none."""
    for tool in ("pkg-config", MPICC, MPIEXEC):
        if shutil.which(tool) is None:
            return f"there is no {tool} (packages pkg-config, libopenmpi-dev, openmpi-bin)"
    package, debian = PACKAGES[name]
    found = subprocess.run(["pkg-config", "--exists", package], check=False)
    return None if found.returncode == 0 else f"there is no {debian}"


def build(name: str, folder: Path) -> Path:
    """Compile a program in C into a folder."""
    asked = ["pkg-config", "--cflags", "--libs", PACKAGES[name][0]]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    made = folder / f"flash-{name}"
    sources = [str(SOURCES / file) for file in ("model.c", f"{name}.c")]
    command = [MPICC, *FLAGS, *sources, *shlex.split(found), "-lm", "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@dataclass(frozen=True)
class Written:
    """A written file: its content, the way of its data in memory, and times in seconds.

    `packing` is the part in which the program itself packed; each is that of the slowest process.
    """

    content: str
    is_packed: bool
    seconds: float
    packing: float


@dataclass(frozen=True)
class Extent:
    """The extent of a job: processes, factor of the blocks, and number of checkpoints."""

    processes: int
    factor: int
    rounds: int


@dataclass(frozen=True)
class Program:
    """A command, and variables of its environment."""

    command: Sequence[str]
    variables: Mapping[str, str]

    def run(self, bed: Testbed | None = None) -> list[Written]:
        """Run it to its end, with the limited disks of a testbed, if given."""
        environment = os.environ | dict(self.variables)
        start = subprocess.Popen if bed is None else functools.partial(Testbed.start, bed)
        process = start(
            list(self.command), env=environment, cwd=SOURCES.parents[1], stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        said, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(self.command))
        return [Written(**json.loads(line)) for line in said.splitlines()]


def in_c(
    program: Path, above: str, extent: Extent, preloaded: Mapping[str, str] | None = None
) -> Program:
    """Return a program in C that writes files below a name, by default through plain MPI-IO."""
    command = [
        MPIEXEC, "-n", str(extent.processes), str(program), above,
        str(extent.factor), str(extent.rounds),
    ]  # fmt: skip
    return Program(command, OPEN_MPI | dict(preloaded or {}))


def in_python(url: str, key: Path, form: str, above: str, extent: Extent) -> Program:
    """Return the program that writes groups of arrays; `form` is one of `arrays.FORMS`."""
    # The MPI of the package mpich.
    library = Path(mpi4py.__file__).parents[3]
    command = [
        str(library.parent / "bin" / "mpiexec"), "-n", str(extent.processes), sys.executable,
        "-m", "benchmarks.flash.arrays", url, str(key), form, above,
        str(extent.factor), str(extent.rounds),
    ]  # fmt: skip
    variables = {"UCX_TLS": "self,sm,tcp", "MPI4PY_LIBMPI": str(library / "libmpi.so.12")}
    return Program(command, variables)
