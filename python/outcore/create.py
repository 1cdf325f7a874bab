"""Making arrays: empty, from another array, and groups of them."""

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import Arena, ArrayFile
from outcore.array import Array, bump_generation, open_array
from outcore.errors import BudgetError, ExistsError, InvalidError
from outcore.fill import Fill, fill_array
from outcore.progress import ProgressLike
from outcore.streams import Box, WriteBehind
from outcore.volumes import PathLike, Place, place
from outcore.zarr_format import Metadata, check_dtype, default_chunks, group_json


def create_array(
    path: PathLike,
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike = "f8",
    *,
    chunks: Sequence[int] | None = None,
    order: str = "C",
    chunk_order: str | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    fill: Fill | None = None,
    overwrite: bool = False,
    reserve: bool = True,
    memory: int | str | None = None,
    threads: int = 1,
    resume: bool = True,
    progress: ProgressLike = True,
) -> Array:
    """Make an array on disk, of zeros or assembled by `fill`, and open it for reading and writing.

    Parameters
    ----------
    path
        Directory of the new array; directories above it are made.
    shape, dtype
        As for `numpy.zeros`. Any number type.
    chunks
        Shape of a chunk, the unit of I/O, at most 64 MiB. By default about 4 MiB; for a matrix with
        ``order="F"`` the tiles that LU works with.
    order
        Order of elements in a chunk: ``"C"`` or ``"F"``. Matrices to be factored want ``"F"``.
    chunk_order
        Order of chunks on disk: ``"row-major"`` (default for C), ``"column-major"`` (default for
        F), ``"hilbert"``, ``"z-order"``.
    dims
        Names of the dimensions, for xarray.
    attributes
        The user's attributes, stored in ``zarr.json``.
    fill
        Called as ``fill(rows, cols)`` (one slice a dimension) for bounded blocks; returns their
        elements. With ``threads > 1`` it is called from several threads at once.
    overwrite
        Replace what is there. Otherwise an existing array is an error, unless `fill` was stopped
        halfway and goes on.
    reserve
        Take the disk space now, so that writing cannot run out of it later.
    memory, threads, resume, progress
        Budget for the blocks of `fill`, calls of `fill` at once, whether a stopped assembly goes
        on, and whether progress is shown on the terminal.

    Returns
    -------
    Array

    Raises
    ------
    ExistsError
        If there is something at `path`.
    DiskFullError
        If the disk has no room for it.
    InvalidError
        For an unusable shape, type, order or chunk shape.
    """
    metadata = _metadata(shape, dtype, chunks, order, chunk_order, dims, attributes)
    where = place(path)
    if fill is None:
        _make(where, metadata, overwrite=overwrite, reserve=reserve)
        return open_array(path, "r+")
    return fill_array(
        where,
        metadata,
        fill,
        make=lambda: _make(where, metadata, overwrite=overwrite, reserve=reserve),
        overwrite=overwrite,
        memory=memory,
        threads=threads,
        resume=resume,
        progress=progress,
    )


def _metadata(
    shape: Sequence[int] | int,
    dtype: npt.DTypeLike,
    chunks: Sequence[int] | None,
    order: str,
    chunk_order: str | None,
    dims: Sequence[str] | None,
    attributes: dict[str, Any] | None,
) -> Metadata:
    if order not in ("C", "F"):
        raise InvalidError(f"order must be 'C' or 'F', have {order!r}")
    extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    kind = check_dtype(dtype)
    if not all(isinstance(n, int | np.integer) and n > 0 for n in extents):
        raise InvalidError(f"a shape is integers of at least 1, have {shape!r}")
    extents = tuple(int(n) for n in extents)
    if dims is not None and len(dims) != len(extents):
        raise InvalidError(f"need {len(extents)} names of dimensions, have {list(dims)}")
    given = default_chunks(extents, kind.itemsize, order) if chunks is None else chunks
    return Metadata(
        shape=extents,
        dtype=kind,
        chunks=tuple(int(c) for c in given),
        order=order,
        chunk_order=chunk_order or ("column-major" if order == "F" else "row-major"),
        dims=None if dims is None else tuple(dims),
        attributes=attributes or {},
    )


