"""Targets of array copies, behind one interface that writes blocks."""

import errno
import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Ticket
from outcore._util.packages import load
from outcore._util.streams import Box, place_in
from outcore.array.array import Array
from outcore.convert.copy_plan import Cuts, Side
from outcore.convert.formats.flat_file import FlatFile
from outcore.convert.formats.hdf5_attributes import describe
from outcore.convert.formats.zarr_chunks import ZarrChunks
from outcore.convert.formats.zarr_codecs import Codec, compressor
from outcore.convert.sources import LIBRARY_BLOCKS
from outcore.errors import DiskError, DiskFullError, InvalidError, OutcoreError, ReadOnlyError
from outcore.layout.zarr_format import DIMENSIONS
from outcore.storage.volumes import AnyPath, sync_file


class UnfailingFile(io.RawIOBase):
    """A new file whose writes seem to succeed, even on a full disk; `check` raises their errors.

    After a failed write, HDF5 keeps the data, retries when the file is closed, and crashes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd, self._at = os.open(path, flags, 0o666), 0
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of it at the current position."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._at + done)
        except OSError as error:
            self._error = self._error or error
        self._at += len(view)
        return len(view)

    def readinto(self, into: Any) -> int:
        """Read from the current position. Bytes beyond the end of the file are zeros."""
        view = memoryview(into).cast("B")
        found = os.pread(self._fd, len(view), self._at)
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length, by default to the current position."""
        length = self._at if size is None else size
        try:
            os.truncate(self._fd, length)
        except OSError as error:
            self._error = self._error or error
        return length

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the current position."""
        from_end = os.fstat(self._fd).st_size if whence == os.SEEK_END else 0
        self._at = offset + (self._at if whence == os.SEEK_CUR else from_end)
        return self._at

    def tell(self) -> int:
        """Return the current position."""
        return self._at

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def writable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if not self.closed:
            super().close()
            os.close(self._fd)


_NESTED_TASKS = 4
"""Depth of zarr-python's nested tasks: the region, its chunk, codecs, the file."""


class Target(ABC):
    """An array that is written block by block.

    Attributes
    ----------
    column_major
        Whether blocks with the first dimension fastest are the best ones.
    left_out
        Names of attributes of the source that the target cannot hold.
    """

    column_major = False
    left_out: Sequence[str] = ()

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """Prepare for `write`, with buffers from the call's budget."""

    @abstractmethod
    def write(self, box: Box, data: npt.NDArray[Any]) -> Ticket | None:
        """Write a block, or start the write and return its ticket."""

    def moved(self) -> tuple[int, int] | None:
        """Return the bytes and the requests written since `begin`; `None` if not counted."""
        return None

    def moved_back(self) -> tuple[int, int]:
        """Return the bytes and the requests read from it since `begin`."""
        return 0, 0

    def finish(self) -> None:
        """Make all writes durable."""

    def abandon(self) -> None:
        """Close open files after a failure. After `finish`, it does nothing."""


class ArrayTarget(Target):
    """An array of outcore's own layout."""

    reads_ahead = True

    def __init__(self, array: Array) -> None:
        self._array = array
        self._file: ArrayFile | None = None
        self.column_major = array.metadata.chunk_order == "column-major"

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """See `Target`."""
        self._file = self._array.open_file(arena, bounce_bytes, writable=True)

    def write(self, box: Box, data: npt.NDArray[Any]) -> Ticket:
        """See `Target`."""
        assert self._file is not None, "begin comes first"
        return self._file.submit_write([s.start for s in box], [1] * len(box), data)

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket:
        """Read a box back into `out`, after `finish`."""
        assert self._file is not None, "begin comes first"
        return self._file.submit_read([s.start for s in box], [1] * len(box), out)

    def moved(self) -> tuple[int, int] | None:
        """See `Target`."""
        assert self._file is not None, "begin comes first"
        counted = self._file.counters()
        return counted[1], counted[3]

    def moved_back(self) -> tuple[int, int]:
        """See `Target`."""
        assert self._file is not None, "begin comes first"
        counted = self._file.counters()
        return counted[0], counted[2]

    def sync(self) -> Ticket:
        """Start to make all completed and pending writes durable."""
        assert self._file is not None, "begin comes first"
        return self._file.submit_sync()

    def finish(self) -> None:
        """See `Target`."""
        self.sync().wait()


class FlatTarget(Target):
    """A file of elements after `header`: ``.npy`` or raw."""

    def __init__(
        self, path: Path, shape: Sequence[int], dtype: np.dtype[Any], order: str, header: bytes
    ) -> None:
        self.column_major = order == "F"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._file = FlatFile(self._fd, str(path), shape, dtype, order, len(header))
        os.pwrite(self._fd, header, 0)
        os.ftruncate(self._fd, len(header) + math.prod(shape) * dtype.itemsize)

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        """See `Target`."""
        self._file.write(box, data)

    def finish(self) -> None:
        """See `Target`."""
        os.fsync(self._fd)
        self._file.close()

    def abandon(self) -> None:
        """See `Target`."""
        self._file.close()


