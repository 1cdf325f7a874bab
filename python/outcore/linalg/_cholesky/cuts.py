"""The cuts of a triangle that cause the fewest reads: pure arithmetic.

A slab that begins at panel o reads tiles of the o panels to its left, from its first row down.
Either the whole slab fits in memory, so slabs grow to the right. Or it is in memory in parts, which
are roughly square blocks. Such a slab may be wider, but each part reads the rows of L beside its
columns again. The cost of a cut thus depends on its position. Dynamic programming from the right
finds the best cuts, because the reads of the slabs from a panel on do not depend on earlier slabs.

The candidates of all panels are computed together, in arrays with an element for each panel.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from outcore.linalg._geometry.deal import ALONE, Deal

_NEVER = np.iinfo(np.int64).max // 2
"""Reads of a candidate that does not fit."""


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
    tiles that all slabs read, and ``most_words`` the memory of the largest part on each process.
    ``is_short_of_blocks`` says whether some slabs could be wider if memory held more blocks.
    """

    cuts: tuple[SlabCut, ...]
    reads: int
    most_words: tuple[int, ...]
    is_short_of_blocks: bool


class _Parts(NamedTuple):
    """Slabs in parts: arrays of shape (panels, widths), for the first panel and width of a slab.

    ``reads`` counts tiles, and includes only second reads of the matrix.
    """

    ends: np.ndarray
    words: np.ndarray
    reads: np.ndarray


def cut_slabs(
    t: Triangle,
    most_words: Sequence[int],
    most_blocks: int,
    widths: Sequence[int] = (),
    chunk_tiles: int = 1,
    deal: Deal = ALONE,
) -> Cuts | None:
    """Find the best cuts of slabs; `None` if some single panel does not fit.

    Parameters
    ----------
    t
        The triangle.
    most_words
        Memory available to a slab, or to a part of one, on each process.
    most_blocks
        Number of blocks of an earlier panel that memory can hold at once. These are the blocks with
        the slab's own rows, and the block below them that is in use.
    widths
        Widths in tiles to try for slabs in parts. Without any, every slab is wholly in memory.
    chunk_tiles
        Height of the matrix's chunks. A chunk in two parts is read twice.
    deal
        The panels of each process. Slabs of several processes are wholly in memory.
    """
    if not widths and min(most_words) < t.tiles * t.rows * t.columns:
        return None  # the first panel is the highest
    search = _Search(t, most_words, most_blocks, chunk_tiles, deal)
    last = search.widest().tolist()
    whole_reads = (search.first * (t.tiles - search.top)).tolist()
    parts = search.in_parts(widths)
    # Number of tiles that the slabs from each panel on read.
    reads = np.zeros(t.panels + 1, np.int64)
    ends = np.zeros(t.panels, np.int64)
    in_parts: dict[int, int] = {}
    for first in range(t.panels)[::-1]:
        least = _NEVER
        if last[first] > first:
            # Among equally good cuts, take the last.
            ends[first] = last[first] - int(reads[last[first] : first : -1].argmin())
            least = whole_reads[first] + int(reads[ends[first]])
        if widths:
            totals = parts.reads[first] + reads[parts.ends[first]]
            best = int(totals.argmin())
            if totals[best] < least:
                ends[first], least, in_parts[first] = parts.ends[first, best], totals[best], best
        if least >= _NEVER:
            return None
        reads[first] = least
    words = search.tiles_of(search.first, ends) * search.panel_words
    cuts = [SlabCut(end, (t.tiles,)) for end in ends.tolist()]
    if in_parts:
        firsts = np.array([*in_parts])
        words[0, firsts] = parts.words[firsts, [*in_parts.values()]]
        edges = np.stack([*search.edges(firsts, ends[firsts])])
        for first, of_slab in zip(in_parts, edges.T.tolist(), strict=True):
            inner = (edge for edge in of_slab if edge < t.tiles)
            cuts[first] = SlabCut(cuts[first].end, (*inner, t.tiles))
    most = tuple(words.max(axis=1).tolist())
    return Cuts(tuple(cuts), int(reads[0]), most, search.is_short_of_blocks)


