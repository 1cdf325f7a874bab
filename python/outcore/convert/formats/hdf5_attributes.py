"""Attributes and dimension names of HDF5 datasets, for copies from and to HDF5.

HDF5 stores dimension names in scales and labels (HDF5's Dimension Scale Specification, and the
netCDF-4 format, which builds on it).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import load
from outcore.errors import InvalidError
from outcore.layout.attributes import carried_attributes

_LABELS, _SCALES, _DATASETS = "DIMENSION_LABELS", "DIMENSION_LIST", "REFERENCE_LIST"
_OF_NETCDF = {"_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict"}
"""Attributes that belong to the netCDF library, not to the user."""
_RESERVED = {_LABELS, _SCALES, _DATASETS, *_OF_NETCDF}
"""Names whose values HDF5 or netCDF may take for their own, and for addresses in memory."""
_OF_A_SCALE = {"CLASS", "NAME", _DATASETS}
"""Attributes that describe a dataset that is a scale."""
_SCALE = ("CLASS", "DIMENSION_SCALE")
"""The attribute that makes a dataset a scale."""

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
    structure = set(_OF_NETCDF)
    structure |= {name for name, holds in _PARTS.items() if holds(dataset)}
    if load("h5py", "reading HDF5").h5ds.is_scale(dataset.id):
        structure |= _OF_A_SCALE
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


def _has_labels(dataset: Any) -> bool:
    """Whether the dataset has a label for each dimension."""
    at = _attribute(dataset, _LABELS)
    if at is None or at.shape != (len(dataset.shape),):
        return False
    return load("h5py", "reading HDF5").check_string_dtype(at.dtype) is not None


def _has_scales(dataset: Any) -> bool:
    """Whether the dataset has a list of scales for each dimension.

    HDF5 does not check that, and follows any value in that place.
    """
    at = _attribute(dataset, _SCALES)
    if at is None or at.shape != (len(dataset.shape),):
        return False
    h5py = load("h5py", "reading HDF5")
    each = h5py.check_vlen_dtype(at.dtype)
    return each is not None and h5py.check_ref_dtype(each) is h5py.Reference


def _attribute(dataset: Any, name: str) -> Any:
    """Return the type and shape of an attribute; `None` if it is missing or unknown to h5py."""
    try:
        found = dataset.attrs.get_id(name)
        return found if found.dtype is not None else None
    except _BROKEN:
        return None


_PARTS = {_LABELS: _has_labels, _SCALES: _has_scales}
"""The structure of the names of dimensions."""


def dims_of(dataset: Any) -> tuple[str, ...] | None:
    """Read the names of all dimensions; `None` if a dimension has none."""
    try:
        labels = [""] * len(dataset.shape)
        if _has_labels(dataset):
            labels = _plain(dataset.attrs[_LABELS])
        names = tuple(label or _scale_name(dataset, axis) for axis, label in enumerate(labels))
    except _BROKEN:
        return None
    return names if all(names) else None


def _scale_name(dataset: Any, axis: int) -> str:
    """Return the name of the scale of a dimension; empty if there is none."""
    if _has_scales(dataset) and len(dataset.dims[axis]):
        return _last(dataset.dims[axis][0].name)
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
        The names of attributes that HDF5 cannot hold: dictionaries, lists of mixed types, and names
        that HDF5 or netCDF reserves, or that contain a zero byte.
    """
    others = []
    # HDF5 would cut a name at a zero byte.
    if any("\0" in name for name in dims or ()):
        others.append(_LABELS)
    else:
        for axis, name in enumerate(dims or ()):
            dataset.dims[axis].label = name
    for name, value in attributes.items():
        if name in _RESERVED or (name, value) == _SCALE or "\0" in name:
            others.append(name)
            continue
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
