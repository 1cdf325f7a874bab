"""Index an array with lists of integers, or with truth values."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._util.streams import Box
from outcore.array_files.box_requests import BoxRequests
from outcore.errors import InvalidError
from outcore.layout.elements import elements
from outcore.layout.selection import Selection, index_array, is_list, one_for_each, select

GAP_BYTES = 64 << 10
"""A read of this many extra bytes costs less than a second request."""

_COVER_BYTES = 4 << 20
"""A box that is read with gaps is at most this large, or as large as the result."""


class Progression(NamedTuple):
    """`number` indices ``start``, ``start + step``, ..."""

    start: int
    step: int
    number: int

    @property
    def last(self) -> int:
        """The last index."""
        return self.start + self.step * (self.number - 1)

    def up_to(self, other: "Progression") -> "Progression":
        """Return the shortest progression with the indices of both; `other` comes later."""
        step = math.gcd(self.step if self.number > 1 else 0, other.start - self.start)
        step = math.gcd(step, other.step if other.number > 1 else 0)
        return Progression(self.start, step, (other.last - self.start) // step + 1)


@dataclass(frozen=True)
class ListSelection:
    """A box of an array, restricted to some indices along one dimension.

    Attributes
    ----------
    box
        The box, with all indices along that dimension.
    axis
        The dimension.
    places
        The selected indices, in increasing order, without duplicates.
    order
        Position of each entry of the list among `places`; `None` if both are the same.
    shape
        Shape of the result: the listed dimension keeps its place.
    """

    box: Selection
    axis: int
    places: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64] | None
    shape: tuple[int, ...]

    def read(self, requests: BoxRequests, dtype: np.dtype[Any], memory_order: Any) -> Any:
        """Read the selected elements."""
        out = np.empty(self._counts(len(self.places)), dtype, memory_order)
        target = out[self.box.flip]
        first = 0
        for cover, parts in self._covers(out.nbytes):
            number = sum(part.number for part in parts)
            into = target[self._along(slice(first, first + number))]
            first += number
            if len(parts) == 1:
                requests.read(self._box(cover), into)
                continue
            with_gaps = np.empty(self._counts(cover.number), dtype, memory_order)
            steps = [np.arange(p.start, p.last + 1, p.step) - cover.start for p in parts]
            taken = self._along(np.concatenate(steps) // cover.step)
            requests.read(self._box(cover), with_gaps, _picked(with_gaps, taken, into))
        requests.finish()
        if self.order is not None:
            out = out.take(self.order, self.axis)
        return out.reshape(self.shape, order=memory_order)

    def write(self, requests: BoxRequests, value: npt.ArrayLike, dtype: np.dtype[Any]) -> None:
        """Write the selected elements; for an index that is listed twice, the last value counts."""
        number = len(self.places) if self.order is None else len(self.order)
        source = elements(value, dtype, self.shape).reshape(self._counts(number))
        if self.is_empty:
            return
        if self.order is not None:
            last = np.empty(len(self.places), np.int64)
            last[self.order] = np.arange(number)
            source = source.take(last, self.axis)
        source = source[self.box.flip]
        first = 0
        for part in progressions(self.places):
            along = self._along(slice(first, first + part.number))
            requests.write(self._box(part), source[along])
            first += part.number
        requests.finish()

    @property
    def is_empty(self) -> bool:
        """Whether no element is selected."""
        return not len(self.places) or self.box.is_empty

    def _covers(self, result_bytes: int) -> Iterator[tuple[Progression, list[Progression]]]:
        """Join parts if reading the gap between them costs less than a request."""
        if self.is_empty:
            return
        bytes_each = result_bytes // len(self.places)
        most = max(_COVER_BYTES, result_bytes)
        cover: Progression | None = None
        parts: list[Progression] = []
        for part in progressions(self.places):
            if cover is not None:
                joined = cover.up_to(part)
                gaps = (joined.number - cover.number - part.number) * bytes_each
                if gaps <= GAP_BYTES and joined.number * bytes_each <= most:
                    cover, parts = joined, [*parts, part]
                    continue
                yield cover, parts
            cover, parts = part, [part]
        if cover is not None:
            yield cover, parts

    def _box(self, part: Progression) -> Selection:
        def instead(values: list[int], value: int) -> list[int]:
            return [*values[: self.axis], value, *values[self.axis + 1 :]]

        box = self.box
        return dataclasses.replace(
            box, start=instead(box.start, part.start), step=instead(box.step, part.step),
            count=instead(box.count, part.number),
        )  # fmt: skip

    def _counts(self, number: int) -> list[int]:
        return [*self.box.count[: self.axis], number, *self.box.count[self.axis + 1 :]]

    def _along(self, taken: Any) -> tuple[Any, ...]:
        return (*(slice(None),) * self.axis, taken)


def select_list(key: Any, shape: tuple[int, ...]) -> ListSelection:
    """Parse an index expression that contains a list, or a one-dimensional mask.

    Raises
    ------
    IndexError
        If an index is out of bounds, a mask and its dimension have different lengths, or there are
        too many indices.
    InvalidError
        If there are several lists, or a list contains anything but integers.
    """
    keys = one_for_each(key, len(shape))
    lists = [axis for axis, each in enumerate(keys) if is_list(each)]
    if len(lists) > 1:
        raise InvalidError(
            f"need at most one list or mask among the indices, have {len(lists)}; read with one, "
            "and index the result by the others"
        )
    axis = lists[0]
    box = select((*keys[:axis], slice(None), *keys[axis + 1 :]), shape)
    places = _places(keys[axis], shape[axis])
    at = sum(isinstance(each, slice) for each in keys[:axis])
    result = (*box.shape[:at], len(places), *box.shape[at + 1 :])
    if (np.diff(places) > 0).all():
        return ListSelection(box, axis, places, None, result)
    found, order = np.unique(places, return_inverse=True)
    return ListSelection(box, axis, found, order, result)


def _places(given: Any, extent: int) -> npt.NDArray[np.int64]:
    """Convert a list or mask to non-negative indices."""
    found = index_array(given)
    if found.ndim != 1:
        raise InvalidError(
            f"need a list or mask of one dimension, or one mask of the array's shape, have an "
            f"index of shape {found.shape}; read a box, and index that"
        )
    if found.dtype == bool:
        if len(found) != extent:
            raise IndexError(f"a mask of {len(found)} does not fit a dimension of size {extent}")
        return np.flatnonzero(found)
    if not found.size and isinstance(given, list | tuple):
        return np.empty(0, np.int64)
    if found.dtype.kind not in "iu":
        raise InvalidError(
            f"need integers or truth values in an index, have {found.dtype}; convert the list "
            "with .astype(int)"
        )
    outside = (found < -extent) | (found >= extent)
    if outside.any():
        raise IndexError(
            f"index {found[outside][0]} is out of bounds for a dimension of size {extent}"
        )
    found = found.astype(np.int64)
    return np.where(found < 0, found + extent, found)


def progressions(places: npt.NDArray[np.int64]) -> Iterator[Progression]:
    """Divide increasing indices into the fewest runs of equal steps."""
    steps = np.diff(places)
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    # For each step, the position of the last index that equal steps reach.
    ends = np.append(changes, len(steps))
    ends = ends[np.searchsorted(changes, np.arange(len(steps)), "right")]
    first, count = 0, len(places)
    while first < count:
        last = int(ends[first]) if first < count - 1 else first
        step = int(steps[first]) if first < last else 1
        yield Progression(int(places[first]), step, last - first + 1)
        first = last + 1


def _picked(source: npt.NDArray[Any], taken: Any, into: npt.NDArray[Any]) -> Any:
    def pick() -> None:
        into[...] = source[taken]

    return pick


_LEAST_ELEMENTS, _MOST_ELEMENTS = 1 << 16, 1 << 20
"""Number of elements of the mask that are processed together."""


@dataclass(frozen=True)
class _Part:
    """A box of the mask: its selected elements, and their positions in the result."""

    start: tuple[int, ...]
    taken: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.int64]

    def inside(self, box: Box) -> "_Part":
        start = tuple(a + s.start for a, s in zip(self.start, box, strict=True))
        return _Part(start, self.taken[box], self.numbers[box])

    def shrunk(self) -> "_Part":
        """Cut off borders without selected elements."""
        box = []
        for axis in range(self.taken.ndim):
            others = tuple(i for i in range(self.taken.ndim) if i != axis)
            found = np.flatnonzero(self.taken.any(axis=others))
            box.append(slice(int(found[0]), int(found[-1]) + 1))
        return self.inside(tuple(box))

    def halves(self, chunks: tuple[int, ...]) -> Iterator["_Part"]:
        """Cut the longest side, at a chunk border if possible; yield the halves with elements."""
        shape = self.taken.shape
        axis = max(range(len(shape)), key=shape.__getitem__)
        first, chunk = self.start[axis], chunks[axis]
        middle = first + shape[axis] // 2
        border = round(middle / chunk) * chunk
        at = (border if first < border < first + shape[axis] else middle) - first
        whole = tuple(slice(0, n) for n in shape)
        for side in (slice(0, at), slice(at, shape[axis])):
            half = self.inside((*whole[:axis], side, *whole[axis + 1 :]))
            if half.taken.any():
                yield half

    @property
    def selection(self) -> Selection:
        """The box in the array."""
        shape = self.taken.shape
        ones = [1] * len(shape)
        return Selection(list(self.start), ones, list(shape), (slice(None),) * len(shape), shape)


class MaskSelection:
    """The elements of an array where a mask of the same shape is true.

    Parameters
    ----------
    mask
        The mask.
    chunks
        Shape of a chunk of the array; a chunk is read at once where that is cheap.
    """

    def __init__(self, mask: npt.NDArray[np.bool_], chunks: tuple[int, ...]) -> None:
        self._mask, self._chunks = mask, chunks
        self.count = int(np.count_nonzero(mask))

    def read(
        self, requests: BoxRequests, dtype: np.dtype[Any], memory_order: Literal["C", "F"]
    ) -> npt.NDArray[Any]:
        """Read the selected elements, with gaps where that costs less than further requests."""
        out = np.empty(self.count, dtype)

        def read(part: _Part) -> None:
            target = np.empty(part.taken.shape, dtype, memory_order)

            def pick() -> None:
                out[part.numbers[part.taken]] = target[part.taken]

            requests.read(part.selection, target, pick)

        for cell in self._cells():
            for part in self._divided(cell, dtype.itemsize, GAP_BYTES):
                read(part)
        requests.finish()
        return out

    def write(self, requests: BoxRequests, value: npt.ArrayLike, dtype: np.dtype[Any]) -> None:
        """Write the selected elements and no others."""
        source = elements(value, dtype, (self.count,))
        for cell in self._cells():
            for part in self._divided(cell, dtype.itemsize, 0):
                requests.write(part.selection, source[part.numbers])
        requests.finish()

    def _cells(self) -> Iterator[_Part]:
        """Yield parts of the mask: chunks, groups of small chunks, or parts of large ones."""
        shape = self._mask.shape
        sides = _cell(shape, self._chunks)
        # For each line along the last dimension, the position of its next element in the result.
        lines = np.count_nonzero(self._mask, axis=-1)
        numbers = (np.cumsum(lines) - lines.ravel()).reshape(shape[:-1])
        for at in product(*(range(0, n, side) for n, side in zip(shape, sides, strict=True))):
            box = tuple(slice(a, min(a + s, n)) for a, s, n in zip(at, sides, shape, strict=True))
            taken = self._mask[box]
            if not taken.any():
                continue
            ends = np.cumsum(taken, axis=-1)
            yield _Part(at, taken, numbers[box[:-1]][..., None] + ends - taken)
            numbers[box[:-1]] += ends[..., -1]

    def _divided(self, part: _Part, itemsize: int, gap_bytes: int) -> Iterator[_Part]:
        """Yield boxes that cover all elements of a part.

        A box has no gaps, or at most `gap_bytes` of gaps per selected element.
        """
        part = part.shrunk()
        count = int(np.count_nonzero(part.taken))
        gaps = part.taken.size - count
        if gaps * itemsize <= gap_bytes * (count - 1):
            yield part
            return
        for half in part.halves(self._chunks):
            yield from self._divided(half, itemsize, gap_bytes)


def select_listed(
    key: Any, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> ListSelection | MaskSelection:
    """Parse an index expression that contains a list or a mask.

    Raises
    ------
    IndexError, InvalidError
        As for `select_list`, and for a mask whose shape differs from the array's.
    """
    only = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if isinstance(only, tuple) or (mask := index_array(only)).ndim < 2 or mask.dtype != bool:
        return select_list(key, shape)
    if mask.shape != shape:
        raise IndexError(f"a mask of shape {mask.shape} does not fit an array of shape {shape}")
    return MaskSelection(mask, chunks)


def _cell(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Choose the size of the mask parts to process: whole chunks unless they are large."""
    sides = [min(c, n) for c, n in zip(chunks, shape, strict=True)]
    for axis in range(len(shape))[::-1]:
        while sides[axis] < shape[axis] and math.prod(sides) < _LEAST_ELEMENTS:
            sides[axis] = min(2 * sides[axis], shape[axis])
    while math.prod(sides) > _MOST_ELEMENTS:
        longest = max(range(len(shape)), key=sides.__getitem__)
        sides[longest] = -(-sides[longest] // 2)
    return tuple(sides)
