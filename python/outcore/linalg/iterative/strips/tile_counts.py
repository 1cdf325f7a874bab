"""Numbers of a matrix's tiles of each kind, without creating the tiles, so that plans are fast."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore.linalg.iterative.strips.strips import Strips, Tile

BELOW, INSIDE, ABOVE = 1, 2, 4
"""Bits of a kind: the parts of a tile, relative to the diagonal block of its strip."""

KINDS = range((BELOW | INSIDE | ABOVE) + 1)
"""All combinations of the bits."""

_LINES_AT_ONCE = 64


def kind_of(tile: Tile) -> int:
    """Return the kind of a tile: the parts that it has elements of."""
    parts = (tile.below, BELOW), (tile.inside, INSIDE), (tile.above, ABOVE)
    return sum(bit for box, bit in parts if box is not None)


class Elements(NamedTuple):
    """Elements of a matrix below, in and above the diagonal blocks."""

    below: int
    inside: int
    above: int


class TileCounts(NamedTuple):
    """The tiles of a matrix by their kinds.

    Attributes
    ----------
    kinds
        Kind of each tile, in the order of `Strips.all_tiles`.
    elements
        Numbers of elements of the whole matrix, or of the strips of one process.
    """

    kinds: npt.NDArray[np.uint8]
    elements: Elements

    def count(self, kinds: frozenset[int]) -> int:
        """Count the tiles of some kinds."""
        numbers = np.bincount(self.kinds, minlength=len(KINDS))
        return int(sum(numbers[kind] for kind in kinds))


@functools.lru_cache(8)
def tile_counts(strips: Strips) -> TileCounts:
    """Count the tiles of some strips."""
    kinds, sums = [], np.zeros(3, np.int64)
    for block, heights in _lines(strips):
        kinds.append(((block > 0) * np.array([BELOW, INSIDE, ABOVE])[:, None, None]).sum(axis=0))
        sums += (block.sum(axis=2) * heights).sum(axis=1)
    below, inside, above = map(int, sums)
    flat = np.concatenate([np.empty(0, np.uint8)] + [k.astype(np.uint8).ravel() for k in kinds])
    return TileCounts(flat, Elements(below, inside, above))


def _lines(strips: Strips) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield, for some lines of chunks, the widths of each tile's three parts, and the heights.

    A line is a row of chunks if strips are rows, otherwise a column.
    """
    n = strips.n
    along, across = strips.chunks if strips.by == "rows" else strips.chunks[::-1]
    first = np.arange(0, n, across)
    end = np.minimum(first + across, n)
    own = strips.lines
    for begin in range(own.start, own.stop, _LINES_AT_ONCE * along):
        tops = np.arange(begin, min(begin + _LINES_AT_ONCE * along, own.stop), along)
        start = (tops // strips.block * strips.block)[:, None]
        stop = np.minimum(start + strips.block, n)
        before = np.minimum(end, start) - first
        inside = np.minimum(end, stop) - np.maximum(first, start)
        after = end - np.maximum(first, stop)
        parts = [before, inside, after] if strips.by == "rows" else [after, inside, before]
        widths = np.maximum(np.stack(np.broadcast_arrays(*parts)), 0)
        yield widths, np.minimum(tops + along, n) - tops
