"""The library for MPI-IO on files in pools, which the user's MPI builds."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from outcore._util import c_library
from outcore.errors import NotFoundError
from outcore.version import VERSION

_SOURCES = Path(__file__).parent.parent / "_mpi_io"
_FILE = "liboutcore_mpi.so"
_FLAGS = ["-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-Wl,-soname," + _FILE]


def _cache() -> Path:
    """Return the folder of built libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outcore/mpi-io"


def _run(command: list[str], need: str, fix: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = said[0] if said else f"exit status {done.returncode}"
        raise NotFoundError(f"need {need}, have '{shlex.join(command)}': {reason}; {fix}")
    return done.stdout


def compiler(given: str | None) -> str:
    """Return the path of the compiler of an MPI: `given`, the variable MPICC, or ``mpicc``.

    Raises
    ------
    NotFoundError
        If there is none.
    """
    name = given or os.environ.get("MPICC") or "mpicc"
    found = shutil.which(name)
    if found is None:
        raise NotFoundError(
            f"need mpicc, the C compiler of your MPI, have no command {name!r}; load its module, "
            "install its package for development, or name the file with --mpicc"
        )
    return found


def library(mpicc: str | None = None) -> Path:
    """Return the path of the library for an MPI, which it builds the first time.

    The library is kept in the user's cache, under a name made from its sources, the version of
    outcore, the compiler's command and the header of the MPI.

    Raises
    ------
    NotFoundError
        If a compiler, the header of an MPI or the C library of outcore is missing.
    """
    command = compiler(mpicc)
    sources = sorted(_SOURCES.glob("*.c"))
    fix = "pass the mpicc of your MPI with --mpicc"
    # Open MPI knows the same option by this name too.
    shown = _run([command, "-show"], "the compiler of an MPI", fix)
    header = _run(
        [command, "-E", "-dD", "-x", "c", "-"], "mpi.h and a C compiler", fix, "#include <mpi.h>\n"
    )
    links = [*shlex.split(c_library.cflags()), *shlex.split(c_library.libs())]
    made_of = hashlib.sha256()
    for part in (VERSION, command, shown, header, shlex.join([*_FLAGS, *links])):
        made_of.update(part.encode() + b"\0")
    for file in [*sources, _SOURCES / "mpi_io.h"]:
        made_of.update(file.read_bytes() + b"\0")
    folder = _cache() / made_of.hexdigest()[:24]
    target = folder / _FILE
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may build the same library.
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / _FILE
            _run(
                [command, *_FLAGS, *map(str, sources), *links, "-lpthread", "-o", str(made)],
                "a C compiler that builds the library for MPI-IO", fix,
            )  # fmt: skip
            made.rename(target)
    return target
