"""A file of a pool as a stream of bytes, with a position and the methods of Python's files."""

import io
import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from outcore.errors import ArgumentTypeError, InvalidError
from outcore.storage.pool_memory import Bytes, bytes_of, writable_bytes

BUFFER_BYTES = 256 << 10
"""Largest read-ahead of methods that return lines or the available bytes, in bytes."""


T = TypeVar("T")


class PoolStream(io.BufferedIOBase, io.RawIOBase):
    """The part of a `PoolFile` that has a position.

    `write`, `read`, `readinto` and `readall` send one request to the servers for each call. They
    delay nothing, and see all earlier writes of any client. `readline`, `readlines`, iteration,
    `peek` and `read1` read ahead, up to 256 KiB from the position, and buffer these bytes, which do
    not show later writes. `seek` drops the buffer, and so does any change of the file through this
    object.
    """

    def __init__(self, *, appends: bool) -> None:
        self._appends = appends
        self._at = 0
        self._ahead = b""
        """Read-ahead bytes, from the position."""

    @abstractmethod
    def _length(self) -> int:
        """Ask the servers for the length of the file."""

    @abstractmethod
    def _current(self, ask: Callable[[], T]) -> T:
        """Return an answer of the file, or of the file that replaced it before its first answer."""

    @abstractmethod
    def _fill(self, offset: int, target: Bytes) -> None:
        """Read from an offset of the file into memory."""

    @abstractmethod
    def _put(self, offset: int, source: Bytes) -> None:
        """Write at an offset of the file."""

    @abstractmethod
    def _cut(self, length: int) -> None:
        """Set the length of the file."""

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse every call after the file was closed."""

    @abstractmethod
    def _check_writable(self) -> None:
        """Refuse to change a file that was opened for reading."""

    def tell(self) -> int:
        """Return the position."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, relative to the start, the position or the end; return it.

        Read-ahead bytes are dropped.
        """
        self._check_open()
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
            self._fill(self._at, writable_bytes(data))
        return bytes(data)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer from the position, up to the end of the file; return the number of bytes.

        Raises
        ------
        ArgumentTypeError
            If the object is not a writable buffer.
        """
        self._check_open()
        target = writable_bytes(buffer)

        def fill() -> int:
            count = max(min(len(target), self._length() - self._at), 0)
            if count:
                self._fill(self._at, target[:count])
            return count

        count = self._current(fill) if len(target) else 0
        self._advance(count)
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes from the position, fewer only at the end of the file.

        With `None` or a negative number, read to the end.
        """
        self._check_open()
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
        self._check_open()
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
        self._check_open()
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
        self._check_open()
        self._check_writable()
        source = bytes_of(data)
        if self._appends:
            self.seek(0, io.SEEK_END)
        self._put(self._at, source)
        self._move(self._at + source.nbytes)
        return source.nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """Set the length of the file, by default to the position; the position does not move."""
        self._check_open()
        length = self._at if size is None else _integer(size)
        if length < 0:
            raise InvalidError(f"a length is at least 0, have {length}")
        self._check_writable()
        self._cut(length)
        self._drop()
        return length


def _integer(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"need an integer, have {value!r}") from None
