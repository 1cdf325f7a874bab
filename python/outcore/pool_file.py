"""Files of a pool: read and written like any file, and in regions, one message a server each."""

from __future__ import annotations

import io
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import _core
from outcore._core import Regions
from outcore.errors import ClosedError, InvalidError, ReadOnlyError
from outcore.pool_future import Claims, PoolFuture
from outcore.pool_memory import (
    Memory,
    arrays_of,
    bytes_of,
    check_size,
    length_of,
    listed,
    nbytes_of,
    nested,
    regions_of,
    targets_of,
    writable_bytes,
)
from outcore.pool_view import FileView


class PoolFile(io.RawIOBase):
    """An open file of a pool, as `Pool.open` returns it.

    What `io.RawIOBase` has, unbuffered: each call is a request to the servers. The other methods
    move many pieces by one request, which is one message to each server that has some of them.
    Those that read return a new array of bytes, or fill ``out=``, an array of any type whose
    elements they fill in C order, whatever its strides are, and return that. Those that write
    take any array or buffer. A list of arrays is filled, or written, one array after the other:
    any regions of memory from or to any regions of the file. Each method has a namesake that
    begins with ``start_``, which returns a `PoolFuture` at once.
    """

    def __init__(
        self, file: _core.PoolFile, name: str, *, writable: bool, appends: bool = False
    ) -> None:
        self._file: _core.PoolFile | None = file
        self._writable = writable
        self._appends = appends
        self._at = 0
        self._claims = Claims()
        self.name = name

    def _open(self) -> _core.PoolFile:
        if self._file is None:
            raise ClosedError(f"{self.name} was closed; open it again")
        return self._file

    def readable(self) -> bool:
        """Whether the file can be read: always."""
        return True

    def writable(self) -> bool:
        """Whether the file was opened for writing."""
        return self._writable

    def seekable(self) -> bool:
        """Whether there is a position: always."""
        return True

    @property
    def nbytes(self) -> int:
        """Length of the file in bytes, as its servers know it."""
        return self._open().length()

    @property
    def handle(self) -> int:
        """Which file it is: a number that is never another's."""
        return self._open().handle

    def tell(self) -> int:
        """Return the position."""
        self._open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position: from the start, the position or the end; return it."""
        self._open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise InvalidError(f"whence must be 0, 1 or 2, have {whence!r}")
        origin = 0 if whence == io.SEEK_SET else self._at
        if whence == io.SEEK_END:
            origin = self.nbytes
        at = origin + operator.index(offset)
        if at < 0:
            raise InvalidError(f"a position is at least 0, have {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        """Read from the position into a buffer, up to the end of the file."""
        target = writable_bytes(buffer)
        count = max(min(len(target), self.nbytes - self._at), 0)
        if count:
            self.start_read_at(self._at, out=target[:count]).result()
        self._at += count
        return count

    def readall(self) -> bytes:
        """Read from the position to the end of the file."""
        count = max(self.nbytes - self._at, 0)
        data: npt.NDArray[Any] = self.read_at(self._at, count)
        self._at += count
        return data.tobytes()

    def write(self, data: Any, /) -> int:
        """Write a buffer at the position, in mode ``"a"`` at the end; return its length in bytes.

        The end is where it is when this is called. Of several who append to a file at the same
        moment, some may find the same one: the bytes there are then those of one of them.
        """
        source = bytes_of(data)
        if self._appends:
            self.seek(0, io.SEEK_END)
        self.write_at(self._at, source)
        self._at += source.nbytes
        return source.nbytes

    def truncate(self, size: int | None = None) -> int:
        """Make the file shorter or longer: by default it ends at the position."""
        length = self._at if size is None else operator.index(size)
        if length < 0:
            raise InvalidError(f"a length is at least 0, have {length}")
        self._check_writable()
        self._open().set_length(length)
        return length

    def sync(self) -> None:
        """Return once what was written, or is being written, survives power loss.

        Raises
        ------
        OutcoreError
            What went wrong; also in a request that was started before, if nobody was told of it.
        """
        self.start_sync().result()

    def close(self) -> None:
        """Wait for the requests that are under way, and let go of the file.

        Closing twice is harmless.

        Raises
        ------
        OutcoreError
            What a request failed with of which nobody was told. The file is closed all the same.
        """
        file, self._file = self._file, None
        try:
            if file is not None:
                self._claims.settle()
        finally:
            if file is not None:
                file.close()
            io.RawIOBase.close(self)

    def __del__(self) -> None:
        """Let go of the file without waiting for anything."""
        self._file = None

    def start_read(self, regions: Regions, out: Memory | None = None) -> PoolFuture[Any]:
        """Start reading regions; the future's ``result()`` is the array of what was read."""
        value = np.empty(regions.nbytes, np.uint8) if out is None else out
        targets = targets_of(value)
        check_size(regions, nbytes_of(targets))
        return self._claims.future(self._open().submit_read(regions, targets), value, self)

    def start_write(self, regions: Regions, data: Any) -> PoolFuture[None]:
        """Start writing to regions; the data must stay as they are until it is done."""
        sources = arrays_of(data)
        check_size(regions, nbytes_of(sources))
        file = self._open()
        self._check_writable()
        return self._claims.future(file.submit_write(regions, sources), None, self)

    def start_sync(self) -> PoolFuture[None]:
        """Start making durable what was written, and what is being written.

        What a request that was started before failed with, and nobody was told of, is raised by
        this future's ``result()``.
        """
        file = self._open()
        return self._claims.future_after(file.submit_sync(self._claims.under_way()), self)

    def start_read_at(
        self, offset: int, nbytes: int | None = None, *, out: Memory | None = None
    ) -> PoolFuture[Any]:
        """Start what `read_at` does."""
        return self.start_read(regions_of(Regions.contiguous, offset, length_of(nbytes, out)), out)

    def start_write_at(self, offset: int, data: Any) -> PoolFuture[None]:
        """Start what `write_at` does."""
        sources = arrays_of(data)
        return self.start_write(regions_of(Regions.contiguous, offset, nbytes_of(sources)), sources)

    def start_read_strided(
        self,
        location: int,
        first: int,
        group: int,
        count: int,
        stride: int,
        last: int = 0,
        *,
        out: Memory | None = None,
    ) -> PoolFuture[Any]:
        """Start what `read_strided` does."""
        numbers = (location, first, group, count, stride, last)
        return self.start_read(regions_of(Regions.strided, *numbers), out)

    def start_write_strided(
        self,
        location: int,
        first: int,
        group: int,
        count: int,
        stride: int,
        last: int = 0,
        *,
        data: Any,
    ) -> PoolFuture[None]:
        """Start what `write_strided` does."""
        numbers = (location, first, group, count, stride, last)
        return self.start_write(regions_of(Regions.strided, *numbers), data)

    def start_read_nested(
        self,
        location: int,
        group: int,
        levels: Sequence[tuple[int, int]],
        *,
        out: Memory | None = None,
    ) -> PoolFuture[Any]:
        """Start what `read_nested` does."""
        return self.start_read(nested(location, group, levels), out)

    def start_write_nested(
        self, location: int, group: int, levels: Sequence[tuple[int, int]], *, data: Any
    ) -> PoolFuture[None]:
        """Start what `write_nested` does."""
        return self.start_write(nested(location, group, levels), data)

    def start_read_list(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        out: Memory | None = None,
    ) -> PoolFuture[Any]:
        """Start what `read_list` does."""
        return self.start_read(listed(offsets, lengths), out)

    def start_write_list(
        self, offsets: npt.ArrayLike, lengths: npt.ArrayLike, *, data: Any
    ) -> PoolFuture[None]:
        """Start what `write_list` does."""
        return self.start_write(listed(offsets, lengths), data)

    def read_at(self, offset: int, nbytes: int | None = None, *, out: Memory | None = None) -> Any:
        """Read `nbytes` bytes from `offset` on, or as many as `out` has."""
        return self.start_read_at(offset, nbytes, out=out).result()

    def write_at(self, offset: int, data: Any) -> None:
        """Write from `offset` on."""
        self.start_write_at(offset, data).result()

    def read_strided(
        self,
        location: int,
        first: int,
        group: int,
        count: int,
        stride: int,
        last: int = 0,
        *,
        out: Memory | None = None,
    ) -> Any:
        """Read groups of bytes at regular distances.

        Parameters
        ----------
        location
            The first byte.
        first
            Bytes of a first, partial group, 0 if there is none. The next group begins
            ``stride - group`` bytes after it ends.
        group, count, stride
            Bytes of a group, the number of whole ones, and bytes from one to the next.
        last
            Bytes of a last, partial group.

        References
        ----------
        Cettei, Ligon and Ross (1997), section 3.2.
        """
        return self.start_read_strided(
            location, first, group, count, stride, last, out=out
        ).result()

    def write_strided(
        self,
        location: int,
        first: int,
        group: int,
        count: int,
        stride: int,
        last: int = 0,
        *,
        data: Any,
    ) -> None:
        """Write groups of bytes at regular distances; parameters as of `read_strided`."""
        self.start_write_strided(location, first, group, count, stride, last, data=data).result()

    def read_nested(
        self,
        location: int,
        group: int,
        levels: Sequence[tuple[int, int]],
        *,
        out: Memory | None = None,
    ) -> Any:
        """Read groups of bytes in strides inside each other: any block of a flat array.

        Parameters
        ----------
        location
            The first byte.
        group
            Bytes of a group.
        levels
            ``(count, stride)`` of each stride, from the outermost to the innermost: how many, and
            bytes from the start of one to the next. At most 16; with none it is one group.
        """
        return self.start_read_nested(location, group, levels, out=out).result()

    def write_nested(
        self, location: int, group: int, levels: Sequence[tuple[int, int]], *, data: Any
    ) -> None:
        """Write groups of bytes in strides inside each other; parameters as of `read_nested`."""
        self.start_write_nested(location, group, levels, data=data).result()

    def read_list(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        out: Memory | None = None,
    ) -> Any:
        """Read regions given by their first bytes and lengths (or one length for all)."""
        return self.start_read_list(offsets, lengths, out=out).result()

    def write_list(self, offsets: npt.ArrayLike, lengths: npt.ArrayLike, *, data: Any) -> None:
        """Write regions given by their first bytes and lengths (or one length for all)."""
        self.start_write_list(offsets, lengths, data=data).result()

    def view(self, offset: int, group: int, stride: int) -> FileView:
        """See groups of `group` bytes, `stride` from one to the next, as a file without gaps."""
        return FileView(self, offset, group, stride)

    def _check_writable(self) -> None:
        if not self._writable:
            raise ReadOnlyError(f"{self.name} is open for reading only; open it with mode='r+'")
