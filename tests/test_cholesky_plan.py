"""Plans of Cholesky: exact words, optimal slabs, and figures that a run confirms."""

import math
from pathlib import Path

import numpy as np
import pytest
from definite import definite
from linpack import on_disk, one_thread
from test_plan import RATES

import outcore as oc
from outcore.errors import BudgetError, InvalidError
from outcore.layout.zarr_format import tile_shape
from outcore.linalg import cho_factor
from outcore.linalg._cholesky.cuts import Triangle, cut_slabs
from outcore.linalg._cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg._cholesky.plan import cholesky_geometry, flops, panel_flops, update_flops
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.storage.volumes import bytes_on_disk

__all__ = ["one_thread"]  # a fixture for every test here


def geometry(n: int, dtype: str, memory: int) -> CholeskyGeometry:
    return cholesky_geometry(n, np.dtype(dtype), memory)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("overwrite_a", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plan_is_what_the_run_does(dtype: str, overwrite_a: bool, tmp_path: Path) -> None:
    n, memory = 1024, (10 << 20 if overwrite_a else 4 << 20)
    A = on_disk(tmp_path / "A", definite(n, dtype))
    options = {"overwrite_a": overwrite_a}
    planned = oc.plan(
        "cholesky", n=n, dtype=dtype, memory=memory, path=tmp_path, rates=RATES, **options
    )
    report = cho_factor(A, memory=memory, progress=False, **options).report  # type: ignore[arg-type]
    assert report is not None
    assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
    assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert report.flops == pytest.approx(planned.flops)
    if not overwrite_a:
        room = bytes_on_disk(tmp_path / "A.cho")
        assert planned.disk_bytes <= room < planned.disk_bytes + 70_000


def test_words_follow_the_model() -> None:
    """Model: slabs of M/(n - o) columns at column o, which move n⁴/(12M) + n² words."""
    n = 16384
    for share, bound in ((4, 1.05), (8, 1.1), (16, 1.2), (32, 1.2)):
        g = geometry(n, "f8", n * n * 8 // share)
        assert g.words_moved() < bound * n**2 * (share / 12 + 1)
        assert len(g.slabs()) > 2
    bound = n**2 * (1 / (3 * math.sqrt(2 / 32)) + 0.5)
    assert g.words_lower_bound() == pytest.approx(bound)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("group_tiles", "block_tiles"), [(1, 1), (2, 2), (1, 3), (2, 4)])
@pytest.mark.parametrize("rows", [2, 4])
def test_no_other_cuts_read_less(rows: int, group_tiles: int, block_tiles: int) -> None:
    """Against all cuts of small triangles, with the memory computed independently."""
    panels, columns = 11, 2
    tiles = math.ceil(panels * columns / rows)
    t = Triangle(panels, tiles, rows, columns, group_tiles, block_tiles)

    def words(first: int, end: int) -> int:
        top = first * columns // rows
        below = [(panel * columns // rows - top) // group_tiles for panel in range(first, end)]
        return sum((t.tiles - top - k * group_tiles) * rows * columns for k in below)

    def held(first: int, end: int) -> int:
        top = first * columns // rows
        of_slab = ((end - 1) * columns // rows - top) // block_tiles + 1
        return min(of_slab + 1, math.ceil((t.tiles - top) / block_tiles))

    def reads(cuts: list[int]) -> int:
        return sum(first * (t.tiles - first * columns // rows) for first in cuts)

    for most in range(40, 260, 23):
        for most_blocks in (2, 3, 9):
            best = None
            for mask in range(2 ** (panels - 1)):
                cuts = [0, *(k + 1 for k in range(panels - 1) if mask >> k & 1)]
                slabs = list(zip(cuts, [*cuts[1:], panels], strict=True))
                if all(words(*s) <= most and held(*s) <= most_blocks for s in slabs):
                    best = min(reads(cuts), best or 10**9)
            found = cut_slabs(t, (most,), most_blocks)
            assert (found is None) == (best is None)
            if found is None:
                continue
            assert all(cut.edges == (tiles,) for cut in found.cuts)
            ends = [cut.end for cut in found.cuts]
            assert found.most_words == (max(words(*s) for s in enumerate(ends)),)
            cuts = [0]
            while ends[cuts[-1]] < panels:
                cuts.append(ends[cuts[-1]])
            assert reads(cuts) == best


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4097, 20_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_geometry_keeps_its_promises(n: int, dtype: str) -> None:
    for memory in (1 << 20, 5 << 20, 1 << 30):
        try:
            g = geometry(n, dtype, memory)
        except BudgetError:
            continue
        assert g.memory_bytes <= memory
        assert g.rows % g.columns == 0, "a diagonal block lies in one tile"
        assert g.tile_bytes % 4096 == 0, "tiles are whole pages"
        whole = g.slabs()
        assert [p for s in whole for p in range(s.first, s.last)] == list(range(g.panels))
        for k, slab in enumerate(whole):
            assert g.slabs(slab.first) == whole[k:]
            parts = g.parts(slab)
            tiles = [t for part in parts for t in part.tiles]
            assert tiles == list(range(g.first_tile(slab.first), g.tiles))
            assert [part.is_first for part in parts] == [True] + [False] * (len(parts) - 1)
            assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
            for part in parts:
                check_memory(g, part)


def check_memory(g: CholeskyGeometry, part: Part) -> None:
    """Check that a part fits, with the blocks of L that it needs at once."""
    slab, groups = part.slab, g.groups(part)
    assert [p for group in groups for p in group] == list(part.panels)
    tops = [g.first_tile(group[0]) if part.is_first else part.tiles.start for group in groups]
    assert tops == [g.group_top(part, group) for group in groups]
    widths = [len(group) * g.columns for group in groups]
    need = sum(k * (part.tiles.stop - top) * g.rows for k, top in zip(widths, tops, strict=True))
    assert need * g.dtype.itemsize <= g.slab_bytes
    for chunk_rows in (0, 3 * g.rows, g.rows + 1):
        check_pieces(g, part, dict(zip(groups, tops, strict=True)), chunk_rows)
    if not slab.first:
        return
    blocks = g.blocks(part, slab.first - 1)
    assert all(len(block) <= g.block_tiles for block in blocks)
    in_blocks = [t for block in blocks for t in block]
    beside = list(range(g.first_tile(slab.first), g.first_tile(slab.last - 1) + 1))
    if part.is_first:
        assert in_blocks == list(part.tiles)
        assert set(beside) <= set(in_blocks)
        held = set()
        for group in groups:
            first_tiles = {g.first_tile(panel) for panel in group}
            (holding,) = [i for i, block in enumerate(blocks) if first_tiles & set(block)]
            assert first_tiles <= set(blocks[holding])
            held.add(holding)
        in_use = len(held) + (max(held) < len(blocks) - 1)
    else:
        assert in_blocks == [*beside, *part.tiles]
        in_use = sum(block[0] < part.tiles.start for block in blocks) + 1
    assert in_use + 1 <= g.ring_blocks, "one block can be read ahead"


def check_pieces(g: CholeskyGeometry, part: Part, tops: dict[range, int], chunk_rows: int) -> None:
    """Check that each tile of a group is in one piece; pieces of several groups end with chunks."""
    pieces = list(g.pieces(part, chunk_rows))
    chunk_tiles = (chunk_rows or tile_shape(g.n, g.dtype.itemsize)[0]) / g.rows
    for group, top in tops.items():
        of_group = [(panels, tiles) for panels, tiles in pieces if group[0] in panels]
        assert [t for _, tiles in of_group for t in tiles] == list(range(top, part.tiles.stop))
        assert all(panel in panels for panel in group for panels, _ in of_group)
        assert not any(set(panels) & set(group) for panels, _ in pieces if group[0] not in panels)
        assert of_group[0][0] == group, "at the diagonal it is alone"
        assert all(tiles.start % chunk_tiles == 0 for _, tiles in of_group[1:])


def test_below_the_diagonal_a_slab_is_one_matrix() -> None:
    g = geometry(16384, "f8", 16384 * 16384)
    *slabs, last = g.slabs()
    for slab in slabs:
        (part,) = g.parts(slab)
        panels, tiles = list(g.pieces(part))[-1]
        assert panels == part.panels
        assert tiles.stop == g.tiles
        assert 0 <= tiles.start * g.rows - slab.last * g.columns < 2048, "a chunk of the matrix"
    (part,) = g.parts(last)
    chunk, groups = 2048 // g.rows, g.groups(part)
    alone = [tiles for panels, tiles in g.pieces(part) if panels in groups]
    assert len(alone) == len(groups) > 4
    for tiles in alone:
        assert tiles.start // chunk == tiles[-1] // chunk, "only in the chunk of its diagonal"
    assert max(len(panels) for panels, _ in g.pieces(part)) >= len(part.panels) // 2


@pytest.mark.parametrize(("n", "dtype"), [(16384, "f8"), (8192, "c16")])
def test_blocks_of_the_last_slab_meet_where_its_pieces_do(n: int, dtype: str) -> None:
    """Blocks begin with chunks of the matrix, so that no product is split."""
    g = geometry(n, dtype, n * n * np.dtype(dtype).itemsize // 8)
    (part,) = g.parts(g.slabs()[-1])
    first, *others = g.blocks(part, 0)
    assert first.start == part.tiles.start
    assert len(others) >= 1
    assert all(len(block) == g.block_tiles for block in others)
    meet = {tiles.start for _, tiles in g.pieces(part)}
    assert all(block.start in meet for block in others)
    assert all(block.start * g.rows % 2048 == 0 for block in others)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_the_budget_that_is_asked_for_is_enough_and_the_least(dtype: str, all_lines: bool) -> None:
    draw = np.random.default_rng(8)
    some = draw.integers(1, 8_000, 12 if all_lines else 3)
    for n in map(int, [*some, 1, 8, 9, 1500, 4000, 16384]):
        for memory in (1, 70_000, 600_000):
            try:
                assert geometry(n, dtype, memory).memory_bytes <= memory
            except BudgetError as refused:
                need = int(str(refused).split()[1])
                assert memory < geometry(n, dtype, need).memory_bytes <= need
                with pytest.raises(BudgetError, match=f"need {need} "):
                    geometry(n, dtype, need - 1)


def test_flops_of_the_steps_add_up() -> None:
    for n, dtype in ((1000, "f8"), (777, "c16")):
        g = geometry(n, dtype, 1 << 21)
        total = sum(
            panel_flops(g, K) + g.extent(K)[0] * update_flops(g, K) for K in range(g.panels)
        )
        assert total == pytest.approx(flops(n, np.dtype(dtype)), rel=1e-9)
        assert flops(n, np.dtype(dtype)) == (4 if dtype == "c16" else 1) * n**3 / 3


def test_large_plans_are_quick_and_their_tiles_are_chunks() -> None:
    plan = oc.plan("cholesky", n=1_000_000, memory="500 GB", rates=RATES)
    g = geometry(1_000_000, "f8", 500 * 10**9)
    assert g.tile_bytes <= 64 << 20
    assert plan.bytes_read < plan.n**2 * 8 * 2


def test_less_memory_means_more_io_and_overwriting_less_disk() -> None:
    def of(memory: str, **more: bool) -> oc.Plan:
        return oc.plan("cholesky", n=20_000, memory=memory, path=".", rates=RATES, **more)

    assert of("100 MB").bytes_read > of("400 MB").bytes_read > of("2 GB").bytes_read
    assert of("400 MB", overwrite_a=True).disk_bytes < of("400 MB").disk_bytes
    whole = of("4 GB")
    lower = 20_000**2 / 2 * 8
    assert lower < whole.disk_bytes < 1.08 * lower
    assert whole.bytes_read < 1.2 * lower


def test_whole_numbers_are_factored_in_double_precision() -> None:
    whole, double = (
        oc.plan("cholesky", n=2000, dtype=dtype, rates=RATES) for dtype in ("i4", "f8")
    )
    assert whole.dtype == double.dtype == "float64"
    assert whole.bytes_read < double.bytes_read
    assert "int32" in "".join(whole.notes)


def test_bad_plans_are_refused() -> None:
    with pytest.raises(InvalidError, match="need a number type"):
        oc.plan("cholesky", n=10, dtype="O", rates=RATES)
    with pytest.raises(InvalidError, match="at least 1"):
        oc.plan("cholesky", n=0, rates=RATES)
    with pytest.raises(InvalidError, match="no option 'upper'"):
        oc.plan("cholesky", n=100, memory="1 MiB", rates=RATES, upper=True)
