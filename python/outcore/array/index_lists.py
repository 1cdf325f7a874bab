"""``A[[1, 4, 7], 2:5]``: read and write a list or mask along one dimension by few boxes."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
