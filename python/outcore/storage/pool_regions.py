"""Access to regions of a pool's file, by one message for each server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore import _core
from outcore._core import Regions
from outcore.errors import (
    BusyError,
    ClosedError,
    InvalidError,
    NotFoundError,
    ReadOnlyError,
    TruncatedError,
)
from outcore.storage.pool_future import Claims, PoolFuture
from outcore.storage.pool_memory import (
    Memory,
    arrays_of,
    check_size,
    length_of,
    listed,
    nbytes_of,
    nested,
    regions_of,
    targets_of,
)

ATTEMPTS = 100
"""Number of replacements of a file, before its first read succeeds, that count as an error."""
LARGE_BYTES = 64 << 20
"""A larger read checks the length of the file before it allocates memory."""


T = TypeVar("T")


class PoolRegions:
    """The part of a `PoolFile` that moves regions, which is documented there."""

    def __init__(
        self,
        file: _core.PoolFile,
        name: str,
        *,
        writable: bool,
        reopen: Callable[[], _core.PoolFile] | None = None,
    ) -> None:
        self._file: _core.PoolFile | None = file
        self._writable = writable
        self._claims = Claims()
        self._reopen = reopen
        """Opens the current file of this name; `None` after the first successful read."""
        self.name = name

    def _open(self) -> _core.PoolFile:
        if self._file is None:
            raise ClosedError(f"{self.name} was closed; open it again")
        return self._file

    @property
    def nbytes(self) -> int:
        """Length of the file in bytes, according to its servers."""
        return self._current(self._length)

    @property
    def handle(self) -> int:
        """Handle of the file: a number that no other file ever has."""
        return self._open().handle

    def _length(self) -> int:
        return self._open().length()

    def _current(self, ask: Callable[[], T]) -> T:
        """Return an answer of the file, or of the file that replaced it before its first answer."""
        reopen = self._reopen
        for _ in range(ATTEMPTS):
            try:
                found = ask()
            except NotFoundError:
                if reopen is None or not self._follow(reopen):
                    raise
            else:
                self._reopen = None
                return found
        raise BusyError(f"{self.name} is replaced faster than it can be read; read it again later")

    def _follow(self, reopen: Callable[[], _core.PoolFile]) -> bool:
        """Switch to the current file of the name, if it is another one."""
        old = self._open()
        with contextlib.suppress(NotFoundError):
            new = reopen()
            if new.handle != old.handle:
                self._file = new
                old.close()
                return True
            new.close()
        return False

    def _drop(self) -> None:
        """Drop the read-ahead bytes, since the file changes."""

    def sync(self) -> None:
        """Return when all completed and pending writes survive power loss.

        Raises
        ------
        OutcoreError
            The error of the sync, or of an earlier request that no call has reported yet.
        """
        self.start_sync().result()

    def start_read(self, regions: Regions, out: Memory | None = None) -> PoolFuture[Any]:
        """Start to read regions; the future's ``result()`` is the array of their bytes."""
        self._reopen = None
        if out is None and regions.nbytes > LARGE_BYTES:
            self._check_long_enough(regions.end)
        value = np.empty(regions.nbytes, np.uint8) if out is None else out
        targets = targets_of(value)
        check_size(regions, nbytes_of(targets))
        return self._claims.future(self._open().submit_read(regions, targets), value, self)

    def start_write(self, regions: Regions, data: Any) -> PoolFuture[None]:
        """Start to write regions; the data must not change until the request has ended."""
        sources = arrays_of(data)
        check_size(regions, nbytes_of(sources))
        file = self._open()
        self._check_writable()
        self._drop()
        return self._claims.future(file.submit_write(regions, sources), None, self)

    def start_sync(self) -> PoolFuture[None]:
        """Start to make all completed and pending writes durable.

        This future's ``result()`` also raises the error of an earlier request that no call has
        reported yet.
        """
        file = self._open()
        return self._claims.future_after(file.submit_sync(self._claims.under_way()), self)

    def start_read_at(
        self, offset: int, nbytes: int | None = None, *, out: Memory | None = None
    ) -> PoolFuture[Any]:
        """Start a `read_at`."""
        return self.start_read(regions_of(Regions.contiguous, offset, length_of(nbytes, out)), out)

    def start_write_at(self, offset: int, data: Any) -> PoolFuture[None]:
        """Start a `write_at`."""
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
        """Start a `read_strided`."""
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
        """Start a `write_strided`."""
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
        """Start a `read_nested`."""
        return self.start_read(nested(location, group, levels), out)

    def start_write_nested(
        self, location: int, group: int, levels: Sequence[tuple[int, int]], *, data: Any
    ) -> PoolFuture[None]:
        """Start a `write_nested`."""
        return self.start_write(nested(location, group, levels), data)

    def start_read_list(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        out: Memory | None = None,
    ) -> PoolFuture[Any]:
        """Start a `read_list`."""
        return self.start_read(listed(offsets, lengths), out)

    def start_write_list(
        self, offsets: npt.ArrayLike, lengths: npt.ArrayLike, *, data: Any
    ) -> PoolFuture[None]:
        """Start a `write_list`."""
        return self.start_write(listed(offsets, lengths), data)

    def read_at(self, offset: int, nbytes: int | None = None, *, out: Memory | None = None) -> Any:
        """Read `nbytes` bytes, or the size of `out`, from `offset`."""
        return self._current(lambda: self.start_read_at(offset, nbytes, out=out).result())

    def write_at(self, offset: int, data: Any) -> None:
        """Write data at `offset`."""
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
            Bytes of a partial first group, 0 if there is none. The next group begins
            ``stride - group`` bytes after its end.
        group, count, stride
            Bytes of a group, number of whole groups, and bytes from the start of one to the next.
        last
            Bytes of a partial last group.

        References
        ----------
        Cettei, Ligon and Ross (1997), section 3.2.
        """
        numbers = (location, first, group, count, stride, last)
        return self._current(lambda: self.start_read_strided(*numbers, out=out).result())

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
        """Write groups of bytes at regular distances; see `read_strided` for the parameters."""
        self.start_write_strided(location, first, group, count, stride, last, data=data).result()

    def read_nested(
        self,
        location: int,
        group: int,
        levels: Sequence[tuple[int, int]],
        *,
        out: Memory | None = None,
    ) -> Any:
        """Read groups of bytes in nested strides: any block of a flat array.

        Parameters
        ----------
        location
            The first byte.
        group
            Bytes of a group.
        levels
            ``(count, stride)`` of each level, from the outermost to the innermost: the number of
            repetitions, and bytes from the start of one to the next. At most 16 levels; without
            levels, one group.
        """
        return self._current(
            lambda: self.start_read_nested(location, group, levels, out=out).result()
        )

    def write_nested(
        self, location: int, group: int, levels: Sequence[tuple[int, int]], *, data: Any
    ) -> None:
        """Write groups of bytes in nested strides; see `read_nested` for the parameters."""
        self.start_write_nested(location, group, levels, data=data).result()

    def read_list(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        out: Memory | None = None,
    ) -> Any:
        """Read regions, given by their offsets and their lengths (or one length for all)."""
        return self._current(lambda: self.start_read_list(offsets, lengths, out=out).result())

    def write_list(self, offsets: npt.ArrayLike, lengths: npt.ArrayLike, *, data: Any) -> None:
        """Write regions, given by their offsets and their lengths (or one length for all)."""
        self.start_write_list(offsets, lengths, data=data).result()

    def view(self, offset: int, group: int, stride: int) -> FileView:
        """Return groups of `group` bytes, `stride` bytes apart, as a file without gaps."""
        return FileView(self, offset, group, stride)

    def _check_long_enough(self, end: int) -> None:
        length = self._length()
        if end > length:
            raise TruncatedError(
                f"need the bytes of {self.name} up to {end}; the file ends at {length}; read up to "
                "there"
            )

    def _check_writable(self) -> None:
        if not self._writable:
            raise ReadOnlyError(f"{self.name} is open for reading only; open it with mode='r+'")


class FileView:
    """A partition of a file: groups of bytes at a fixed stride, as one file without gaps.

    Byte ``v`` of the view is byte ``offset + v // group * stride + v % group`` of the file.

    References
    ----------
    Ross et al. (2001), the partitioned-file interface of PVFS.
    """

    def __init__(self, file: PoolRegions, offset: int, group: int, stride: int) -> None:
        if not all(isinstance(number, Integral) for number in (offset, group, stride)) or (
            offset < 0 or group < 1 or stride < group
        ):
            raise InvalidError(
                f"need an offset of at least 0 and groups of at least 1 byte in strides no "
                f"shorter, have offset {offset!r}, group {group!r}, stride {stride!r}"
            )
        self._file = file
        self._offset, self._group, self._stride = int(offset), int(group), int(stride)

    def regions(self, at: int, nbytes: int) -> Regions:
        """Return the regions of the file for `nbytes` bytes of the view at `at`."""
        if not isinstance(at, Integral) or not isinstance(nbytes, Integral) or at < 0 or nbytes < 0:
            raise InvalidError(
                f"need a position and a length, integers of at least 0, have {at!r}, {nbytes!r}"
            )
        number, inside = divmod(int(at), self._group)
        location = self._offset + number * self._stride + inside
        first = self._group - inside if inside else 0
        if nbytes <= first:
            return regions_of(Regions.contiguous, location, nbytes)
        count, last = divmod(nbytes - first, self._group)
        return regions_of(Regions.strided, location, first, self._group, count, self._stride, last)

    def start_read_at(
        self, at: int, nbytes: int | None = None, *, out: Memory | None = None
    ) -> PoolFuture[Any]:
        """Start a `read_at`."""
        return self._file.start_read(self.regions(at, length_of(nbytes, out)), out)

    def start_write_at(self, at: int, data: Any) -> PoolFuture[None]:
        """Start a `write_at`."""
        source = arrays_of(data)
        return self._file.start_write(self.regions(at, nbytes_of(source)), source)

    def read_at(self, at: int, nbytes: int | None = None, *, out: Memory | None = None) -> Any:
        """Read `nbytes` bytes of the view, or the size of `out`, at `at`."""
        return self._file._current(lambda: self.start_read_at(at, nbytes, out=out).result())

    def write_at(self, at: int, data: Any) -> None:
        """Write data to the view at `at`."""
        self.start_write_at(at, data).result()
