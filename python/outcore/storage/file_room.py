"""Reserve and release a file's disk space by extents, for files that stay partly empty."""

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from outcore.errors import DiskError, DiskFullError

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_ZEROS = bytes(1 << 20)

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Extent(NamedTuple):
    """A range of bytes in a file."""

    offset: int
    length: int


def take_room(path: Path, extents: Iterable[Extent]) -> None:
    """Reserve disk space for extents, so that writes there cannot fill the disk.

    On file systems without this feature the call does nothing.

    Raises
    ------
    DiskFullError
        If the disk has too little space.
    """
    _each(path, extents, _KEEP_SIZE)


def give_back_room(path: Path, extents: Iterable[Extent]) -> None:
    """Turn extents into holes, durably: they read as zeros, and release their space if possible."""
    extents = [extent for extent in extents if extent.length]
    could = _each(path, extents, _KEEP_SIZE | _PUNCH_HOLE)
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for offset, length in [] if could else extents:
            for at in range(offset, offset + length, len(_ZEROS)):
                os.pwrite(handle, _ZEROS[: offset + length - at], at)
        os.fsync(handle)
    finally:
        os.close(handle)


def _each(path: Path, extents: Iterable[Extent], mode: int) -> bool:
    """Call ``fallocate`` on each extent; return whether the file system supports it."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for offset, length in extents:
            if not length or not _fallocate(handle, mode, offset, length):
                continue
            number = ctypes.get_errno()
            if number in (errno.EOPNOTSUPP, errno.ENOSYS):
                return False
            error = DiskFullError if number in (errno.ENOSPC, errno.EDQUOT) else DiskError
            raise error(
                f"cannot reserve {length} bytes in {path}: {os.strerror(number)}; "
                "free some room or choose another directory"
            )
    finally:
        os.close(handle)
    return True
