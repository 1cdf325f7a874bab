"""Files of a pool: read and written like any file, and in regions, one message a server each."""

import io
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import _core
from outcore._core import Regions, Ticket
from outcore.errors import ClosedError, InvalidError, ReadOnlyError

Bytes = npt.NDArray[np.uint8]


class PoolFile(io.RawIOBase):
    """An open file of a pool, as `Pool.open` returns it.

    What `io.RawIOBase` has, unbuffered: each call is a request to the servers. The other methods
    move many pieces by one request, which is one message to each server that has some of them.
    Those that read return a new array of bytes, or fill ``out=``, an array of any type whose
    elements they fill in C order, whatever its strides are. Those that write take any array or
    buffer.
    """

    def __init__(self, file: _core.PoolFile, name: str, *, writable: bool) -> None:
        super().__init__()
        self._file: _core.PoolFile | None = file
        self._writable = writable
        self._at = 0
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
        target = _writable_bytes(buffer)
        count = max(min(len(target), self.nbytes - self._at), 0)
        if count:
            self.start_read(Regions.contiguous(self._at, count), target[:count]).wait()
        self._at += count
        return count

    def readall(self) -> bytes:
        """Read from the position to the end of the file."""
        count = max(self.nbytes - self._at, 0)
        data = self.read_at(self._at, count)
        self._at += count
        return data.tobytes()

    def write(self, data: Any, /) -> int:
        """Write a buffer at the position; return its length in bytes."""
        source = _bytes_of(data)
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
        """Return once what was written survives power loss."""
        self._open().submit_sync().wait()

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def start_read(self, regions: Regions, out: npt.NDArray[Any]) -> Ticket:
        """Start reading regions into an array; the ticket's ``wait()`` returns when it is done."""
        _check_size(regions, out.nbytes)
        return self._open().submit_read(regions, _writable(out))

    def start_write(self, regions: Regions, data: Any) -> Ticket:
        """Start writing to regions; the data must stay as they are until it is done."""
        source = _array_of(data)
        _check_size(regions, source.nbytes)
        file = self._open()
        self._check_writable()
        return file.submit_write(regions, source)

    def read_at(
        self, offset: int, nbytes: int | None = None, *, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Read `nbytes` bytes from `offset` on, or as many as `out` has."""
        if nbytes is None and out is None:
            raise InvalidError("need nbytes, or out= to fill")
        count = out.nbytes if nbytes is None and out is not None else operator.index(nbytes or 0)
        return self._read(Regions.contiguous(offset, count), out)

    def write_at(self, offset: int, data: Any) -> None:
        """Write from `offset` on."""
        source = _array_of(data)
        self.start_write(Regions.contiguous(offset, source.nbytes), source).wait()

    def read_strided(
        self,
        location: int,
        first: int,
        group: int,
        count: int,
        stride: int,
        last: int = 0,
        *,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
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
        return self._read(Regions.strided(location, first, group, count, stride, last), out)

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
        regions = Regions.strided(location, first, group, count, stride, last)
        self.start_write(regions, data).wait()

    def read_list(
        self,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Read regions given by their first bytes and lengths (or one length for all)."""
        return self._read(_list(offsets, lengths), out)

    def write_list(self, offsets: npt.ArrayLike, lengths: npt.ArrayLike, *, data: Any) -> None:
        """Write regions given by their first bytes and lengths (or one length for all)."""
        self.start_write(_list(offsets, lengths), data).wait()

    def view(self, offset: int, group: int, stride: int) -> "FileView":
        """See groups of `group` bytes, `stride` from one to the next, as a file without gaps."""
        return FileView(self, offset, group, stride)

    def _read(self, regions: Regions, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        target = np.empty(regions.nbytes, np.uint8) if out is None else out
        self.start_read(regions, target).wait()
        return target

    def _check_writable(self) -> None:
        if not self._writable:
            raise ReadOnlyError(f"{self.name} is open for reading only; open it with mode='r+'")


class FileView:
    """A partition of a file: every so often a group of bytes, as if nothing were between them.

    Byte ``v`` of the view is byte ``offset + v // group * stride + v % group`` of the file.

    References
    ----------
    Ross et al. (2001), the partitioned-file interface of PVFS.
    """

    def __init__(self, file: PoolFile, offset: int, group: int, stride: int) -> None:
        if offset < 0 or group < 1 or stride < group:
            raise InvalidError(
                f"need an offset of at least 0 and groups of at least 1 byte in strides no "
                f"shorter, have offset {offset}, group {group}, stride {stride}"
            )
        self._file = file
        self._offset, self._group, self._stride = offset, group, stride

    def regions(self, at: int, nbytes: int) -> Regions:
        """Regions of the file that are `nbytes` bytes of the view from `at` on."""
        if at < 0 or nbytes < 0:
            raise InvalidError(f"need a position and a length of at least 0, have {at}, {nbytes}")
        number, inside = divmod(at, self._group)
        location = self._offset + number * self._stride + inside
        first = self._group - inside if inside else 0
        if nbytes <= first:
            return Regions.contiguous(location, nbytes)
        count, last = divmod(nbytes - first, self._group)
        return Regions.strided(location, first, self._group, count, self._stride, last)

    def read_at(
        self, at: int, nbytes: int | None = None, *, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Read `nbytes` bytes of the view from `at` on, or as many as `out` has."""
        if nbytes is None and out is None:
            raise InvalidError("need nbytes, or out= to fill")
        count = out.nbytes if nbytes is None and out is not None else operator.index(nbytes or 0)
        target = np.empty(count, np.uint8) if out is None else out
        self._file.start_read(self.regions(at, count), target).wait()
        return target

    def write_at(self, at: int, data: Any) -> None:
        """Write to the view from `at` on."""
        source = _array_of(data)
        self._file.start_write(self.regions(at, source.nbytes), source).wait()


def _list(offsets: npt.ArrayLike, lengths: npt.ArrayLike) -> Regions:
    starts, sizes = np.atleast_1d(offsets), np.asarray(lengths)
    for each in (starts, sizes):
        if each.size and (each.dtype.kind not in "iu" or int(each.min()) < 0):
            raise InvalidError(f"offsets and lengths are integers of at least 0, have {each!r}")
    try:
        sizes = np.broadcast_to(sizes, starts.shape)
    except ValueError:
        raise InvalidError(
            f"need a length for each of {starts.size} regions, or one for all, have {sizes.size}"
        ) from None
    return Regions.list(
        np.ascontiguousarray(starts.ravel(), np.uint64),
        np.ascontiguousarray(sizes.ravel(), np.uint64),
    )


def _array_of(data: Any) -> npt.NDArray[Any]:
    return data if isinstance(data, np.ndarray) else _bytes_of(data)


def _bytes_of(data: Any) -> Bytes:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    try:
        return np.frombuffer(memoryview(data).cast("B"), np.uint8)
    except TypeError as error:
        raise InvalidError(f"need bytes, an array or another buffer: {error}") from None


def _writable_bytes(buffer: Any) -> Bytes:
    return _writable(np.frombuffer(memoryview(buffer).cast("B"), np.uint8))


def _writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not array.flags.writeable:
        raise InvalidError("out= cannot be written to; give an array that can")
    return array


def _check_size(regions: Regions, have: int) -> None:
    if regions.nbytes != have:
        raise InvalidError(f"need memory of {regions.nbytes} bytes for the regions, have {have}")


def hints_of(hints: dict[str, Any], to_bytes: Any) -> dict[str, Any]:
    """Sort hints: ours and MPI's by our names, others kept as text under ``others``."""
    ours = {
        "stripe_unit_bytes": "unit_bytes", "striping_unit": "unit_bytes",
        "stripe_count": "count", "striping_factor": "count",
        "base": "base", "start_iodevice": "base",
    }  # fmt: skip
    found: dict[str, Any] = {"others": []}
    for name, value in hints.items():
        known = ours.get(name)
        if known is None:
            found["others"].append((str(name), str(value)))
            continue
        number = to_bytes(value) if known == "unit_bytes" else int(value)
        if number < (0 if known == "base" else 1):
            raise InvalidError(f"the hint {name} cannot be {value!r}")
        found[known] = number
    return found
