"""The block interface over a plain file of records of one size."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore._util.counts import count_of
from outcore.blocks.blocks import Blocks
from outcore.blocks.cache import Claim, check_buffers, check_memory
from outcore.errors import (
    DiskError,
    DiskFullError,
    ExistsError,
    InvalidError,
    IsDirectoryError,
    NotFoundError,
    OutcoreError,
    ReadOnlyError,
    TruncatedError,
)
from outcore.layout.block_grid import Arrangement, BlockGrid, Coordinates, Memory, sizes
from outcore.storage.volumes import PathLike, local_path, sync_names

_FLAGS = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


_MOST_RECORD_BYTES = (1 << 31) - 1
"""Largest element that NumPy supports."""


class BlockInterface(Blocks):
    """A plain file as an array of records in row-major order, accessed by blocks.

    The interface of Cettei, Ligon & Ross 1997, section 3: D dimensions, the size of a record, D
    pairs of block size and block count, and D factors for the size of superblocks. `Blocks`
    describes its methods. One request reads a superblock. Its parts in the file form a nested
    stride, which a background thread reads one after another. Transfers go through the page cache.

    Parameters
    ----------
    file
        Path of the file. The records begin at the first byte. Bytes after the last record stay
        unchanged.
    record_bytes
        Size of a record in bytes: rs in the paper. Optional if ``dtype`` is given.
    block, blocks
        Records of a block, and blocks in the file, along each dimension: ne_i and nb_i. The
        dimensions are in NumPy's order: the last one varies fastest in the file.
    superblock
        Blocks of a superblock along each dimension: bf_i. By default 1.
    buffers, pin, memory, read_ahead
        As for `Array.blocks`.
    dtype
        NumPy type of a record of `record_bytes`; by default raw bytes, ``V{record_bytes}``.
    mode
        ``"r"`` to read, ``"r+"`` to read and write, ``"x"`` to make a new file of zeros, for
        reading and writing.

    Raises
    ------
    InvalidError
        For impossible sizes, a type of another size than `record_bytes`, or a path that is not a
        plain file.
    NotFoundError, ExistsError, ReadOnlyError
        If the file does not exist, already exists (``"x"``), or cannot be written.
    TruncatedError
        If the file is too short for its blocks.
    DiskFullError
        If the disk has no room for a new file.
    BudgetError
        If `memory` does not hold the buffers, or there are more pins than buffers.

    Examples
    --------
    Figure 4 of the paper: 9 rows of 12 records of 500 bytes, blocks of 3 rows by 2 records, two
    of them in a superblock.

    >>> import outcore as oc
    >>> B = oc.BlockInterface(
    ...     "f.bin", record_bytes=500, block=(3, 2), blocks=(3, 6), superblock=(1, 2), mode="x"
    ... )
    >>> B[0, 2].shape
    (3, 2)
    >>> B[0, 3].nbytes  # from the buffer: it is in the same superblock
    3000
    >>> B.stats.reads
    1
    >>> B.close()
    """

    def __init__(
        self,
        file: PathLike,
        *,
        block: Sequence[int] | int,
        blocks: Sequence[int] | int,
        record_bytes: int | None = None,
        superblock: Sequence[int] | int | None = None,
        buffers: int = 2,
        pin: Any = None,
        memory: int | str | None = None,
        dtype: npt.DTypeLike | None = None,
        mode: Literal["r", "r+", "x"] = "r",
        read_ahead: bool = True,
    ) -> None:
        if mode not in _FLAGS:
            raise InvalidError(f"mode must be 'r', 'r+' or 'x', have {mode!r}")
        dims = _dimensions(block, blocks)
        extents, counts = sizes("block", block, dims), sizes("blocks", blocks, dims)
        shape = tuple(e * n for e, n in zip(extents, counts, strict=True))
        grid = BlockGrid.of(shape, extents, superblock)
        arrangement = Arrangement(grid, _record(record_bytes, dtype), "C", by_block=False)
        buffers = check_buffers(buffers, grid)
        memory_bytes = check_memory(memory, buffers, arrangement.buffer_bytes)
        path = local_path(file, "files of records are")
        arena = Arena(memory_bytes)
        store = FileStore(path, arrangement, mode)
        try:
            super().__init__(
                store,
                arena,
                name=str(path),
                buffers=buffers,
                pin=pin,
                writable=mode != "r",
                read_ahead=read_ahead,
            )
        except BaseException:
            store.close()
            if mode == "x":
                path.unlink()
            raise


def _dimensions(*given: Sequence[int] | int) -> int:
    many = [len(one) for one in given if isinstance(one, Sequence | np.ndarray)]
    return max(many[0], 1) if many else 1


def _record(record_bytes: int | None, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the NumPy type of a record."""
    if record_bytes is not None:
        count_of("record_bytes", record_bytes)
    if dtype is None:
        if record_bytes is None:
            raise InvalidError(
                "need record_bytes, the size of a record, or its dtype; have neither"
            )
        if record_bytes > _MOST_RECORD_BYTES:
            raise InvalidError(
                f"need record_bytes of {_MOST_RECORD_BYTES} at most, have {record_bytes}; divide "
                "the records"
            )
        return np.dtype(f"V{record_bytes}")
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise InvalidError(f"{dtype!r} is not a NumPy type: {error}") from None
    if found.hasobject or found.itemsize == 0 or found.subdtype is not None:
        raise InvalidError(f"need a type of plain bytes for a record, have {found}")
    if record_bytes is not None and found.itemsize != record_bytes:
        raise InvalidError(
            f"need a dtype of record_bytes={record_bytes}, have {found} of {found.itemsize} bytes"
        )
    return found


