"""Views of a pool's file: strided parts that look like files without gaps."""

from numbers import Integral
from typing import TYPE_CHECKING, Any

from outcore._core import Regions
from outcore.errors import InvalidError
from outcore.storage.pool_future import PoolFuture
from outcore.storage.pool_memory import Memory, arrays_of, length_of, nbytes_of, regions_of

if TYPE_CHECKING:
    from outcore.storage.pool_file import PoolFile


class FileView:
    """A partition of a file: groups of bytes at a fixed stride, as one file without gaps.

    Byte ``v`` of the view is byte ``offset + v // group * stride + v % group`` of the file.

    References
    ----------
    Ross et al. (2001), the partitioned-file interface of PVFS.
    """

    def __init__(self, file: "PoolFile", offset: int, group: int, stride: int) -> None:
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
