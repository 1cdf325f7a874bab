"""The plugin of HDF5 for files in pools, and the variables by which HDF5 finds it."""

import os
from pathlib import Path

from outcore.errors import NotFoundError

DRIVER = "outcore"
"""The name of the driver."""

_DIRECTORY = Path(__file__).parent.parent / "_plugins"
_FILE = "liboutcore_hdf5.so"
_DEFAULT = "/usr/local/hdf5/lib/plugin"
"""The directory in which most builds of HDF5 look for plugins if the variable is not set."""


def plugin_directory() -> Path:
    """Return the directory of the plugin.

    Raises
    ------
    NotFoundError
        If outcore was installed without it.
    """
    if not (_DIRECTORY / _FILE).exists():
        raise NotFoundError(
            f"need the plugin {_FILE}, have none in {_DIRECTORY}; install outcore from a wheel, or "
            "run 'make setup' in its source"
        )
    return _DIRECTORY


def variables() -> dict[str, str]:
    """Return the variables of the environment that select the driver in any program.

    Other directories with plugins stay in the path, and so does HDF5's default one if the path is
    not set yet.

    Raises
    ------
    NotFoundError
        If outcore was installed without the plugin.
    """
    own = str(plugin_directory())
    others = [each for each in os.environ.get("HDF5_PLUGIN_PATH", _DEFAULT).split(":") if each]
    path = [own, *(each for each in others if each != own)]
    return {"HDF5_DRIVER": DRIVER, "HDF5_PLUGIN_PATH": ":".join(path)}
