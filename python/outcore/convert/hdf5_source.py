"""HDF5 datasets as sources: find them by name, and check all files that hold their elements."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import imported, load
from outcore._util.streams import Box
from outcore.convert.formats.hdf5_attributes import attributes_of, dims_of
from outcore.convert.formats.hdf5_names import SEPARATOR
from outcore.convert.sources import Sliced, Source, file_version
from outcore.errors import (
    ClosedError,
    DiskError,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    TruncatedError,
)
from outcore.layout.casting import Wanted
from outcore.layout.slicing import check_extents, opening

_NOT_OPENED = (OSError, KeyError, RuntimeError)
"""Errors of h5py if the target of a link, or its file, is missing."""

_PLUGINS = "hdf5plugin"
"""Package with common filters of HDF5, such as Zstandard and Blosc."""

_EMPTY = "MATLAB_empty"
"""Attribute of MATLAB's datasets that stand for an empty array, and have its shape as elements."""

_MOST_DIMENSIONS = 64
"""Elements of such a dataset, at most; a larger one has the attribute by mistake."""

_COMPLEX_FIELDS = (("r", "i"), ("real", "imag"))
"""Names of the parts of a complex number, as in h5py and in MATLAB."""


def open_hdf5(path: Path, name: str, wanted: Wanted) -> Source:
    """Open a dataset of a file by its name; without a name, open the only one.

    Raises
    ------
    NotFoundError
        If the file, the dataset, or the target of a link is missing.
    InvalidError
        If the file is damaged, or the dataset cannot be copied.
    TruncatedError
        If a file with its elements is too short.
    MissingPackageError
        If h5py is not installed. While reading, also if HDF5 lacks a filter of the dataset.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; check the path")
    h5py = load("h5py", f"reading {path}")
    version = file_version(path)
    with opening(path, "HDF5"):
        file = h5py.File(path, "r")
    try:
        dataset = _find(h5py, file, path, name)
        found = dataset_source(dataset, wanted)
    except BaseException:
        file.close()
        raise
    # Elements in other files may change while this file stays the same.
    is_here = not dataset.is_virtual and not dataset.external
    if is_here and version is not None and dataset.file == file:
        known = version | {"dataset": dataset.name} if version == file_version(path) else None
        found.find_version = lambda: known
    found.keep(file)
    return found


def dataset_source(dataset: Any, wanted: Wanted) -> Sliced:
    """Return a source for an h5py dataset.

    Raises
    ------
    ClosedError
        If its file is closed.
    InvalidError, NotFoundError, TruncatedError
        As for `open_hdf5`.
    """
    if not dataset:
        raise ClosedError("the file of the HDF5 dataset was closed; open it again")
    check_extents(dataset)
    filters = check_elsewhere(dataset)
    _check_elements(dataset)
    kind = _complex_of(dataset.dtype)
    found = _Filtered(dataset if kind is None else _Complex(dataset, kind), wanted, filters)
    found.path = Path(dataset.file.filename)
    found.dims = dims_of(dataset)
    found.attributes, others = attributes_of(dataset)
    if others:
        found.left_out = f"attributes that JSON cannot hold: {listed(others)}"
    return found


class _Filtered(Sliced):
    """A dataset whose elements HDF5 may fail to decode, because it lacks the `filters`."""

    def __init__(self, array: Any, wanted: Wanted, filters: list[str]) -> None:
        super().__init__(array, wanted)
        self._filters = filters

    def _read(self, box: Box, out: npt.NDArray[Any]) -> None:
        try:
            super()._read(box, out)
        except DiskError:
            if not self._filters:
                raise
            raise MissingPackageError(
                f"need the filter {listed(self._filters)} of HDF5 to read {self.path}, have a "
                f"library without it; install it with: pip install {_PLUGINS}"
            ) from None


def _missing_filters(dataset: Any) -> Iterator[str]:
    """Yield the filters of a dataset that its HDF5 library lacks, by name and number.

    The package hdf5plugin brings common ones, if it is installed. An optional filter may be missing
    if no chunk uses it.
    """
    h5z = load("h5py", "HDF5").h5z
    made = dataset.id.get_create_plist()
    used = [made.get_filter(number) for number in range(made.get_nfilters())]
    if not all(h5z.filter_avail(code) for code, *_ in used):
        with contextlib.suppress(ImportError):
            imported(_PLUGINS)
    for code, _, _, name in used:
        if not h5z.filter_avail(code):
            yield f"{name.decode(errors='replace')} ({code})" if name else str(code)


def _check_elements(dataset: Any) -> None:
    """Refuse elements of a type that NumPy lacks, and an empty array of MATLAB.

    MATLAB stores the shape of an empty array in place of elements.
    """
    try:
        _ = dataset.dtype
    except (TypeError, ValueError) as error:
        raise InvalidError(
            f"need a number type of NumPy in {_told(dataset)}, have {error}; convert the dataset"
        ) from None
    # The number of dimensions of an array of MATLAB is small.
    if np.any(dataset.attrs.get(_EMPTY, 0)) and dataset.size <= _MOST_DIMENSIONS:
        shape = tuple(int(n) for n in dataset[()].ravel()[::-1])
        raise InvalidError(
            f"need elements in {_told(dataset)}, have an empty array of MATLAB of shape {shape}; "
            "name one that has elements"
        )


def _complex_of(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the complex type that two fields form; `None` if they form none."""
    if dtype.names not in _COMPLEX_FIELDS or dtype.fields is None:
        return None
    (real, first), (imag, second) = (dtype.fields[name][:2] for name in dtype.names)
    if real != imag or real.kind != "f" or (first, second) != (0, real.itemsize):
        return None
    if real.itemsize not in (4, 8) or dtype.itemsize != 2 * real.itemsize:
        return None
    return np.dtype(f"{real.str[0]}c{dtype.itemsize}")


