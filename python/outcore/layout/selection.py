"""The elements that ``A[...]`` selects: integers, slices with steps of both signs, and ``...``."""

import contextlib
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError


@dataclass(frozen=True)
class Selection:
    """A regular box of an array.

    ``start``, ``step`` (positive) and ``count`` describe the elements in increasing order. ``flip``
    reverses, in memory, the dimensions with a negative step. ``shape`` leaves out the dimensions
    that an integer selected.
    """

    start: list[int]
    step: list[int]
    count: list[int]
    flip: tuple[slice, ...]
    shape: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no element is selected."""
        return 0 in self.count


def select(key: Any, shape: tuple[int, ...]) -> Selection:
    """Parse an index expression by NumPy's rules.

    Raises
    ------
    IndexError
        If an integer is out of bounds or there are too many indices.
    InvalidError
        If the index is not basic indexing.
    """
    start, step, count, flip, kept = [], [], [], [], []
    for k, n in zip(one_for_each(key, len(shape)), shape, strict=True):
        if isinstance(k, slice):
            first, stop, stride = k.indices(n)
            number = len(range(first, stop, stride))
            kept.append(number)
            if number < 2:
                stride = 1 if stride > 0 else -1
            if stride < 0:
                first, stride = first + (number - 1) * stride, -stride
                flip.append(slice(None, None, -1))
            else:
                flip.append(slice(None))
        else:
            first = _integer(k)
            if not -n <= first < n:
                raise IndexError(f"index {first} is out of bounds for a dimension of size {n}")
            first, stride, number = first % n, 1, 1
            flip.append(slice(None))
        start.append(first if number else 0)
        step.append(stride)
        count.append(number)
    return Selection(start, step, count, tuple(flip), tuple(kept))


def one_for_each(key: Any, ndim: int) -> tuple[Any, ...]:
    """Expand an index expression to one index for each dimension, without ``...``.

    Raises
    ------
    IndexError
        If there are too many indices.
    """
    keys = key if isinstance(key, tuple) else (key,)
    ellipses = sum(k is Ellipsis for k in keys)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = ndim - (len(keys) - ellipses)
    if missing < 0:
        raise IndexError(f"too many indices: the array has {ndim} dimensions")
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    return (*keys[:at], *(slice(None),) * missing, *keys[at + ellipses :])


def is_listed(key: Any) -> bool:
    """Whether one of the indices is a list or a mask."""
    return any(map(is_list, key)) if isinstance(key, tuple) else is_list(key)


def is_list(key: Any) -> bool:
    """Whether an index is a list of integers, a mask, or another sequence."""
    if isinstance(key, list | tuple | range):
        return True
    return hasattr(key, "__array__") and bool(getattr(key, "ndim", 0))


def index_array(given: Any) -> npt.NDArray[Any]:
    """Convert an index into an array.

    Raises
    ------
    InvalidError
        If it has lists of different lengths.
    """
    try:
        return np.asarray(given)
    except ValueError:
        raise InvalidError(
            "need a list of integers as an index, have lists of several lengths; give one list"
        ) from None


def _integer(key: Any) -> int:
    # NumPy treats a single truth value as a mask, not as 0 or 1.
    if hasattr(key, "__index__") and not isinstance(key, bool):
        with contextlib.suppress(TypeError):
            return operator.index(key)
    raise InvalidError(
        f"cannot index with {type(key).__name__} here; use integers, slices and '...', "
        "or read a box and index that"
    )
