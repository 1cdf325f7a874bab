"""Where a triangle is cut so that least is read: pure arithmetic.

A slab that begins at panel o reads, of each of the o panels left of it, the tiles from its first
row down. It is in memory as a whole, so that slabs grow to the right; or in parts, about square
blocks of it, which may then be wider, but the rows of L that stand beside its columns are read
again for each part. So cuts cost more or less depending on where they are, and the best ones are
found by dynamic programming, from the right: what the slabs from a panel on read does not depend on
those before.
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
        """Panels whose diagonal blocks lie in so many tiles."""
        return tiles * self.rows // self.columns


class SlabCut(NamedTuple):
    """How a slab is cut: the panel after its last, and the tile after the last of each part."""

    end: int
    edges: tuple[int, ...]


class Cuts(NamedTuple):
    """How slabs are cut.

    ``cuts`` says that for each panel, of a slab that begins with it; ``reads`` how many tiles are
    read then; ``most_words`` is what the largest part of these takes of memory;
    ``is_short_of_blocks`` whether some could be wider if more blocks could be held.
    """

    cuts: tuple[SlabCut, ...]
    reads: int
    most_words: int
    is_short_of_blocks: bool


class _Candidate(NamedTuple):
    """A cut, the words of memory that it takes, and the tiles that are read for its slab.

    Of the matrix, only what is read a second time.
    """

    cut: SlabCut
    words: int
    reads: int


def cut_slabs(
    t: Triangle, most_words: int, most_blocks: int, widths: Sequence[int] = (), chunk_tiles: int = 1
) -> Cuts | None:
    """Find how slabs should be cut; `None` if not even every single panel fits.

    Parameters
    ----------
    t
        The triangle.
    most_words
        What a slab, or a part of one, may take of memory.
    most_blocks
        How many blocks of an earlier panel can be held at once: those that hold the slab's own
        rows, and the one below them that is in use.
    widths
        Of slabs in parts, in tiles, that are tried; with none, every slab is in memory as a whole.
    chunk_tiles
        Height of the matrix's chunks: one that belongs to two parts is read twice.
    """
    search = _Search(t, most_words, most_blocks, chunk_tiles)
    cuts = [SlabCut(0, ())] * t.panels
    # Tiles that the slabs from a panel on read.
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
        # Tiles above the diagonal blocks of the panels before each one.
        self.above = [0, *accumulate(map(t.first_tile, range(t.panels)))]
        # The panel after the last of those that fit; most often about where that was before.
        self.last = t.panels

    def whole(self, first: int, reads: np.ndarray) -> _Candidate | None:
        """Find the best slab that is in memory as a whole."""
        t, last = self.t, self.last
        most_tiles = self.most_words // self.panel_words
        while last < t.panels and self.tiles_of(first, last + 1) <= most_tiles:
            last += 1
        while last > first and self.tiles_of(first, last) > most_tiles:
            last -= 1
        self.last = last
        # Below the last block there is none that could be in use beside it.
        reach = self.reach(first, self.most_blocks - 1)
        if last > reach and t.tiles - t.first_tile(first) > self.most_blocks * t.block_tiles:
            last, self.is_short_of_blocks = reach, True
        if last <= first:
            return None
        # Of cuts that are as good, the last.
        end = last - int(np.argmin(reads[last:first:-1])) if last > first + 1 else last
        words = self.tiles_of(first, end) * self.panel_words
        return _Candidate(SlabCut(end, (t.tiles,)), words, first * (t.tiles - t.first_tile(first)))

    def tiles_of(self, first: int, last: int) -> int:
        """Tiles of a slab's panels in memory, each group's from its first row down."""
        return (last - first) * self.t.tiles - self.above_groups(first, last)

    def above_groups(self, first: int, last: int) -> int:
        """Tiles above the groups of a slab's panels, in closed form: there are many candidates."""
        t = self.t
        top, height = t.first_tile(first), t.group_tiles
        width = height * self.per_tile
        end = (top + height) * self.per_tile
        if last <= end:
            return (last - first) * top
        # Of the groups that follow, so many are whole, and one may not be.
        whole, rest = divmod(last - end, width)
        tops = whole * top + height * whole * (whole + 1) // 2
        return (end - first) * top + width * tops + rest * (top + height * (whole + 1))

    def reach(self, first: int, blocks: int) -> int:
        """Find the panel after the last whose rows lie in a slab's first `blocks` blocks."""
        return (self.t.first_tile(first) + blocks * self.t.block_tiles) * self.per_tile

    def in_parts(self, first: int, width: int) -> _Candidate | None:
        """Cut a slab of so many tiles into as few parts as can be, if several are needed."""
        t = self.t
        end = first // self.per_tile * self.per_tile + t.panels_beside(width)
        # The blocks beside the slab's columns leave all at once; so about as many are read ahead.
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
        """Cut rows into parts: the first one ends at tile `lowest` at most.

        As few as can be, and where these leave a choice, between chunks of the matrix.
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
