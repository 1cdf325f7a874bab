"""Names of exported files, and their content as read by their own libraries."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import zarr

from outcore.convert import export

Values = npt.NDArray[Any]
NAMES = {"npy": "x.npy", "hdf5": "x.h5", "zarr": "x.zarr", "raw": "x.raw"}
CODECS = [(name, codec) for name, codecs in export.CODECS.items() for codec in codecs]


def read(path: Path, kind: str, model: Values, order: Any = "C") -> Values:
    """Read a file by the format's own library; for a raw file, the type and shape are known."""
    if kind == "npy":
        return np.asarray(np.load(path))
    if kind == "hdf5":
        with h5py.File(path) as file:
            return np.asarray(file["data"])
    if kind == "zarr":
        return np.asarray(zarr.open_array(path, mode="r")[...])
    return np.fromfile(path, model.dtype).reshape(model.shape, order=order)
