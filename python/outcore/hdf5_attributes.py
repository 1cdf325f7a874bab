"""Attributes and dimension names of HDF5 datasets, for copies from and to HDF5.

HDF5 stores dimension names in scales and labels (HDF5's Dimension Scale Specification, and the
netCDF-4 format, which builds on it).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.attributes import carried_attributes
from outcore.errors import InvalidError
from outcore.packages import load

_STRUCTURE = {
    "DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST",
    "_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "outcore",
}  # fmt: skip
"""Attributes that describe scales, or belong to a library, not to the user."""
_OF_A_SCALE = {"CLASS", "NAME"}
"""The same in a dataset that is a scale."""

_BROKEN = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)
"""Errors of h5py and NumPy for an attribute or a scale that they cannot read or write."""


def attributes_of(dataset: Any) -> tuple[dict[str, Any], list[str]]:
    """Read the attributes of a dataset.

    Arrays become lists, and bytes become text. In a netCDF file a list of one number is a number.

    Returns
    -------
    tuple
        The attributes that JSON can hold, and the names of the others.
    """
    is_netcdf = "_NCProperties" in dataset.file.attrs
    is_scale = load("h5py", "reading HDF5").h5ds.is_scale(dataset.id)
    structure = _STRUCTURE | (_OF_A_SCALE if is_scale else set())
    found: dict[str, Any] = {}
    others = []
    for name in dataset.attrs:
        if name in structure:
            continue
        try:
            value = _plain(dataset.attrs[name])
            if is_netcdf and isinstance(value, list) and len(value) == 1:
                [value] = value
            found |= carried_attributes({name: value})
        except (*_BROKEN, InvalidError):
            others.append(name)
    return found, others


def _plain(value: Any) -> Any:
    """Convert NumPy's arrays and bytes to lists and text; keep other values."""
    if isinstance(value, bytes):  # NumPy's bytes, too
        return value.decode()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, load("h5py", "reading HDF5").Empty):
        return None
    return value


def dims_of(dataset: Any) -> tuple[str, ...] | None:
    """Read the names of all dimensions; `None` if a dimension has none."""
    try:
        names = tuple(_name(dataset, axis) for axis in range(len(dataset.shape)))
    except _BROKEN:
        return None
    return names if all(names) else None


def _name(dataset: Any, axis: int) -> str:
    """Return the label of a dimension, or else the name of its scale; empty if there is none."""
    dim = dataset.dims[axis]
    if dim.label:
        return str(dim.label)
    if len(dim):
        return _last(dim[0].name)
    # The dataset of a coordinate is the scale of its own dimension.
    is_scale = load("h5py", "reading HDF5").h5ds.is_scale(dataset.id)
    return _last(dataset.name) if is_scale and len(dataset.shape) == 1 else ""


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def describe(dataset: Any, dims: tuple[str, ...] | None, attributes: dict[str, Any]) -> list[str]:
    """Write dimension labels and attributes to a new dataset.

    Returns
    -------
    list
        The names of attributes that HDF5 cannot hold: dictionaries, and lists of mixed types.
    """
    for axis, name in enumerate(dims or ()):
        dataset.dims[axis].label = name
    others = []
    for name, value in attributes.items():
        try:
            dataset.attrs[name] = _for_hdf5(value)
        except _BROKEN:
            others.append(name)
    return others


def _for_hdf5(value: Any) -> Any:
    """Convert `None` to an empty value, and lists to arrays.

    Raises
    ------
    TypeError, ValueError or OverflowError
        If an array would change the elements of a list, or for a dictionary.
    """
    h5py = load("h5py", "writing HDF5")
    if value is None:
        return h5py.Empty("f8")
    if isinstance(value, dict):
        raise TypeError
    if not isinstance(value, list):
        return value
    found = _array_of(value)
    if found.dtype.kind not in "biufU" or not _is_same(found.tolist(), value):
        raise TypeError
    return found.astype(h5py.string_dtype()) if found.dtype.kind == "U" else found


def _array_of(value: list[Any]) -> npt.NDArray[Any]:
    """Make an array of a list; NumPy alone would round integers of 2^63 and more beside others."""
    found = np.array(value)
    return np.array(value, "u8") if found.dtype.kind == "f" and _is_whole(value) else found


def _is_whole(value: Any) -> bool:
    """Whether nested lists hold integers only, and at least one."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_whole, value))
    return isinstance(value, int)


def _is_same(found: Any, value: Any) -> bool:
    """Compare nested lists of numbers and text; NaN equals itself, and a truth value no number.

    An integer equals a floating-point number of the same value, because an array has one type.
    """
    if isinstance(found, list):
        return len(found) == len(value) and all(map(_is_same, found, value))
    if isinstance(found, bool) != isinstance(value, bool):
        return False
    return bool(found == value or (found != found and value != value))
