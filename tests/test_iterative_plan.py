"""Plans of iterative methods against their reports, the order of tiles, and the picture."""

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from iterative_cases import LAYOUTS, dominant, kms, on_disk, random
from linpack import one_thread
from test_plan import RATES

import outcore as oc
from outcore.convergence_plot import draw_convergence
from outcore.errors import BudgetError, DivergenceError, InvalidError
from outcore.linalg import cg, gauss_seidel, gmres, jacobi
from outcore.linalg.iterative.convergence import Convergence
from outcore.linalg.iterative.plan import Demands, MatrixLayout, iterative_geometry
from outcore.linalg.iterative.strips.column_sums import ColumnSums
from outcore.linalg.iterative.strips.pinned import choose_pins
from outcore.linalg.iterative.strips.strips import Strips, way_through

__all__ = ["one_thread"]  # a fixture for every test here

N = 300
METHODS = {"gauss_seidel": gauss_seidel, "jacobi": jacobi, "cg": cg, "gmres": gmres}


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("gauss_seidel", {}),
        ("gauss_seidel", {"direction": "forward", "pin": 0.25}),
        ("gauss_seidel", {"direction": "alternating", "pin": None, "block": 256}),
        ("gauss_seidel", {"assume_a": "her", "storage": "f4"}),
        ("jacobi", {"pin": None}),
        ("jacobi", {"storage": "f4"}),
        ("cg", {}),
        ("cg", {"preconditioner": "jacobi", "pin": 0.1}),
        ("cg", {"preconditioner": "ssor", "storage": "f4"}),
        ("gmres", {"restart": 5}),
        ("gmres", {"preconditioner": "jacobi"}),
        ("gmres", {"preconditioner": "sweep", "restart": 4, "pin": None}),
        ("gmres", {"preconditioner": "ssor", "restart": 4, "storage": "f4"}),
        ("gmres", {"assume_a": "sym", "preconditioner": "sweep"}),
    ],
)
def test_the_plan_is_what_the_run_does(tmp_path: Path, verb: str, options: dict[str, Any]) -> None:
    a, b = kms(N, 0.3), random((N, 2), "f8", 1)
    count = {"max_sweeps" if verb in ("gauss_seidel", "jacobi") else "max_iterations": 6}
    planned_count = {"sweeps" if verb in ("gauss_seidel", "jacobi") else "iterations": 6}
    for order, more in itertools.product(("C", "F"), (0, 3 << 20)):
        A = on_disk(tmp_path / "A", a, order, None)
        known = {"n": N, "rhs": 2, "path": tmp_path, "rates": RATES, "order": order}
        known |= planned_count | options
        with pytest.raises(BudgetError) as refused:
            oc.plan(verb, memory=1, **known)
        memory = int(str(refused.value).split()[1]) + more
        plan = oc.plan(verb, memory=memory, **known)
        _, report = METHODS[verb](A, b, tol=None, memory=memory, progress=False, **count, **options)
        assert report.bytes_read == report.planned_bytes_read == plan.bytes_read
        assert report.bytes_written == report.planned_bytes_written == plan.bytes_written
        assert report.method == plan.method
        assert report.words_lower_bound == plan.words_lower_bound
        assert 0 < report.words_lower_bound <= report.words_moved()
        assert report.peak_memory_bytes <= plan.peak_memory_bytes <= memory
        assert report.flops == pytest.approx(plan.flops, rel=0.05)


def test_plans_know_large_matrices_and_say_what_they_need() -> None:
    plan = oc.plan("gauss_seidel", n=100_000, dtype="c16", memory="40 GB", path=".", rates=RATES)
    assert plan.peak_memory_bytes <= 40e9
    assert 0.2 < float(re.search(r"(\d+)% of", plan.method)[1]) / 100 < 0.3  # type: ignore[index]
    more = oc.plan("gauss_seidel", n=100_000, dtype="c16", memory="80 GB", path=".", rates=RATES)
    assert more.bytes_read < plan.bytes_read
    with pytest.raises(BudgetError, match=r"need .* raise memory="):
        oc.plan("cg", n=100_000, memory="1 MB", path=".", rates=RATES)
    for verb, wrong in (
        ("gauss_seidel", {"sweeps": 0}), ("jacobi", {"order": "A"}), ("cg", {"iterations": 1.5}),
        ("gmres", {"preconditioner": "ilu"}), ("jacobi", {"direction": "forward"}),
        ("gmres", {"n": 0}),
    ):  # fmt: skip
        with pytest.raises(InvalidError):
            oc.plan(verb, **{"n": 100, "memory": "1 GB", "path": ".", "rates": RATES, **wrong})
    with pytest.raises(InvalidError, match="iterative methods work in"):
        oc.plan("cg", n=100, dtype="i4", rates=RATES)


