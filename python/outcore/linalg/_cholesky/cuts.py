"""The cuts of a triangle that cause the fewest reads: pure arithmetic.

A slab that begins at panel o reads tiles of the o panels to its left, from its first row down.
Either the whole slab fits in memory, so slabs grow to the right. Or it is in memory in parts, which
are roughly square blocks. Such a slab may be wider, but each part reads the rows of L beside its
columns again. The cost of a cut thus depends on its position. Dynamic programming from the right
finds the best cuts, because the reads of the slabs from a panel on do not depend on earlier slabs.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
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
        """Return how many panels have their diagonal block in `tiles` tiles."""
        return tiles * self.rows // self.columns


class SlabCut(NamedTuple):
    """The cut of a slab: the panel after its last, and the tile after the last of each part."""

    end: int
    edges: tuple[int, ...]


class Cuts(NamedTuple):
    """The cuts of slabs.

    For each panel, ``cuts`` holds the cut of a slab that begins with it. ``reads`` is the number of
    tiles that all slabs read, and ``most_words`` the memory of the largest part.
    ``is_short_of_blocks`` says whether some slabs could be wider if memory held more blocks.
    """

    cuts: tuple[SlabCut, ...]
    reads: int
    most_words: int
    is_short_of_blocks: bool


class _Candidate(NamedTuple):
    """A cut, the words of memory that it takes, and the number of tiles that its slab reads.

    The count includes only second reads of the matrix.
    """

    cut: SlabCut
    words: int
    reads: int


def cut_slabs(
    t: Triangle, most_words: int, most_blocks: int, widths: Sequence[int] = (), chunk_tiles: int = 1
) -> Cuts | None:
    """Find the best cuts of slabs; `None` if some single panel does not fit.

    Parameters
    ----------
    t
        The triangle.
    most_words
        Memory available to a slab, or to a part of one.
    most_blocks
        Number of blocks of an earlier panel that memory can hold at once. These are the blocks with
        the slab's own rows, and the block below them that is in use.
    widths
        Widths in tiles to try for slabs in parts. Without any, every slab is wholly in memory.
    chunk_tiles
        Height of the matrix's chunks. A chunk in two parts is read twice.
    """
    search = _Search(t, most_words, most_blocks, chunk_tiles)
    cuts = [SlabCut(0, ())] * t.panels
    # Number of tiles that the slabs from each panel on read.
    reads = np.zeros(t.panels + 1, np.int64)
    largest = 0
    if not widths and most_words < t.tiles * t.rows * t.columns:
        return None  # the first panel is the highest
    for first in range(t.panels)[::-1]:
        best = search.whole(first, reads)
        if widths:
            tried = best, *(search.in_parts(first, width) for width in widths)
            candidates = [found for found in tried if found]
            best = min(candidates, key=lambda c: c.reads + reads[c.cut.end], default=None)
        if best is None:
            return None
        cuts[first] = best.cut
        reads[first] = best.reads + reads[best.cut.end]
        largest = max(largest, best.words)
    return Cuts(tuple(cuts), int(reads[0]), largest, search.is_short_of_blocks)


class _Search:
    """Candidates for the slab that begins with a panel."""

    def __init__(self, t: Triangle, most_words: int, most_blocks: int, chunk_tiles: int) -> None:
        self.t, self.most_words, self.most_blocks = t, most_words, most_blocks
        self.chunk_tiles = chunk_tiles
        self.is_short_of_blocks = False
        self.panel_words = t.rows * t.columns
        self.per_tile = t.panels_beside(1)
        # Tiles above the diagonal blocks of all panels before each panel.
        self.above = [0, *accumulate(map(t.first_tile, range(t.panels)))]
        # The end of the widest slab that fits. It is usually near that of the previous call.
        self.last = t.panels

    def whole(self, first: int, reads: np.ndarray) -> _Candidate | None:
        """Find the best slab that is wholly in memory."""
        t, last = self.t, self.last
        most_tiles = self.most_words // self.panel_words
        while last < t.panels and self.tiles_of(first, last + 1) <= most_tiles:
            last += 1
        while last > first and self.tiles_of(first, last) > most_tiles:
            last -= 1
        self.last = last
        # The last block needs no block in use beside it, since no block lies below it.
        reach = self.reach(first, self.most_blocks - 1)
        if last > reach and t.tiles - t.first_tile(first) > self.most_blocks * t.block_tiles:
            last, self.is_short_of_blocks = reach, True
        if last <= first:
            return None
        # Among equally good cuts, take the last.
        end = last - int(np.argmin(reads[last:first:-1])) if last > first + 1 else last
        words = self.tiles_of(first, end) * self.panel_words
        return _Candidate(SlabCut(end, (t.tiles,)), words, first * (t.tiles - t.first_tile(first)))

    def tiles_of(self, first: int, last: int) -> int:
        """Tiles of a slab's panels in memory, each group from its first row down."""
        return (last - first) * self.t.tiles - self.above_groups(first, last)

    def above_groups(self, first: int, last: int) -> int:
        """Tiles above the groups of a slab's panels; a closed form for many candidates."""
        t = self.t
        top, height = t.first_tile(first), t.group_tiles
        width = height * self.per_tile
        end = (top + height) * self.per_tile
        if last <= end:
            return (last - first) * top
        # The following groups are all whole, except possibly the last.
        whole, rest = divmod(last - end, width)
        tops = whole * top + height * whole * (whole + 1) // 2
        return (end - first) * top + width * tops + rest * (top + height * (whole + 1))

    def reach(self, first: int, blocks: int) -> int:
        """Return the panel after the last whose rows lie in a slab's first `blocks` blocks."""
        return (self.t.first_tile(first) + blocks * self.t.block_tiles) * self.per_tile

    def in_parts(self, first: int, width: int) -> _Candidate | None:
        """Cut a slab of `width` tiles into the fewest parts; `None` if it needs only one."""
        t = self.t
        end = first // self.per_tile * self.per_tile + t.panels_beside(width)
        # All blocks beside the slab's columns are released at once, so about as many are read
        # ahead.
        reach = self.reach(first, self.most_blocks * 2 // 3 - 1)
        if end > reach:
            end, self.is_short_of_blocks = reach, True
        if end <= first or end >= t.panels:
            return None
        panels, above = end - first, self.above_groups(first, end)
        words = self.most_words // self.panel_words
        top, beside = t.first_tile(first), end // self.per_tile
        edges = self.edges(beside, (words + above) // panels, words // panels)
        if len(edges) < 2:
            return None
        below = len(edges) - 1
        reads = first * (t.tiles - top + below * (beside - top))
        reads += below * (panels * beside - (self.above[end] - self.above[first]))
        split = sum(edge % self.chunk_tiles > 0 for edge in edges[:-1])
        reads += panels * split * self.chunk_tiles
        tallest = max(b - a for a, b in pairwise(edges))
        most = max(panels * edges[0] - above, panels * tallest)
        return _Candidate(SlabCut(end, edges), most * self.panel_words, reads)

    def edges(self, beside: int, lowest: int, height: int) -> tuple[int, ...]:
        """Cut rows into parts, the first of which ends at tile `lowest` at most.

        There are as few parts as possible. If several cuts do that, they lie between chunks of the
        matrix.
        """
        tiles, chunk = self.t.tiles, self.chunk_tiles
        found: list[int] = []
        at, least = lowest, beside
        while height and at >= least and at < tiles:
            aligned = at // chunk * chunk
            if aligned >= least and -(-(tiles - aligned) // height) == -(-(tiles - at) // height):
                at = aligned
            found.append(at)
            at, least = at + height, at + 1
        return (*found, tiles) if found else ()
