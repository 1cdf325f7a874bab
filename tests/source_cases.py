"""Arrays in foreign formats, and copies of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import zarr

import outcore as oc
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.report.copy_report import CopyReport

Values = npt.NDArray[Any]


def copied(source: Any, path: Path, **options: Any) -> tuple[Values, CopyReport]:
    """Copy, and check the guarantees of every copy."""
    names = ("shape", "dtype", "source_order", "offset")
    given = {name: options.pop(name) for name in names if name in options}
    with open_source(source, **given) as opened:
        array, report = copy_to_array(
            opened, path, if_exists="overwrite", progress=False, **options
        )
    assert report.peak_memory_bytes <= report.memory_bytes
    assert oc.open_array(path).info().state == "whole"
    with array:
        return array[...], report


def in_hdf5(model: Values, path: Path) -> str:
    with h5py.File(path / "a.h5", "w") as file:
        chunks = tuple(max(n // 3, 1) for n in model.shape)
        file.create_dataset("g/a", data=model, chunks=chunks, compression="gzip")
    return f"{path}/a.h5::g/a"


def in_contiguous_hdf5(model: Values, path: Path) -> Path:
    with h5py.File(path / "a.hdf5", "w") as file:
        file["a"] = model
    return path / "a.hdf5"


def in_zarr(**options: Any) -> Callable[[Values, Path], Path]:
    def make(model: Values, path: Path) -> Path:
        chunks = tuple(max(n // 3, 1) for n in model.shape)
        zarr.create_array(path / "a.zarr", data=model, chunks=chunks, overwrite=True, **options)
        return path / "a.zarr"

    return make


def in_sharded_zarr(model: Values, path: Path) -> Path:
    chunks = tuple(max(n // 3, 1) for n in model.shape)
    shards = tuple(2 * c for c in chunks)
    zarr.create_array(path / "a.zarr", data=model, chunks=chunks, shards=shards, overwrite=True)
    return path / "a.zarr"


def in_npy(model: Values, path: Path) -> Path:
    np.save(path / "a.npy", model)
    return path / "a.npy"


def in_outcore(model: Values, path: Path) -> Path:
    oc.from_array(model, path / "stored", chunks=5, if_exists="overwrite") if model.ndim == 1 else (
        oc.from_array(model, path / "stored", chunks=(3,) * model.ndim, if_exists="overwrite")
    )
    return path / "stored"


class Column:
    """A column as in pandas: its flags differ from NumPy's, and slices may mean names."""

    def __init__(self, model: Values, *, named: bool) -> None:
        self._model, self.shape, self.ndim, self.dtype = model, model.shape, 1, model.dtype
        self.flags = {"allows_duplicate_labels": True}
        if named:
            self.iloc = model

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        return self._model.astype(dtype or self.dtype)

    def __getitem__(self, rows: Any) -> Values:
        assert not hasattr(self, "iloc"), "names are none of rows"
        return self._model[rows]


class Table:
    """Named columns; iteration yields the names, as in pandas."""

    def __init__(self, model: Values) -> None:
        self._model, self.shape, self.ndim, self.iloc = model, model.shape, 2, model

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        return self._model.astype(dtype or self._model.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter("abcdefgh"[: self.shape[1]])

    def __getitem__(self, name: str) -> Values:
        return self._model[:, "abcdefgh".index(name)]
