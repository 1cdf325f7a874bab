"""The two ends of a copy: plain files and files in pools, read and written in pieces."""

import errno
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outcore.convert.targets import writing
from outcore.errors import TruncatedError
from outcore.storage.file_status import cannot
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath

ALIGNMENT = 4096
"""Direct I/O requires offsets, lengths and memory addresses that are multiples of this."""


class End(Protocol):
    """A file, read and written in pieces from several threads."""

    def nbytes(self) -> int:
        """Length in bytes."""

    def read(self, at: int, piece: memoryview) -> None:
        """Fill a piece of memory with the bytes from `at` on."""

    def write(self, at: int, piece: memoryview) -> None:
        """Write a piece of memory from `at` on."""

    def is_hole(self, at: int, nbytes: int) -> bool:
        """Whether the file system reports these bytes as a hole, which reads as zeros."""

    def ends_at(self, nbytes: int) -> bool:
        """Whether the file has no data at or after this offset."""

    def sync(self) -> None:
        """Make all earlier writes durable."""

    def close(self) -> None:
        """Release the file."""


class PlainEnd:
    """A plain file: with direct I/O if the file system supports it, else through the page cache."""

    def __init__(self, path: Path, flags: int, permissions: int = 0) -> None:
        self._path = path
        self._file = os.open(path, flags | os.O_CLOEXEC, permissions)
        self._direct: int | None = None
        self._is_direct = True
        try:
            again = flags & ~(os.O_CREAT | os.O_EXCL)
            self._direct = os.open(path, again | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            pass  # no direct I/O here; use the page cache

    def nbytes(self) -> int:
        """See `End`."""
        return os.fstat(self._file).st_size

    def set_length(self, nbytes: int) -> None:
        """Set the length of the file; new bytes read as zeros and occupy no disk space."""
        with writing(self._path):
            os.ftruncate(self._file, nbytes)

    def read(self, at: int, piece: memoryview) -> None:
        """See `End`."""
        try:
            self._move(os.preadv, at, piece)
        except OSError as error:
            raise cannot(f"read {self._path}", error) from None

    def write(self, at: int, piece: memoryview) -> None:
        """See `End`."""
        with writing(self._path):
            self._move(os.pwritev, at, piece)

    def is_hole(self, at: int, nbytes: int) -> bool:
        """See `End`."""
        try:
            return os.lseek(self._file, at, os.SEEK_DATA) >= at + nbytes
        except OSError as error:
            return error.errno == errno.ENXIO  # no data from there to the end

    def ends_at(self, nbytes: int) -> bool:
        """See `End`. Files that the system generates on reading can exceed their length."""
        try:
            return not os.pread(self._file, 1, nbytes)
        except OSError as error:
            raise cannot(f"read {self._path}", error) from None

    def sync(self) -> None:
        """See `End`. If possible, later reads come from the disk."""
        with writing(self._path):
            os.fsync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """See `End`."""
        for handle in (self._file, self._direct):
            if handle is not None:
                os.close(handle)

    def _move(self, move: Any, at: int, piece: memoryview) -> None:
        """Transfer all bytes of a piece, with direct I/O for whole pages."""
        done = 0
        while done < len(piece):
            rest = piece[done:]
            handle, whole = self._file, len(rest) // ALIGNMENT * ALIGNMENT
            direct = self._direct if self._is_direct else None
            if direct is not None and whole and (at + done) % ALIGNMENT == 0:
                handle, rest = direct, rest[:whole]
            try:
                count = move(handle, [rest], at + done)
            except OSError as error:
                if error.errno == errno.EINVAL and handle != self._file:
                    # The sectors are larger, or the file system refuses direct I/O after all.
                    self._is_direct = False
                    continue
                raise
            if count == 0:
                raise TruncatedError(
                    f"{self._path} ends at {at + done}, need {len(piece) - done} bytes more; "
                    "it was changed while it was copied: copy it again"
                )
            done += count


class PoolEnd:
    """A file in a pool."""

    def __init__(self, path: PoolPath, file: PoolFile) -> None:
        self._path, self._file = path, file

    def nbytes(self) -> int:
        """See `End`."""
        return self._file.nbytes

    def set_length(self, nbytes: int) -> None:
        """Set the length of the file; new bytes read as zeros and occupy no disk space."""
        self._file.truncate(nbytes)

    def read(self, at: int, piece: memoryview) -> None:
        """See `End`. Servers and client verify the checksums of the data."""
        if len(piece):
            self._file.read_at(at, out=np.frombuffer(piece, np.uint8))

    def write(self, at: int, piece: memoryview) -> None:
        """See `End`. The servers verify the data, and store their checksums."""
        if len(piece):
            self._file.write_at(at, np.frombuffer(piece, np.uint8))

    def is_hole(self, at: int, nbytes: int) -> bool:
        """See `End`: a pool does not report holes."""
        return False

    def ends_at(self, nbytes: int) -> bool:
        """See `End`."""
        return self._file.nbytes <= nbytes

    def sync(self) -> None:
        """See `End`. It also reports the time of the write to the manager, before any rename."""
        self._file.sync()
        self._path.root.volume.modified_ns(self._path.inside)

    def close(self) -> None:
        """See `End`."""
        self._file.close()


def open_source(path: AnyPath) -> PlainEnd | PoolEnd:
    """Open a file for reading."""
    if isinstance(path, PoolPath):
        return PoolEnd(path, path.open("r"))
    try:
        return PlainEnd(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise cannot(f"read {path}", error) from None


def open_target(
    path: AnyPath, nbytes: int, hints: dict[str, Any], *, fresh: bool, permissions: int
) -> PlainEnd | PoolEnd:
    """Open a file for writing, and for reading it back.

    Parameters
    ----------
    nbytes
        Its final length.
    hints
        Layout of a new file in a pool.
    fresh
        Whether to create the file; else it must exist.
    permissions
        Mode of a new file, as for `os.open`.
    """
    end: PlainEnd | PoolEnd
    if isinstance(path, PoolPath):
        end = PoolEnd(
            path, path.open("x", hints, permissions=permissions) if fresh else path.open("r+")
        )
    else:
        with writing(path):
            flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if fresh else 0)
            end = PlainEnd(path, flags, permissions)
    try:
        if end.nbytes() != nbytes:
            end.set_length(nbytes)
    except BaseException:
        end.close()
        raise
    return end