def _make(where: Place, metadata: Metadata, *, overwrite: bool, reserve: bool) -> None:
    """Make the files: shards first, ``zarr.json`` last, so that what is there is whole."""
    grid = metadata.grid()
    if where.volume.exists(where.name):
        if overwrite and (where.exists() or not os.listdir(where.path)):
            where.volume.remove(where.name)
        elif overwrite:
            raise ExistsError(
                f"{where.path} exists and is no Zarr array or group, so it is not overwritten; "
                "remove it yourself or choose another name"
            )
        elif not where.path.is_dir() or os.listdir(where.path):
            raise ExistsError(f"{where.path} exists; choose another name or pass overwrite=True")
    try:
        ArrayFile.create(where.volume, where.name, grid, reserve)
        where.volume.replace_small(where.inside("zarr.json"), metadata.to_json())
        bump_generation(where)
    except BaseException:
        with contextlib.suppress(OSError):
            where.volume.remove(where.name)
        raise


def create_group(
    path: PathLike, *, attributes: dict[str, Any] | None = None, overwrite: bool = False
) -> Path:
    """Make a Zarr group, a directory for arrays that belong together.

    ``xarray.open_zarr(path, consolidated=False)`` opens a group whose arrays have ``dims=``.
    """
    where = place(path)
    if where.exists() and not overwrite:
        raise ExistsError(f"{where.path} exists; choose another name or pass overwrite=True")
    where.volume.replace_small(where.inside("zarr.json"), group_json(attributes or {}))
    return where.path


def from_array(
    source: Any,
    path: PathLike,
    *,
    memory: int | str | None = None,
    chunks: Sequence[int] | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    dims: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Array:
    """Copy an array to disk in bounded memory.

    Parameters
    ----------
    source
        A NumPy array or memmap, an outcore `Array`, the name of a ``.npy`` file, or anything with
        ``shape``, ``dtype`` and slicing.
    path, chunks, chunk_order, dims, attributes, overwrite
        As for `create_array`.
    memory
        Bytes of the blocks that are copied at once.
    order
        Order of elements in a chunk; by default as `source` has it.

    Returns
    -------
    Array
        Open for reading and writing.
    """
    if isinstance(source, str | os.PathLike):
        source = _open_npy(source)
    if not all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__")):
        source = np.asarray(source)
    if order is None:
        flags = getattr(source, "flags", None)
        fortran = flags is not None and flags.f_contiguous and not flags.c_contiguous
        order = "F" if fortran or getattr(source, "order", "C") == "F" else "C"
    array = create_array(
        path, source.shape, source.dtype, chunks=chunks, order=order, chunk_order=chunk_order,
        dims=dims, attributes=attributes, overwrite=overwrite,
    )  # fmt: skip
    array.mark("incomplete", "copying into it was stopped; copy again with overwrite=True")
    budget_bytes = min(budget.resolve(memory), max(array.nbytes, 1) * 4 + (1 << 20))
    chunk_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if 3 * chunk_bytes > budget_bytes and memory is not None:
        raise BudgetError(
            f"need {3 * chunk_bytes} bytes to copy chunks of {chunk_bytes}, have {budget_bytes}; "
            "raise memory= or choose smaller chunks="
        )
    arena = Arena(budget_bytes)
    file = array.open_file(arena, max(budget_bytes // 2, 1), writable=True)
    with WriteBehind(file, most=max(1, budget_bytes // 2 // chunk_bytes)) as writer:
        for box in array.chunk_boxes():
            writer.write(box, _elements(source, box, array.dtype))
        writer.flush(sync=True)
    array.mark(None)
    return array


def _elements(source: Any, box: Box, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # A memmap's pages would stay in memory as long as its view is queued.
    part = source[box]
    return np.array(part, dtype) if isinstance(part, np.memmap) else np.asarray(part, dtype)


def _open_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (ValueError, OSError, EOFError) as error:
        raise InvalidError(f"{os.fspath(path)} cannot be read as a .npy file: {error}") from None
