"""Consistent reads of pool files that other processes may replace at the same time."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from outcore.errors import (
    BusyError,
    InvalidError,
    IsDirectoryError,
    NotFoundError,
)
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_memory import Bytes
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_regions import ATTEMPTS


def open_to_read(path: PoolPath) -> PoolFile:
    """Open a file to read it.

    Raises
    ------
    IsDirectoryError
        If it is a directory.
    """
    try:
        return path.open()
    except InvalidError:
        if path.is_dir():
            raise IsDirectoryError(f"{path} is a directory; name a file") from None
        raise


def open_current(path: PoolPath) -> tuple[PoolFile, int]:
    """Open a file that others may replace at the same time; return it and its length."""
    for _ in range(ATTEMPTS):
        file = open_to_read(path)
        try:
            return file, file.nbytes
        except NotFoundError:
            file.close()
    raise _replaced(path)


T = TypeVar("T")


def read_one(path: PoolPath, read: Callable[[PoolFile], T]) -> T:
    """Read a file that others may replace, with all data from one version of it."""
    for _ in range(ATTEMPTS):
        # A file that was replaced or removed meanwhile raises NotFoundError.
        with open_to_read(path) as file, contextlib.suppress(NotFoundError):
            return read(file)
    raise _replaced(path)


def steadily(path: PoolPath, look: Callable[[], T]) -> T:
    """Call `look` until the file of a name has not been replaced during the call."""
    for _ in range(ATTEMPTS):
        handle = path.root.core.handle(path.inside)
        found = look()
        if path.root.core.handle(path.inside) == handle:
            return found
    raise _replaced(path)


def _replaced(path: PoolPath) -> BusyError:
    return BusyError(f"{path} is replaced faster than it can be read; read it again later")


def read_ranges(file: PoolFile, ranges: list[tuple[int, int]]) -> list[Bytes]:
    """Read byte ranges, given by their begins and ends, from a file by one request."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    begins, lengths = bounds[:, 0], np.maximum(bounds[:, 1] - bounds[:, 0], 0)
    some = lengths > 0
    data: Bytes = np.empty(int(lengths.sum()), np.uint8)
    if some.any():
        file.read_list(begins[some], lengths[some], out=data)
    ends = np.cumsum(lengths)
    return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]
