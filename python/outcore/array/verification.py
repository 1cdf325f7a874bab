"""Reading of whole arrays, and checksums that show whether their bytes have changed."""

import json
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, Stream, crc32c
from outcore._util import budget
from outcore._util.progress import Meter, ProgressLike
from outcore._util.signals import stop_on_signals
from outcore._util.sizes import format_bytes
from outcore.array.array import Array, open_array
from outcore.array_files.metadata import read_generation
from outcore.errors import CorruptError
from outcore.storage.volumes import PathLike, Place

Checksums: TypeAlias = Literal["none", "matched", "stale", "recorded"]

_NAME = "outcore.checksums"
_FORMAT = 1
_AHEAD = 8

LEAST_BYTES = 1 << 20
"""Smallest memory for tiny chunks, because whole blocks of the disk are read."""


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes
    ----------
    path
        The array.
    chunks, bytes
        Number of chunks that the call read, and their bytes.
    checksums
        ``"matched"`` if every chunk was compared with its checksum. ``"stale"`` if the array was
        opened and written to since its checksums were recorded, ``"none"`` if it has none, and
        ``"recorded"`` if this call recorded them.
    """

    path: str
    chunks: int
    bytes: int
    checksums: Checksums

    def __str__(self) -> str:
        meaning = {
            "none": "read through; there are no checksums to compare with",
            "matched": "read through; every chunk matches its checksum",
            "stale": "read through; the checksums are older than the last write",
            "recorded": "read through; checksums recorded",
        }
        size = f"{self.chunks} chunks, {format_bytes(self.bytes)}"
        return f"{self.path}: {size}, {meaning[self.checksums]}"


def verify(
    path: PathLike,
    record: bool = False,
    *,
    memory: int | str | None = None,
    progress: ProgressLike = True,
) -> Verification:
    """Read every chunk of an array and compare it with its checksum, if there is one.

    Parameters
    ----------
    path
        Directory of the array.
    record
        Store the CRC-32C of each chunk beside ``zarr.json``, for later calls. First close the array
        everywhere it was written to: checksums hold until it is next opened and written to.
    memory
        Bytes for read-ahead chunks; by default eight chunks' worth, at least 1 MiB.
    progress
        Whether to show progress, or a function ``f(fraction, seconds_left)``.

    Returns
    -------
    Verification

    Raises
    ------
    CorruptError
        If a chunk differs from its checksum, with its place; or if the metadata, a shard's index or
        the checksums themselves are damaged.
    TruncatedError, NotFoundError, IncompleteError, ConsumedError
        As in `outcore.open_array`.
    """
    with open_array(path) as array:
        generation = read_generation(array.place)
        known = _read(array, generation)
        sums = _checksums(array, memory, progress, known if isinstance(known, np.ndarray) else None)
        state: Checksums = "matched" if isinstance(known, np.ndarray) else known
        if record:
            _write(array.place, generation, sums)
            state = "recorded"
        return Verification(str(array.path), len(sums), array.nbytes, state)


def _checksums(
    array: Array,
    memory: int | str | None,
    progress: ProgressLike,
    known: npt.NDArray[np.uint32] | None,
) -> npt.NDArray[np.uint32]:
    """Compute the CRC-32C of every chunk as it is on disk, in row-major order of chunks."""
    grid = array.metadata.grid()
    least = max(grid.slot_bytes * _AHEAD, LEAST_BYTES)
    memory_bytes = least if memory is None else budget.resolve(memory)
    chunk_bytes = math.prod(array.chunks) * array.dtype.itemsize
    arena = Arena(memory_bytes)
    stream = Stream(array.open_file(arena, 1), arena, memory_bytes)
    chunks = [
        [s.start // c for s, c in zip(box, array.chunks, strict=True)]
        for box in array.chunk_boxes()
    ]
    stream.extend_chunks(chunks)
    sums = np.zeros(len(chunks), np.uint32)
    with stop_on_signals(), Meter(f"verifying {array.path.name}", len(chunks), progress) as meter:
        for at in chunks:
            number = int(np.ravel_multi_index(at, grid.counts))
            sums[number] = stream.next()[0].crc32c(chunk_bytes)
            if known is not None and sums[number] != known[number]:
                shard, offset = grid.locate(at)
                raise CorruptError(
                    f"chunk {tuple(at)} of {array.path}, {chunk_bytes} bytes from {offset} on in "
                    f"{grid.shard_key(shard)}, has CRC-32C {sums[number]:08x}, was recorded with "
                    f"{known[number]:08x}; restore the file from a copy, or create the array again"
                )
            meter.advance(1)
    return sums


def _write(where: Place, generation: int, sums: npt.NDArray[np.uint32]) -> None:
    """Store a line of JSON, then the checksums as little-endian numbers."""
    data = sums.astype("<u4").tobytes()
    header = {
        "format": _FORMAT, "generation": generation, "chunks": len(sums), "crc32c": crc32c(data),
    }  # fmt: skip
    where.replace_small(_NAME, json.dumps(header).encode() + b"\n" + data)


def _read(array: Array, generation: int) -> npt.NDArray[np.uint32] | Literal["none", "stale"]:
    where, chunks = array.place, math.prod(array.metadata.grid().counts)
    if not where.exists(_NAME):
        return "none"
    line, _, data = where.volume.read_small(where.inside(_NAME)).partition(b"\n")
    try:
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']}")
        if (header["chunks"], header["crc32c"]) != (len(data) // 4, crc32c(data)):
            raise ValueError("its own checksum is wrong")
        has_grown = array.metadata.growing and header["chunks"] < chunks
        if header["generation"] != generation or has_grown:
            return "stale"
        if header["chunks"] != chunks:
            raise ValueError(f"{header['chunks']} checksums for {chunks} chunks")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{where.path / _NAME} is damaged ({error!r}); remove it and record the checksums "
            "again with oc.verify(path, record=True)"
        ) from None
    return np.frombuffer(data, "<u4")
