"""``outcore env``."""

import shlex

import click

from outcore._util.hdf5_plugin import variables
from outcore.cli.verbs import Verb, end


@click.command(
    "env",
    cls=Verb,
    short_help="Print the variables by which HDF5 uses pools.",
    example="outcore env --json",
)
def command() -> None:
    """Print shell commands that set HDF5_DRIVER and HDF5_PLUGIN_PATH.

    After eval "$(outcore env)", programs with HDF5 1.14.2 to 2.2, such as h5py and netCDF4, reach
    files below a mounted pool directly at its servers. HDF5's own driver handles other files. See
    docs/how-to/hdf5-pool.md.
    """
    found = variables()
    end(found, *(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
