"""The plugin of HDF5 for files in pools, and the variables by which HDF5 finds it."""

import os
from pathlib import Path

from outcore.errors import NotFoundError

DRIVER = "outcore"
"""The name of the driver."""

_DIRECTORY = Path(__file__).parent.parent / "_plugins"
_FILE = "liboutcore_hdf5.so"


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

    Other directories with plugins stay in the path.

    Raises
    ------
    NotFoundError
        If outcore was installed without the plugin.
    """
    own = str(plugin_directory())
    others = [each for each in os.environ.get("HDF5_PLUGIN_PATH", "").split(":") if each]
    path = [own, *(each for each in others if each != own)]
    return {"HDF5_DRIVER": DRIVER, "HDF5_PLUGIN_PATH": ":".join(path)}