def test_the_least_words_are_those_of_what_is_not_in_memory(tmp_path: Path) -> None:
    n, block, steps = 320, 32, 6
    A, b = on_disk(tmp_path / "A", kms(n, 0.3), chunks=(16, 64)), np.ones(n)
    diagonal, square = n * block, n * n
    options: dict[str, Any] = {"block": block, "tol": None, "memory": 4 << 20, "progress": False}

    def bound(method: Any, **more: Any) -> float:
        count = {"max_sweeps" if method in (gauss_seidel, jacobi) else "max_iterations": steps}
        report = method(A, b, **count, **options, **more)[1]
        assert report.words_lower_bound <= report.words_moved()
        assert "times the least" in str(report)
        return float(report.words_lower_bound)

    # Each ends with a pass over all of A; Jacobi combines it with its last sweep.
    sweeps, half = steps * (square - diagonal), (square + diagonal) / 2
    assert bound(gauss_seidel, pin=None, direction="forward") == sweeps + square
    assert bound(gauss_seidel, pin=None) == sweeps / 2 + square
    assert bound(gauss_seidel, pin=None, assume_a="sym") == sweeps / 2 + half
    assert bound(jacobi, pin=None) == steps * square
    assert bound(cg, pin=None) == (steps + 1) * half
    assert bound(gmres, pin=None) == (steps + 1) * square
    assert bound(gmres, pin=0.75) == (steps + 1) * square / 4
    assert bound(gmres, pin=1.0) == square
    assert bound(gauss_seidel, pin=1.0) == square


def test_methods_are_named_as_planned(tmp_path: Path) -> None:
    A, b = on_disk(tmp_path / "A", kms(N, 0.3), chunks=None), np.ones(N)
    for method, options, text in (
        (gauss_seidel, {}, "symmetric sweeps, tiles of"),
        (gauss_seidel, {"direction": "forward"}, "forward sweeps, tiles of"),
        (cg, {"preconditioner": "ssor"}, "preconditioned by ssor, tiles of"),
        (gmres, {"restart": 9}, "restart after 9 directions, tiles of"),
        (
            gmres, {"restart": 1, "preconditioner": "sweep"},
            "restart after 1 direction, preconditioned by sweep, tiles of",
        ),
    ):  # fmt: skip
        plan = oc.plan(method.__name__, n=N, path=tmp_path, memory="8 MB", rates=RATES, **options)
        assert plan.method.startswith(text)
        report = method(A, b, memory="8 MB", progress=False, **options)[1]
        assert report.method.startswith(text)
        assert "ω" not in report.method
        if method is not gmres or "preconditioner" in options:
            report = method(A, b, omega=1.25, memory="8 MB", progress=False, **options)[1]
            assert report.method.endswith(", ω = 1.25")
            known: dict[str, Any] = {"path": tmp_path, "memory": "8 MB", "rates": RATES, **options}
            plan = oc.plan(method.__name__, n=N, omega=1.25, **known)
            assert report.method == plan.method
    report = gmres(A, b, preconditioner=lambda R: R, omega=1.5, progress=False)[1]
    assert "preconditioned by a function, tiles" in report.method
    assert "ω" not in report.method


