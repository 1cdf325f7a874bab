"""Files of a pool for fsspec: buffered, and visible only when they are complete."""

import contextlib
import io
import warnings
from collections import deque
from typing import Any

import numpy as np
from fsspec.spec import AbstractBufferedFile

from outcore._core import Regions
from outcore.errors import BusyError, InvalidError, NotFoundError, OutcoreError
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_future import PoolFuture
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_reading import open_current
from outcore.storage.pool_regions import ATTEMPTS
from outcore.storage.whole_file import WholeFile, copy_current

WRITES_AT_ONCE = 2
"""Number of blocks in flight to the servers while the next one is filled."""


class PoolBufferedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file opened by `OutcoreFileSystem.open`.

    A written file gets its name when it is closed, or when the transaction ends. Until then the
    name refers to the old file, or to none. If an exception leaves a ``with`` block, or a program
    forgets to close the file, the new file is discarded. Only an append to an existing file,
    outside of a transaction, writes in place.

    Parameters
    ----------
    fs
        The file system.
    where
        Its path in the pool.
    path, mode, block_size, autocommit, cache_options, kwargs
        As for `fsspec.spec.AbstractBufferedFile`.
    hints
        Layout of a new file.
    """

    DEFAULT_BLOCK_SIZE = 8 << 20
    cache: Any

    def __init__(
        self,
        fs: Any,
        where: PoolPath,
        path: str,
        mode: str,
        block_size: int | str | None,
        autocommit: bool,
        cache_options: dict[str, Any] | None,
        hints: dict[str, Any] | None,
        **kwargs: Any,
    ) -> None:
        self._where = where
        self._whole: WholeFile | None = None
        self._file: PoolFile | None = None
        self._begin = 0
        self._cache_options = cache_options or {}
        self._has_given = False
        """Whether the caller has already received bytes of the file, or its length."""
        self._writes: deque[PoolFuture[None]] = deque()
        if mode == "rb":
            self._file, nbytes = open_current(where)
            kwargs["size"] = kwargs.get("size") or nbytes
        elif mode == "ab" and autocommit and where.exists():
            self._file = where.open("r+")
            self._begin = self._file.nbytes
        elif mode in ("ab", "wb", "xb"):
            self._whole = WholeFile(where, hints, exclusive=mode == "xb")
            self._file = self._whole.file
            if mode == "ab" and where.exists():
                self._begin = copy_current(where, self._file)
        super().__init__(
            fs, path, mode, block_size, autocommit, cache_options=cache_options, **kwargs
        )
        if self.blocksize < 1:
            self.discard()
            raise InvalidError(f"need blocks of at least 1 byte, have block_size={self.blocksize}")
        self.loc = self._begin

    def write(self, data: Any) -> int:
        """Write to the end of the file, in blocks of exactly the block size."""
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            room = self.blocksize - self.buffer.tell()
            done += super().write(view[done : done + room])
        # An empty write also raises an error if the file cannot be written.
        return done or int(super().write(b""))

    def seek(self, loc: int, whence: int = 0) -> int:
        """Set the position, as `io.IOBase.seek` does."""
        self._has_given |= whence == io.SEEK_END
        return int(super().seek(loc, whence))

    def read(self, length: int = -1) -> bytes:
        """Read from the position on; read the new file if it was replaced before the first read.

        Raises
        ------
        NotFoundError
            If the file was removed, or replaced after the first read.
        """
        for _ in range(ATTEMPTS):
            try:
                data: bytes = super().read(length)
            except NotFoundError:
                if self._has_given or not self._open_again():
                    raise
            else:
                self._has_given |= bool(data)
                return data
        raise BusyError(f"{self._where} is replaced faster than it can be read; read it later")

    def _open_again(self) -> bool:
        """Open the file that has the name now, if there is one."""
        before = self._open_file()
        try:
            self._file, self.size = open_current(self._where)
        except NotFoundError:
            return False
        before.close()
        self._details = None
        self.cache = type(self.cache)(
            self.blocksize, self._fetch_range, self.size, **self._cache_options
        )
        return True

    def _upload_chunk(self, final: bool = False) -> bool:
        file = self._open_file()
        while len(self._writes) >= WRITES_AT_ONCE:
            self._writes.popleft().result()
        if self.buffer.tell():
            data = np.frombuffer(self.buffer.getbuffer(), np.uint8)
            at = self._begin + self.offset
            self._writes.append(file.start_write(Regions.contiguous(at, len(data)), data))
        if final:
            while self._writes:
                self._writes.popleft().result()
            if self._whole is None:
                self._end_in_place(file)
            elif self.autocommit:
                self._whole.commit()
        return True

    def _end_in_place(self, file: PoolFile) -> None:
        file.sync()
        # Report the time of the write to the manager. For a renamed file, it learns the time later.
        with contextlib.suppress(NotFoundError):
            self._where.root.volume.modified_ns(self._where.inside)
        file.close()

    def _fetch_range(self, start: int, end: int) -> bytes:
        file = self._open_file()
        try:
            return bytes(file.read_at(start, end - start))
        except NotFoundError:
            raise NotFoundError(
                f"{self._where} was replaced or removed while it was being read; open it again"
            ) from None

    def _open_file(self) -> PoolFile:
        if self._file is None:
            raise InvalidError(f"the mode {self.mode!r} cannot be; open it as 'rb' or 'wb'")
        return self._file

    def commit(self) -> None:
        """Give the file its name, as the end of a transaction does."""
        self.close()
        if self._whole is not None:
            self._whole.commit()

    def discard(self) -> None:
        """Discard the written data, as a failed transaction does."""
        self.closed = True
        self.forced = True
        self._writes.clear()
        if self._whole is not None:
            self._whole.discard()
        elif self._file is not None:
            with contextlib.suppress(OutcoreError):
                self._file.close()

    def close(self) -> None:
        """Finish the file, and give it its name unless a transaction will."""
        if self.closed:
            return
        try:
            super().close()
        except BaseException:
            self.discard()
            raise
        if self.mode == "rb" and self._file is not None:
            self._file.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._whole is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        if self.closed:
            return
        # An exception may have ended the program's use of the file, so it may be incomplete.
        if self._whole is not None:
            warnings.warn(
                f"{self.path} was not closed, and is discarded; close it, or open it by 'with'",
                RuntimeWarning,
                stacklevel=2,
            )
        self.discard()


class CompressedFile(io.BufferedIOBase):
    """A file that is compressed during the write; it closes the compressor and the file.

    fsspec itself closes only the compressor.
    """

    def __init__(self, compressor: Any, file: PoolBufferedFile) -> None:
        self._compressor, self._file = compressor, file

    def writable(self) -> bool:
        """Whether the file can be written: always."""
        return True

    def write(self, data: Any, /) -> int:
        """Compress data and write them."""
        return int(self._compressor.write(data))

    def flush(self) -> None:
        """Do nothing: a flush would split the compressed stream."""

    def close(self) -> None:
        """Finish the file, and give it its name unless a transaction will."""
        if self.closed:
            return
        try:
            self._compressor.close()
            self._file.close()
        except BaseException:
            self._file.discard()
            raise
        finally:
            super().close()

    def discard(self) -> None:
        """Discard the written data."""
        with contextlib.suppress(Exception):
            self._compressor.close()
        self._file.discard()
        super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        else:
            self.close()

    def __del__(self) -> None:
        # The inner file warns that it was not closed.
        with contextlib.suppress(Exception):
            if not self.closed:
                self._compressor.close()
                super().close()


class TextFile(io.TextIOWrapper):
    """A text file for writing, which is discarded if an exception leaves its ``with`` block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            file: Any = self.detach()
            file.discard()
