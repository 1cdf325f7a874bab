"""Sources of array copies, behind one interface that reads blocks.

`outcore.convert.open_source` chooses the class for a source.
"""

import contextlib
import hashlib
import itertools
import json
import mmap
import operator
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Ticket
from outcore._util.streams import Box, place_in
from outcore.array.array import Array
from outcore.array_files.metadata import settle, version_of
from outcore.convert.copy_plan import Cuts, Kind, Side
from outcore.convert.formats.flat_file import FlatFile
from outcore.errors import InvalidError, LeftOutWarning
from outcore.layout.casting import AS_GIVEN, FIX, Wanted, convert, is_allowed
from outcore.layout.row_blocks import RowBlocks
from outcore.layout.slicing import order_of, part_of, reading
from outcore.layout.zarr_format import Metadata, check_dtype, check_shape
from outcore.storage.volumes import AnyPath

LIBRARY_BLOCKS = 3
"""Memory of zarr, h5py and dask during a read, in blocks.

It covers the returned block, its decoded chunks, and their encoded bytes.
"""


class Source(ABC):
    """An array to copy; a context manager that closes its files at the end.

    Parameters
    ----------
    shape, given, order
        Extents, type, and order of the elements of the array, ``"C"`` or ``"F"``.
    wanted
        Type and casting rule of the delivered elements; by default the given type, in little-endian
        order.

    Attributes
    ----------
    shape, order
        As above.
    dtype
        Type of the delivered elements.
    casting
        Casting rule of the conversion.
    side
        Constraints on the blocks.
    dims, attributes
        Names of its dimensions and the user's attributes, if it has them.
    left_out
        Parts of the user's source that a copy cannot hold, for a warning.
    path
        File or directory of the array, if known.
    reads_ahead
        Whether blocks are read in the background.
    """

    reads_ahead = False

    def __init__(
        self, shape: Sequence[int], given: npt.DTypeLike, order: str, wanted: Wanted
    ) -> None:
        self.shape = check_shape(shape)
        self.order = self.block_order = order
        self._given = np.dtype(given)
        self.dtype = check_dtype(given if wanted.dtype is None else wanted.dtype)
        self.casting = wanted.casting
        if not is_allowed(self._given, self.dtype, self.casting):
            raise InvalidError(
                f"need elements of {self.dtype}, have {self._given}, which would lose more than "
                'precision; pass casting="unsafe" to convert anyway'
            )
        self.side = Side(tuple(Cuts(n) for n in self.shape))
        self.dims: tuple[str, ...] | None = None
        self.attributes: dict[str, Any] = {}
        self.left_out = ""
        self.path: AnyPath | None = None
        self._opened = contextlib.ExitStack()

    @property
    def converts(self) -> bool:
        """Whether the delivered type differs from the given one."""
        return self._given != self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element in the given or the delivered type, whichever is larger."""
        return max(self._given.itemsize, self.dtype.itemsize)

    @property
    def kind(self) -> Kind:
        """Where the elements lie."""
        is_cut = any(cuts.step > 1 or cuts.edges for cuts in self.side.cuts)
        return "encoded" if is_cut else "flat"

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of its largest chunk; without chunks that of the whole array."""
        if self.kind in ("flat", "memory"):
            return self.shape
        return tuple(cuts.widest for cuts in self.side.cuts)

    @property
    def fast_to_slow(self) -> tuple[int, ...]:
        """Dimensions of the elements of a block in memory, from the fastest."""
        return fast_to_slow(self.block_order, len(self.shape))

    @property
    def stored_itemsize(self) -> int:
        """Bytes of an element where it lies."""
        return self._given.itemsize

    @property
    def stored_order(self) -> tuple[int, ...]:
        """Dimensions of the elements of a chunk where it lies, from the fastest."""
        return fast_to_slow(self.order, len(self.shape))

    def empty(self, box: Box, memory: memoryview) -> npt.NDArray[Any]:
        """Return a block in memory for `fetch`."""
        order: Literal["C", "F"] = "F" if self.block_order == "F" else "C"
        count = tuple(s.stop - s.start for s in box)
        return np.ndarray(count, self.dtype, buffer=memory, order=order)

    def keep(self, opened: Any) -> None:
        """Add an object to close at the end."""
        self._opened.callback(opened.close)

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """Prepare for `fetch`, with buffers from the call's budget."""

    def end(self) -> None:
        """Release the buffers of `begin`. The counts of `moved` stay."""

    @abstractmethod
    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """Read a box into `out`, which `empty` made, or return a ticket for the read."""

    def _convert(self, given: npt.NDArray[Any], out: npt.NDArray[Any], box: Box) -> None:
        """Convert the elements of a box into `out`."""
        convert(given, out, fix=FIX, casting=self.casting, at=[s.start for s in box])

    def warn(self, stacklevel: int) -> None:
        """Warn about `left_out`; `stacklevel` counts from the caller of this method."""
        if self.left_out:
            text = f"the copy leaves out {self.left_out}"
            warnings.warn(text, LeftOutWarning, stacklevel=stacklevel + 1)

    def check_end(self) -> None:
        """Raise `InvalidError` if the source has more elements than its shape."""

    def moved(self) -> tuple[int, int] | None:
        """Return the bytes and the requests read since `begin`; `None` if they are not counted."""
        return None

    def version(self) -> dict[str, Any] | None:
        """Return the location, as ``path``, and values that differ after a change.

        They describe the data that is read, even if the path has other data by now. The result is
        `None` for data outside files, or data that can change without a trace.
        """
        return None

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