class _FutureClaim:
    """A request to the background thread."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether the request has ended."""
        return self._future.done()

    def wait(self) -> None:
        """Wait for the request, and raise its error."""
        try:
            self._future.result()
        finally:
            del self  # the error is in no cycle with this frame


class FileStore:
    """The superblocks of a plain file.

    One thread executes the requests in the order of their submission.
    """

    def __init__(self, path: Path, arrangement: Arrangement, mode: str) -> None:
        self._path = path
        self._arrangement = arrangement
        self._is_new = mode == "x"
        shape, record_bytes = arrangement.grid.shape, arrangement.dtype.itemsize
        self._strides = [math.prod(shape[dim + 1 :]) * record_bytes for dim in range(len(shape))]
        need = math.prod(shape) * record_bytes
        try:
            # O_NONBLOCK, because opening a pipe would block.
            handle = os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise _error(error, "open", path) from None
        try:
            self._file = os.fdopen(handle, "rb" if mode == "r" else "r+b", buffering=0)
        except OSError as error:  # a directory, which the system opens for reading
            os.close(handle)
            raise _error(error, "open", path) from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise InvalidError(
                    f"{path} is a pipe, a device or the like; name a plain file of records"
                )
            if mode == "x":
                self._reserve(need)
            have = os.fstat(handle).st_size
            if have < need:
                raise TruncatedError(
                    f"need {need} bytes in {path} for an array of {shape} records of "
                    f"{record_bytes} bytes, have {have}; give its true block sizes and counts"
                )
        except OutcoreError:
            self._file.close()
            raise
        self._thread = ThreadPoolExecutor(1, "outcore-blocks")

    @property
    def arrangement(self) -> Arrangement:
        """Positions of blocks in the file and in a buffer."""
        return self._arrangement

    def read(self, superblock: Coordinates, memory: Memory) -> Claim:
        """Start reading a superblock."""
        parts = self._arrangement.parts(superblock, memory)
        return self._submit("read", lambda: self._move(self._read_run, parts))

    def write(self, superblock: Coordinates, memory: Memory, blocks: set[Coordinates]) -> Claim:
        """Start writing blocks of a superblock."""
        parts = self._arrangement.parts(superblock, memory, blocks)
        return self._submit("write", lambda: self._move(self._write_run, parts))

    def sync(self) -> Claim:
        """Start making all earlier writes durable, and the name of a new file."""
        return self._submit("sync", self._sync)

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        if self._is_new:
            sync_names(self._path.parent)
            self._is_new = False

    def close(self) -> None:
        """Close the file after the last request has ended."""
        self._thread.shutdown()
        self._file.close()

    def _submit(self, verb: str, work: Callable[[], None]) -> Claim:
        def run() -> None:
            try:
                work()
            except OSError as error:
                if isinstance(error, OutcoreError):
                    raise
                raise _error(error, verb, self._path) from None

        try:
            return _FutureClaim(self._thread.submit(run))
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            done: Future[None] = Future()
            try:
                run()
                done.set_result(None)
            except OutcoreError as error:
                done.set_exception(error)
            return _FutureClaim(done)

    def _move(
        self,
        move: Callable[[int, memoryview], None],
        parts: list[tuple[Coordinates, npt.NDArray[Any]]],
    ) -> None:
        for start, part in parts:
            for offset, run in self._runs(start, part):
                move(offset, run)

    def _runs(self, start: Coordinates, part: npt.NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Yield the runs of bytes that are contiguous in the file, a nested stride."""
        whole = self._arrangement.grid.shape
        dim = part.ndim - 1  # a run extends over all whole dimensions
        while dim > 0 and part.shape[dim] == whole[dim]:
            dim -= 1
        offset = sum(a * stride for a, stride in zip(start, self._strides, strict=True))
        for at in np.ndindex(part.shape[:dim]):
            within = sum(i * stride for i, stride in zip(at, self._strides, strict=False))
            yield offset + within, part[at].reshape(-1).view(np.uint8).data

    def _read_run(self, offset: int, run: memoryview) -> None:
        while len(run):
            count = os.preadv(self._file.fileno(), [run], offset)
            if count == 0:
                raise TruncatedError(
                    f"cannot read {len(run)} bytes from {offset} on in {self._path}: the file ends "
                    "there; restore it from a copy"
                )
            offset, run = offset + count, run[count:]

    def _write_run(self, offset: int, run: memoryview) -> None:
        while len(run):
            count = os.pwritev(self._file.fileno(), [run], offset)
            offset, run = offset + count, run[count:]

    def _reserve(self, need: int) -> None:
        """Reserve the disk space of a new file, so that later writes cannot fill the disk."""
        try:
            # If the space does not suffice, take none of it, not even briefly.
            disk = os.fstatvfs(self._file.fileno())
            have = disk.f_bavail * disk.f_frsize
            if need > have:
                raise DiskFullError(
                    f"need {need} bytes on disk for {self._path}; {have} are free; free some room "
                    "or choose another directory"
                )
            os.posix_fallocate(self._file.fileno(), 0, need)
        except OSError as error:
            self._path.unlink()
            if isinstance(error, OutcoreError):
                raise
            raise _error(error, "reserve room for", self._path) from None


def _error(error: OSError, verb: str, path: Path) -> OutcoreError:
    """Return outcore's error for an error of the operating system."""
    if error.errno == errno.ENOENT:
        return NotFoundError(f'there is no file {path}; make it with mode="x"')
    if error.errno == errno.EEXIST:
        return ExistsError(f'{path} exists; open it with mode="r+", or choose another name')
    if error.errno == errno.EISDIR:
        return IsDirectoryError(f"{path} is a directory; name a file of records")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyError(f'cannot {verb} {path}: {error.strerror}; open it with mode="r"')
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"cannot {verb} {path}: {error.strerror}; free some room")
    return DiskError(f"cannot {verb} {path}: {error.strerror}; check the file and its disk")
