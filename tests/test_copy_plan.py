"""The blocks of a copy: they tile the array, follow chunks, and fit the budget."""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from chosen_cases import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from outcore.convert.copy_plan import PAGE_BYTES, CopyPlan, Cuts, Kind, Side
from outcore.convert.rechunk_plan import End, choose_passes
from outcore.convert.sources import fast_to_slow
from outcore.errors import BudgetError

LEAST_BOUNCE = 64 << 10


def regular(shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> Side:
    return Side(tuple(Cuts(n, c) for n, c in zip(shape, chunks, strict=True)), **options)


def plan_copy(source: Side, target: Side, itemsize: int, have: int, orders: str = "CC") -> CopyPlan:
    """Choose the blocks of a copy in one pass, from encoded chunks or a file to an array."""
    shape = tuple(c.n for c in source.cuts)
    is_cut = any(c.step > 1 or c.edges for c in source.cuts)
    chunks = tuple(c.widest for c in source.cuts) if is_cut else shape
    before, after = (fast_to_slow(order, len(shape)) for order in orders)
    kind: Kind = "encoded" if is_cut else "flat"
    ends = (
        End(kind, shape, chunks, before, itemsize, source),
        End("array", shape, tuple(c.widest for c in target.cuts), after, itemsize, target),
    )
    return choose_passes(*ends, itemsize, have, most_passes=1)[0].plan


def needed(plan: CopyPlan, source: Side, target: Side, itemsize: int) -> int:
    """Memory of a plan, from its own figures."""
    library = max(source.library_blocks, target.library_blocks)
    chunk = math.prod(c.widest for c in source.cuts) * itemsize
    chunk = math.ceil(chunk / PAGE_BYTES) * PAGE_BYTES
    return (
        plan.depth * plan.block_bytes
        + library * max(plan.block_bytes, chunk)
        + (source.bounces + target.bounces) * plan.bounce_bytes
    )


def cuts(n: int) -> st.SearchStrategy[Cuts]:
    steps = st.builds(Cuts, st.just(n), st.integers(1, n))
    edges = st.sets(st.integers(1, n)).map(lambda s: Cuts(n, edges=tuple(sorted(s | {n}))))
    return steps | edges


def loose(dims: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, dims - 1)).map(lambda s: tuple(sorted(s)))


@st.composite
def sides(draw: Any) -> tuple[Side, Side]:
    shape = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    source = Side(
        tuple(draw(cuts(n)) for n in shape), draw(loose(len(shape))), draw(st.integers(0, 3)),
        True, draw(st.booleans()),
    )  # fmt: skip
    target = Side(
        tuple(Cuts(n, draw(st.integers(1, n))) for n in shape), draw(loose(len(shape))),
        draw(st.integers(0, 3)), True, draw(st.booleans()),
    )  # fmt: skip
    return source, target


@examples(300)
@given(
    both=sides(), itemsize=st.sampled_from([1, 8, 4096]), have=st.integers(1 << 10, 8 << 20),
    column_major=st.booleans(),
)  # fmt: skip
def test_blocks_tile_the_array_within_the_budget(
    both: tuple[Side, Side], itemsize: int, have: int, column_major: bool
) -> None:
    source, target = both
    try:
        plan = plan_copy(source, target, itemsize, have)
    except BudgetError as error:
        # The need that the error names suffices exactly.
        need = int(re.findall(r"need (\d+) bytes", str(error))[0])
        assert need > have
        plan = plan_copy(source, target, itemsize, need)
        have = need
    assert plan.depth >= 1
    assert needed(plan, source, target, itemsize) <= have
    shape = tuple(c.n for c in source.cuts)
    seen = np.zeros(shape, int)
    for box in plan.boxes(column_major=column_major):
        seen[box] += 1
        assert math.prod(s.stop - s.start for s in box) * itemsize <= plan.block_bytes
    assert (seen == 1).all()
    assert plan.blocks == len(list(plan.boxes()))


