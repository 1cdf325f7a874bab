"""Distributions over meshes of processes, against HPF's definition applied element by element."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcore.errors import InvalidError
from outcore.layout.distribution import Distribution, distribute, parse_rules
from outcore.layout.schema import Schema

Case = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dims = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(1, 13)] * dims))
    rule = st.sampled_from(["block", "*", "cyclic(1)", "cyclic(2)", "cyclic(5)", "cyclic(20)"])
    rules = draw(st.tuples(*[rule] * dims))
    mesh = tuple(1 if r == "*" else draw(st.integers(1, 5)) for r in rules)
    return shape, rules, mesh


def processor(i: int, n: int, rule: str, p: int) -> int:
    """Return the coordinate of the process that owns index i of n: HPF, section 3.3, from 0."""
    if rule == "*":
        return 0
    if rule == "block":
        return i // -(-n // p)
    return i // int(rule[7:-1]) % p


def elements(found: Distribution, rank: int) -> list[tuple[int, ...]]:
    ranges = [[range(s.start, s.stop) for s in box] for box in found.boxes(rank)]
    return [index for box in ranges for index in itertools.product(*box)]


@given(cases())
def test_elements_are_where_hpf_puts_them(case: Case) -> None:
    shape, rules, mesh = case
    found = distribute(shape, rules, mesh)
    assert (found.shape, found.rules, found.mesh) == case
    meshes = list(itertools.product(*map(range, mesh)))  # in row-major order
    assert found.size == len(meshes)
    having: dict[tuple[int, ...], list[tuple[int, ...]]] = {at: [] for at in meshes}
    for index in itertools.product(*map(range, shape)):
        at = tuple(map(processor, index, shape, rules, mesh))
        having[at].append(index)
        assert meshes[found.owner(index)] == at
    for rank, at in enumerate(meshes):
        assert found.coordinates(rank) == at
        assert sorted(elements(found, rank)) == having[at]
        assert math.prod(found.local_shape(rank)) == len(having[at])


@given(cases())
def test_intervals_are_those_of_each_dimension(case: Case) -> None:
    found = distribute(*case)
    for rank in range(found.size):
        at = found.coordinates(rank)
        for dim, share in enumerate(found.shares(rank)):
            runs = list(share.intervals())
            assert all(runs), "none is empty"
            assert all(a.stop <= b.start for a, b in itertools.pairwise(runs))
            n, rule, p = (part[dim] for part in case)
            want = [i for i in range(n) if processor(i, n, rule, p) == at[dim]]
            assert [i for run in runs for i in run] == want
            assert len(share) == len(want)


def test_blocks_and_stars_are_one_box_or_none() -> None:
    found = distribute((5, 7), "BLOCK, *", 4)
    boxes = [list(found.boxes(rank)) for rank in range(4)]
    rows = [(0, 2), (2, 4), (4, 5)]
    assert boxes == [*([(slice(*r), slice(0, 7))] for r in rows), []]
    assert [found.local_shape(rank) for rank in range(4)] == [(2, 7), (2, 7), (1, 7), (0, 7)]


def test_much_is_told_of_much_in_no_time() -> None:
    found = distribute((10**15,), "cyclic", (10**6,))
    assert found.local_shape(0) == (10**9,)
    assert next(found.shares(5)[0].intervals()) == range(5, 6)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("block", ("block",)),
        ("Block,CYCLIC(2),*", ("block", "cyclic(2)", "*")),
        (" block , cyclic( 3 ) ", ("block", "cyclic(3)")),
        (["*", "CYCLIC"], ("*", "cyclic(1)")),
    ],
)
def test_rules_are_read(text: str | list[str], rules: tuple[str, ...]) -> None:
    assert parse_rules(text) == rules
    assert parse_rules(",".join(rules)) == rules


def test_a_mesh_may_have_ones_for_what_is_not_distributed() -> None:
    assert distribute((4, 4, 4), "block,*,block", (2, 3)).mesh == (2, 1, 3)
    assert distribute((4, 4, 4), "block,*,block", (2, 1, 3)).mesh == (2, 1, 3)
    assert distribute((4, 4), "*,*", ()).mesh == (1, 1)


@pytest.mark.parametrize(
    ("shape", "rules", "mesh"),
    [
        ((4, 4), "block", 2),
        ((4, 4), "block,block,*", (2, 2)),
        ((4, 4), "block,blocks", (2, 2)),
        ((4, 4), "block,cyclic(0)", (2, 2)),
        ((4, 4), "block,cyclic(-1)", (2, 2)),
        ((4, 4), "block,cyclic(1000000000000000000000)", (2, 2)),
        ((4, 4), "", ()),
        ((4, 4), (), ()),
        ((4, 4), ("block", 2), (2, 2)),
        ((4, 0), "block,*", 2),
        ((4, 4), "block,*", (2, 2)),
        ((4, 4), "block,*", ()),
        ((4, 4), "block,block", 4),
        ((4, 4), "block,block", (2, 0)),
        ((4, 4), "block,block", (2, 2.5)),
        ((4, 4), "block,block", "22"),
    ],
)
def test_what_cannot_be_is_refused(shape: object, rules: object, mesh: object) -> None:
    with pytest.raises(InvalidError, match=r"need|have"):
        distribute(shape, rules, mesh)  # type: ignore[arg-type]


def test_there_is_no_such_process() -> None:
    with pytest.raises(InvalidError, match="0 to 3"):
        distribute((4,), "block", 4).shares(4)


@pytest.mark.parametrize(
    ("rules", "mesh"),
    [
        ("block,cyclic", (2, 2)),
        ("*,cyclic(2)", 5),
        ("block,*", 4),
        ("cyclic,block", (2, 4)),
        ("*,block", 3),
        ("*,*", ()),
    ],
)
def test_slices_of_a_process_are_what_it_has(rules: str, mesh: object) -> None:
    """Check also a process beyond the mesh, and one without elements along a dimension."""
    model = np.arange(7 * 9).reshape(7, 9)
    schema = Schema(rules, mesh) if mesh else Schema(rules)  # type: ignore[arg-type]
    over = schema.distribution(model.shape, int(np.prod(mesh)))  # type: ignore[arg-type]
    size = over.size + 1
    for rank in range(size):
        slices = schema.local_slices(model.shape, size, rank)
        assert [model[each].shape for each in slices] == list(
            schema.local_shapes(model.shape, size, rank)
        )
        for each in slices:
            owned = [at for at in np.ndindex(model.shape) if over.owner(at) == rank]
            assert model[each].ravel().tolist() == [model[at] for at in owned]
        assert len(slices) == (rank < over.size)


def test_slices_of_named_boxes() -> None:
    box, other = (slice(0, 3), slice(4, 9)), (slice(5, None), slice(0, 2))
    schema = Schema.boxes([[], [box, other]])
    assert schema.local_slices((7, 9), 2, 0) == ()
    assert schema.local_slices((7, 9), 2, 1) == (box, (slice(5, 7), slice(0, 2)))


def test_blocks_dealt_out_in_turn_are_no_slices() -> None:
    with pytest.raises(InvalidError, match=r"have cyclic\(2\); .*parts\(rank\)"):
        Schema("*,cyclic(2)").local_slices((7, 9), 2, 0)
