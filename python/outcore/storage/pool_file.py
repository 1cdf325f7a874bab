"""Files of a pool: binary files with a position and the methods of Python's files."""

import io
import operator
from collections.abc import Callable
from typing import Any

from outcore import _core
from outcore.errors import ArgumentTypeError, InvalidError
from outcore.storage.pool_memory import bytes_of, writable_bytes
from outcore.storage.pool_regions import PoolRegions

BUFFER_BYTES = 256 << 10
"""Largest read-ahead of methods that return lines or the available bytes, in bytes."""


class PoolFile(PoolRegions, io.BufferedIOBase, io.RawIOBase):
    """An open file of a pool, as `Pool.open` returns it.

    It has the methods of Python's binary files. `io.TextIOWrapper` decodes it as text, and
    `io.BufferedWriter` collects many small writes. The other methods move many regions by one
    request, which sends one message to each server that stores some of them.

    Methods that read return a new array of bytes. With ``out=``, an array of any type and any
    strides, they fill its elements in C order and return it. Methods that write take any array or
    buffer. A list of arrays is filled, or written, one array after the other: any regions of memory
    from or to any regions of the file. Each method has a variant with the prefix ``start_``, which
    returns a `PoolFuture` at once.

    `write`, `read`, `readinto` and `readall` send one request to the servers for each call. They
    delay nothing, and see all earlier writes of any client. `readline`, `readlines`, iteration,
    `peek` and `read1` read ahead, up to 256 KiB from the position, and buffer these bytes, which do
    not show later writes. `seek` drops the buffer, and so does any change of the file through this
    object.
    """

    def __init__(
        self,
        file: _core.PoolFile,
        name: str,
        *,
        writable: bool,
        appends: bool = False,
        mode: str = "rb",
        reopen: Callable[[], _core.PoolFile] | None = None,
    ) -> None:
        super().__init__(file, name, writable=writable, reopen=reopen)
        self.mode = mode
        self._appends = appends
        self._at = 0
        self._ahead = b""
        """Read-ahead bytes, from the position."""

    def readable(self) -> bool:
        """Whether the file can be read: always."""
        self._open()
        return True

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        self._open()
        return self._writable

    def seekable(self) -> bool:
        """Whether the file has a position: always."""
        self._open()
        return True

    def close(self) -> None:
        """Wait for pending requests, and close the file.

        Closing twice is harmless.

        Raises
        ------
        OutcoreError
            The error of a request that no call has reported yet. The file is closed regardless.
        """
        file, self._file = self._file, None
        try:
            if file is not None:
                self._claims.settle()
        finally:
            if file is not None:
                file.close()
            super().close()

    def __del__(self) -> None:
        """Drop the file without waiting for requests."""
        self._file = None

    def tell(self) -> int:
        """Return the position."""
        self._open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, relative to the start, the position or the end; return it.

        Read-ahead bytes are dropped.
        """
        self._open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise InvalidError(f"whence must be 0, 1 or 2, have {whence!r}")
        distance = _integer(offset)
        origin = 0 if whence == io.SEEK_SET else self._at
        if whence == io.SEEK_END:
            origin = self._current(self._length)
        at = origin + distance
        if at < 0:
            raise InvalidError(f"a position is at least 0, have {at}")
        self._move(at)
        return at

    def _move(self, at: int) -> None:
        self._at = at
        self._drop()

    def _advance(self, count: int) -> None:
        self._at += count
        self._ahead = self._ahead[count:]

    def _drop(self) -> None:
        """Drop the read-ahead bytes."""
        self._ahead = b""

    def _next(self, most: int | None) -> bytes:
        """Read at most `most` bytes at the position, without moving it."""
        if most == 0:
            return b""
        length = self._length()
        data = bytearray(
            max(length - self._at if most is None else min(most, length - self._at), 0)
        )
        if data:
            self.start_read_at(self._at, out=writable_bytes(data)).result()
        return bytes(data)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer from the position, up to the end of the file; return the number of bytes.

        Raises
        ------
        ArgumentTypeError
            If the object is not a writable buffer.
        """
        self._open()
        target = writable_bytes(buffer)

        def fill() -> int:
            count = max(min(len(target), self._length() - self._at), 0)
            if count:
                self.start_read_at(self._at, out=target[:count]).result()
            return count

        count = self._current(fill) if len(target) else 0
        self._advance(count)
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes from the position, fewer only at the end of the file.

        With `None` or a negative number, read to the end.
        """
        self._open()
        most = -1 if size is None else _integer(size)
        data = self._current(lambda: self._next(None if most < 0 else most))
        self._advance(len(data))
        return data

    def readall(self) -> bytes:
        """Read from the position to the end of the file."""
        return self.read()

    def peek(self, size: int = 0, /) -> bytes:
        """Return some bytes from the position without moving it; none at the end of the file.

        It makes at most one request, for any `size`.
        """
        self._open()
        if not self._ahead:
            self._ahead = self._current(lambda: self._next(BUFFER_BYTES))
        return self._ahead

    def read1(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes by at most one request; by default all read-ahead bytes."""
        most = _integer(size)
        data = self.peek() if most else b""
        data = data if most < 0 else data[:most]
        self._advance(len(data))
        return data

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read up to and including the end of a line; at most `size` bytes."""
        self._open()
        most = -1 if size is None else _integer(size)
        parts: list[bytes] = []
        while most:
            ahead = self.peek()
            end = ahead.find(b"\n") + 1
            part = ahead[: end or None]
            part = part if most < 0 else part[:most]
            self._advance(len(part))
            parts.append(part)
            most -= len(part) if most > 0 else 0
            if not part or part.endswith(b"\n"):
                break
        return b"".join(parts)

    def write(self, data: Any, /) -> int:
        """Write a buffer at the position, in mode ``"a"`` at the end; return its length in bytes.

        The end is the end at the start of this call. Clients that append to a file at the same
        moment may find the same end: then the bytes there are those of one of them.

        Raises
        ------
        ArgumentTypeError
            If the argument is no buffer, such as text.
        ReadOnlyError
            If the file was opened for reading.
        """
        self._open()
        self._check_writable()
        source = bytes_of(data)
        if self._appends:
            self.seek(0, io.SEEK_END)
        self.write_at(self._at, source)
        self._move(self._at + source.nbytes)
        return source.nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length of the file, by default to the position; the position does not move."""
        self._open()
        length = self._at if size is None else _integer(size)
        if length < 0:
            raise InvalidError(f"a length is at least 0, have {length}")
        self._check_writable()
        self._open().set_length(length)
        self._drop()
        return length


def _integer(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"need an integer, have {value!r}") from None
