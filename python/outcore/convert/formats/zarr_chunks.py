"""Chunks of Zarr arrays in directories: a file each, which threads decode or encode.

zarr-python moves all chunks through one thread, which copies and compares them. Here, a thread does
all the work on a chunk, and NumPy and the codecs of numcodecs release the interpreter's lock.
Arrays that are not of the common kinds, such as those of shards, are left to zarr-python.

Source: the specifications of Zarr, versions 2 and 3.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._util.at_once import at_once
from outcore._util.packages import load
from outcore._util.streams import Box
from outcore.errors import CorruptError

CHUNKS_IN_THREAD = 2
"""Memory of a thread, in chunks: the elements of one, and its encoded bytes."""

_AT_ONCE = 1024
"""Chunks for which threads are started together."""

_CODECS = ("zstd", "gzip", "blosc", "zlib", "lz4")
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_UNUSUAL = (OSError, LookupError, TypeError, ValueError, AttributeError)
"""Errors for metadata of another kind than those that are expected."""


@dataclass(frozen=True)
class ZarrChunks:
    """The chunks of an array in a directory.

    Attributes
    ----------
    directory, prefix, separator
        The place and the parts of a chunk's name.
    shape, chunks, dtype, order
        Layout of the elements; an uneven chunk at an end of the array is stored as a whole one.
    codec
        Codec of numcodecs, or `None`.
    """

    directory: Path
    prefix: tuple[str, ...]
    separator: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    codec: Any

    @classmethod
    def of(cls, directory: Path) -> "ZarrChunks | None":
        """Read the metadata of an array; the result is `None` if it is not of a common kind."""
        try:
            if (directory / "zarr.json").exists():
                found = cls(directory, **_version_3(directory))
            else:
                found = cls(directory, **_version_2(directory))
            is_common = found.dtype.kind in "biufc" and found.order in ("C", "F")
            return found if is_common and all(found.shape) and all(found.chunks) else None
        except _UNUSUAL:
            return None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the elements of a chunk."""
        return int(np.prod(self.chunks, dtype=object)) * self.dtype.itemsize

    def each(self, call: Callable[[Box], object], box: Box, memory_bytes: int) -> None:
        """Call a function for the part of each chunk in a box, in as many threads as fit in memory.

        All calls have ended when this returns or raises.
        """
        # More threads than processors, because some wait for the disk.
        most = 2 * len(os.sched_getaffinity(0))
        fitting = memory_bytes // (CHUNKS_IN_THREAD * self.chunk_bytes)
        parts = self._parts(box)
        while some := list(itertools.islice(parts, _AT_ONCE)):
            at_once(call, some, max(min(fitting, most), 1))

    def _parts(self, box: Box) -> Iterator[Box]:
        """Cut a box where chunks end."""
        return itertools.product(
            *(
                [
                    slice(max(at, s.start), min(at + c, s.stop))
                    for at in range(s.start // c * c, s.stop, c)
                ]
                for s, c in zip(box, self.chunks, strict=True)
            )
        )

    def read(self, part: Box) -> npt.NDArray[Any]:
        """Return elements of one chunk.

        Raises
        ------
        CorruptError
            If a chunk of Blosc has another length than it says, which the codec does not notice.
        Exception
            Any error of the system or the codec, also if the chunk was never written.
        """
        path = self._path(part)
        data = path.read_bytes()
        if self.codec is not None:
            length = int.from_bytes(data[12:16], "little")
            if self.codec.codec_id == "blosc" and length != len(data):
                raise CorruptError(
                    f"cannot decode {path}: it has {len(data)} bytes, its header says {length}; "
                    "restore it from a copy"
                )
            data = self.codec.decode(data)
        chunk = np.frombuffer(data, self.dtype).reshape(self.chunks, order=self.order)
        return chunk[tuple(_inside(s, c) for s, c in zip(part, self.chunks, strict=True))]

    def write(self, part: Box, data: npt.NDArray[Any], *, skips_zeros: bool) -> None:
        """Write a chunk, all of its elements in the array, and make it durable.

        Raises
        ------
        OSError
            If the disk is full, or another error of the system.
        """
        if data.shape != self.chunks:
            given, data = data, np.zeros(self.chunks, self.dtype, self.order)
            data[tuple(slice(0, n) for n in given.shape)] = given
        elements = np.ravel(data.astype(self.dtype, copy=False), order=self.order)
        if skips_zeros and _is_zero(elements.view(np.uint8)):
            return
        stored: Any = elements if self.codec is None else self.codec.encode(elements)
        path = self._path(part)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(stored)
            file.flush()
            # Now, while other threads compute; at the end, all files would wait for the disk.
            os.fsync(file.fileno())
            # The next chunks use this memory again, as nobody reads the copy soon.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _path(self, part: Box) -> Path:
        cell = [str(s.start // c) for s, c in zip(part, self.chunks, strict=True)]
        return self.directory / (self.separator.join([*self.prefix, *cell]) or "0")


def _is_zero(data: npt.NDArray[np.uint8]) -> bool:
    """Whether all bytes are zero; a few of them tell for most data."""
    return not data[:: data.size // 64 + 1].any() and not data.any()


def _inside(piece: slice, chunk: int) -> slice:
    first = piece.start // chunk * chunk
    return slice(piece.start - first, piece.stop - first)


def _version_3(directory: Path) -> dict[str, Any]:
    """Parse ``zarr.json``; any error of `_UNUSUAL` says that the array is of another kind."""
    about = json.loads((directory / "zarr.json").read_bytes())
    shape, grid, naming = about["shape"], about["chunk_grid"], about["chunk_key_encoding"]
    if grid["name"] != "regular" or about.get("storage_transformers"):
        raise ValueError("another kind of chunks")
    prefix, separator = {"default": (("c",), "/"), "v2": ((), ".")}[naming["name"]]
    order, codecs = "C", list(about["codecs"])
    if codecs[0]["name"] == "transpose":
        axes = list(codecs.pop(0)["configuration"]["order"])
        order = {tuple(range(len(shape))): "C", tuple(range(len(shape)))[::-1]: "F"}[tuple(axes)]
    to_bytes, *compressors = codecs
    if to_bytes["name"] != "bytes" or len(compressors) > 1:
        raise ValueError("other codecs")
    endian = {"little": "<", "big": ">"}[_options(to_bytes).get("endian", "little")]
    return {
        "prefix": prefix,
        "separator": _options(naming).get("separator", separator),
        "shape": tuple(shape),
        "chunks": tuple(grid["configuration"]["chunk_shape"]),
        "dtype": np.dtype(about["data_type"]).newbyteorder(endian),
        "order": order,
        "codec": _codec({"id": compressors[0]["name"], **_options(compressors[0])})
        if compressors
        else None,
    }  # fmt: skip


def _options(about: dict[str, Any]) -> dict[str, Any]:
    return dict(about.get("configuration") or {})


def _version_2(directory: Path) -> dict[str, Any]:
    """Parse ``.zarray``, as `_version_3` does."""
    about = json.loads((directory / ".zarray").read_bytes())
    if about["filters"]:
        raise ValueError("other codecs")
    return {
        "prefix": (),
        "separator": about.get("dimension_separator", "."),
        "shape": tuple(about["shape"]),
        "chunks": tuple(about["chunks"]),
        "dtype": np.dtype(about["dtype"]),
        "order": about["order"],
        "codec": None if about["compressor"] is None else _codec(about["compressor"]),
    }


def _codec(about: dict[str, Any]) -> Any:
    """Return a codec of numcodecs, a dependency of zarr-python."""
    if about["id"] not in _CODECS:
        raise ValueError("another codec")
    options: dict[str, Any] = dict(about)
    if about["id"] == "blosc":
        # Version 3 names the shuffle, and the type of the elements, which numcodecs sees itself.
        options.pop("typesize", None)
        options["shuffle"] = _SHUFFLES.get(about["shuffle"], about["shuffle"])
    return load("numcodecs", "reading Zarr").get_codec(options)