class InMemory(Source):
    """A NumPy array."""

    kind = "memory"

    def __init__(self, array: npt.NDArray[Any], wanted: Wanted = AS_GIVEN) -> None:
        super().__init__(array.shape, array.dtype, order_of(array), wanted)
        self._array = array

    def view(self, box: Box) -> npt.NDArray[Any]:
        """Return a view of the elements, which needs no conversion."""
        return self._array[box]

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        """See `Source`."""
        self._convert(self._array[box], out, box)


class Mapped(Source):
    """A `numpy.memmap`: its pages leave the process after each block."""

    def __init__(self, array: npt.NDArray[Any], wanted: Wanted = AS_GIVEN) -> None:
        super().__init__(array.shape, array.dtype, order_of(array), wanted)
        self._array = array
        # While a block is copied, its pages are in memory twice.
        self.side = Side(self.side.cuts, library_blocks=1)
        filename = getattr(array, "filename", None)
        self.path = None if filename is None else Path(filename)
        base: Any = array
        while base is not None and not isinstance(base, mmap.mmap):
            base = getattr(base, "base", None)
        # In a private mapping (mode "c"), this would discard values assigned to it.
        self._mapping = base if getattr(array, "mode", "c") != "c" else None

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        """See `Source`."""
        self._convert(self._array[box], out, box)
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)


class Flat(Source):
    """A file of elements, read at their offsets."""

    def __init__(
        self,
        path: Path,
        shape: Sequence[int],
        given: npt.DTypeLike,
        order: str,
        offset: int,
        wanted: Wanted = AS_GIVEN,
    ) -> None:
        super().__init__(shape, given, order, wanted)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._file = FlatFile(fd, str(path), self.shape, self._given, order, offset)
        self.keep(self._file)
        self.path = path
        self._fd = fd
        self._lies = {"offset": operator.index(offset), "order": order, "dtype": self._given.str}
        self.side = Side(self.side.cuts, library_blocks=int(self.converts))

    def version(self) -> dict[str, Any] | None:
        """See `Source`."""
        # After this fsync, pending writes cannot hide later ones: every later change is noticed.
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        return {"path": os.path.realpath(str(self.path))} | _state(os.fstat(self._fd)) | self._lies

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        """See `Source`."""
        into = np.empty_like(out, self._given) if self.converts else out
        with reading(self.path):
            self._file.read(box, into)
        if into is not out:
            self._convert(into, out, box)


class Stored(Source):
    """An array of outcore's own layout."""

    kind = "array"

    def __init__(
        self, array: Array, wanted: Wanted = AS_GIVEN, block_order: str | None = None
    ) -> None:
        super().__init__(array.shape, array.dtype, array.order, wanted)
        self.block_order = block_order or array.order
        self.reads_ahead = not self.converts
        self._array = array
        self._file: ArrayFile | None = None
        self._moved: tuple[int, int] | None = None
        cuts = tuple(Cuts(n, min(c, n)) for n, c in zip(array.shape, array.chunks, strict=True))
        self.side = Side(
            cuts,
            loose=tuple(range(len(cuts))),
            library_blocks=int(self.converts),
            decoded=False,
            bounces=True,
        )
        self.dims, self.attributes, self.path = array.dims, array.attrs, array.path

    def version(self) -> dict[str, Any] | None:
        """See `Source`."""
        settle(self._array.place)
        found, path = version_of(self._array.place), self._array.path
        name = os.path.realpath(path) if isinstance(path, Path) else str(path)
        return {"path": name, **found._asdict()}

    @property
    def metadata(self) -> Metadata:
        """The array's layout."""
        return self._array.metadata

    def begin(self, arena: Arena, bounce_bytes: int) -> None:
        """See `Source`."""
        self._file = self._array.open_file(arena, bounce_bytes)

    def end(self) -> None:
        """See `Source`."""
        self._moved, self._file = self.moved(), None

    def moved(self) -> tuple[int, int] | None:
        """See `Source`."""
        if self._file is None:
            return self._moved
        counted = self._file.counters()
        return counted[0], counted[2]

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> Ticket | None:
        """See `Source`."""
        assert self._file is not None, "begin comes first"
        start, step = [s.start for s in box], [1] * len(box)
        if not self.converts:
            return self._file.submit_read(start, step, out)
        part = np.empty_like(out, self._given)
        self._file.submit_read(start, step, part).wait()
        self._convert(part, out, box)
        return None


