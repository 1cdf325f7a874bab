"""Conversion of arguments of pool files: memory, and lists of regions."""

import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Regions
from outcore.errors import ArgumentTypeError, InvalidError

Bytes = npt.NDArray[np.uint8]
Memory = npt.NDArray[Any] | Sequence[npt.NDArray[Any]]
"""Memory that a read fills: an array, or several, one after the other."""


def listed(offsets: npt.ArrayLike, lengths: npt.ArrayLike) -> Regions:
    """Return regions, given by their offsets and their lengths (or one length for all)."""
    try:
        starts, sizes = np.atleast_1d(offsets), np.asarray(lengths)
    except ValueError:
        raise InvalidError(
            f"offsets and lengths are each one list of integers, have {reprlib.repr(offsets)} and "
            f"{reprlib.repr(lengths)}"
        ) from None
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


def nested(location: int, group: int, levels: Sequence[tuple[int, int]]) -> Regions:
    """Return groups of bytes in nested strides."""
    try:
        stack = [(operator.index(count), operator.index(stride)) for count, stride in levels]
    except (TypeError, ValueError):
        raise InvalidError(
            "levels= is a list of (count, stride) in bytes, from the outermost to the innermost, "
            f"have {reprlib.repr(levels)}"
        ) from None
    return regions_of(lambda at, size: Regions.nested([(at, size, stack)]), location, group)


def arrays_of(data: Any) -> list[npt.NDArray[Any]]:
    """Return one or several buffers as a list of arrays; other buffers become bytes."""
    buffers = data if isinstance(data, list | tuple) else [data]
    return [_plain(each) if isinstance(each, np.ndarray) else bytes_of(each) for each in buffers]


def targets_of(out: Memory) -> list[npt.NDArray[Any]]:
    """Return `out`, an array or a list of arrays, as a list."""
    return [writable(each) for each in (out if isinstance(out, list | tuple) else [out])]


def nbytes_of(arrays: list[npt.NDArray[Any]]) -> int:
    """Return the total size of all arrays in bytes."""
    return sum(array.nbytes for array in arrays)


def bytes_of(data: Any) -> Bytes:
    """Return any buffer as bytes; an array that is not contiguous is copied."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(_plain(data)).reshape(-1).view(np.uint8)
    try:
        return _bytes_in(data)
    except TypeError as error:
        raise _no_buffer(data, error) from None


def writable_bytes(buffer: Any) -> Bytes:
    """Return a buffer that a read can fill, as bytes."""
    try:
        target = _bytes_in(buffer)
    except TypeError as error:
        raise _no_buffer(buffer, error) from None
    if not target.flags.writeable:
        raise ArgumentTypeError(
            f"need a buffer that can be written to, have {type(buffer).__name__}; pass a bytearray "
            "or an array"
        )
    return target


def _no_buffer(data: Any, error: TypeError) -> ArgumentTypeError:
    fix = "encode the text" if isinstance(data, str) else "pass its bytes"
    return ArgumentTypeError(f"need bytes, an array or another buffer: {error}; {fix}")


def _bytes_in(buffer: Any) -> Bytes:
    view = memoryview(buffer)
    _plain(np.asarray(view))
    return np.frombuffer(view.cast("B"), np.uint8)


def writable(array: Any) -> npt.NDArray[Any]:
    """Return the array if a read can fill it; refuse any other object."""
    if not isinstance(array, np.ndarray):
        raise InvalidError(
            f"out= is a NumPy array or a list of them, have {type(array).__name__}; "
            "np.frombuffer makes one of a buffer"
        )
    if not array.flags.writeable:
        raise InvalidError("out= cannot be written to; give an array that can")
    return _plain(array)


def _plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Refuse an array of Python objects: its bytes are addresses, and mean nothing in a file."""
    if array.dtype.hasobject:
        raise InvalidError(
            f"need an array of numbers or other plain bytes, have elements of {array.dtype}; "
            "convert it with .astype(), or write what pickle.dumps() makes of it"
        )
    return array


def check_size(regions: Regions, have: int) -> None:
    """Refuse memory whose size differs from that of the regions."""
    if regions.nbytes != have:
        raise InvalidError(f"need memory of {regions.nbytes} bytes for the regions, have {have}")


def regions_of(make: Callable[..., Regions], *numbers: int) -> Regions:
    """Create the regions of a file from positions, sizes and counts.

    Raises
    ------
    InvalidError
        If one of the numbers is no integer, or negative, or beyond the size limit of files.
    """
    try:
        return make(*map(operator.index, numbers))
    except (OverflowError, TypeError):
        raise InvalidError(
            "positions, sizes and counts are integers of at least 0 and below 2^63, have "
            f"{reprlib.repr(numbers)}"
        ) from None


def length_of(nbytes: int | None, out: Memory | None) -> int:
    """Return the number of bytes to read: `nbytes`, or the size of `out`."""
    if nbytes is not None:
        return nbytes
    if out is None:
        raise InvalidError("need nbytes, or out= to fill")
    return nbytes_of(targets_of(out))
