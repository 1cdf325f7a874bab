"""The blocks of an assembly: those that each process fills, and those that are durable."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.array_files.blocks_done import Range, blocks_of
from outcore.layout.chunk_walk import runs
from outcore.layout.zarr_format import Metadata

_BOXES = 8
"""Least number of boxes of each process, as far as there are as many blocks."""


class Shares:
    """The shares of all processes. Each process knows all of them.

    The pending blocks form boxes of consecutive blocks, and processes receive boxes in turn. So
    each has its share of all parts of the array, which may take `fill` different times.

    Parameters
    ----------
    metadata
        The array, or one of several arrays of the same chunks.
    done
        Ranges of blocks that are durable already.
    together
        Largest number of blocks in a box.
    size
        Number of processes.

    Attributes
    ----------
    boxes
        The boxes of each process, in its order: ranges of block numbers.
    """

    def __init__(self, metadata: Metadata, done: Sequence[Range], together: int, size: int) -> None:
        self._is_done = _flags(blocks_of(metadata), done)
        pending = _ranges(~self._is_done)
        if size > 1:
            count = sum(end - first for first, end in pending)
            together = max(min(together, count // (_BOXES * size)), 1)
        m = metadata
        boxes = [
            box
            for first, end in pending
            for box in runs(m.counts, m.chunk_order, m.chunks_per_block, first, together, end)
        ]
        self.boxes = [boxes[rank::size] for rank in range(size)]

    def durable(self, counts: Sequence[int]) -> list[Range]:
        """Return the ranges of durable blocks, if each process made so many of its own durable."""
        is_done = self._is_done.copy()
        for boxes, count in zip(self.boxes, counts, strict=True):
            left = count
            for box in boxes:
                if left <= 0:
                    break
                is_done[box.start : min(box.stop, box.start + left)] = True
                left -= len(box)
        return _ranges(is_done)


def in_common(each: Sequence[Sequence[Range]], blocks: int) -> list[Range]:
    """Return the ranges of blocks that are in all of some lists of ranges."""
    return _ranges(np.logical_and.reduce([_flags(blocks, ranges) for ranges in each]))


def blocks_in(ranges: Sequence[Range]) -> int:
    """Count the blocks of some ranges."""
    return sum(end - first for first, end in ranges)


def from_the_first(ranges: Sequence[Range]) -> tuple[int, Sequence[Range]]:
    """Return the number of blocks from the first one on in some ranges, and the further ranges."""
    if ranges and not ranges[0][0]:
        return ranges[0][1], ranges[1:]
    return 0, ranges


def _flags(blocks: int, ranges: Sequence[Range]) -> npt.NDArray[np.bool_]:
    flags = np.zeros(blocks, bool)
    for first, end in ranges:
        flags[first:end] = True
    return flags


def _ranges(flags: npt.NDArray[Any]) -> list[Range]:
    ends = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return list(zip(ends[::2], ends[1::2], strict=True))
