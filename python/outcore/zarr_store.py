"""A directory of a pool as a store of zarr-python."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from outcore._util.packages import require
from outcore.errors import ExistsError, InvalidError, IsDirectoryError, NotFoundError, OutcoreError
from outcore.pool.access import PoolAccess, PoolAddress, key_file, split_url
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_parts import is_part
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_reading import read_one, read_ranges
from outcore.storage.volumes import PathLike
from outcore.storage.whole_file import make_way, write_whole

require("zarr", "a store of zarr-python's")  # older versions lack the names below

from zarr.abc.store import (  # noqa: E402
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype  # noqa: E402

__all__ = ["PoolStore"]


class PoolStore(Store):
    """A directory of a pool as a store of zarr-python: ``zarr.open(PoolStore(pool / "sim"))``.

    A value is a file. The store writes it to a temporary name, makes it durable, and renames it. So
    readers find the old value or the new one, complete. Several values are read and written in
    parallel, in threads; ranges of one value are one request.

    Parameters
    ----------
    path
        The directory: a name in a pool, or its URL. It is created if it does not exist, unless the
        store is read-only.
    read_only
        Whether the store refuses writes.
    key
        File with a key, for a URL; by default the value of the variable ``OUTCORE_KEY``.
    hints
        Layout of new files; see `outcore.Pool.open`.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(
        self,
        path: PathLike,
        *,
        read_only: bool = False,
        key: PathLike | None = None,
        hints: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(read_only=read_only)
        if isinstance(path, PoolPath):
            self._access, self._inside = PoolAccess.of(path), path.inside
        else:
            location, name = split_url(os.fspath(path))
            if location is None:
                raise InvalidError(f"{path!r} is no name in a pool; write outcore://HOST:PORT/NAME")
            self._access = PoolAccess(PoolAddress(location, key_file(key)))
            self._inside = name.strip("/")
        self._hints = hints

    @property
    def path(self) -> PoolPath:
        """The directory."""
        return PoolPath(self._access.root, self._inside)

    def with_read_only(self, read_only: bool = False) -> "PoolStore":
        """Return a store of the same directory, read-only or not."""
        return PoolStore(self.path, read_only=read_only, hints=self._hints)

    async def _open(self) -> None:
        await asyncio.to_thread(self._find_directory)
        await super()._open()

    def _find_directory(self) -> None:
        path = self.path
        if path.is_dir():
            return
        if self.read_only:
            raise NotFoundError(f"there is no directory {path}; check the path")
        make_way(path)
        with contextlib.suppress(ExistsError):  # another process created it meanwhile
            path.root.core.make_directory(path.inside)

    def __str__(self) -> str:
        return self._access.address.url_of(self._inside)

    def __repr__(self) -> str:
        return f"PoolStore('{self}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolStore) and (self._access, self._inside) == (
            other._access,
            other._inside,
        )

    def __hash__(self) -> int:
        return hash((self._access, self._inside))

    # Blocking operations; the asynchronous methods run them in threads.

    def _at(self, key: str) -> PoolPath:
        return PoolPath(self._access.root, self._inside, key)

    def _read(
        self, key: str, prototype: BufferPrototype, ranges: list[ByteRequest | None]
    ) -> list[Buffer | None]:
        """Read ranges of one value by one request."""

        def read(file: PoolFile) -> list[Buffer | None]:
            nbytes = file.nbytes
            parts = read_ranges(file, [_bounds(each, nbytes) for each in ranges])
            return [prototype.buffer.from_bytes(part.data) for part in parts]

        try:
            return read_one(self._at(key), read)
        except (NotFoundError, IsDirectoryError):
            return [None] * len(ranges)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read a value, or a range of it; `None` if it does not exist."""
        return self._read(key, prototype or default_buffer_prototype(), [byte_range])[0]

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write a value."""
        self._write(key, value, exclusive=False)

    def _write(self, key: str, value: Buffer, *, exclusive: bool) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"need a Buffer of zarr's, have {type(value).__name__}")
        write_whole(self._at(key), value.as_numpy_array(), self._hints, exclusive=exclusive)

    def delete_sync(self, key: str) -> None:
        """Remove a value, if it exists, and the directories that are then empty."""
        self._check_writable()
        path = self._at(key)
        # A directory is no value; removing an empty one is harmless.
        with contextlib.suppress(NotFoundError, ExistsError):
            path.root.core.remove_one(path.inside)
            self._remove_empty(path.parent)

    def _delete_below(self, prefix: str) -> None:
        path = self._at(prefix)
        if not path.inside:
            raise InvalidError(f"all of {self} is a pool, which is not emptied; name a directory")
        if path.is_dir():
            with contextlib.suppress(NotFoundError):
                path.root.volume.remove(path.inside)
            self._remove_empty(path.parent)

    def _remove_empty(self, directory: PoolPath) -> None:
        """Remove a directory of the store and its parents, as far as they are empty."""
        root = self.path
        with contextlib.suppress(NotFoundError, ExistsError):
            while root in directory.parents:
                directory.root.core.remove_one(directory.inside)
                directory = directory.parent

    def _names(self, directory: PoolPath) -> list[tuple[PoolPath, bool]]:
        """Return the entries of a directory, and whether each is a directory."""
        try:
            named = directory.root.core.names(directory.inside)
        except NotFoundError:
            return []
        except InvalidError:
            if directory.is_file():
                return []
            raise
        return [(directory / name, status[0]) for name, status in named if not is_part(name)]

    def _keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys with a prefix."""
        above, _, beginning = prefix.rpartition("/")
        skipped = len(self._inside) + 1 if self._inside else 0
        waiting = [
            each for each in self._names(self._at(above)) if each[0].name.startswith(beginning)
        ]
        while waiting:
            path, is_directory = waiting.pop()
            if is_directory:
                waiting += self._names(path)
            else:
                yield path.inside[skipped:]

    def _size(self, key: str) -> int:
        return read_one(self._at(key), lambda file: file.nbytes)

    # The interface of zarr's stores.

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read a value, or a range of it; `None` if it does not exist."""
        await self._opened()
        return await asyncio.to_thread(
            self.get_sync, key, prototype=prototype, byte_range=byte_range
        )

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Read ranges of values, with one request for all ranges of a value."""
        await self._opened()
        wanted = list(key_ranges)
        of_key: dict[str, list[int]] = {}
        for number, (key, _) in enumerate(wanted):
            of_key.setdefault(key, []).append(number)
        reads = [
            asyncio.to_thread(self._read, key, prototype, [wanted[number][1] for number in numbers])
            for key, numbers in of_key.items()
        ]
        found: list[Buffer | None] = [None] * len(wanted)
        for numbers, parts in zip(of_key.values(), await asyncio.gather(*reads), strict=True):
            for number, part in zip(numbers, parts, strict=True):
                found[number] = part
        return found

    async def exists(self, key: str) -> bool:
        """Whether the value exists."""
        return await asyncio.to_thread(lambda: self._at(key).is_file())

    async def set(self, key: str, value: Buffer) -> None:
        """Write a value."""
        await self._opened()
        await asyncio.to_thread(self._write, key, value, exclusive=False)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write a value unless it exists: of several concurrent calls, one writes."""
        await self._opened()
        try:
            await asyncio.to_thread(self._write, key, value, exclusive=True)
        except ExistsError:
            if not await self.exists(key):
                raise

    async def delete(self, key: str) -> None:
        """Remove a value, if it exists."""
        await self._opened()
        await asyncio.to_thread(self.delete_sync, key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove a directory and its contents."""
        await self._opened()
        self._check_writable()
        await asyncio.to_thread(self._delete_below, prefix)
        if not prefix.strip("/"):
            await asyncio.to_thread(self._find_directory)

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix."""
        for key in await asyncio.to_thread(lambda: [*self._keys(prefix)]):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names in a directory."""
        for path, _ in await asyncio.to_thread(lambda: self._names(self._at(prefix))):
            yield path.name

    async def getsize(self, key: str) -> int:
        """Return the length of a value in bytes."""
        try:
            return await asyncio.to_thread(self._size, key)
        except OutcoreError:
            if await self.exists(key):
                raise
            raise NotFoundError(f"there is no value {key} in {self}; check the key") from None

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the total bytes of all values below a directory."""
        below = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        return sum([await self.getsize(key) async for key in self.list_prefix(below)])

    async def _opened(self) -> None:
        if not self._is_open:
            # Several requests may find the store unopened at the same time.
            await asyncio.to_thread(self._find_directory)
            self._is_open = True


def _bounds(wanted: ByteRequest | None, nbytes: int) -> tuple[int, int]:
    """Return begin and end of a range, limited to the value."""
    begin, end = 0, nbytes
    if isinstance(wanted, RangeByteRequest):
        begin, end = wanted.start, wanted.end
    elif isinstance(wanted, OffsetByteRequest):
        begin = wanted.offset
    elif isinstance(wanted, SuffixByteRequest):
        begin = nbytes - wanted.suffix
    elif wanted is not None:
        raise InvalidError(
            f"Unexpected byte_range, got {wanted!r}; give a RangeByteRequest, OffsetByteRequest or "
            "SuffixByteRequest"
        )
    begin = min(max(begin, 0), nbytes)
    return begin, max(min(end, nbytes), begin)
