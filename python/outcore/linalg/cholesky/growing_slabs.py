"""Slabs of a triangle that grow to the right, cut so that least is read: pure arithmetic.

A slab that begins at panel o reads, of each of the o panels left of it, the tiles from its first
row down. So cuts cost more or less depending on where they are, and the best ones are found by
dynamic programming, from the right: what the slabs from a panel on read does not depend on those
before.
"""

import math
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np


class Triangle(NamedTuple):
    """A triangle in tiles of ``rows`` x ``columns``, ``tiles`` of them in the first panel."""

    panels: int
    tiles: int
    rows: int
    columns: int
    group_tiles: int
    block_tiles: int

    def first_tile(self, panel: int) -> int:
        """Tile of a panel that holds its diagonal block."""
        return panel * self.columns // self.rows

    def panels_beside(self, tiles: int) -> int:
        """Panels whose diagonal blocks lie in so many tiles."""
        return tiles * self.rows // self.columns


class Cuts(NamedTuple):
    """Where slabs end.

    ``ends`` says for each panel where a slab that begins with it ends; ``most_words`` is what the
    largest of these takes of memory; ``is_short_of_blocks`` whether some could be wider if more
    blocks could be held.
    """

    ends: tuple[int, ...]
    most_words: int
    is_short_of_blocks: bool


def cut_slabs(t: Triangle, most_words: int, most_blocks: int) -> Cuts | None:
    """Find where slabs should end; `None` if not even every single panel fits.

    Parameters
    ----------
    t
        The triangle.
    most_words
        What a slab may take of memory.
    most_blocks
        How many blocks of an earlier panel can be held at once: those that hold the slab's own
        rows, and the one below them that is in use.
    """
    step = t.panels_beside(t.group_tiles)
    block, blocks = t.panels_beside(t.block_tiles), math.ceil(t.tiles / t.block_tiles)
    # Words of the panels before each one, if every group were whole.
    widths = [
        (t.tiles - t.first_tile(panel // step * step)) * t.rows * t.columns
        for panel in range(t.panels)
    ]
    before = [0, *accumulate(widths)]
    ends = [0] * t.panels
    # Tiles that the slabs from a panel on read.
    reads = np.zeros(t.panels + 1, np.int64)
    largest, is_short_of_blocks = 0, False
    for first in range(t.panels)[::-1]:
        height = t.tiles - t.first_tile(first)
        panel_words = height * t.rows * t.columns
        # The first group may be the end of one.
        next_group = min((first // step + 1) * step, t.panels)
        alone = (next_group - first) * panel_words
        if alone > most_words:
            last = first + most_words // panel_words
        else:
            last = bisect_right(before, before[next_group] + most_words - alone) - 1
        # Below the last block there is none that could be in use beside it.
        reach = (first // block + most_blocks - 1) * block
        if last > reach and first // block + most_blocks < blocks:
            last, is_short_of_blocks = reach, True
        if last == first:
            return None
        # Of cuts that are as good, the last.
        end = last - int(np.argmin(reads[last:first:-1]))
        ends[first] = end
        reads[first] = first * height + reads[end]
        words = (min(end, next_group) - first) * panel_words
        words += max(before[end] - before[next_group], 0)
        largest = max(largest, words)
    return Cuts(tuple(ends), largest, is_short_of_blocks)
