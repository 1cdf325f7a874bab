"""From what a user names or passes as a source to the `Source` that it is."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.array import Array, open_array
from outcore.casting import Casting, Wanted
from outcore.counts import is_count
from outcore.elements import computed, refuse_masked
from outcore.errors import InvalidError, NotFoundError, TruncatedError
from outcore.hdf5_names import (
    SEPARATOR,
    beginning_of,
    dataset_to_read,
    has_hdf5,
    is_named_hdf5,
    refuse_special,
)
from outcore.packages import is_a, load
from outcore.pool_path import PoolPath
from outcore.row_blocks import RowBlocks
from outcore.slicing import check_extents, is_sliced
from outcore.sources import Flat, InMemory, Mapped, Rows, Sliced, Source, Stored, file_version
from outcore.volumes import AnyPath, PathLike, as_path
from outcore.zarr_format import check_dtype, check_shape, parse

_NPY_MAGIC = b"\x93NUMPY"


def open_source(
    source: Any,
    *,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    source_order: str = "C",
    offset: int = 0,
    casting: Casting = "same_kind",
) -> Source:
    """Tell what a source is, and open it where it is a name.

    Parameters are those of `outcore.from_array`.

    Raises
    ------
    InvalidError
        If it is nothing that can be copied, or the arguments do not fit it.
    NotFoundError, TruncatedError
        If there is no such file or dataset, or it ends too early.
    MissingPackageError
        If reading it needs a package that is not installed.
    """
    extents = None if shape is None else _extents(shape)
    _check_raw(source_order, offset)
    wanted = Wanted(dtype, casting)
    is_named = isinstance(source, str | os.PathLike)
    opener = _opener(source, extents) if is_named else None
    if is_named and opener is None:
        return _open_raw(Path(source), extents, dtype, source_order, offset)
    if source_order != "C" or offset != 0:
        what = str(source) if is_named else f"one in memory, {type(source).__name__}"
        raise InvalidError(
            f"need a raw file for source_order= or offset=, have {what}; leave them out"
        )
    if opener is not None:
        found = opener(wanted)
    elif (blocks := _iterator(source)) is not None:
        if extents is None:
            raise InvalidError("need shape= for blocks of rows from an iterator: give the number")
        kind = None if dtype is None else check_dtype(dtype)
        found = Rows(RowBlocks(blocks, extents, kind, casting))
    else:
        found = _array_like(source, wanted)
    if extents is not None and not isinstance(found, Rows) and found.shape != extents:
        with found:
            raise InvalidError(
                f"need shape {extents}, the source has {found.shape}; leave out shape="
            )
    return found


def _extents(shape: Sequence[int] | int) -> tuple[int, ...]:
    return check_shape((shape,) if isinstance(shape, int | np.integer) else shape)


def _iterator(source: Any) -> Iterator[Any] | None:
    """Return the iterator, if the source is one of row blocks or makes one."""
    if isinstance(source, Iterator):
        return source
    others = ("shape", "__len__", "__array__", "__array_interface__")
    if isinstance(source, Iterable) and not any(hasattr(source, name) for name in others):
        return iter(source)
    return None


def _array_like(source: Any, wanted: Wanted) -> Source:
    if isinstance(source, Array):
        return Stored(source, wanted)
    if isinstance(source, np.memmap):
        return Mapped(source, wanted)
    if not is_sliced(source):
        source = computed(source)
    refuse_masked(source)
    if isinstance(source, np.ndarray):
        return InMemory(source, wanted)
    if not is_sliced(source):
        try:
            return InMemory(np.asarray(source), wanted)
        except (ValueError, TypeError) as error:
            if isinstance(error, InvalidError):
                raise
            raise InvalidError(
                f"cannot make an array of {type(source).__name__}: {error}; for blocks of rows "
                "pass an iterator and shape="
            ) from None
    check_extents(source)
    found = Sliced(source, wanted)
    if is_a(source, "h5py", "Dataset"):
        found.path = Path(source.file.filename)
    elif is_a(source, "zarr", "Array"):
        _describe_zarr(found, source)
    return found


def _describe_zarr(source: Sliced, array: Any) -> None:
    """Take over where a zarr-python array lies, its names of dimensions and attributes."""
    root = getattr(array.store, "root", None)
    if root is not None:
        source.path = path = Path(root) / array.path
        # Each chunk is opened when it is read.
        source.find_version = lambda: file_version(path)
    if isinstance(inside := getattr(array.store, "path", None), PoolPath):
        source.path = inside / array.path
    attributes = dict(array.attrs.asdict())
    # How xarray names dimensions in Zarr v2.
    dims = attributes.pop("_ARRAY_DIMENSIONS", None)
    dims = getattr(array.metadata, "dimension_names", None) or dims
    if dims and all(isinstance(name, str) for name in dims):
        source.dims = tuple(dims)
    # It says how the array that it was copied from lies on disk.
    attributes.pop("outcore", None)
    source.attributes = attributes


def _check_raw(order: str, offset: int) -> None:
    """Refuse what cannot be said of any raw file."""
    if order not in ("C", "F"):
        raise InvalidError(f"the order of a raw file must be 'C' or 'F', have {order!r}")
    if not is_count(offset, 0):
        raise InvalidError(
            f"an offset is bytes before the first element, an integer of at least 0, have "
            f"{offset!r}"
        )


def _opener(source: PathLike, shape: tuple[int, ...] | None) -> Callable[[Wanted], Source] | None:
    """Find what opens a file or directory, for elements of a type; `None` for a raw file."""
    where = as_path(source)
    if isinstance(where, PoolPath):
        return partial(_open_directory if where.is_dir() else _open_array, where)
    name, path = os.fspath(source), Path(source)
    if found := dataset_to_read(name):
        return partial(_open_hdf5, Path(found[0]), found[1])
    if path.is_dir():
        return partial(_open_directory, path)
    if not path.exists():
        raise NotFoundError(f"there is no file {path}; check the path")
    refuse_special(path)
    magic = b"" if shape is not None else beginning_of(path)
    if path.suffix.lower() == ".npy" or magic.startswith(_NPY_MAGIC):
        return partial(_open_npy, path)
    if is_named_hdf5(name) or has_hdf5(magic):
        return partial(_open_hdf5, path, "")
    return None


def _open_array(path: PathLike, wanted: Wanted) -> Source:
    """Open an array of outcore's own layout."""
    array = open_array(path)
    found = Stored(array, wanted)
    found.keep(array)
    return found


