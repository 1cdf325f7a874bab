"""Turn an object or a name that a user passes as a source into a `Source`."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from outcore._util.counts import is_count
from outcore._util.packages import is_a, load, require_that_of
from outcore.array.array import Array, open_array
from outcore.array_files.foreign_shards import foreign_shards
from outcore.convert.formats.hdf5_names import (
    beginning_of,
    dataset_to_read,
    is_hdf5,
    is_named_hdf5,
    refuse_special,
)
from outcore.convert.hdf5_source import (
    dataset_names,
    dataset_source,
    listed,
    open_hdf5,
)
from outcore.convert.nifti_source import is_named_nifti, open_nifti
from outcore.convert.parquet_source import MAGIC as PARQUET_MAGIC
from outcore.convert.parquet_source import SUFFIXES as PARQUET_SUFFIXES
from outcore.convert.parquet_source import open_parquet
from outcore.convert.sources import (
    Flat,
    InMemory,
    Mapped,
    Rows,
    Sliced,
    Source,
    Stored,
)
from outcore.convert.tiff_source import MAGICS as TIFF_MAGICS
from outcore.convert.tiff_source import SUFFIXES as TIFF_SUFFIXES
from outcore.convert.tiff_source import open_tiff
from outcore.convert.zarr_source import ZarrSource
from outcore.errors import ClosedError, InvalidError, NotFoundError, TruncatedError
from outcore.layout.casting import Casting, Wanted
from outcore.layout.elements import computed, refuse_masked, refuse_sparse
from outcore.layout.row_blocks import RowBlocks
from outcore.layout.slicing import check_extents, is_sliced, opening
from outcore.layout.tables import refuse_nulls, refuse_promoted
from outcore.layout.zarr_format import check_dtype, check_shape, parse
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, PathLike, as_path, place

_NPY_MAGIC, _ZIP_MAGIC = b"\x93NUMPY", b"PK"


def open_source(
    source: Any,
    *,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    source_order: str = "C",
    offset: int = 0,
    casting: Casting = "same_kind",
    takes_raw: bool = True,
) -> Source:
    """Recognise a source, and open it if it is a name.

    Parameters are those of `outcore.from_array`; `takes_raw` is false for a caller without `shape`.

    Raises
    ------
    InvalidError
        If the source cannot be copied, or the arguments do not fit it.
    NotFoundError, TruncatedError
        If the file or dataset does not exist, or ends too early.
    MissingPackageError
        If the package that reads it is not installed.
    """
    extents = None if shape is None else _extents(shape)
    _check_raw(source_order, offset)
    wanted = Wanted(dtype, casting)
    is_named = isinstance(source, str | os.PathLike)
    if not is_named:
        require_that_of(source, f"copying a {type(source).__name__}")
    opener = _opener(source, extents) if is_named else None
    if is_named and opener is None and not takes_raw:
        raise InvalidError(
            f"need a source that names its shape and type, have {source}; if it is a raw file, "
            "copy it with from_array(..., shape=, dtype=) first"
        )
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
    """Return an iterator over row blocks, if the source is one or makes one; else `None`."""
    if isinstance(source, Iterator):
        return source
    if is_a(source, "h5py", "Dataset"):  # a closed one has no shape
        return None
    others = ("shape", "__len__", "__array__", "__array_interface__")
    if isinstance(source, Iterable) and not any(hasattr(source, name) for name in others):
        return iter(source)
    return None


def _array_like(source: Any, wanted: Wanted) -> Source:
    if isinstance(source, Array):
        return Stored(source, wanted)
    if is_a(source, "h5py", "Dataset"):
        return dataset_source(source, wanted)
    _refuse_several(source)
    if isinstance(source, np.memmap):
        return Mapped(source, wanted)
    if not is_sliced(source):
        source = computed(source)
    refuse_masked(source)
    refuse_sparse(source)
    refuse_nulls(source)
    if isinstance(source, np.ndarray):
        return InMemory(source, wanted)
    if not is_sliced(source):
        try:
            array = np.asarray(source)
            if wanted.dtype is None and wanted.casting != "unsafe":
                refuse_promoted(source, array)
            return InMemory(array, wanted)
        except (ValueError, TypeError) as error:
            if isinstance(error, InvalidError):
                raise
            raise InvalidError(
                f"cannot make an array of {type(source).__name__}: {error}; for blocks of rows "
                "pass an iterator and shape="
            ) from None
    check_extents(source)
    return ZarrSource(source, wanted) if is_a(source, "zarr", "Array") else Sliced(source, wanted)


def _refuse_several(source: Any) -> None:
    """Refuse a collection of named arrays: a group of HDF5 or Zarr, an archive, a dictionary."""
    if is_a(source, "h5py", "Group"):
        if not source:
            raise ClosedError("the HDF5 file was closed; open it again, and pass a dataset of it")
        names = dataset_names(load("h5py", "reading HDF5"), source)
    elif is_a(source, "zarr", "Group"):
        names = sorted(source.array_keys())
    elif isinstance(source, Mapping):
        names = sorted(map(str, source))
    else:
        return
    raise InvalidError(
        f"need one array, have {type(source).__name__}, which holds several by name; pass one of "
        f"them: {listed(names)}"
    )


def _check_raw(order: str, offset: int) -> None:
    """Refuse an order or offset that no raw file can have."""
    if order not in ("C", "F"):
        raise InvalidError(f"the order of a raw file must be 'C' or 'F', have {order!r}")
    if not is_count(offset, 0):
        raise InvalidError(
            f"an offset is bytes before the first element, an integer of at least 0, have "
            f"{offset!r}"
        )


def _opener(source: PathLike, shape: tuple[int, ...] | None) -> Callable[[Wanted], Source] | None:
    """Return the function that opens a file or directory; `None` for a raw file."""
    where = as_path(source)
    if isinstance(where, PoolPath):
        return partial(_open_directory if where.is_dir() else _open_array, where)
    name, path = os.fspath(source), Path(source)
    if found := dataset_to_read(name):
        return partial(open_hdf5, Path(found[0]), found[1])
    if path.is_dir():
        return partial(_open_directory, path)
    if not path.exists():
        raise NotFoundError(f"there is no file {path}; check the path")
    refuse_special(path)
    magic = b"" if shape is not None else beginning_of(path)
    for is_one, open_one in (
        (is_named_nifti(name), open_nifti),
        (path.suffix.lower() in TIFF_SUFFIXES or magic.startswith(TIFF_MAGICS), open_tiff),
        (path.suffix.lower() in PARQUET_SUFFIXES or magic.startswith(PARQUET_MAGIC), open_parquet),
    ):
        if is_one:
            return partial(open_one, path)
    if path.suffix.lower() == ".npy" or magic.startswith(_NPY_MAGIC):
        return partial(_open_npy, path)
    if is_named_hdf5(name) or (shape is None and is_hdf5(path)):
        return partial(open_hdf5, path, "")
    return None


def _open_array(path: PathLike, wanted: Wanted) -> Source:
    """Open an array of outcore's own layout."""
    array = open_array(path)
    found = Stored(array, wanted)
    found.keep(array)
    return found


