"""What ``A[...]`` selects: integers, slices with steps both ways, and ``...``."""

import contextlib
import operator
from dataclasses import dataclass
from typing import Any

from outcore.errors import InvalidError


@dataclass(frozen=True)
class Selection:
    """A regular box of an array.

    ``start``, ``step`` (positive) and ``count`` describe the elements in increasing order. ``flip``
    reverses, in memory, the dimensions whose slice ran backwards; ``shape`` leaves out the
    dimensions that an integer selected.
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
    """Read an index expression as NumPy does.

    Raises
    ------
    IndexError
        If an integer is out of bounds or there are too many indices.
    InvalidError
        For what is not basic indexing.
    """
    keys = key if isinstance(key, tuple) else (key,)
    ellipses = sum(k is Ellipsis for k in keys)
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = len(shape) - (len(keys) - ellipses)
    if missing < 0:
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions")
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys = (*keys[:at], *(slice(None),) * missing, *keys[at + ellipses :])
    start, step, count, flip, kept = [], [], [], [], []
    for k, n in zip(keys, shape, strict=True):
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


def _integer(key: Any) -> int:
    # NumPy takes a single truth value as a mask, not as 0 or 1.
    if hasattr(key, "__index__") and not isinstance(key, bool):
        with contextlib.suppress(TypeError):
            return operator.index(key)
    raise InvalidError(
        f"cannot index with {type(key).__name__}; use integers, slices and '...', "
        "or read a box and index that"
    )
