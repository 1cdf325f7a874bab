"""Choose the blocks of a copy: cut where both source and target are cut, within a budget.

A compressed chunk is always decoded whole. So blocks follow the chunks of both sides where memory
allows: they are multiples of the least common multiple of the two chunk shapes.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from outcore._util.streams import Box
from outcore.errors import BudgetError

PAGE_BYTES = 4096
MOST_DEPTH = 8
"""Largest useful number of blocks in flight."""

Step: TypeAlias = int | Sequence[int]
"""Extent of the blocks along a dimension, except the last one; or the ends of all blocks."""

_LEAST_BOUNCE_BYTES, _MOST_BOUNCE_BYTES = 64 << 10, 16 << 20


@dataclass(frozen=True)
class Cuts:
    """Positions at which a dimension of `n` elements may be cut: multiples of `step`, or `edges`.

    ``edges`` are increasing, without 0, and end with `n`.
    """

    n: int
    step: int = 1
    edges: tuple[int, ...] = ()

    @property
    def widest(self) -> int:
        """Largest number of elements between two cuts."""
        if not self.edges:
            return min(self.step, self.n)
        return max(b - a for a, b in zip((0, *self.edges), self.edges, strict=False))

    def common(self, other: "Cuts") -> "Cuts":
        """Return the cuts that both have; `other` has no `edges`."""
        if self.edges:
            kept = tuple(e for e in self.edges if e % other.step == 0 or e == self.n)
            return Cuts(self.n, edges=kept)
        return Cuts(self.n, math.lcm(self.step, other.step))

    def pieces(self, most: int) -> list[slice]:
        """Cut the dimension into the fewest pieces of at most `most` elements or one interval."""
        if not self.edges:
            step = max(most // self.step, 1) * self.step
            return [slice(i, min(i + step, self.n)) for i in range(0, self.n, step)]
        found, start = [], 0
        for edge, following in zip(self.edges, (*self.edges[1:], None), strict=True):
            if following is None or following - start > most:
                found.append(slice(start, edge))
                start = edge
        return found

    def inside(self, piece: slice) -> list[slice]:
        """Cut a piece at every position where the dimension may be cut."""
        start, stop = int(piece.start), int(piece.stop)
        if self.edges:
            within = self.edges[bisect_right(self.edges, start) : bisect_left(self.edges, stop)]
        else:
            within = tuple(range((start // self.step + 1) * self.step, stop, self.step))
        return [slice(a, b) for a, b in itertools.pairwise((start, *within, stop))]

    def cover(self, piece: slice) -> int:
        """Count the elements in the intervals that a piece touches."""
        start, stop = int(piece.start), int(piece.stop)
        if not self.edges:
            return min(-(-stop // self.step) * self.step, self.n) - start // self.step * self.step
        at = bisect_right(self.edges, start)
        first = self.edges[at - 1] if at else 0
        return self.edges[bisect_left(self.edges, stop)] - first


@dataclass(frozen=True)
class Side:
    """Requirements of a source or a target on the blocks.

    Attributes
    ----------
    cuts
        The side's own cuts along each dimension.
    loose
        Dimensions along which these cuts may be ignored if memory is short. A chunk is then read
        more than once, or written in parts.
    library_blocks
        Memory of the side's library during the transfer of a block, in blocks, or in chunks of the
        source where those are larger.
    decoded
        Whether each access reads a whole chunk.
    bounces
        Whether the side needs bounce buffers from the budget.
    most_bytes
        Largest useful block on this side.
    run
        Dimension along which elements are contiguous, if that matters.
    """

    cuts: tuple[Cuts, ...]
    loose: tuple[int, ...] = ()
    library_blocks: int = 0
    decoded: bool = True
    bounces: bool = False
    most_bytes: int = 64 << 20
    run: int | None = None


@dataclass(frozen=True)
class CopyPlan:
    """The blocks of a copy and their memory; sizes in bytes.

    Attributes
    ----------
    pieces
        Pieces of each dimension; blocks are their products.
    block_bytes
        Memory of a block, in whole pages.
    depth
        Number of blocks in memory at the same time.
    bounce_bytes
        Bounce buffers of each side that needs them.
    times_read
        Average number of reads or decodings of a source element: 1.0 if no chunk is cut.
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

    @property
    def extents(self) -> tuple[int, ...]:
        """Largest extents of the blocks."""
        return _largest(self.pieces)

    @property
    def steps(self) -> list[Step]:
        """The blocks along each dimension, from which `plan_copy` makes the same ones."""
        return [
            step
            if all(piece.start == i * step for i, piece in enumerate(each))
            else [piece.stop for piece in each]
            for each, step in zip(self.pieces, self.extents, strict=True)
        ]

    def boxes(self, *, column_major: bool = False) -> Iterator[Box]:
        """Yield the blocks with the last dimension varying fastest, or with the first."""
        if not column_major:
            yield from itertools.product(*self.pieces)
            return
        for box in itertools.product(*self.pieces[::-1]):
            yield box[::-1]


