"""Plans of QR by slabs: exact words, and figures that a run confirms."""

from pathlib import Path

import numpy as np
import pytest
from linpack import on_disk, one_thread
from tall import RATES, tall

import outcore as oc
from outcore.errors import BudgetError, InvalidError
from outcore.linalg import qr_factor
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._slab_qr.plan import (
    SlabQrGeometry,
    flops,
    panel_flops,
    slab_qr_geometry,
    update_flops,
)
from outcore.storage.volumes import bytes_on_disk

__all__ = ["one_thread"]  # a fixture for every test here


def geometry(shape: tuple[int, int], dtype: str, memory: int) -> SlabQrGeometry:
    return slab_qr_geometry(shape, np.dtype(dtype), memory)


@pytest.mark.parametrize(("m", "n"), [(1024, 512), (512, 512), (512, 1024)])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("overwrite_a", [False, True])
def test_the_plan_is_what_the_run_does(
    m: int, n: int, dtype: str, overwrite_a: bool, tmp_path: Path
) -> None:
    memory = 12 << 20 if overwrite_a else 2 << 20
    A = on_disk(tmp_path / "A", tall(m, n, dtype))
    planned = oc.plan(
        "qr_factor", m=m, n=n, dtype=dtype, memory=memory, path=tmp_path, rates=RATES,
        overwrite_a=overwrite_a,
    )  # fmt: skip
    report = qr_factor(A, memory=memory, overwrite_a=overwrite_a, progress=False).report
    assert report is not None
    assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
    assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert report.flops == pytest.approx(planned.flops)
    assert report.method == planned.method
    if not overwrite_a:
        room = bytes_on_disk(tmp_path / "A.qr")
        assert planned.disk_bytes <= room < planned.disk_bytes + 70_000


def test_a_matrix_is_square_unless_rows_are_given() -> None:
    of = {"n": 2000, "memory": "4 MB", "rates": RATES}
    assert oc.plan("qr_factor", **of).bytes_read == oc.plan("qr_factor", m=2000, **of).bytes_read


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 700), (700, 1), (63, 64), (1000, 800), (800, 1000), (20_000, 4097)]
)
def test_geometry_keeps_its_promises(shape: tuple[int, int], dtype: str) -> None:
    for memory in (1 << 19, 5 << 20, 1 << 30):
        try:
            g = geometry(shape, dtype, memory)
        except BudgetError:
            continue
        assert g.memory_bytes <= memory
        assert g.rows % g.columns == 0, "a diagonal block lies in one tile"
        assert g.tile_bytes % 4096 == 0, "tiles are whole pages"
        whole = g.slabs()
        assert [p for s in whole for p in range(s.first, s.last)] == list(range(g.panels))
        assert all(s.last - s.first <= g.slab_panels for s in whole)
        assert sum(g.reflections(K) for K in range(g.panels)) == min(shape)
        for k, slab in enumerate(whole):
            assert g.slabs(slab.first) == whole[k:]
        read = sum(
            len(g.tiles_below(K)) * g.tile_bytes
            for slab in whole
            for K in range(slab.first)
            if g.reflections(K)
        )
        assert g.factor_bytes_read() == read
        assert g.factor_bytes_read(whole[-1].last) == 0


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_the_budget_that_is_asked_for_is_enough_and_the_least(dtype: str) -> None:
    draw = np.random.default_rng(8)
    sizes = [*draw.integers(1, 8_000, (12, 2)), (1, 1), (1, 900), (900, 1), (16384, 16384)]
    for m, n in sizes:
        shape = int(m), int(n)
        for memory in (1, 70_000, 600_000):
            try:
                assert geometry(shape, dtype, memory).memory_bytes <= memory
            except BudgetError as refused:
                need = int(str(refused).split()[1])
                assert memory < geometry(shape, dtype, need).memory_bytes <= need
                with pytest.raises(BudgetError, match=f"need {need} "):
                    geometry(shape, dtype, need - 1)


def test_flops_of_the_steps_add_up() -> None:
    for shape, dtype in (((1000, 700), "f8"), ((777, 777), "c16"), ((300, 901), "f4")):
        g = geometry(shape, dtype, 1 << 21)
        total = sum(
            panel_flops(g, K) + update_flops(g, K) * (g.n - K * g.columns - g.reflections(K))
            for K in range(g.applied)
        )
        assert total == pytest.approx(flops(*shape, np.dtype(dtype)), rel=1e-9)


def test_words_follow_the_formula() -> None:
    """A run reads n²(m - n/3)/(2w) words back, and 2mn for the matrix and its factors."""
    for m, n in ((16384, 16384), (65536, 16384)):
        for share in (2, 4, 8, 16, 32):
            g = geometry((m, n), "f8", m * n * 8 // share)
            width = g.slab_panels * g.columns
            words = n**2 * (m - n / 3) / (2 * width) + 2 * m * n
            assert 0.9 < g.words_moved() / words < 1.1
            assert width > 0.7 * n / share


def test_less_memory_means_more_io_and_overwriting_less_disk() -> None:
    def of(memory: str, **more: bool) -> oc.Plan:
        return oc.plan("qr_factor", m=30_000, n=20_000, memory=memory, rates=RATES, **more)

    assert of("150 MB").bytes_read > of("600 MB").bytes_read > of("3 GB").bytes_read
    assert of("600 MB", overwrite_a=True).disk_bytes < of("600 MB").disk_bytes
    assert of("150 MB").seconds > of("3 GB").seconds > 0


def test_large_plans_are_quick() -> None:
    plan = oc.plan("qr_factor", m=2_000_000, n=500_000, memory="800 GB", rates=RATES)
    assert plan.bytes_read > plan.n * 2_000_000 * 8


def test_bad_plans_are_refused() -> None:
    with pytest.raises(InvalidError, match="need a number type"):
        oc.plan("qr_factor", n=10, dtype="O", rates=RATES)
    with pytest.raises(InvalidError, match="n must be an integer of at least 1"):
        oc.plan("qr_factor", n=0, rates=RATES)
    with pytest.raises(InvalidError, match="no option 'mode'"):
        oc.plan("qr_factor", n=100, memory="1 MiB", rates=RATES, mode="r")
