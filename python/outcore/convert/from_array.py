"""Copies of arrays from any supported source, as users call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.layout.casting import Casting
from outcore.storage.volumes import PathLike


def from_array(
    source: Any,
    path: PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    memory: int | str | None = None,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
) -> Array:
    """Copy an array from any supported source to disk in bounded memory.

    Parameters
    ----------
    source
        One of

        - a NumPy array, memmap, or anything that `numpy.asarray` accepts; an outcore `Array`; an
          h5py dataset; a zarr-python array; a dask array, which is computed some chunks at a time;
          any other object with ``shape``, ``dtype`` and slicing, and perhaps ``chunks``;
        - an iterator of blocks of rows, of any heights, with ``shape=``; or of single rows, with
          the whole shape;
        - the name of a ``.npy`` file;
        - the name of an HDF5 file. If it has several datasets, append ``::`` and the name of one
          (``"data.h5::run/u"``), unless a file has exactly that name;
        - the name of a Zarr array of any version and codec, or in outcore's own layout;
        - the name of a TIFF, NIfTI or Parquet file;
        - the name of any other file of plain elements, with ``shape=`` and ``dtype=``.
    path, chunks, chunk_order
        As for `create_array`.
    dtype
        Type of the elements on disk; by default that of `source`. For a raw file, the type in the
        file.
    casting
        Rule of the conversion to `dtype`. ``"same_kind"``: as NumPy does, but a number beyond the
        range of `dtype` is an error, and integers of all types convert. ``"unsafe"``: with any
        loss, as `numpy.ndarray.astype` does: float64 becomes int32, and integers wrap.
    shape
        Shape of a raw file; for an iterator, the number of rows or the whole shape.
    source_order, offset
        For a raw file: the order of its elements, and the number of bytes before the first one.
    memory
        Budget in bytes for the blocks in flight, and for the memory of the source's library beside
        them. If one pass would decode chunks of the source several times, or move short runs, the
        copy may take several passes, as in `rechunk`, if the disk has room for the array between
        them. The budget excludes the memory in which a dask graph or an iterator makes a block.
    order
        Order of elements in a chunk; by default that of `source`.
    dims, attributes
        As for `create_array`; by default those of an outcore, Zarr, HDF5 or other named source.
    if_exists
        As for `create_array`. ``"open"`` opens a whole copy of the same source, unless the source
        was written to since. It recognises a file or directory by its name, or an array. For any
        other source it compares shape, type and layout, but no elements.
    resume
        Whether to resume a stopped copy, if `source` has not changed since: a file or directory
        given by name, an array of outcore, or a zarr-python array in a directory. A copy from any
        other source restarts: from memory, a mapping, a computation, or an iterator. Without
        `resume`, a half-made copy is refused.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    Array
        The copy, open for reading and writing; its ``report`` gives the cost.

    Raises
    ------
    InvalidError
        If the source cannot be copied, its elements cannot be converted, or an iterator yields
        blocks of another width or another number of rows than announced.
    BudgetError
        If even the smallest blocks do not fit in `memory`.
    ClosedError
        If `source` belongs to a closed HDF5 file.
    NotFoundError, TruncatedError
        If a file is missing or too short, including files to which an HDF5 dataset links.
    MissingPackageError
        If the package that reads the source is not installed.
    ExistsError, DiskFullError, BusyError
        As for `create_array`.
    JournalError
        If `path` contains a half-made copy of another shape, layout or source, or `source` has
        changed since.
    Interrupted
        On Ctrl-C or SIGTERM. The unfinished copy is marked incomplete, as after any failure.
    """
    with open_source(
        source, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as opened:
        opened.warn(2)
        return copy_to_array(
            opened, path, memory=memory, chunks=chunks, order=order, chunk_order=chunk_order,
            dims=dims, attributes=attributes, if_exists=if_exists, resume=resume,
            progress=progress,
        )[0]  # fmt: skip