@examples(200)
@given(both=sides())
def test_with_memory_no_chunk_is_cut(both: tuple[Side, Side]) -> None:
    source, target = both
    plan = plan_copy(source, target, 8, 1 << 30)
    assert plan.times_read == 1
    for box in plan.boxes():
        for d, (s, mine, yours) in enumerate(zip(box, source.cuts, target.cuts, strict=True)):
            for c in (mine, yours) if d not in target.loose else (mine,):
                edges = c.edges or range(0, c.n + 1, c.step)
                assert s.stop == c.n or s.stop in edges


@examples(200)
@given(both=sides(), have=st.integers(1 << 12, 1 << 18))
def test_times_read_is_what_it_says(both: tuple[Side, Side], have: int) -> None:
    source, target = both
    try:
        plan = plan_copy(source, target, 512, have)
    except BudgetError:
        assume(False)
    of_element = [np.zeros(c.n, int) for c in source.cuts]
    for d, c in enumerate(source.cuts):
        edges = [0, *(c.edges or range(c.step, c.n, c.step))]
        edges += [c.n] if edges[-1] != c.n else []
        for a, b in itertools.pairwise(edges):
            of_element[d][a:b] = sum(p.start < b and p.stop > a for p in plan.pieces[d])
    assert plan.times_read == pytest.approx(math.prod(float(x.mean()) for x in of_element))
    for c, pieces in zip(source.cuts, plan.pieces, strict=True):
        for p in pieces:
            parts = c.inside(p)
            assert [parts[0].start, parts[-1].stop] == [p.start, p.stop]
            edges = c.edges or range(0, c.n, c.step)
            assert all(a.stop == b.start and b.start in edges for a, b in itertools.pairwise(parts))


def test_blocks_are_multiples_of_both_chunk_shapes() -> None:
    source = regular((1000, 1000), (20, 50), loose=(0, 1))
    target = regular((1000, 1000), (30, 40))
    plan = plan_copy(source, target, 8, 4 << 20)
    assert plan.times_read == 1
    for box in plan.boxes():
        assert all(s.start % 60 == 0 for s in box[:1])
        assert all(s.start % 200 == 0 for s in box[1:])


def test_short_of_memory_the_target_is_written_in_parts_before_the_source_is_read_again() -> None:
    shape = (4096, 4096)
    source = regular(shape, (100, 4096), loose=(0, 1), library_blocks=3)
    target = regular(shape, (256, 512), loose=(0,), bounces=True)
    plan = plan_copy(source, target, 8, 16 << 20)
    assert plan.times_read == 1
    assert all(p.start % 100 == 0 for p in plan.pieces[0])
    # If the target needs whole chunks, the copy reads the source more than once, and says so.
    strict = regular(shape, (256, 512), bounces=True)
    with pytest.raises(BudgetError):
        plan_copy(regular(shape, (100, 4096), library_blocks=3), strict, 8, 16 << 20)
    plan = plan_copy(source, strict, 8, 16 << 20)
    assert 1 < plan.times_read < 8
    assert all(p.start % 256 == 0 for p in plan.pieces[0])


def test_larger_blocks_in_flight_are_fewer_if_they_decode_no_chunk_again() -> None:
    source = regular((6203, 6668), (895, 1171), loose=(0, 1), library_blocks=3)
    target = regular((6203, 6668), (6203, 21), loose=(0, 1), bounces=True)
    plan = plan_copy(source, target, 4, 256 << 20)
    assert (plan.times_read, plan.depth) == (1, 2)


def test_files_in_different_orders_are_copied_in_squares() -> None:
    shape = (1 << 14, 1 << 14)
    source, target = regular(shape, (1, 1)), regular(shape, shape, loose=(0, 1))
    plan = plan_copy(source, target, 8, 8 << 20, "CF")
    rows, columns = (max(p.stop - p.start for p in each) for each in plan.pieces)
    assert 1 / 4 <= rows / columns <= 4
    same = plan_copy(source, target, 8, 8 << 20)
    assert len(same.pieces[1]) == 1, "whole rows"


def test_a_billion_elements_are_planned_at_once() -> None:
    side = regular((10**10,), (1,))
    plan = plan_copy(side, regular((10**10,), (1 << 19,)), 8, 1 << 30)
    assert plan.blocks < 2000
