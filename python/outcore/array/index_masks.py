"""``A[mask]`` with a mask of the array's shape: elements as a vector, in C order."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from outcore._util.streams import Box
from outcore.array.index_lists import GAP_BYTES, ListSelection, select_list
from outcore.array_files.box_requests import BoxRequests
from outcore.layout.elements import elements
from outcore.layout.selection import Selection, index_array

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
