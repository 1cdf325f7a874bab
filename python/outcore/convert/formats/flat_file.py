"""The elements of an array in a plain file, contiguous in C or Fortran order."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.streams import Box
from outcore.errors import TruncatedError


class FlatFile:
    """Reads and writes of an array's boxes at their offsets in a file.

    Parameters
    ----------
    fd
        The open file; `close` closes it.
    name
        Name of the file in error messages.
    offset
        Number of bytes before the first element.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        order: str,
        offset: int,
    ) -> None:
        self._fd, self._name, self._offset = fd, name, offset
        self._fortran = order == "F"
        self._shape = tuple(shape)[::-1] if self._fortran else tuple(shape)
        self._dtype = dtype

    def read(self, box: Box, out: npt.NDArray[Any]) -> None:
        """Read a box into memory that is contiguous in the file's order."""
        for offset, run in self._runs(box, out):
            view, done = run.reshape(-1).view(np.uint8).data, 0
            while done < len(view):
                count = os.preadv(self._fd, [view[done:]], offset + done)
                if count == 0:
                    raise TruncatedError(
                        f"need {len(view)} bytes at {offset} in {self._name}, have {done}; "
                        "it became shorter: copy again from a file that is whole"
                    )
                done += count

    def write(self, box: Box, data: npt.NDArray[Any]) -> None:
        """Write a box that may have any order in memory."""
        for offset, run in self._runs(box, data):
            view, done = np.ascontiguousarray(run).reshape(-1).view(np.uint8).data, 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], offset + done)

    def _runs(self, box: Box, data: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the runs that are contiguous in the file: offset of the first byte, elements."""
        if self._fortran:
            box, data = box[::-1], data.T
        inner = len(box) - 1
        while inner > 0 and data.shape[inner] == self._shape[inner]:
            inner -= 1
        strides = [self._dtype.itemsize]
        for extent in self._shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        first = self._offset + sum(s.start * k for s, k in zip(box, strides, strict=True))
        for at in np.ndindex(*data.shape[:inner]):
            skipped = sum(i * k for i, k in zip(at, strides[:inner], strict=True))
            yield first + skipped, data[at]

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
