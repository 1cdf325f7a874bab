"""Counts of tiles equal the tiles that are created, so that plans of large matrices stay quick."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from lu_by_method import RATES
from plan_work import LARGE, MOST_CALLS, calls_of

import outcore as oc
from outcore.linalg._planners.planners import PLANNERS
from outcore.linalg.iterative.plan import Demands, MatrixLayout, Pass, iterative_geometry
from outcore.linalg.iterative.strips.strips import Box, Strips, Tile, way_through
from outcore.linalg.iterative.strips.tile_counts import kind_of, tile_counts

PASSES: tuple[Pass, ...] = ("setup", "lower", "upper", "sweep", "all")


def size(box: Box | None) -> int:
    return 0 if box is None else (box[0].stop - box[0].start) * (box[1].stop - box[1].start)


@pytest.mark.parametrize("n", [1, 63, 64, 500, 777])
@pytest.mark.parametrize(
    ("chunks", "order", "times"),
    [
        ((8, 40), "C", 1),
        ((8, 40), "C", 5),
        ((32, 8), "F", 3),
        ((16, 16), "C", 2),
        ((999, 7), "F", 1),
    ],
)
def test_counts_of_strips(n: int, chunks: tuple[int, int], order: str, times: int) -> None:
    by, unit = way_through(chunks, order)
    strips = Strips(n, chunks, by, unit * times)
    tiles, counts = strips.all_tiles, tile_counts(strips)
    kinds = [kind_of(tile) for tile in tiles]
    assert counts.kinds.tolist() == kinds
    numbers = Counter(kinds)
    assert {kind: counts.count(frozenset([kind])) for kind in numbers} == numbers
    parts = ([tile.below, tile.inside, tile.above] for tile in tiles)
    assert counts.elements == tuple(np.sum([list(map(size, each)) for each in parts], axis=0))


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("by_triangle", [False, True])
@pytest.mark.parametrize("has_blocks", [False, True])
@pytest.mark.parametrize("memory", [150_000, 400_000, 1_500_000])
def test_counts_of_passes(is_half: bool, by_triangle: bool, has_blocks: bool, memory: int) -> None:
    kind = np.dtype("f8")
    layout = MatrixLayout(500, kind, kind, (16, 64), "C")
    needs = Demands("x", 3, has_blocks, by_triangle=by_triangle, is_half=is_half)
    g = iterative_geometry(layout, [needs], memory, 1)
    tiles = {each: g.tiles_of(each) for each in PASSES}
    assert len(g.pins) == g.pinned_tiles
    for each in PASSES:
        assert g.tiles_in(each) == len(tiles[each])
        assert g.unpinned(each) == sum(tile.chunk not in g.pins for tile in tiles[each])
    for times in ({"all": 3}, {"setup": 1, "sweep": 2}, {"setup": 1, "lower": 4, "upper": 3}):
        kept = {tile.chunk for each in times for tile in tiles[each]} & g.pins  # type: ignore[index]
        read = len(kept) + sum(count * g.unpinned(each) for each, count in times.items())  # type: ignore[arg-type]
        assert g.bytes_read(times) == read * layout.slot_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("verb", ["gauss_seidel", "jacobi", "cg", "gmres"])
def test_plans_of_iterations_make_no_tiles(
    monkeypatch: pytest.MonkeyPatch, verb: str, order: str
) -> None:
    """Plans do no work per tile: four times as many tiles take less than four times the calls."""

    def refuse(strips: Strips) -> list[Tile]:
        raise AssertionError("a plan has no use for tiles")

    monkeypatch.setattr(Strips, "all_tiles", property(refuse))
    small, large = (
        calls_of(partial(oc.plan, verb, n=n, memory=n * n, order=order, rates=RATES))
        for n in (LARGE // 2, LARGE)
    )
    assert large < 2.5 * small
    assert large < 100_000


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("verb", sorted(set(PLANNERS) - {"gauss_seidel", "jacobi", "cg", "gmres"}))
def test_plans_enumerate_little(verb: str, order: str) -> None:
    n, options = LARGE, {} if verb in ("form_q", "cho_solve", "qr_solve") else {"order": order}
    if verb in ("form_q", "gram", "lstsq", "qr", "qr_factor", "qr_solve", "svd"):
        options |= {"m": LARGE}
    if verb in ("gram", "qr", "svd"):
        n = 2000
    if verb in ("matmul", "svd"):
        options |= {"k": n if verb == "matmul" else 100}
    memory = 8 * LARGE * n // 8
    action = partial(oc.plan, verb, n=n, memory=memory, rates=RATES, **options)
    assert calls_of(action) < MOST_CALLS