class Pass(NamedTuple):
    """One pass of a copy: its blocks, and the chunks of the array that it makes.

    The chunks of the target, which the last pass writes, are `None`.
    """

    plan: CopyPlan
    chunks: tuple[int, ...] | None = None


def plan_copy(
    source: Side,
    target: Side,
    itemsize: int,
    have_bytes: int,
    steps: Sequence[Step] | None = None,
    *,
    is_resumed: bool = True,
) -> CopyPlan:
    """Choose the blocks of a copy.

    Parameters
    ----------
    source, target
        Requirements of the two sides.
    itemsize
        Bytes of an element, the larger of both sides.
    have_bytes
        The budget.
    steps
        The blocks, if they are given: with `is_resumed`, those of a stopped copy.

    Raises
    ------
    BudgetError
        If even the smallest blocks, or those of `steps`, do not fit.
    """
    sides = source.bounces + target.bounces
    library = max(source.library_blocks, target.library_blocks)
    chunk_bytes = _block_bytes([c.widest for c in source.cuts], itemsize)
    room = have_bytes - sides * _LEAST_BOUNCE_BYTES

    def block_room(depth: int) -> int:
        """Bytes of the largest block if `depth` of them must fit beside the library's memory."""
        return _pages(min(room // (depth + library), (room - library * chunk_bytes) // depth))

    cuts = [a.common(b) for a, b in zip(source.cuts, target.cuts, strict=True)]
    given_up = _give_up(cuts, source, target, block_room(1) // itemsize)
    given = None if steps is None else pieces_of([c.n for c in cuts], steps)
    least = [c.widest for c in cuts] if given is None else _largest(given)
    least_bytes = _block_bytes(least, itemsize)
    need = least_bytes + library * max(least_bytes, chunk_bytes)
    if need > room:
        is_begun = given is not None and is_resumed
        how = "restart with if_exists='overwrite'" if is_begun else "choose smaller chunks="
        raise BudgetError(
            f"need {need + sides * _LEAST_BOUNCE_BYTES} bytes to copy in blocks of {least_bytes}"
            f"{', in which it was begun' if is_begun else ''}, have {have_bytes}; raise memory= or "
            f"{how}"
        )
    spare = (have_bytes - need) // max(sides, 1)
    bounce_bytes = _pages(min(spare, max(have_bytes // 8, _LEAST_BOUNCE_BYTES), _MOST_BOUNCE_BYTES))
    room = have_bytes - sides * bounce_bytes
    most_bytes = min(max(source.most_bytes, target.most_bytes), block_room(4))
    if given_up:
        # The larger the blocks, the fewer chunks they cut.
        most_bytes = block_room(1)
    # Start with the largest gain: where the source's chunks are cut into the most pieces.
    given_up.sort(key=lambda d: cuts[d].widest / source.cuts[d].widest)
    runs = [d for d in (source.run, target.run) if d is not None]
    extents = _grow(cuts, given_up, list(dict.fromkeys(runs)), most_bytes // itemsize)
    pieces = given or tuple(c.pieces(extent) for c, extent in zip(cuts, extents, strict=True))
    block_bytes = _block_bytes(_largest(pieces), itemsize)
    beside = library * max(block_bytes, chunk_bytes)
    depth = min((room - beside) // block_bytes, MOST_DEPTH, math.prod(map(len, pieces)))
    times_read = 1.0
    if source.decoded:
        for c, each in zip(source.cuts, pieces, strict=True):
            times_read *= sum(map(c.cover, each)) / c.n
    return CopyPlan(pieces, block_bytes, max(depth, 1), bounce_bytes, times_read)


def pieces_of(shape: Sequence[int], steps: Sequence[Step]) -> tuple[list[slice], ...]:
    """Return the pieces of each dimension from the `steps` of a plan."""
    return tuple(
        (Cuts(n, step) if isinstance(step, int) else Cuts(n, edges=tuple(step))).pieces(1)
        for n, step in zip(shape, steps, strict=True)
    )


def _largest(pieces: Sequence[Sequence[slice]]) -> tuple[int, ...]:
    return tuple(max((p.stop - p.start for p in each), default=1) for each in pieces)


def planned_passes(
    source: Side,
    target: Side,
    itemsize: int,
    have: int,
    steps: Sequence[Sequence[Step]],
    between: Sequence[tuple[int, ...]],
    *,
    is_resumed: bool,
    finished: int = 0,
) -> list[Pass]:
    """Return the passes of given steps, through arrays of the chunks `between`.

    Parameters are those of `plan_copy`, with the steps of each pass. The first `finished` passes
    are left out, and need no memory.

    Raises
    ------
    BudgetError
        If a block does not fit.
    """
    middle = Side(target.cuts, bounces=True, decoded=False)
    ends = [source, *[middle for _ in between], target]
    pairs = zip(itertools.pairwise(ends), steps, (*between, None), strict=True)
    return [
        Pass(plan_copy(*sides, itemsize, have, each, is_resumed=is_resumed), chunks)
        for sides, each, chunks in itertools.islice(pairs, finished, None)
    ]


def _block_bytes(extents: Sequence[int], itemsize: int) -> int:
    elements: int = math.prod(extents)
    return -(-elements * itemsize // PAGE_BYTES) * PAGE_BYTES


def _pages(nbytes: int) -> int:
    return nbytes // PAGE_BYTES * PAGE_BYTES


def _give_up(cuts: list[Cuts], source: Side, target: Side, most: int) -> list[int]:
    """Ignore one side's cuts where blocks are too large; return the dimensions concerned.

    Ignore the target's cuts first: a chunk written in parts costs less than one decoded several
    times.
    """
    given_up: list[int] = []
    for loose, kept in ((target.loose, source.cuts), (source.loose, target.cuts)):
        left = [d for d in loose if d not in given_up]
        while left and math.prod(c.widest for c in cuts) > most:
            d = max(left, key=lambda d: cuts[d].widest / kept[d].widest)
            left.remove(d)
            if kept[d].widest < cuts[d].widest:
                cuts[d] = kept[d]
                given_up.append(d)
    return given_up


def _grow(cuts: Sequence[Cuts], first: list[int], runs: list[int], most: int) -> list[int]:
    """Return extents for at most `most` elements: long along `first`, then along all `runs`."""
    extents = [c.widest for c in cuts]

    def room(d: int) -> int:
        rest = math.prod(extents) // extents[d]
        return max(extents[d], min(most // rest, cuts[d].n))

    for d in first:
        extents[d] = room(d)
    growing = True
    while growing:
        growing = False
        for d in runs:
            doubled = min(2 * extents[d], cuts[d].n)
            if extents[d] < doubled <= room(d):
                extents[d], growing = doubled, True
    dims = range(len(cuts))
    for d in [*runs, *(dims if 0 in runs[:1] else dims[::-1])]:
        extents[d] = room(d)
    return extents