class Sliced(Source):
    """An object with ``shape``, ``dtype`` and slicing: h5py, zarr, dask and others.

    If it has ``chunks``, regular ones as in h5py and zarr or those of dask, blocks follow them.
    """

    def __init__(self, array: Any, wanted: Wanted = AS_GIVEN) -> None:
        super().__init__(array.shape, array.dtype, order_of(array), wanted)
        self._array, self._wanted = array, wanted
        loose = tuple(range(len(self.shape)))
        self.side = Side(_cuts(array), loose, library_blocks=LIBRARY_BLOCKS)
        self.find_version: Callable[[], dict[str, Any] | None] = lambda: None

    def version(self) -> dict[str, Any] | None:
        """See `Source`. The opener of the array sets `find_version`, which computes the result."""
        return self.find_version()

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        """See `Source`."""
        self._fetch(box, out)

    def _fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        for part in self._parts(box):
            self._read(part, out[place_in(part, box)])

    def _parts(self, box: Box) -> Iterator[Box]:
        """Split a box that cuts chunks into parts of single chunks.

        A library may decode all chunks of a larger part at once.
        """
        cuts = self.side.cuts
        if all(c.cover(s) == s.stop - s.start for c, s in zip(cuts, box, strict=True)):
            yield box
        else:
            yield from itertools.product(*(c.inside(s) for c, s in zip(cuts, box, strict=True)))

    def _read(self, box: Box, out: npt.NDArray[Any]) -> None:
        part = part_of(self._array, box, self.path or type(self._array).__name__)
        if part.shape != out.shape:
            raise InvalidError(
                f"need a block of shape {out.shape} from {type(self._array).__name__}, have "
                f"{part.shape}; its shape and its slicing must agree"
            )
        self._check_type(part.dtype)
        self._convert(part, out, box)

    def _check_type(self, have: np.dtype[Any]) -> None:
        """Refuse elements of another type than the array states, if they may lose something.

        netCDF4 states the type of packed elements, and yields unpacked ones.
        """
        if have == self._given or self.casting == "unsafe":
            return
        is_chosen = self._wanted.dtype is not None
        need = self.dtype if is_chosen else self._given
        if not (is_allowed(have, need, self.casting) if is_chosen else np.can_cast(have, need)):
            raise InvalidError(
                f"need blocks of {need} from {type(self._array).__name__}, have {have}; pass "
                "a dtype= for these"
            )


class Rows(Source):
    """Blocks of rows from an iterator: each row is taken once, in order."""

    kind = "memory"

    def __init__(self, rows: RowBlocks) -> None:
        super().__init__(rows.shape, rows.dtype, "C", AS_GIVEN)
        self._rows = rows
        cuts = (Cuts(self.shape[0]), *(Cuts(n, n) for n in self.shape[1:]))
        self.side = Side(cuts)

    def fetch(self, box: Box, out: npt.NDArray[Any]) -> None:
        """See `Source`."""
        self._rows.take(out)

    def check_end(self) -> None:
        """See `Source`."""
        self._rows.check_end()


def fast_to_slow(order: str, ndim: int) -> tuple[int, ...]:
    """Return the dimensions of elements in order ``"C"`` or ``"F"``, from the fastest."""
    dims = tuple(range(ndim))
    return dims if order == "F" else dims[::-1]


def file_version(path: Path) -> dict[str, Any] | None:
    """Return values that differ after a change of a file, or of any file below a directory.

    The result is `None` if changes cannot be detected.
    """
    try:
        if not path.is_dir():
            return {"path": os.path.realpath(path)} | _state(path.stat())
        files, sum_of_all = 0, hashlib.blake2b(digest_size=16)
        for directory, below, names in os.walk(path, onerror=_fail):
            if any(os.path.islink(os.path.join(directory, name)) for name in below):
                return None
            below.sort()
            for name in sorted(names):
                file = os.path.join(directory, name)
                state = [os.path.relpath(file, path), *_state(os.stat(file)).values()]
                sum_of_all.update(json.dumps(state).encode())
                files += 1
    except (OSError, UnicodeError):
        return None
    return {"path": os.path.realpath(path), "files": files, "blake2b": sum_of_all.hexdigest()}


def _fail(error: OSError) -> None:
    raise error


def _state(found: os.stat_result) -> dict[str, int]:
    return {
        "inode": found.st_ino, "bytes": found.st_size,
        "modified_ns": found.st_mtime_ns, "changed_ns": found.st_ctime_ns,
    }  # fmt: skip


def _cuts(array: Any) -> tuple[Cuts, ...]:
    """Return the chunks of h5py, zarr and dask arrays."""
    shape, chunks = array.shape, getattr(array, "chunks", None)
    if chunks is None:
        return tuple(Cuts(n) for n in shape)
    if 0 in chunks:
        raise InvalidError(f"need chunks of at least 1 element, have {tuple(chunks)}; make others")
    if any(isinstance(c, Iterable) for c in chunks):
        return tuple(
            Cuts(n, edges=tuple(int(e) for e in np.cumsum(c) if e)) if len(c) > 1 else Cuts(n, n)
            for n, c in zip(shape, chunks, strict=True)
        )
    return tuple(Cuts(n, min(int(c), n)) for n, c in zip(shape, chunks, strict=True))