def _open_directory(path: AnyPath, wanted: Wanted) -> Source:
    """Open a Zarr array, outcore's own or another's."""
    if (path / "zarr.json").is_file():
        text = (path / "zarr.json").read_bytes()
        if parse(text, str(path)) is not None:
            return _open_array(path, wanted)
    elif not (path / ".zarray").is_file() and not (path / ".zgroup").is_file():
        raise InvalidError(f"{path} is a directory, but no Zarr array; name an array or a file")
    zarr = load("zarr", f"reading {path}")
    where: Any = path
    if isinstance(path, PoolPath):
        where = load("outcore.zarr_store", f"reading {path}").PoolStore(path, read_only=True)
    try:
        array = zarr.open(where, mode="r")
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InvalidError(f"{path} cannot be read as Zarr: {error}") from None
    if is_a(array, "zarr", "Group"):
        names = sorted(array.array_keys())
        raise InvalidError(f"{path} is a Zarr group; name one of its arrays: {_list(names)}")
    return _array_like(array, wanted)


def _open_hdf5(path: Path, dataset: str, wanted: Wanted) -> Source:
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; check the path")
    h5py = load("h5py", f"reading {path}")
    version = file_version(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        said = " ".join(str(error).split())
        raise InvalidError(f"{path} cannot be read as HDF5: {said}") from None
    try:
        item = _dataset(h5py, file, path, dataset)
        found = _array_like(item, wanted)
    except BaseException:
        file.close()
        raise
    # Elements in other files may change without this one.
    is_here = not item.is_virtual and not item.external
    if isinstance(found, Sliced) and is_here and version is not None:
        known = version | {"dataset": item.name} if version == file_version(path) else None
        found.find_version = lambda: known
    found.keep(file)
    return found


def _dataset(h5py: Any, file: Any, path: Path, name: str) -> Any:
    """Find the dataset of this name; without one, the only dataset in the file."""
    names: list[str] = []

    def note(each: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(each)

    if name:
        item = file.get(name)
        if isinstance(item, h5py.Dataset):
            return item
    file.visititems(note)
    if not name and len(names) == 1:
        return file[names[0]]
    have = _list(sorted(names))
    if not name:
        raise InvalidError(
            f"need the name of a dataset in {path}, it has {have}; write {path}{SEPARATOR}NAME"
        )
    raise NotFoundError(f"there is no dataset {name} in {path}, it has {have}; check the name")


def _list(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"


def _open_npy(path: Path, wanted: Wanted) -> Source:
    try:
        # NumPy reads the header and checks the length; the elements are read at their offsets.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidError(f"{path} cannot be read as a .npy file: {error}") from None
    if not isinstance(array, np.memmap):
        raise InvalidError(f"{path} cannot be read as a .npy file: it is an archive of several")
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return Flat(path, array.shape, array.dtype, order, array.offset, wanted)


def _open_raw(
    path: Path,
    shape: tuple[int, ...] | None,
    wanted: npt.DTypeLike | None,
    order: str,
    offset: int,
) -> Source:
    if shape is None or wanted is None:
        raise InvalidError(
            f"{path} is no .npy or HDF5 file and no Zarr directory; "
            "if it is a raw file, give shape= and dtype="
        )
    check_dtype(wanted)
    dtype = np.dtype(wanted)
    need = offset + int(np.prod(shape, dtype=object)) * dtype.itemsize
    have = path.stat().st_size
    if have < need:
        raise TruncatedError(
            f"need {need} bytes in {path} for shape {shape} of {dtype} from byte {offset} on, have "
            f"{have}; check shape=, dtype= and offset="
        )
    return Flat(path, shape, dtype, order, int(offset))
