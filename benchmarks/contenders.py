"""Libraries that store arrays as Zarr, behind one interface: outcore, TensorStore, zarr-python."""

import importlib
import importlib.util
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

import outcore as oc


def _module(name: str) -> Any:
    """Import a package, if it is installed."""
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


tensorstore, zarr = _module("tensorstore"), _module("zarr")

Box = tuple[slice, slice]
Pair = tuple[int, int]

IN_FLIGHT = 3
"""Strips in memory while reading: one in use, the others being read."""


class Store(Protocol):
    """An open array of float64."""

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        """Write a box."""

    def read(self, boxes: list[Box]) -> Iterator[npt.NDArray[Any]]:
        """Yield boxes in order, read ahead if the library can."""

    def close(self) -> None:
        """Finish all writes."""


class _Outcore:
    def __init__(self, array: oc.Array) -> None:
        self.array = array

    @classmethod
    def create(cls, path: Path, shape: Pair, chunks: Pair, shard: Any) -> "_Outcore":
        return cls(oc.create_array(path, shape, "f8", chunks=chunks))

    @classmethod
    def open(cls, path: Path) -> "_Outcore":
        return cls(oc.open_array(path))

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        self.array[box] = data

    def read(self, boxes: list[Box]) -> Iterator[npt.NDArray[Any]]:
        rows, columns = (s.stop - s.start for s in boxes[0])
        memory = (IN_FLIGHT + 1) * rows * columns * 8
        for _, data in self.array.stream(boxes, memory=memory):
            yield data

    def close(self) -> None:
        self.array.flush()
        self.array.close()


class _TensorStore:
    def __init__(self, store: Any) -> None:
        self.store = store

    @classmethod
    def create(cls, path: Path, shape: Pair, chunks: Pair, shard: Any) -> "_TensorStore":
        layout = {"read_chunk": {"shape": chunks}, "write_chunk": {"shape": shard or chunks}}
        return cls(
            tensorstore.open(
                _spec(path),
                create=True,
                dtype=tensorstore.float64,
                shape=shape,
                chunk_layout=tensorstore.ChunkLayout(layout),
            ).result()
        )

    @classmethod
    def open(cls, path: Path) -> "_TensorStore":
        return cls(tensorstore.open(_spec(path), open=True).result())

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        self.store[box].write(data).result()

    def read(self, boxes: list[Box]) -> Iterator[npt.NDArray[Any]]:
        waiting: deque[Any] = deque()
        for box in boxes:
            waiting.append(self.store[box].read())
            if len(waiting) == IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        self.store = None


def _spec(path: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}


class _Zarr:
    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def create(cls, path: Path, shape: Pair, chunks: Pair, shard: Any) -> "_Zarr":
        return cls(
            zarr.create_array(
                str(path), shape=shape, dtype="f8", chunks=chunks, shards=shard, compressors=None
            )
        )

    @classmethod
    def open(cls, path: Path) -> "_Zarr":
        return cls(zarr.open_array(str(path), mode="r"))

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        self.array[box] = data

    def read(self, boxes: list[Box]) -> Iterator[npt.NDArray[Any]]:
        for box in boxes:
            yield self.array[box]

    def close(self) -> None:
        self.array = None


@dataclass(frozen=True)
class Kind:
    """A library, and functions that create (uncompressed) and open its stores."""

    package: str
    module: Any
    create: Callable[[Path, Pair, Pair, Pair | None], Store]
    open: Callable[[Path], Store]

    def is_installed(self) -> bool:
        """Whether the package is installed."""
        return self.module is not None


CONTENDERS = {
    "outcore": Kind("outcore", oc, _Outcore.create, _Outcore.open),
    "TensorStore": Kind("tensorstore", tensorstore, _TensorStore.create, _TensorStore.open),
    "zarr-python": Kind("zarr", zarr, _Zarr.create, _Zarr.open),
}
