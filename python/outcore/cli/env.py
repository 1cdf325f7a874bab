"""``outcore env``."""

import shlex

import click

from outcore._util import mpi_io
from outcore._util.hdf5_plugin import variables
from outcore.cli.verbs import Verb, end
from outcore.errors import InvalidError


@click.command(
    "env",
    cls=Verb,
    short_help="Print the variables by which HDF5 and MPI-IO use pools.",
    example="outcore env --json",
    groups={"MPI-IO": ("mpi_io_", "mpicc")},
)
@click.option(
    "--mpi-io", "mpi_io_", is_flag=True, help="Print the path of the library for MPI programs."
)
@click.option("--mpicc", metavar="FILE", help="The C compiler of the MPI; default: $MPICC, mpicc.")
def command(mpi_io_: bool, mpicc: str | None) -> None:
    """Print shell commands that set HDF5_DRIVER and HDF5_PLUGIN_PATH.

    After eval "$(outcore env)", programs with HDF5 1.14.2 to 2.2, such as h5py and netCDF4, reach
    files below a mounted pool directly at its servers. HDF5's own driver handles other files. See
    docs/how-to/hdf5-pool.md.

    With --mpi-io, print the path of a library instead. An MPI program that is started with
    LD_PRELOAD=PATH sends its MPI-IO calls on files of pools to their servers. The first call builds
    the library by the program's MPI, and keeps it in ~/.cache/outcore. See docs/how-to/mpi-io.md.
    """
    if mpi_io_:
        path = str(mpi_io.library(mpicc))
        end({"library": path}, path)
        return
    if mpicc is not None:
        raise InvalidError("need --mpi-io with --mpicc, have none; add it")
    found = variables()
    end(found, *(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
