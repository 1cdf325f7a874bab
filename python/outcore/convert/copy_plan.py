"""The blocks of a copy, and their memory within a budget.

`outcore.convert.rechunk_plan` chooses the blocks. A stopped copy resumes with those of its record.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from outcore._util.streams import Box
from outcore.errors import BudgetError

PAGE_BYTES = 4096
MOST_DEPTH = 8
"""Largest useful number of blocks in flight."""

Kind: TypeAlias = Literal["array", "flat", "memory", "encoded"]
"""An array of outcore; a file of elements; memory; or chunks that a library encodes."""

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
        Dimensions along which blocks may ignore these cuts. A chunk is then read more than once, or
        written in parts.
    library_blocks
        Memory of the side's library during the transfer of a block, in blocks, or in chunks of the
        source where those are larger.
    decoded
        Whether each access reads a whole chunk.
    bounces
        Whether the side needs bounce buffers from the budget.
    """

    cuts: tuple[Cuts, ...]
    loose: tuple[int, ...] = ()
    library_blocks: int = 0
    decoded: bool = True
    bounces: bool = False


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
    steps: Sequence[Step],
    *,
    is_resumed: bool = True,
) -> CopyPlan:
    """Plan the memory of a copy in given blocks.

    Parameters
    ----------
    source, target
        Requirements of the two sides.
    itemsize
        Bytes of an element, the larger of both sides.
    have_bytes
        The budget.
    steps
        The blocks. With `is_resumed`, they are those of a stopped copy.

    Raises
    ------
    BudgetError
        If the blocks do not fit.
    """
    sides = source.bounces + target.bounces
    library = max(source.library_blocks, target.library_blocks)
    chunk_bytes = _block_bytes([c.widest for c in source.cuts], itemsize)
    cuts = _cuts_of([c.n for c in source.cuts], steps)
    block_bytes = _block_bytes([c.widest for c in cuts], itemsize)
    need = block_bytes + library * max(block_bytes, chunk_bytes)
    if need + sides * _LEAST_BOUNCE_BYTES > have_bytes:
        how = "restart with if_exists='overwrite'" if is_resumed else "choose smaller chunks="
        raise BudgetError(
            f"need {need + sides * _LEAST_BOUNCE_BYTES} bytes to copy in blocks of {block_bytes}"
            f"{', in which it was begun' if is_resumed else ''}, have {have_bytes}; raise memory= "
            f"or {how}"
        )
    spare = (have_bytes - need) // max(sides, 1)
    bounce_bytes = _pages(min(spare, max(have_bytes // 8, _LEAST_BOUNCE_BYTES), _MOST_BOUNCE_BYTES))
    beside = library * max(block_bytes, chunk_bytes) + sides * bounce_bytes
    depth = min((have_bytes - beside) // block_bytes, MOST_DEPTH)
    pieces = _pieces(cuts)
    times_read = 1.0
    if source.decoded:
        for c, each in zip(source.cuts, pieces, strict=True):
            times_read *= sum(map(c.cover, each)) / c.n
    depth = max(min(depth, math.prod(map(len, pieces))), 1)
    return CopyPlan(pieces, block_bytes, depth, bounce_bytes, times_read)


def pieces_of(shape: Sequence[int], steps: Sequence[Step]) -> tuple[list[slice], ...]:
    """Return the pieces of each dimension from the `steps` of a plan."""
    return _pieces(_cuts_of(shape, steps))


def _cuts_of(shape: Sequence[int], steps: Sequence[Step]) -> list[Cuts]:
    return [
        Cuts(n, step) if isinstance(step, int) else Cuts(n, edges=tuple(step))
        for n, step in zip(shape, steps, strict=True)
    ]


def _pieces(cuts: Sequence[Cuts]) -> tuple[list[slice], ...]:
    return tuple(each.pieces(1) for each in cuts)


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
