"""HDF5 files in pools for h5py: after ``import outcore.h5py``, ``driver="outcore"`` opens them.

``h5py.File("/mnt/pool/u.h5", driver="outcore")`` takes a path below a mount, or an address such as
``outcore://node1:7171/u.h5``. Requests go to the servers of the pool directly. HDF5's own driver
handles every other file.
"""

import ctypes
import os
from typing import Any

from outcore._util.hdf5_plugin import DRIVER, plugin_directory
from outcore._util.packages import require
from outcore.errors import OutcoreError
from outcore.storage.volumes import PathLike

require("h5py", "the driver of HDF5")

import h5py  # noqa: E402

__all__ = ["set_fapl"]

_DEFAULT_META_BLOCK_BYTES = 2048
_META_BLOCK_BYTES = 64 << 10
"""A checksum block of an I/O server."""


def set_fapl(plist: Any, *, key: PathLike | None = None) -> None:
    """Select the driver in a file access property list of h5py.

    h5py calls this function for ``driver="outcore"``. The driver aligns objects of at least a
    stripe unit by the stripe unit; an ``alignment_threshold=`` of 2 or more replaces the first, an
    ``alignment_interval=`` of 2 or more both. Metadata get blocks of 64 KiB, unless
    ``meta_block_size=`` says something else than HDF5's default of 2048.

    Parameters
    ----------
    plist : h5py.h5p.PropFAID
        The list.
    key
        File with the pool's key, or with a user's key; by default the value of the variable
        ``OUTCORE_KEY``.

    Raises
    ------
    OutcoreError
        If the HDF5 library of h5py does not load the driver.
    """
    if plist.get_meta_block_size() == _DEFAULT_META_BLOCK_BYTES:
        plist.set_meta_block_size(_META_BLOCK_BYTES)
    config = None if key is None else os.fsencode(os.path.abspath(key))
    if _SET_DRIVER(plist.id, DRIVER.encode(), config) < 0:
        raise _unusable()


def _unusable() -> OutcoreError:
    return OutcoreError(
        f"need an HDF5 library that loads the driver {DRIVER}, from version 1.14.2 to 2.2, "
        f"have {h5py.version.hdf5_version}; install a newer h5py"
    )


def _set_driver() -> Any:
    """Return the function of h5py's HDF5 library that selects a driver by its name."""
    # A symbol of an extension module is looked up in the libraries that it is linked with, too.
    try:
        function = ctypes.CDLL(h5py.h5p.__file__).H5Pset_driver_by_name
    except AttributeError:
        raise _unusable() from None
    function.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


_SET_DRIVER = _set_driver()
h5py.h5pl.prepend(os.fsencode(plugin_directory()))
h5py.register_driver(DRIVER, set_fapl)