@pytest.mark.parametrize("chunks", [(1, 512), (16, 64), (64, 16), (32, 32), (48, 20), (200, 200)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_strips_cover_every_element_once(chunks: tuple[int, int], order: str) -> None:
    for n, factor in itertools.product((1, 31, 97), (1, 3)):
        by, unit = way_through(chunks, order)
        strips = Strips(n, chunks, by, unit * factor)
        seen = np.zeros((n, n), int)
        for number, strip in enumerate(strips.tiles):
            here = strips.extent(number)
            for tile in strip:
                seen[tile.rows, tile.cols] += 10
                for box, sign in ((tile.below, 1), (tile.inside, 0), (tile.above, -1)):
                    if box is not None:
                        seen[box] += 1
                        rows, cols = np.meshgrid(
                            *(np.arange(s.start, s.stop) // strips.block for s in box),
                            indexing="ij",
                        )
                        assert (np.sign(rows - cols) == sign).all()
                        assert rows.size
                lines = tile.rows if by == "rows" else tile.cols
                assert here.start <= lines.start
                assert lines.stop <= here.stop
        assert (seen == 11).all()
        chunks_seen = [tile.chunk for tile in strips.all_tiles]
        assert len(chunks_seen) == len(set(chunks_seen))


def test_pins_are_as_many_as_asked_for_and_the_best() -> None:
    strips = Strips(512, (16, 64), "rows", 16)
    tiles = strips.all_tiles
    below, above = (np.array([bool(part) for part in parts]) for parts in (
        [tile.below for tile in tiles], [tile.above for tile in tiles]
    ))  # fmt: skip
    both, lower, upper = map(np.flatnonzero, (below & above, below & ~above, above & ~below))
    levels = [[both], [lower, upper]]
    for count in range(len(tiles) + 5):
        pins = choose_pins(levels, count)
        assert len(pins) == len(set(pins.tolist())) == min(count, len(tiles))
        of = [np.isin(group, pins).sum() for group in (both, lower, upper)]
        assert of[0] == min(count, len(both))
        assert abs(of[1] - of[2]) <= 1


def test_the_budget_goes_to_blocks_read_ahead_and_tiles() -> None:
    kind = np.dtype("f8")
    layout = MatrixLayout(4096, kind, kind, (256, 2048), "C")
    needs = Demands("x", 5, True, by_triangle=True)
    seen = []
    for memory in np.geomspace(2e7, 4e8, 12):
        g = iterative_geometry(layout, [needs], int(memory), 1)
        assert g.memory_bytes <= memory
        assert g.blocks is not None
        assert 3 <= g.ring_tiles <= 8
        seen.append((g.pinned_tiles, g.step_rows, g.blocks.is_in_file))
    assert [pinned for pinned, *_ in seen] == sorted(pinned for pinned, *_ in seen)
    assert seen[-1][0] == len(g.strips.all_tiles)
    assert [in_file for *_, in_file in seen] == sorted((f for *_, f in seen), reverse=True)
    # A block may exceed a chunk of its file; memory holds two blocks.
    with pytest.raises(BudgetError):
        iterative_geometry(layout, [needs], int(1e8), 1, block=3072)
    large = MatrixLayout(2**18, kind, kind, (256, 2048), "C")
    g = iterative_geometry(large, [needs], int(2e9), 1, block=4096)
    assert g.blocks is not None
    assert g.blocks.is_in_file
    assert g.blocks.metadata().shape == (64, 2**24)
    assert g.blocks.metadata().chunks == (1, 2**23)


def noted(history: list[float], **options: Any) -> Convergence:
    seen: list[float] = []
    options = {"eps": 2e-16, "is_stationary": True, **options}
    found = Convergence("test", options.pop("tol", 1e-6), 100, seen.append, **options)
    for residual in history:
        found.note(residual)
    assert all(share >= 0 for share in seen)
    assert sum(seen) <= 1 + 1e-12
    return found


def test_what_counts_as_divergence() -> None:
    for history in (
        [1, 1.5**1, 1.5**2, 1.5**3, 1.5**4, 1.5**5, 1.5**6],
        [1.02**k for k in range(11)],
        [1, 0.1, 10, 1, 100, 10],  # alternately better and worse
        [1, 0.5, float("inf")],
        [1, 0.5, float("nan")],
        [1, 1e-6, 1e-2],
    ):
        with pytest.raises(DivergenceError) as found:
            noted(history)
        assert found.value.ratio > 1 or np.isnan(history[-1])
    for history in (
        [1, 2, 3, 4, 3, 2, 1],
        [1, 0.5, 0.9, 0.4, 0.8, 0.3],
        [0.9**k for k in range(60)],
        [0.5**k for k in range(50)] + [1e-15, 3e-15, 1e-14, 2e-14, 5e-15] * 5,
    ):
        noted(history, tol=None)
    # The residual of a Krylov method may rise for many steps.
    noted([1.5**k for k in range(20)], is_stationary=False)


def test_when_an_iteration_is_over() -> None:
    assert not noted([1, 1e-3]).is_over
    assert noted([1, 1e-6]).is_over
    assert not noted([1, 0], tol=None).is_over
    assert noted([1, 0], tol=0).is_over
    assert noted([1 - 1e-4 * k for k in range(100)]).is_over
    assert not noted([1 - 1e-4 * k for k in range(99)]).is_over
    stuck = noted([1, 0.1, *([0.011, 0.01] * 12)])
    assert stuck.is_over
    assert stuck.is_stalled


def test_a_residual_that_was_too_good_is_checked_again() -> None:
    found = noted([1, 1e-6])
    assert not found.accepts(1e-4)
    assert not found.is_over
    found.note(1e-7)
    assert not found.is_over
    found.note(0.9e-8)
    assert found.is_over
    assert found.accepts(0.9e-6)
    # A residual no better than before will not improve.
    found = noted([1, 1e-6])
    assert not found.accepts(1e-4)
    found.note(1e-9)
    assert found.accepts(0.8e-4)
    assert not found.has_met(0.8e-4)


def test_the_convergence_is_drawn(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", dominant(64, "f8"))
    reports = {
        f"ω = {omega}": gauss_seidel(A, np.ones(64), omega=omega, progress=False)[1]
        for omega in (0.8, 1.0)
    }
    picture = draw_convergence(reports, tmp_path / "both.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    one = draw_convergence(next(iter(reports.values())), str(tmp_path / "one.svg"))
    text = ElementTree.parse(one).getroot()
    assert text.tag.endswith("svg")
    assert "gauss_seidel" in one.read_text()
    lu = oc.linalg.lu_factor(A, progress=False).report
    assert lu is not None
    for wrong, name in (({}, "a.png"), (lu, "a.png"), (reports, "a.jpeg")):
        with pytest.raises(InvalidError):
            draw_convergence(wrong, tmp_path / name)
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize("is_half", [False, True])
def test_the_norm_of_a_matrix_that_comes_in_tiles(
    dtype: str, order: str, chunks: tuple[int, int], is_half: bool
) -> None:
    a = random((N, N), dtype)
    if is_half:
        a = a + a.conj().T
    strips = Strips(N, chunks, *way_through(chunks, order))
    sums = ColumnSums(N, a.dtype, order, chunks, oc._core.Arena(1 << 20), is_half=is_half)
    for tile in strips.all_tiles:
        if tile.below or tile.inside or not is_half:
            sums.look(tile, np.array(a[tile.rows, tile.cols], order=order))  # type: ignore[call-overload]
    # For complex numbers |re| + |im| over √2, a lower bound.
    sizes = np.abs(a.real) + np.abs(a.imag)
    expected = sizes.sum(axis=0, dtype=np.float64).max() / (2**0.5 if dtype[0] == "c" else 1)
    assert sums.norm1() == pytest.approx(expected, rel=1e-6)
    assert sums.norm1() <= np.linalg.norm(a, 1) * (1 + 1e-6)


@pytest.mark.parametrize("assume_a", ["gen", "sym"])
def test_the_backward_error_is_that_of_the_definition(tmp_path: Path, assume_a: Any) -> None:
    a, b = kms(N, 0.5), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    for method in (gauss_seidel, jacobi, gmres):
        x, report = method(
            A, b, assume_a=assume_a, tol=None, progress=False,
            **{"max_iterations" if method is gmres else "max_sweeps": 3},
        )  # fmt: skip
        residuals, sizes = (np.abs(v).sum(axis=0) for v in (b - a @ x, x))
        scales = np.linalg.norm(a, 1) * sizes + np.abs(b).sum(axis=0)
        assert report.backward_error == pytest.approx((residuals / scales).max(), rel=1e-6)