def _open_directory(path: AnyPath, wanted: Wanted) -> Source:
    """Open a Zarr array in outcore's own layout, or in any other."""
    if (path / "zarr.json").is_file():
        text = (path / "zarr.json").read_bytes()
        metadata = parse(text, str(path))
        if metadata is not None and not (
            metadata.state is None and foreign_shards(place(path), metadata)
        ):
            return _open_array(path, wanted)
    elif not (path / ".zarray").is_file() and not (path / ".zgroup").is_file():
        raise InvalidError(f"{path} is a directory, but no Zarr array; name an array or a file")
    zarr = load("zarr", f"reading {path}")
    where: Any = path
    if isinstance(path, PoolPath):
        where = load("outcore.zarr_store", f"reading {path}").PoolStore(path, read_only=True)
    with opening(path, "Zarr"):
        array = zarr.open(where, mode="r")
        if is_a(array, "zarr", "Group"):
            # Consolidated metadata may be older than the group.
            group = zarr.open_group(where, mode="r", use_consolidated=False)
            names = listed(sorted(group.array_keys()))
            raise InvalidError(f"{path} is a Zarr group; name one of its arrays: {names}")
        return _array_like(array, wanted)


def _open_npy(path: Path, wanted: Wanted) -> Source:
    with path.open("rb") as file:
        with opening(path, "a .npy file"):
            shape, is_fortran, dtype = _npy_header(file)
        offset, have = file.tell(), os.fstat(file.fileno()).st_size
    need = offset + math.prod(shape) * dtype.itemsize
    if have < need:
        raise TruncatedError(
            f"need {need} bytes in {path} for shape {shape} of {dtype}, have {have}; restore it "
            "from a copy"
        )
    # With one dimension of more than one element, both orders are the same.
    order = "F" if is_fortran and sum(n > 1 for n in shape) > 1 else "C"
    return Flat(path, shape, dtype, order, offset, wanted)


def _npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, order and type from the header of a .npy file, up to its elements.

    Raises
    ------
    Exception
        Any error, if the file is damaged.
    """
    if file.read(2) == _ZIP_MAGIC:
        raise ValueError("it is an archive of several; extract one, or pass np.load(path)[name]")
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version > (3, 0):
        raise ValueError(f"need a version of the format up to 3, have {version}")
    # Version 3 differs from 2 only in the encoding of field names, and numbers have no fields.
    first = version == (1, 0)
    form = np.lib.format
    shape, is_fortran, dtype = (
        form.read_array_header_1_0(file) if first else form.read_array_header_2_0(file)
    )
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, not numbers")
    return shape, is_fortran, dtype


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