class _Search:
    """Candidates for the slabs that begin with each panel.

    The methods take and return arrays of panels or tiles. The arguments `first` and `last` are the
    first panel of each slab, and the panel after its last.
    """

    def __init__(
        self,
        t: Triangle,
        most_words: Sequence[int],
        most_blocks: int,
        chunk_tiles: int,
        deal: Deal,
    ) -> None:
        self.t, self.most_blocks, self.chunk_tiles, self.deal = t, most_blocks, chunk_tiles, deal
        self.is_short_of_blocks = False
        self.panel_words = t.rows * t.columns
        self.most_tiles = np.array(most_words)[:, None] // self.panel_words
        self.per_tile = t.panels_beside(1)
        self.first = np.arange(t.panels)
        # Tile of each panel that holds its diagonal block.
        self.top = self.first * t.columns // t.rows
        # Tiles above the diagonal blocks of all panels before each panel.
        self.above = np.concatenate([[0], self.top.cumsum()])

    def widest(self) -> np.ndarray:
        """Return the panel after the last of the widest slab from each panel in memory."""
        t = self.t
        # Bisection: slabs that end at `last` fit, and slabs that end at `beyond` do not.
        last, beyond = self.first, np.full(t.panels, t.panels + 1)
        for _ in range(t.panels.bit_length()):
            middle = (last + beyond) // 2
            fits = (self.tiles_of(self.first, middle) <= self.most_tiles).all(axis=0)
            last, beyond = np.where(fits, middle, last), np.where(fits, beyond, middle)
        # The last block needs no block in use beside it, since no block lies below it.
        reach = self.reach(self.first, self.most_blocks - 1)
        blocks_below = t.tiles - self.top > self.most_blocks * t.block_tiles
        return self.within(reach, last, blocks_below)

    def within(
        self, reach: np.ndarray, last: np.ndarray, blocks_below: np.ndarray | bool = True
    ) -> np.ndarray:
        """Return the ends of slabs, which do not pass `reach` if blocks lie below them."""
        is_beyond = (last > reach) & blocks_below
        self.is_short_of_blocks |= bool(is_beyond.any())
        return np.where(is_beyond, reach, last)

    def tiles_of(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Tiles of a slab's panels in memory, in a row for each process.

        One process holds each group from its first row down, one of several each panel from its
        own.
        """
        if self.deal.size > 1:
            before = _held_before(self.t, self.deal)
            held: np.ndarray = before[:, last] - before[:, first]
            return held
        tiles: np.ndarray = (last - first) * self.t.tiles - self.above_groups(first, last)
        return tiles[None]

    def above_groups(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Tiles above the groups of a slab's panels; a closed form for many candidates."""
        top, height = self.top[first], self.t.group_tiles
        width = height * self.per_tile
        end = (top + height) * self.per_tile
        # The following groups are all whole, except possibly the last.
        whole, rest = np.divmod(last - end, width)
        tops = whole * top + height * whole * (whole + 1) // 2
        groups = (end - first) * top + width * tops + rest * (top + height * (whole + 1))
        above: np.ndarray = np.where(last <= end, (last - first) * top, groups)
        return above

    def reach(self, first: np.ndarray, blocks: int) -> np.ndarray:
        """Return the panel after the last whose rows lie in a slab's first `blocks` blocks."""
        tiles = self.top[first] + blocks * self.t.block_tiles
        last: np.ndarray = tiles * self.per_tile
        return last

    def in_parts(self, widths: Sequence[int]) -> _Parts:
        """Cut slabs of these widths in tiles into the fewest parts, at least two."""
        t, shape = self.t, (self.t.panels, len(widths))
        first, column = np.indices(shape).reshape(2, -1)
        panels_of = np.array([t.panels_beside(width) for width in widths], int)
        # All blocks beside the slab's columns are released at once, so about as many are read
        # ahead.
        reach = self.reach(first, self.most_blocks * 2 // 3 - 1)
        end = first // self.per_tile * self.per_tile + panels_of[column]
        end = np.clip(self.within(reach, end), 0, t.panels)
        fits = np.flatnonzero((end > first) & (end < t.panels))
        fits = fits[self.has_parts(first[fits], end[fits])]
        words, reads = np.zeros(first.shape, int), np.full(first.shape, _NEVER)
        words[fits], reads[fits] = self.words_and_reads(first[fits], end[fits])
        return _Parts(*(array.reshape(shape) for array in (end, words, reads)))

    def words_and_reads(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory of the largest part of slabs, and the tiles that they read."""
        t, chunk, panels = self.t, self.chunk_tiles, end - first
        below, split, most = np.zeros((3, first.size), int)
        above = self.above_groups(first, end)
        for edge in self.edges(first, end):
            is_inner = edge < t.tiles
            below += is_inner
            split += is_inner & (edge % chunk > 0)
            most = np.maximum(most, panels * edge - above)
            above = panels * edge
        most = np.maximum(most, panels * t.tiles - above)
        top, beside = self.top[first], end // self.per_tile
        reads = first * (t.tiles - top + below * (beside - top))
        reads += below * (panels * beside - (self.above[end] - self.above[first]))
        return most * self.panel_words, reads + panels * split * chunk

    def heights(self, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the first part of slabs ends at most, and the most tiles of the others."""
        panels, above = end - first, self.above_groups(first, end)
        most_tiles = self.most_tiles[0]
        return (most_tiles + above) // panels, most_tiles // panels

    def has_parts(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Tell of slabs whether they fit in parts, the first of which holds all diagonal blocks."""
        lowest, height = self.heights(first, end)
        return (lowest >= end // self.per_tile) & (lowest < self.t.tiles) & (height > 0)

    def edges(self, first: np.ndarray, end: np.ndarray) -> Iterator[np.ndarray]:
        """Cut slabs into parts: yield the tile after each part of them, from the top down.

        There are as few parts as possible. If several cuts do that, they lie between chunks of the
        matrix. A slab with fewer parts than others ends at ``tiles`` several times.
        """
        tiles, chunk = self.t.tiles, self.chunk_tiles
        edge, height = self.heights(first, end)
        least = end // self.per_tile
        while (edge < tiles).any():
            aligned = edge // chunk * chunk
            as_few = -(-(tiles - aligned) // height) == -(-(tiles - edge) // height)
            edge = np.where((aligned >= least) & as_few, aligned, edge)
            yield np.minimum(edge, tiles)
            edge, least = edge + height, edge + 1


@functools.lru_cache(maxsize=64)
def _held_before(t: Triangle, deal: Deal) -> np.ndarray:
    """Return the tiles that each process holds of all panels before each, and of all panels."""
    owners = np.array([deal.owner(panel) for panel in range(t.panels)])
    tiles = t.tiles - np.arange(t.panels) * t.columns // t.rows
    held = (owners == np.arange(deal.size)[:, None]) * tiles
    return np.concatenate([np.zeros((deal.size, 1), np.int64), held.cumsum(axis=1)], axis=1)
