"""In which blocks an array is copied: cut where its source and its target are cut, within a budget.

A compressed chunk is decoded whole, however little of it is wanted, so blocks keep to the chunks of
both sides where memory allows: multiples of the least common multiple of the two chunk shapes.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outcore.errors import BudgetError
from outcore.streams import Box

PAGE_BYTES = 4096
MOST_DEPTH = 8
"""More blocks than this on their way gain nothing."""

_LEAST_BOUNCE_BYTES, _MOST_BOUNCE_BYTES = 64 << 10, 16 << 20


@dataclass(frozen=True)
class Cuts:
    """Where a dimension of `n` elements may be cut: at multiples of `step`, or at `edges`.

    ``edges`` are increasing, without 0, and end with `n`.
    """

    n: int
    step: int = 1
    edges: tuple[int, ...] = ()

    @property
    def widest(self) -> int:
        """Elements between two cuts, at most."""
        if not self.edges:
            return min(self.step, self.n)
        return max(b - a for a, b in zip((0, *self.edges), self.edges, strict=False))

    def common(self, other: "Cuts") -> "Cuts":
        """Cuts that are in both; `other` has no `edges`."""
        if self.edges:
            kept = tuple(e for e in self.edges if e % other.step == 0 or e == self.n)
            return Cuts(self.n, edges=kept)
        return Cuts(self.n, math.lcm(self.step, other.step))

    def pieces(self, most: int) -> list[slice]:
        """Cut the dimension into as few pieces as `most` elements allow, at least one interval."""
        if not self.edges:
            step = max(most // self.step, 1) * self.step
            return [slice(i, min(i + step, self.n)) for i in range(0, self.n, step)]
        found, start = [], 0
        for edge, following in zip(self.edges, (*self.edges[1:], None), strict=True):
            if following is None or following - start > most:
                found.append(slice(start, edge))
                start = edge
        return found

    def cover(self, piece: slice) -> int:
        """Elements of the intervals that a piece touches."""
        start, stop = int(piece.start), int(piece.stop)
        if not self.edges:
            return min(-(-stop // self.step) * self.step, self.n) - start // self.step * self.step
        at = bisect_right(self.edges, start)
        first = self.edges[at - 1] if at else 0
        return self.edges[bisect_left(self.edges, stop)] - first


@dataclass(frozen=True)
class Side:
    """What a source or a target wants of the blocks.

    Attributes
    ----------
    cuts
        Where it is cut itself, along each dimension.
    strict
        Whether blocks must keep to these cuts. Others are given up where memory is short: a chunk
        is then read more than once, or written in parts.
    library_blocks
        Memory that its library takes while it moves a block, in blocks.
    bounces
        Whether it needs bounce buffers from the budget.
    most_bytes
        Larger blocks gain nothing.
    run
        The dimension along which its elements lie one after another, if that matters.
    """

    cuts: tuple[Cuts, ...]
    strict: bool = False
    library_blocks: int = 0
    bounces: bool = False
    most_bytes: int = 64 << 20
    run: int | None = None


@dataclass(frozen=True)
class CopyPlan:
    """The blocks of a copy and the memory they take; sizes in bytes.

    Attributes
    ----------
    pieces
        Pieces of each dimension; blocks are their products.
    block_bytes
        Memory of a block, whole pages.
    depth
        Blocks in memory at once.
    bounce_bytes
        Of each side that needs bounce buffers.
    times_read
        How often an element of the source is read or decoded, on average: 1.0 if no chunk is cut.
    """

    pieces: tuple[list[slice], ...]
    block_bytes: int
    depth: int
    bounce_bytes: int
    times_read: float

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(map(len, self.pieces))

    def boxes(self, *, column_major: bool = False) -> Iterator[Box]:
        """Yield the blocks, the last dimension fastest, or the first."""
        if not column_major:
            yield from itertools.product(*self.pieces)
            return
        for box in itertools.product(*self.pieces[::-1]):
            yield box[::-1]


def plan_copy(source: Side, target: Side, itemsize: int, have_bytes: int) -> CopyPlan:
    """Choose the blocks of a copy.

    Parameters
    ----------
    source, target
        What the two sides want.
    itemsize
        Bytes of an element, the larger of both sides.
    have_bytes
        The budget.

    Raises
    ------
    BudgetError
        If not even the smallest blocks fit.
    """
    bounce_bytes = min(max(have_bytes // 8, _LEAST_BOUNCE_BYTES), _MOST_BOUNCE_BYTES)
    bounces_bytes = (source.bounces + target.bounces) * bounce_bytes
    library = max(source.library_blocks, target.library_blocks)
    room = have_bytes - bounces_bytes
    cuts = [a.common(b) for a, b in zip(source.cuts, target.cuts, strict=True)]
    given_up = _give_up(cuts, source, target, _pages(room // (library + 1)) // itemsize)
    least = _block_bytes([c.widest for c in cuts], itemsize)
    if least * (library + 1) > room:
        need = least * (library + 1) + bounces_bytes
        raise BudgetError(
            f"need {need} bytes to copy in blocks of {least}, have {have_bytes}; "
            "raise memory= or choose smaller chunks="
        )
    most_bytes = min(source.most_bytes, target.most_bytes, room // (library + 4))
    if given_up:
        # Chunks are written in parts: the larger these are, the better.
        most_bytes = room // (library + 2)
    extents = _grow(cuts, source.run, target.run, _pages(most_bytes) // itemsize)
    pieces = tuple(c.pieces(extent) for c, extent in zip(cuts, extents, strict=True))
    largest = [max(p.stop - p.start for p in each) for each in pieces]
    block_bytes = _block_bytes(largest, itemsize)
    depth = min(room // block_bytes - library, MOST_DEPTH, math.prod(map(len, pieces)))
    times_read = math.prod(
        sum(map(c.cover, each)) / c.n for c, each in zip(source.cuts, pieces, strict=True)
    )
    return CopyPlan(pieces, block_bytes, max(depth, 1), bounce_bytes, times_read)


def _block_bytes(extents: Sequence[int], itemsize: int) -> int:
    elements: int = math.prod(extents)
    return -(-elements * itemsize // PAGE_BYTES) * PAGE_BYTES


def _pages(nbytes: int) -> int:
    return nbytes // PAGE_BYTES * PAGE_BYTES


def _give_up(cuts: list[Cuts], source: Side, target: Side, most: int) -> bool:
    """Where blocks are too large, keep to the cuts of one side only; whether that was needed.

    Writing a chunk in parts costs less than decoding one several times.
    """
    if target.strict and source.strict:
        return False
    kept = source.cuts if not target.strict else target.cuts
    given_up = False
    while math.prod(c.widest for c in cuts) > most:
        gains = [c.widest / k.widest for c, k in zip(cuts, kept, strict=True)]
        d = gains.index(max(gains))
        if gains[d] == 1:
            break
        cuts[d], given_up = kept[d], True
    return given_up


def _grow(cuts: Sequence[Cuts], run: int | None, other: int | None, most: int) -> list[int]:
    """Extents of the blocks, at most `most` elements: long where a side has its runs."""
    extents = [c.widest for c in cuts]

    def room(d: int) -> int:
        rest = math.prod(extents) // extents[d]
        whole = min(most // rest, cuts[d].n)
        return max(extents[d], whole)

    first = [d for d in dict.fromkeys((run, other)) if d is not None]
    growing = len(first) == 2
    while growing:
        growing = False
        for d in first:
            doubled = min(2 * extents[d], cuts[d].n)
            if extents[d] < doubled <= room(d):
                extents[d], growing = doubled, True
    slow_to_fast = range(len(cuts)) if run != 0 else range(len(cuts))[::-1]
    for d in [*first, *reversed(slow_to_fast)]:
        extents[d] = room(d)
    return extents
