"""Choose the passes of a re-layout: the blocks of each, and the chunks of arrays between them.

A pass copies an array block by block. It moves each byte once if its blocks are whole chunks on
both sides, or long runs of chunks. If no such block fits in memory, two passes through an array of
other chunks may be faster than one pass with short requests. The search compares both by one cost
in bytes: the bytes that move, and `REQUEST_BYTES` for each request.

Each pass has a box of steps, one along each dimension. A local search changes one or two of them
at a time, as long as the cost falls.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outcore.convert.copy_plan import Cuts, Kind, Pass, Side, Step, planned_passes
from outcore.convert.sources import Source, fast_to_slow
from outcore.layout.box_traffic import Traffic
from outcore.layout.disk_reads import REQUEST_BYTES
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES, Metadata

MOST_PASSES = 4

_BLOCK_BYTES = 64 << 10
"""Cost of a block in Python, in bytes that could move meanwhile."""

_DECODINGS = 2
"""Cost of decoding a byte of a foreign chunk, in bytes moved."""

_MOST_CHUNK_BYTES = 64 << 20
_IN_FLIGHT = 3
"""Blocks in memory at the same time, so that one is read while another is written."""

_OVERLAP = 16
"""Each further block in flight saves the time of moving this part of the array."""

WORTH_BYTES = 64 << 20
"""Further passes are worth a search if they could save this cost."""

_NEAR = 3
"""Neighbours of a step that the search tries when it changes two steps at once."""

Steps = tuple[int, ...]


@dataclass(frozen=True)
class End:
    """A source or a target of a pass.

    Attributes
    ----------
    kind
        Where the elements lie.
    chunks, order, itemsize
        Layout of the elements: shape of a chunk, dimensions in it from the fastest, and bytes.
    side
        Constraints on the blocks.
    """

    kind: Kind
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    order: tuple[int, ...]
    itemsize: int
    side: Side

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize

    def cost(self, steps: Steps, *, is_write: bool) -> float:
        """Estimate the cost of moving all blocks of these steps, in bytes."""
        return _cost(self.kind, self.shape, self.chunks, self.order, self.itemsize, steps, is_write)

    def traffic(self, steps: Steps, *, is_write: bool) -> Traffic:
        """Estimate the bytes and the requests of all blocks of these steps."""
        nbytes, requests = _requests(
            self.kind, self.shape, self.chunks, self.order, self.itemsize, steps, is_write
        )
        return Traffic(round(nbytes), round(requests))


@functools.lru_cache(1 << 12)
def _parts(n: int, step: int, chunk: int) -> int:
    """Count the parts into which blocks and chunks cut a dimension."""
    return -(-n // step) + -(-n // chunk) - -(-n // math.lcm(step, chunk))


@functools.lru_cache(1 << 16)
def _requests(
    kind: Kind,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    order: tuple[int, ...],
    itemsize: int,
    steps: Steps,
    is_write: bool,
) -> tuple[float, float]:
    """Estimate the bytes and the requests of all blocks, as if all parts of chunks were alike."""
    if kind == "memory":
        return 0, 0
    parts = [_parts(n, s, c) for n, s, c in zip(shape, steps, chunks, strict=True)]
    times = math.prod(parts)
    if kind == "encoded":
        whole = math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        return math.prod(shape) * itemsize * times / whole, times
    gap_bytes = REQUEST_BYTES if kind == "array" and not is_write else 0
    extent = stride = float(itemsize)
    requests = 1.0
    for d in order:
        chunk = min(chunks[d], shape[d])
        is_whole = parts[d] == -(-shape[d] // chunk)
        count = chunk if is_whole else shape[d] / parts[d]
        if requests == 1 and stride - extent <= gap_bytes:
            extent += (count - 1) * stride
        else:
            requests *= count
        stride *= chunk
    if kind == "array":
        requests *= max(extent / TILE_BYTES, 1)
    return extent * requests * times, requests * times


def _cost(
    kind: Kind,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    order: tuple[int, ...],
    itemsize: int,
    steps: Steps,
    is_write: bool,
) -> float:
    nbytes, requests = _requests(kind, shape, chunks, order, itemsize, steps, is_write)
    if kind == "encoded" and not is_write:
        nbytes *= _DECODINGS
    return nbytes + REQUEST_BYTES * requests


class _Chain:
    """The search for the steps of a number of passes, with `depth` blocks in memory."""

    def __init__(
        self, source: End, target: End, passes: int, itemsize: int, have: int, depth: int
    ) -> None:
        self.source, self.target, self.passes = source, target, passes
        self.itemsize, self.have, self.depth = itemsize, have, depth
        shape = source.shape
        self.between = End(
            "array", shape, shape, source.order, target.itemsize,
            Side(
                target.side.cuts, tuple(range(len(shape))), bounces=True, decoded=False
            ),
        )  # fmt: skip
        ends = [(source, target)]
        if passes > 1:
            inner = [(self.between, self.between)] * (passes - 2)
            ends = [(source, self.between), *inner, (self.between, target)]
        self.choices = [_choices(first, last, source, target) for first, last in ends]
        self.most = [self._room(*pair, self.choices[i]) for i, pair in enumerate(ends)]

    def _room(self, source: End, target: End, choices: Sequence[Sequence[int]]) -> int:
        """Return the most elements of a block: with `depth` in memory if possible, else one.

        Larger blocks, in which fewer encoded chunks are decoded again, are worth more than that.
        """
        least = math.prod(each[0] for each in choices)
        if source.kind == "encoded":
            multiples = (
                [step for step in each if step % chunk == 0 or step == each[-1]]
                for each, chunk in zip(choices, source.chunks, strict=True)
            )
            least = math.prod(each[0] for each in multiples)
        for depth in range(self.depth, 0, -1):
            most = block_room(source.side, target.side, self.itemsize, self.have, depth)
            if least * self.itemsize <= most:
                break
        return most // self.itemsize

    def cost(self, steps: Sequence[Steps]) -> float:
        """Return the cost of all passes, in bytes."""
        total = (_IN_FLIGHT - self.depth) * self.target.nbytes / _OVERLAP
        total += self.source.cost(steps[0], is_write=False)
        total += self.target.cost(steps[-1], is_write=True)
        for first, second in itertools.pairwise(steps):
            total += self.best_between(first, second)[0]
        for each in steps:
            blocks = math.prod(-(-n // s) for n, s in zip(self.source.shape, each, strict=True))
            # The first read and the last write of a pass overlap with nothing.
            total += blocks * _BLOCK_BYTES + math.prod(each) * self.itemsize
        return total

    def _cost_with(self, others: Sequence[Steps], i: int, steps: Steps) -> float:
        return self.cost([*others[:i], steps, *others[i + 1 :]])

    def best_between(self, first: Steps, second: Steps) -> tuple[float, tuple[int, ...]]:
        """Return the chunks of an array between blocks of these steps, with its cost."""
        found = []
        for combine in (min, math.gcd):
            chunks = [combine(a, b) for a, b in zip(first, second, strict=True)]
            while math.prod(chunks) * self.between.itemsize > _MOST_CHUNK_BYTES:
                d = max(range(len(chunks)), key=chunks.__getitem__)
                chunks[d] = -(-chunks[d] // 2)
            end = self._array(tuple(chunks))
            slot = math.prod(chunks) * end.itemsize
            padding = -(-slot // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES / slot
            cost = end.cost(first, is_write=True) + end.cost(second, is_write=False)
            found.append((cost * padding, end.chunks))
        return min(found)

    def _array(self, chunks: tuple[int, ...]) -> End:
        b = self.between
        return End(b.kind, b.shape, chunks, b.order, b.itemsize, b.side)

    def search(self) -> list[Steps]:
        """Return the steps of each pass."""
        first = [tuple(each[0] for each in of_pass) for of_pass in self.choices]
        if any(math.prod(s) > most for s, most in zip(first, self.most, strict=True)):
            return first  # too large; the error says how much memory they need

        def towards(one: float, other: float) -> float:
            return one + other / 64

        def first_pass(steps: Steps) -> float:
            return towards(
                self.source.cost(steps, is_write=False), self.target.cost(steps, is_write=True)
            )

        def last_pass(steps: Steps) -> float:
            return towards(
                self.target.cost(steps, is_write=True), self.source.cost(steps, is_write=False)
            )

        if self.passes > 1:
            begun = self._descend(0, first[0], first_pass)
            ended = self._descend(self.passes - 1, first[-1], last_pass)
            first = [begun, *first[1:-1], ended]
            for i in range(1, self.passes - 1):
                middle = self._between_steps(i, begun, ended)
                first[i] = middle
        cost, falls = self.cost(first), True
        while falls:
            for i in range(self.passes):
                first[i] = self._descend(i, first[i], functools.partial(self._cost_with, first, i))
            now = self.cost(first)
            falls, cost = now < cost, now
        return first

    def _between_steps(self, i: int, begun: Steps, ended: Steps) -> Steps:
        """Return steps of a middle pass, on the way from the first to the last in logarithms."""
        share, choices = i / (self.passes - 1), self.choices[i]
        wanted = [a ** (1 - share) * b**share for a, b in zip(begun, ended, strict=True)]
        found = [
            max((c for c in each if c <= want), default=each[0])
            for each, want in zip(choices, wanted, strict=True)
        ]
        while math.prod(found) > self.most[i]:
            d = max(range(len(found)), key=lambda d: found[d] / choices[d][0])
            found[d] = choices[d][choices[d].index(found[d]) - 1]
        return tuple(found)

    def _descend(self, i: int, steps: Steps, cost: Callable[[Steps], float]) -> Steps:
        """Change one or two steps of a pass at a time, as long as the cost falls."""
        best = cost(steps)
        while True:
            tried = [
                (cost(near), near)
                for near in self._near(steps, self.choices[i])
                if math.prod(near) <= self.most[i]
            ]
            least, near = min(tried, default=(best, steps))
            if least >= best:
                return steps
            best, steps = least, near

    def _near(self, steps: Steps, choices: Sequence[Sequence[int]]) -> Iterator[Steps]:
        dims = range(len(steps))
        at = [choices[d].index(steps[d]) for d in dims]
        for d in dims:
            for other in choices[d]:
                if other != steps[d]:
                    yield (*steps[:d], other, *steps[d + 1 :])
        for d, e in itertools.permutations(dims, 2):
            for longer in choices[d][at[d] + 1 : at[d] + 1 + _NEAR]:
                for shorter in choices[e][max(at[e] - _NEAR, 0) : at[e]]:
                    changed = list(steps)
                    changed[d], changed[e] = longer, shorter
                    yield tuple(changed)


def _choices(first: End, last: End, source: End, target: End) -> list[list[int]]:
    """Return the steps to try along each dimension: chunks of both sides, multiples and parts."""
    found = []
    for d, n in enumerate(source.shape):
        unit = 1
        for side in (first.side, last.side):
            if d not in side.loose:
                cuts = side.cuts[d]
                unit = n if cuts.edges else math.lcm(unit, min(cuts.step, n))
        sizes = {unit}
        for size in (
            source.chunks[d],
            target.chunks[d],
            math.lcm(source.chunks[d], target.chunks[d]),
        ):
            low = min(size, n)
            while low > 1:
                sizes.add(low)
                low = -(-low // 2)
            while size < n:
                sizes.add(size)
                size *= 2
        found.append(sorted({min(s, n) for s in sizes if s % unit == 0} | {n}))
    return found


def block_room(source: Side, target: Side, itemsize: int, have: int, depth: int) -> int:
    """Return the bytes of the largest block, if so many are in memory beside all buffers."""
    sides, library = (
        source.bounces + target.bounces,
        max(source.library_blocks, target.library_blocks),
    )
    least, most = 64 << 10, 16 << 20
    bounce = least if depth == 1 else min(max(have // 8, least), most)
    chunk = math.prod(c.widest for c in source.cuts) * itemsize
    chunk = -(-chunk // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES
    room = have - sides * bounce
    room = min(room // (depth + library), (room - library * chunk) // depth)
    return max(room, 0) // SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES


def choose_passes(
    source: End, target: End, itemsize: int, have: int, most_passes: int = MOST_PASSES
) -> list[Pass]:
    """Choose the passes of a copy.

    Parameters
    ----------
    source, target
        The two ends.
    itemsize
        Bytes of an element in memory, the larger of both ends.
    have
        The budget in bytes.
    most_passes
        Largest number of passes.

    Raises
    ------
    BudgetError
        If not even the smallest blocks fit.
    """
    best: tuple[float, list[Steps], _Chain] | None = None
    for passes in range(1, most_passes + 1):
        # Further passes move at least these bytes.
        read = 0 if source.kind == "memory" else source.nbytes
        least = read + target.nbytes + 2 * (passes - 1) * target.nbytes
        if best is not None and best[0] <= least + WORTH_BYTES:
            break
        # In one pass, fewer but larger blocks decode fewer chunks again.
        least_depth = 1 if passes == 1 and source.kind == "encoded" else _IN_FLIGHT
        depths = range(_IN_FLIGHT, least_depth - 1, -1)
        chains = [_Chain(source, target, passes, itemsize, have, depth) for depth in depths]
        found = [(chain.search(), chain) for chain in chains]
        steps, chain = min(found, key=lambda each: each[1].cost(each[0]))
        cost = chain.cost(steps)
        if best is None or cost < best[0]:
            best = cost, steps, chain
        elif passes > 2:
            break
    assert best is not None, "there is one pass at least"
    _, steps, chain = best
    between = [chain.best_between(a, b)[1] for a, b in itertools.pairwise(steps)]
    made = target.side if len(steps) == 1 else Side(tuple(Cuts(n) for n in source.shape))
    first = _along_edges(source.side, made, steps[0])
    return planned_passes(
        source.side, target.side, itemsize, have, [first, *steps[1:]], between, is_resumed=False
    )


def _along_edges(source: Side, target: Side, steps: Steps) -> list[Step]:
    """Cut blocks as long as a source's uneven chunks at their ends, and at those of the target.

    Along dimensions of the target that are loose, its chunks may be cut.
    """
    found: list[Step] = list(steps)
    for d, (cuts, other, step) in enumerate(zip(source.cuts, target.cuts, steps, strict=True)):
        fitting = [cuts.common(other)] + [cuts] * (d in target.loose)
        fitting = [each for each in fitting if cuts.edges and each.widest <= step]
        if fitting:
            found[d] = [piece.stop for piece in fitting[0].pieces(step)]
    return found


def array_passes(
    source: Source, metadata: Metadata, have: int, most_passes: int = MOST_PASSES
) -> list[Pass]:
    """Choose the passes from a source to an array of outcore's own layout; see `choose_passes`."""
    return choose_passes(
        source_end(source), array_end(metadata), source.itemsize, have, most_passes
    )


def source_end(source: Source) -> End:
    """Describe a source to the planner."""
    return End(
        source.kind, source.shape, source.chunks, source.stored_order, source.stored_itemsize,
        source.side,
    )  # fmt: skip


def array_end(metadata: Metadata) -> End:
    """Describe an array of outcore's own layout, as a target, to the planner."""
    grid = zip(metadata.shape, metadata.chunks, strict=True)
    cuts = tuple(Cuts(n, min(c, n)) for n, c in grid)
    side = Side(cuts, loose=tuple(range(len(cuts))), bounces=True)
    order = fast_to_slow(metadata.order, len(metadata.shape))
    return End("array", metadata.shape, metadata.chunks, order, metadata.dtype.itemsize, side)