class _Complex:
    """A dataset of pairs of fields, read as complex numbers."""

    def __init__(self, dataset: Any, dtype: np.dtype[Any]) -> None:
        self._dataset, self.dtype = dataset, dtype
        self.shape, self.chunks = dataset.shape, dataset.chunks

    def __getitem__(self, box: Any) -> Any:
        return self._dataset[box].view(self.dtype)


def _find(h5py: Any, file: Any, path: Path, name: str) -> Any:
    """Find the dataset by its name; without a name, the only dataset in the file."""
    if name:
        _follow(file, path, name)
        item = file.get(name)
        if isinstance(item, h5py.Dataset):
            return item
    names = dataset_names(h5py, file)
    if not name and len(names) == 1:
        _follow(file, path, names[0])
        return file[names[0]]
    have = listed(names)
    if not name:
        raise InvalidError(
            f"need the name of a dataset in {path}, it has {have}; write {path}{SEPARATOR}NAME"
        )
    raise NotFoundError(f"there is no dataset {name} in {path}, it has {have}; check the name")


def dataset_names(h5py: Any, group: Any) -> list[str]:
    """List the datasets in and below a group; if it has none, list its links."""
    names: list[str] = []
    links: list[str] = []

    def note(each: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(each)

    def note_link(each: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            links.append(each)

    group.visititems(note)
    if not names:
        group.visititems_links(note_link)
    return sorted(names or links)


def listed(names: list[str]) -> str:
    """Join the first ten names of a list, for a message."""
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"


def _follow(file: Any, path: Path, name: str) -> None:
    """Refuse a name with a broken link on its path."""
    parts = [part for part in name.split("/") if part]
    for count in range(1, len(parts) + 1):
        above = "/".join(parts[:count])
        try:
            file[above]
        except _NOT_OPENED:
            link = file.get(above, getlink=True)
            target = getattr(link, "path", None)
            if target is None:
                return
            into = getattr(link, "filename", None)
            where = target if into is None else f"{target} in {into}"
            raise NotFoundError(
                f"{above} in {path} is a link to {where}, which is missing or cannot be opened; "
                "restore that, or name a dataset that is there"
            ) from None


def check_elsewhere(dataset: Any) -> list[str]:
    """Refuse a dataset if other files that hold its elements are missing or too short.

    HDF5 would read fill values in their place, without an error. Return the filters of all these
    datasets that the HDF5 library lacks.

    Raises
    ------
    NotFoundError
        If a file, or a dataset in it, is missing or cannot be opened.
    TruncatedError
        If a file or dataset is too short.
    """
    opened: dict[str, Any] = {}
    filters: set[str] = set()
    try:
        _check_elsewhere(dataset, opened, set(), filters)
        return sorted(filters)
    finally:
        for file in opened.values():
            file.close()


def _check_elsewhere(
    dataset: Any, opened: dict[str, Any], seen: set[tuple[str, str]], filters: set[str]
) -> None:
    key = (os.path.realpath(dataset.file.filename), dataset.name)
    if key in seen:
        return
    seen.add(key)
    filters.update(_missing_filters(dataset))
    if dataset.external:
        _check_external(dataset)
    if dataset.is_virtual:
        for mapping in dataset.virtual_sources():
            for number in range(_blocks(mapping, dataset.shape)):
                _check_mapping(dataset, mapping, number, opened, seen, filters)


def _check_external(dataset: Any) -> None:
    """Check the plain files that hold the elements, one run of bytes after another."""
    left = math.prod(dataset.shape) * dataset.dtype.itemsize
    prefix = dataset.id.get_access_plist().get_efile_prefix()
    for name, offset, nbytes in dataset.external:
        if left <= 0:
            return
        file = Path(os.fsdecode(prefix), name)
        need = offset + min(nbytes, left)
        if not file.is_file():
            raise NotFoundError(
                f"{_told(dataset)} has elements in {file}, which is missing; restore that file"
            )
        have = file.stat().st_size
        if have < need:
            raise TruncatedError(
                f"need {need} bytes in {file}, where elements of {_told(dataset)} lie, have "
                f"{have}; restore that file"
            )
        left -= nbytes


def _blocks(mapping: Any, shape: tuple[int, ...]) -> int:
    """Count the sources of a mapping; there are several if their names contain a block number."""
    if not _has_number(mapping.file_name) and not _has_number(mapping.dset_name):
        return 1
    start, stride, count, block = mapping.vspace.get_regular_hyperslab()
    # Along the unlimited dimension, the count is far larger than any extent.
    d = max(range(len(count)), key=count.__getitem__)
    return max(0, -(-(shape[d] - int(start[d]) - int(block[d])) // int(stride[d])) + 1)


def _check_mapping(
    dataset: Any,
    mapping: Any,
    number: int,
    opened: dict[str, Any],
    seen: set[tuple[str, str]],
    filters: set[str],
) -> None:
    """Check that the source of a part of a virtual dataset exists, and that source's own parts."""
    name = _numbered(mapping.file_name, number)
    source = _numbered(mapping.dset_name, number)
    file = dataset.file if name == "." else _open_beside(dataset, name, opened)
    item = None
    with contextlib.suppress(*_NOT_OPENED):
        item = file[source]
    if item is None or not hasattr(item, "is_virtual"):
        raise NotFoundError(
            f"{_told(dataset)} has elements in {source} of {file.filename}, where no such dataset "
            "can be opened; restore that file"
        )
    if need := _more_than(item, mapping):
        raise TruncatedError(
            f"need {need} of {source} in {file.filename}, where elements of {_told(dataset)} lie, "
            f"have {item.shape}; restore that file"
        )
    _check_elsewhere(item, opened, seen, filters)


def _open_beside(dataset: Any, name: str, opened: dict[str, Any]) -> Any:
    """Open a source file from the paths on which HDF5 looks for it."""
    for path in _places(dataset, name):
        if path in opened:
            return opened[path]
        if os.path.isfile(path):
            try:
                opened[path] = load("h5py", f"reading {path}").File(path, "r")
            except OSError as error:
                said = " ".join(str(error).split())
                raise NotFoundError(
                    f"{_told(dataset)} has elements in {path}, which cannot be opened: {said}; "
                    "restore that file"
                ) from None
            return opened[path]
    raise NotFoundError(
        f"{_told(dataset)} has elements in {name}, which is missing; restore that file"
    )


def _places(dataset: Any, name: str) -> Iterator[str]:
    """Yield the paths that HDF5 tries for a source file (H5F_prefix_open_file), in its order."""
    if os.path.isabs(name):
        yield name
        name = os.path.basename(name)
    main = dataset.file.filename
    for prefix in filter(None, os.environ.get("HDF5_VDS_PREFIX", "").split(":")):
        yield os.path.join(prefix, name)
    prefix = os.fsdecode(dataset.id.get_access_plist().get_virtual_prefix())
    yield os.path.join(prefix or os.path.dirname(main), name)
    yield os.path.join(os.path.dirname(main), name)
    yield name
    yield os.path.join(os.path.dirname(os.path.realpath(main)), name)


def _more_than(item: Any, mapping: Any) -> str:
    """Describe the extent that a mapping needs and a dataset lacks; empty if it suffices."""
    h5s = load("h5py", "reading HDF5").h5s
    try:
        if mapping.src_space.get_select_type() == h5s.SEL_ALL:
            count = mapping.vspace.get_select_npoints()
            return f"{count} elements" if count > item.size else ""
        _, last = mapping.src_space.get_select_bounds()
    except (RuntimeError, ValueError):  # unlimited
        return ""
    need = tuple(int(n) + 1 for n in last)
    is_short = any(n > have for n, have in zip(need, item.shape, strict=False))
    return f"a shape of at least {need}" if is_short else ""


def _has_number(name: str) -> bool:
    return "%b" in name.replace("%%", "")


def _numbered(name: str, number: int) -> str:
    """Insert a block number into a name: ``%b`` stands for it, and ``%%`` for ``%``."""
    return "%".join(part.replace("%b", str(number)) for part in name.split("%%"))


def _told(dataset: Any) -> str:
    return f"{dataset.name} in {dataset.file.filename}"
