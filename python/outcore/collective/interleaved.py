"""Arrays of a process whose elements interleave in memory, such as the variables of each cell."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.collective.memory import Local

_STEP_BYTES = 64 << 10
"""Bytes of each array that are copied before those of the next one, so that caches hold them."""


def is_interleaved(local: Sequence[Local], most_bytes: int) -> bool:
    """Whether arrays interleave, and copies of them need at most these bytes.

    Each element then lies between elements of the others, as in ``memory[..., i]`` for some `i`.
    """
    arrays = [_single(each) for each in local]
    one = arrays[0]
    if one is None or not one.size or len(arrays) * one.nbytes > most_bytes:
        return False
    gaps = [abs(by) for by, extent in zip(one.strides, one.shape, strict=True) if extent > 1]
    alike = [
        each
        for each in arrays
        if each is not None
        and (each.shape, each.strides, each.dtype) == (one.shape, one.strides, one.dtype)
    ]
    starts = sorted(each.__array_interface__["data"][0] for each in alike)
    return len(alike) == len(arrays) and 0 < starts[-1] - starts[0] < min(gaps, default=0)


def packed(local: Sequence[Local]) -> list[Local]:
    """Return contiguous copies of arrays that interleave.

    Each cache line has elements of several arrays. One pass over all of them reads it once; a pass
    for each array would read it for each.
    """
    arrays = [each for each in map(_single, local) if each is not None]
    copies = [np.empty_like(each) for each in arrays]
    shape, strides = arrays[0].shape, arrays[0].strides
    slowest = max(range(len(shape)), key=lambda axis: (shape[axis] > 1) * abs(strides[axis]))
    extent = shape[slowest]
    rows = max(_STEP_BYTES * extent // arrays[0].nbytes, 1)
    for begin in range(0, extent, rows):
        part = (*(slice(None),) * slowest, slice(begin, begin + rows))
        for copy, each in zip(copies, arrays, strict=True):
            copy[part] = each[part]
    return [
        [copy] if isinstance(each, list | tuple) else copy
        for copy, each in zip(copies, local, strict=True)
    ]


def _single(local: Local) -> npt.NDArray[Any] | None:
    """Return the only array of a process's part, if it has exactly one."""
    if isinstance(local, list | tuple):
        return _single(local[0]) if len(local) == 1 else None
    return local if type(local) is np.ndarray else None