class Hdf5Target(Target):
    """A dataset of chunks in an HDF5 file of its own."""

    def __init__(
        self,
        path: Path,
        dataset: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        codec: str,
        dims: tuple[str, ...] | None,
        attributes: dict[str, Any],
    ) -> None:
        h5py = load("h5py", "writing HDF5")
        self._disk = UnfailingFile(path)
        self._file = h5py.File(self._disk, "w")
        try:
            self._dataset = self._file.create_dataset(
                dataset, shape, dtype, chunks=chunks, compression=None if codec == "none" else codec
            )
            self.left_out = describe(self._dataset, dims, attributes)
        except (ValueError, TypeError) as error:
            self.abandon()
            raise InvalidError(
                f"cannot make a dataset {dataset!r} in {path.name}: {error}; choose another name"
            ) from None

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        """See `Target`."""
        self._dataset[box] = data
        self._disk.check()

    def finish(self) -> None:
        """See `Target`."""
        self._file.close()
        self._disk.check()
        os.fsync(self._disk.fileno())
        self._disk.close()

    def abandon(self) -> None:
        """See `Target`."""
        self._file.close()
        self._disk.close()


class ZarrTarget(Target):
    """A Zarr array of version 2 or 3 that zarr-python makes, and a file for each chunk."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
        order: str,
        codec: Codec,
        dims: tuple[str, ...] | None,
        attributes: dict[str, Any],
        version: Literal[2, 3] = 3,
    ) -> None:
        self.column_major = order == "F"
        zarr = load("zarr", "writing Zarr")
        self._path = path
        options = (_zarr_3 if version == 3 else _zarr_2)(codec, order, len(shape))
        if version == 3:
            options["dimension_names"] = dims
            # zarr-python would take a chunk of complex negative zeros for one of zeros.
            options["config"] = {"write_empty_chunks": dtype.kind == "c"}
        elif dims is not None:
            attributes = {**attributes, DIMENSIONS: list(dims)}
        self._array = zarr.create_array(
            path,  # as text, a name with "::" in it would be a URL
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            attributes=attributes,
            **options,
        )
        self._chunks = ZarrChunks.of(path)
        # A chunk that does not exist has the fill value, which version 2 lacks.
        self._skips_zeros = version == 3

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        """See `Target`."""
        chunks = self._chunks
        if chunks is None:
            self._array[box] = data
            return

        def write(part: Box) -> None:
            chunks.write(part, data[place_in(part, box)], skips_zeros=self._skips_zeros)

        chunks.each(write, box, LIBRARY_BLOCKS * max(data.nbytes, chunks.chunk_bytes))

    def finish(self) -> None:
        """See `Target`."""
        for above, _, names in os.walk(self._path):
            for name in names:
                sync_file(Path(above) / name)
            sync_file(Path(above))

    def abandon(self) -> None:
        """See `Target`. Pending writes must end first, because they could recreate files later."""
        load("zarr.core.sync", "writing Zarr").sync(_others_done())


def _zarr_3(codec: Codec, order: str, ndim: int) -> dict[str, Any]:
    """Return the codecs of version 3, where the order of elements is one of them."""
    codecs = load("zarr.codecs", "writing Zarr")
    transpose = codecs.TransposeCodec(order=tuple(range(ndim))[::-1])
    return {
        "filters": transpose if order == "F" and ndim > 1 else None,
        "compressors": compressor(codec, 3),
        "fill_value": 0,
    }


def _zarr_2(codec: Codec, order: str, ndim: int) -> dict[str, Any]:
    """Return the codec of version 2, one of numcodecs, a dependency of zarr-python.

    There is no fill value, because xarray treats elements that equal it as missing. So each chunk
    is written, even one of zeros.
    """
    return {
        "zarr_format": 2, "order": order, "filters": None, "compressors": compressor(codec, 2),
        "fill_value": None, "config": {"write_empty_chunks": True},
    }  # fmt: skip


async def _others_done() -> None:
    """Wait for the tasks of this event loop, and for those that they start."""
    import asyncio  # imported here because it takes a tenth of this package's import time

    for _ in range(_NESTED_TASKS):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)


def flat_side(shape: Sequence[int]) -> Side:
    """Return the constraints on blocks of a flat file: it takes any blocks."""
    return Side(tuple(Cuts(n) for n in shape))


def chunked_side(shape: Sequence[int], chunks: Sequence[int]) -> Side:
    """Return the constraints on blocks of a foreign format: whole chunks, each encoded once."""
    cuts = tuple(Cuts(n, min(c, n)) for n, c in zip(shape, chunks, strict=True))
    return Side(cuts, library_blocks=LIBRARY_BLOCKS)


@contextmanager
def writing(path: AnyPath) -> Iterator[None]:
    """Convert write errors of the system, or of a library, into outcore's errors."""
    try:
        yield
    except OutcoreError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"cannot write {path}: no room on its disk; free some room"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ReadOnlyError(
                f"cannot write {path}; check its permissions or choose another directory"
            ) from error
        raise DiskError(
            f"cannot write {path}: {error.strerror or error}; check the disk"
        ) from error
