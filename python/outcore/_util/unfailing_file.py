"""A file for a library that does not survive a failed write."""

import io
import os
from pathlib import Path
from typing import Any


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
