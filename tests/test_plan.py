"""Plans: exact words, clear refusals, and figures that a run confirms."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import outcore as oc
from outcore._util import budget
from outcore._util.sizes import format_seconds
from outcore.cli import main
from outcore.errors import BudgetError, DiskFullError, InvalidError
from outcore.linalg._geometry.factor_plan import Slab, lu_geometry, panel_flops, update_flops
from outcore.machine.rates import Rates

RATES = Rates(
    read_bytes_s=1e9,
    write_bytes_s=5e8,
    gemm_flops_s=dict.fromkeys(("float32", "float64", "complex64", "complex128"), 1e11),
    cores=2,
    threads=2,
    kernels="test",
    measured_at="2026-01-01T00:00:00+00:00",
    directory="/",
)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_plan_is_what_the_run_does(dtype: str, tmp_path: Path) -> None:
    n, memory = 1024, 3 << 20
    rng = np.random.default_rng(1)
    A = oc.create_array(
        tmp_path / "A", (n, n), dtype, order="F",
        fill=lambda r, c: rng.standard_normal((r.stop - r.start, c.stop - c.start)).astype(dtype),
    )  # fmt: skip
    planned = oc.plan("lu", n=n, dtype=dtype, memory=memory, path=tmp_path, rates=RATES)
    report = oc.linalg.lu_factor(A, memory=memory, progress=False).report
    assert report is not None
    assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
    assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    factor = tmp_path / "A.lu" / "lu" / "c" / "0" / "0"
    assert planned.disk_bytes <= factor.stat().st_size < planned.disk_bytes + 70_000


def test_the_plan_of_a_solve_counts_substitution_and_residual(tmp_path: Path) -> None:
    n, memory = 1024, 3 << 20
    A = oc.from_array(np.eye(n) + 0.01, tmp_path / "A", order="F")
    planned = oc.plan("solve", n=n, memory=memory, path=tmp_path, rates=RATES)
    _, report = oc.linalg.solve(A, np.ones(n), memory=memory, progress=False)
    assert report.bytes_read == planned.bytes_read
    assert report.flops == pytest.approx(planned.flops, rel=1e-2)


def test_words_follow_the_model() -> None:
    """A slab reads the L to its left, and half a tile more per panel; A, L and U move once."""
    n = 16384
    g = lu_geometry(n, np.dtype("f8"), n * n * 8 // 8)
    lefts = [slab.first * g.columns for slab in g.slabs()]
    model = sum(n * left - left**2 / 2 + g.rows / 2 * left for left in lefts) + 2 * n**2
    assert g.words_moved() == pytest.approx(model, rel=0.01)
    # Slabs of one width w would move n³/(3w) - nw/3 + 2n², and the half tiles.
    w = n / len(lefts)
    even = n**3 / (3 * w) - n * w / 3 + 2 * n**2 + g.rows / 2 * n * (len(lefts) - 1) / 2
    assert g.words_moved() < 0.95 * even
    assert g.words_lower_bound() == pytest.approx(n**2 * (2 / (3 * math.sqrt(1 / 8)) + 1), rel=0.01)


@pytest.mark.parametrize("most", [1, 2, 5, 7])
def test_slabs_cover_the_panels_and_are_kept_when_a_run_goes_on(most: int) -> None:
    for n in range(1, 40):
        g = replace(lu_geometry(8 * n, np.dtype("f8"), 1 << 20, (512, 8)), slab_panels=min(most, n))
        whole = g.slabs()
        assert [p for slab in whole for p in range(slab.first, slab.last)] == list(range(n))
        assert len(whole) == -(-n // g.slab_panels)
        assert all(slab.last - slab.first <= g.slab_panels for slab in whole)
        for k, slab in enumerate(whole):
            assert g.slabs(slab.first) == whole[k:]
        for first in range(n + 1):
            rest = g.slabs(first)
            assert [p for slab in rest for p in range(slab.first, slab.last)] == list(
                range(first, n)
            )


def test_flops_of_the_steps_add_up_to_those_of_lu() -> None:
    for n, dtype in ((1000, "f8"), (777, "c16")):
        g = lu_geometry(n, np.dtype(dtype), 1 << 22)
        total = sum(
            panel_flops(g, K) + update_flops(g, K) * max(n - (K + 1) * g.columns, 0)
            for K in range(g.panels)
        )
        assert total == pytest.approx((8 if dtype == "c16" else 2) * n**3 / 3, rel=1e-2)


def test_slabs_cover_the_panels_and_resume_at_their_own_cuts() -> None:
    g = lu_geometry(5000, np.dtype("f8"), 8 << 20)
    slabs = g.slabs()
    assert [s.first for s in slabs] == [0, *(s.last for s in slabs[:-1])]
    assert slabs[-1].last == g.panels
    assert g.slabs(slabs[2].first) == slabs[2:]
    assert g.slabs(g.panels) == []
    elsewhere = g.slabs(slabs[1].first + 1)
    assert elsewhere[0].first == slabs[1].first + 1
    assert elsewhere[-1] == Slab(elsewhere[-1].first, g.panels)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_geometry_keeps_its_promises(n: int, dtype: str) -> None:
    for memory in (1 << 20, 5 << 20, 1 << 30):
        try:
            g = lu_geometry(n, np.dtype(dtype), memory)
        except BudgetError:
            continue
        assert g.memory_bytes <= memory
        assert g.rows % g.columns == 0, "a diagonal block lies in one tile"
        assert g.tile_bytes == g.rows * g.columns * g.dtype.itemsize, "tiles are whole pages"
        assert g.ring_bytes >= 2 * g.tile_bytes
        blocks = [tile for block in g.blocks_below(0) for tile in block]
        assert blocks == list(range(g.tiles))


def test_the_least_budget_that_is_named_suffices() -> None:
    with pytest.raises(BudgetError, match="need") as refused:
        lu_geometry(3000, np.dtype("f8"), 100_000)
    need = int(str(refused.value).split()[1])
    assert lu_geometry(3000, np.dtype("f8"), need).slab_panels >= 1


def test_validate_refuses_what_the_machine_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = oc.plan("lu", n=100, memory="1 MiB", path=tmp_path, rates=RATES)
    assert small.validate() is small
    large = oc.plan("lu", n=2_000_000, memory="1 TiB", path=tmp_path, rates=RATES)
    with pytest.raises(BudgetError, match=r"need .* of memory, .* available; choose"):
        large.validate()
    monkeypatch.setattr(budget, "available_bytes", lambda: 1 << 50)
    with pytest.raises(DiskFullError, match=r"need .* on disk .* free"):
        large.validate()


def test_less_memory_means_more_io_and_overwriting_less_disk() -> None:
    def of(memory: str, **more: bool) -> oc.Plan:
        return oc.plan("lu", n=20_000, memory=memory, path=".", rates=RATES, **more)

    assert of("200 MB").bytes_read > of("400 MB").bytes_read > of("4 GB").bytes_read
    assert of("200 MB").io_seconds > of("4 GB").io_seconds
    assert of("400 MB", overwrite_a=True).disk_bytes < of("400 MB").disk_bytes / 4


def test_an_option_that_a_plan_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"no option 'overwritea'.*overwrite_a"):
        oc.plan("lu", n=100, memory="1 MiB", rates=RATES, overwritea=True)


@pytest.mark.parametrize(("function", "verb"), [("lu_factor", "lu"), ("cho_factor", "cholesky")])
def test_functions_are_known_by_their_names(function: str, verb: str) -> None:
    options = {"n": 5000, "memory": "20 MB", "rates": RATES}
    assert oc.plan(function, **options).to_dict() == oc.plan(verb, **options).to_dict()
    result = CliRunner().invoke(main, ["plan", function, "-n", "500", "--memory", "20MB", "--json"])
    assert json.loads(result.stdout)["verb"] == verb


def test_bad_plans_are_refused() -> None:
    with pytest.raises(InvalidError, match="there is a plan for"):
        oc.plan("nonsense", n=10, rates=RATES)
    with pytest.raises(InvalidError, match="compute_dtype=float32 cannot hold"):
        oc.plan("lu", n=10, dtype="c8", compute_dtype="f4", rates=RATES)
    assert oc.plan("lu", n=10, dtype="i4", rates=RATES).dtype == "float64"
    with pytest.raises(InvalidError, match="at least 1"):
        oc.plan("lu", n=0, rates=RATES)


@pytest.mark.parametrize(
    ("verb", "options", "why"),
    [
        ("gram", {"side": "up"}, "side must be 'left' or 'right', have 'up'"),
        ("gram", {"triangle": "upper"}, "triangle must be 'both' or 'lower', have 'upper'"),
        ("qr", {"mode": "full"}, "mode must be 'r' or 'economic', have 'full'"),
    ],
)
def test_plans_refuse_what_their_functions_refuse(
    verb: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidError, match=why):
        oc.plan(verb, m=100, n=10, memory="4 MiB", rates=RATES, **options)
    with pytest.raises(InvalidError, match=why):
        getattr(oc.linalg, verb)(np.ones((100, 10)), memory="4 MiB", **options)


def test_a_plan_that_cannot_see_the_matrix_says_what_it_may_be() -> None:
    given: dict[str, Any] = {"n": 3000, "memory": "20 MB", "rates": RATES}
    auto, gen = (oc.plan("solve", assume_a=kind, **given) for kind in ("auto", "gen"))
    positive = oc.plan("solve", assume_a="pos", **given)
    assert replace(auto, notes=[]) == gen
    (note,) = auto.notes
    assert f"positive definite, it takes {format_seconds(positive.seconds)}, by Cholesky" in note


def test_a_plan_of_solve_has_no_method() -> None:
    with pytest.raises(InvalidError, match="no method=, have 'tournament'; leave it out"):
        oc.plan("solve", n=100, memory="1 MiB", rates=RATES, method="tournament")


def test_the_command_line_plans_too(tmp_path: Path) -> None:
    arguments = ["plan", "lu", "-n", "1000", "--memory", "8 MiB", "--dtype", "c16", str(tmp_path)]
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 0, said.output
    assert "plan: lu, n = 1000, complex128" in said.output
    values = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert values["n"] == 1000
    assert values["peak_memory_bytes"] <= 8 << 20
    lying = ["--option", "order=C", "--option", "chunks=64,512", "--json"]
    values = json.loads(CliRunner().invoke(main, [*arguments, *lying]).output)
    assert values["bytes_read"] == oc.plan(
        "lu", n=1000, dtype="c16", memory="8 MiB", path=tmp_path, order="C", chunks=(64, 512)
    ).bytes_read  # fmt: skip
    refused = CliRunner().invoke(main, ["plan", "lu", "-n", "3000000", str(tmp_path)])
    assert refused.exit_code == 1
    assert "error: need" in refused.output
