"""``pdgetrf`` of Debian's ScaLAPACK, in memory: a rival of LU by several processes."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.flash.programs import FLAGS, MPICC, MPIEXEC, OPEN_MPI

SOURCE = Path(__file__).parent / "scalapack_lu.c"
_LIBRARIES = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"
SCALAPACK = _LIBRARIES / "libscalapack-openmpi.so"
OPENBLAS = _LIBRARIES / "openblas-serial"


class Timed(NamedTuple):
    """The time of a factorization, and its share of the rate of products.

    `product_flops_s` is the rate at which all processes multiply at the same time.
    """

    seconds: float
    product_flops_s: float

    def share(self, n: int) -> float:
        """Return the rate of the factorization over that of products."""
        return 2 * n**3 / 3 / self.seconds / self.product_flops_s


def why_not() -> str | None:
    """Return the missing requirement; `None` if there is none."""
    if shutil.which(MPICC) is None or not (SCALAPACK.exists() and OPENBLAS.exists()):
        return "there is no ScaLAPACK (packages libscalapack-openmpi-dev, libopenblas0-serial)"
    return None


def build(folder: Path) -> Path:
    """Compile the program into a folder."""
    made = folder / "scalapack-lu"
    libraries = [str(SCALAPACK), str(OPENBLAS / "libblas.so.3")]
    command = [MPICC, *FLAGS, str(SOURCE), *libraries, "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def factor(program: Path, processes: int, n: int, width: int) -> Timed:
    """Factor a matrix in memory by processes of one thread, in blocks of some columns."""
    command = [MPIEXEC, "-n", str(processes), str(program), str(n), str(width)]
    environment = os.environ | OPEN_MPI | {"LD_LIBRARY_PATH": str(OPENBLAS)}
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found = json.loads(ended.stdout)
    return Timed(found["seconds"], found["product_flops_s"])
