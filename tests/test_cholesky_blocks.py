"""Cholesky by square blocks: slabs that are wider than memory allows, in parts of rows.

Against SciPy, closed forms and LAPACK's own measure; and the words moved.
"""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from definite import (
    cholesky_ratio,
    definite,
    factor_of,
    lower_only,
    mirrored_lower,
    upper_only,
)
from linpack import Matrix, on_disk, one_thread
from test_lu import factor_file_bytes
from test_lu_bad_input import refused
from test_plan import RATES

import outcore as oc
from outcore.errors import NonFiniteError, NotPositiveDefiniteError
from outcore.linalg import CholeskyFactor, cho_factor, cho_solve
from outcore.linalg._cholesky import plan
from outcore.linalg._cholesky.cuts import Triangle, cut_slabs
from outcore.linalg._cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg._cholesky.plan import cholesky_geometry
from outcore.linalg._geometry.factor_plan import DTYPES

__all__ = ["one_thread"]  # a fixture for every test here

BUDGETS = {"float32": 125_000, "float64": 130_000, "complex64": 130_000, "complex128": 150_000}
N = 400
ORDERS = dict.fromkeys(DTYPES, N) | {"float32": 700}  # with tiles twice as high
"""Orders of matrices that these budgets divide into parts."""


@functools.cache
def matrix(dtype: str) -> Matrix:
    """Return a matrix, which callers must not change."""
    a = definite(ORDERS[np.dtype(dtype).name], dtype)
    a.flags.writeable = False
    return a


def geometry(n: int, dtype: str, memory: int, tile: Any = None) -> CholeskyGeometry:
    return cholesky_geometry(n, np.dtype(dtype), memory, tile)


def parts_below(g: CholeskyGeometry) -> list[Part]:
    return [part for slab in g.slabs() for part in g.parts(slab)[1:]]


def factor(path: Path, a: Matrix, memory: int, **options: Any) -> CholeskyFactor:
    return cho_factor(on_disk(path, lower_only(a)), memory=memory, progress=False, **options)


def test_the_budgets_here_make_parts() -> None:
    for dtype in DTYPES:
        g = geometry(ORDERS[dtype], dtype, BUDGETS[dtype])
        assert len(parts_below(g)) >= 10
        assert max(len(g.parts(slab)) for slab in g.slabs()) >= 4
        assert any(len(g.parts(slab)) == 1 for slab in g.slabs())


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_types(tmp_path: Path, dtype: str) -> None:
    a = matrix(dtype)
    found = factor(tmp_path / "Z", a, BUDGETS[dtype], threads=2)
    L = factor_of(found)
    assert cholesky_ratio(a, found) < 30
    expected: Matrix = scipy.linalg.cholesky(a, lower=True)
    np.testing.assert_allclose(L, expected, rtol=0, atol=1e3 * float(np.finfo(dtype).eps))
    assert not np.triu(L, 1).any()
    assert not np.diagonal(L).imag.any()
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= found.norm1 <= norm1 * (1 + 1e-5)
    b = np.arange(len(a)).astype(dtype)
    x = cho_solve(found, b, memory=BUDGETS[dtype], progress=False)
    residual = np.abs(a @ x - b).max() / (np.linalg.norm(a, np.inf) * np.abs(x).max())
    assert residual < 30 * np.finfo(dtype).eps


def orders_one_off_each_edge() -> list[int]:
    """Orders for which a part, or a slab in parts, ends one before, at or after the last row."""
    g = geometry(450, "f8", 140_000)
    edges = {part.tiles.stop * g.rows for part in parts_below(g)}
    edges |= {part.tiles.start * g.rows for part in parts_below(g)}
    edges |= {part.slab.last * g.columns for part in parts_below(g)}
    return sorted(edge + off for edge in edges if edge > 250 for off in (-1, 0, 1))


@pytest.mark.exhaustive(keep=6)
@pytest.mark.parametrize("n", orders_one_off_each_edge())
def test_sizes_one_off_each_edge(tmp_path: Path, n: int) -> None:
    a = definite(n, "f8", n)
    found = factor(tmp_path / "Z", a, 140_000)
    assert cholesky_ratio(a, found) < 30
    np.testing.assert_allclose(factor_of(found), scipy.linalg.cholesky(a, lower=True), atol=1e-12)


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(
    ("tile", "memory"),
    [
        ((16, 16), 190_000),
        ((16, 16), 200_000),
        ((16, 16), 210_000),
        ((32, 16), 190_000),
        ((64, 8), 150_000),
        ((64, 16), 210_000),
        ((32, 32), 291_000),
        ((128, 32), 418_000),
    ],
)
def test_any_tiles(tmp_path: Path, tile: tuple[int, int], memory: int) -> None:
    """Several blocks beside a slab, groups of several tiles, panels that are whole tiles."""
    n = 700
    g = geometry(n, "f8", memory, tile)
    assert len(parts_below(g)) >= 3
    a = definite(n, "f8")
    A = on_disk(tmp_path / "Z", lower_only(a), chunks=tile)
    found = cho_factor(A, memory=memory, overwrite_a=True, progress=False)
    assert found.tile == tile
    assert cholesky_ratio(a, found) < 30
    assert found.report is not None
    assert found.report.peak_memory_bytes <= memory
    assert found.report.bytes_written == g.factor_bytes_written()


def test_min_of_i_and_j_larger_than_its_budget(tmp_path: Path) -> None:
    """min(i, j), counted from 1, is L Lᵀ with ones in all of L; every step is exact."""
    n, memory = 1500, 600_000

    def element(rows: slice, cols: slice) -> Matrix:
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return np.where(i >= j, np.minimum(i, j) + 1.0, np.nan)

    assert len(parts_below(geometry(n, "f8", memory))) > 10
    A = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", fill=element, progress=False)
    found = cho_factor(A, memory=memory, progress=False)
    assert found.report is not None
    assert found.report.peak_memory_bytes <= memory < n * n * 8 / 29
    np.testing.assert_array_equal(factor_of(found), np.tril(np.ones((n, n))))
    assert found.norm1 == n * (n + 1) / 2


def test_kms(tmp_path: Path) -> None:
    """r^|i-j| = L Lᵀ with L = r^(i-j), all but the first column times √(1 - r²)."""
    rho = 0.9
    i, j = np.ogrid[:N, :N]
    found = factor(tmp_path / "Z", rho ** np.abs(i - j), BUDGETS["float64"])
    scale = np.where(j > 0, np.sqrt(1 - rho**2), 1)
    expected = np.where(i >= j, rho ** np.abs(i - j) * scale, 0)
    np.testing.assert_allclose(factor_of(found), expected, rtol=0, atol=1e-13)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("order", "chunks"), [("C", (32, 64)), ("C", (37, 53))])
def test_the_upper_triangle(
    tmp_path: Path, dtype: str, order: str, chunks: tuple[int, int]
) -> None:
    a, memory = matrix(dtype), BUDGETS[np.dtype(dtype).name]
    A = oc.from_array(upper_only(a), tmp_path / "Z", order=order, chunks=chunks)
    found = cho_factor(A, lower=False, memory=memory, progress=False)
    assert cholesky_ratio(a, found) < 30
    lower = mirrored_lower(a, tmp_path / "Y", order, chunks)
    same = cho_factor(lower, memory=memory, progress=False)
    np.testing.assert_array_equal(factor_of(found), factor_of(same))


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize(
    ("n", "dtype", "memory"),
    [
        (512, "f8", 140_000),
        (700, "f8", 150_000),
        (701, "f8", 150_000),
        (768, "c8", 160_000),
        (1024, "f8", 300_000),
        (999, "f8", 260_000),
        (640, "f4", 125_000),
        (512, "c16", 190_000),
        (450, "c16", 160_000),
        (1500, "f8", 600_000),
    ],
)
def test_moves_what_was_planned(tmp_path: Path, n: int, dtype: str, memory: int) -> None:
    g = geometry(n, dtype, memory)
    assert len(parts_below(g)) >= 5
    A = on_disk(tmp_path / "Z", lower_only(definite(n, dtype)), chunks=(g.rows, g.columns))
    report = cho_factor(A, memory=memory, progress=False).report
    assert report is not None
    assert factor_file_bytes(report, "read") == g.factor_bytes_read()
    assert factor_file_bytes(report, "write") == g.factor_bytes_written()
    assert report.bytes_written == report.planned_bytes_written == g.factor_bytes_written()
    assert report.bytes_read == report.planned_bytes_read
    beyond = report.bytes_read - g.matrix_bytes_read(0, g.rows) - g.factor_bytes_read()
    assert beyond == 0 if n % g.rows == 0 else 0 <= beyond < 0.05 * A.nbytes
    assert report.peak_memory_bytes <= g.memory_bytes <= memory
    assert report.method == g.method
    assert "square blocks" in report.method


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plan_is_what_the_run_does(tmp_path: Path, dtype: str) -> None:
    """With the default chunks of a matrix: the bytes of A and of L."""
    n, memory = 1024, {"float32": 200_000, "complex128": 400_000}.get(dtype, 300_000)
    A = on_disk(tmp_path / "A", definite(n, dtype))
    planned = oc.plan("cholesky", n=n, dtype=dtype, memory=memory, path=tmp_path, rates=RATES)
    assert "in square blocks of up to" in planned.method
    report = cho_factor(A, memory=memory, progress=False).report
    assert report is not None
    assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
    assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert report.flops == pytest.approx(planned.flops)
    assert report.method == planned.method


def test_the_words_of_a_small_budget() -> None:
    """At 1/32: tiles of √M while n - o > 2√M, then slabs, which alone would move 2.69 n² words."""
    n = 16384
    for share, bound in ((16, 1.1), (32, 1.1), (64, 1.15)):
        g = geometry(n, "f8", n * n * 8 // share)
        s, o = share**-0.5, 1 - 2 * share**-0.5
        model = 1 + 2 / s * (o**2 / 2 - o**3 / 3) + share * ((2 * s) ** 3 / 3 - (2 * s) ** 4 / 4)
        assert g.words_moved() <= bound * model * n**2
        assert g.words_moved() < (share / 12 + 1) * n**2
        assert g.columns >= 128, "products are that deep"
    assert model == pytest.approx(3.52, abs=0.01)
    whole = geometry(n, "f8", n * n * 8 // 8)
    assert parts_below(whole) == []


@pytest.mark.parametrize("share", [16, 32, 64])
def test_blocks_are_chosen_where_they_are_fewer_words_and_no_more_time(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(n: int) -> oc.Plan:
        cholesky_geometry.cache_clear()
        return oc.plan("cholesky", n=n, memory=n * n * 8 // share, rates=RATES)

    ours = [planned(n) for n in (9000, 16384)]
    assert all("square blocks" in plan.method for plan in ours)
    monkeypatch.setattr(plan, "FEWER", 0)
    slabs = [planned(n) for n in (9000, 16384)]
    cholesky_geometry.cache_clear()
    for mine, other in zip(ours, slabs, strict=True):
        assert "square blocks" not in other.method
        assert mine.bytes_read + mine.bytes_written <= 0.9 * (
            other.bytes_read + other.bytes_written
        )
        assert mine.seconds <= other.seconds


@pytest.mark.parametrize(("group_tiles", "block_tiles"), [(1, 1), (2, 2), (1, 3), (2, 4)])
@pytest.mark.parametrize(("rows", "chunk_tiles"), [(2, 1), (4, 1), (4, 3)])
def test_cuts_into_parts_keep_their_promises(
    rows: int, chunk_tiles: int, group_tiles: int, block_tiles: int
) -> None:
    """The schedule reads as much as the choice assumed, within the memory and the blocks."""
    columns, n = 2, 79
    tiles = math.ceil(n / rows)
    t = Triangle(math.ceil(n / columns), tiles, rows, columns, group_tiles, block_tiles)
    in_parts = 0
    for words, blocks in itertools.product(range(180, 900, 90), (5, 9, 40)):
        found = cut_slabs(t, (words,), blocks, range(1, tiles), chunk_tiles)
        whole = cut_slabs(t, (words,), blocks)
        assert found is not None
        assert whole is None or found.reads <= whole.reads
        of_tiles = (rows, columns, group_tiles, block_tiles)
        g = CholeskyGeometry(n, np.dtype("f8"), *of_tiles, blocks + 1, found.cuts, 0, 0, 0)
        reads = again = 0
        for part in (part for slab in g.slabs() for part in g.parts(slab)):
            earlier = part.slab.last if not part.is_first else part.slab.first
            needed = [g.blocks(part, K) for K in range(earlier)]
            reads += sum(len(block) for of_panel in needed for block in of_panel)
            if not part.is_last and part.tiles.stop % chunk_tiles:
                again += len(part.panels) * chunk_tiles
            held = sum(
                len(group) * columns * (part.tiles.stop - g.group_top(part, group)) * rows
                for group in g.groups(part)
            )
            assert held <= found.most_words[0] <= words
            if not part.is_first and part.slab.first:
                beside = [b for b in needed[0] if b.start < part.tiles.start]
                assert len(beside) + 1 <= blocks
        assert g.factor_bytes_read() == reads * g.tile_bytes
        assert found.reads == reads + again
        in_parts += bool(parts_below(g))
    assert in_parts > 5


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("where", [(N - 1, 1), (N - 1, 70), (290, 125), (N - 1, N - 2)])
def test_a_number_that_is_none(
    tmp_path: Path, where: tuple[int, int], lower: bool, value: float
) -> None:
    a = lower_only(matrix("f8")) if lower else upper_only(matrix("f8"))
    index = where if lower else where[::-1]
    a[index] = value
    A = oc.from_array(a, tmp_path / "Z", order="F" if lower else "C")
    with refused(tmp_path, NonFiniteError, rf"A\[{index[0]}, {index[1]}\] is") as caught:
        cho_factor(A, lower=lower, memory=BUDGETS["float64"], progress=False)
    assert caught.value.index == index


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize("order", [2, 130, 131, 300, 301, N - 1])
def test_not_positive_definite(tmp_path: Path, dtype: str, order: int) -> None:
    """The error has LAPACK's info, wherever the bad pivot is."""
    a = matrix(dtype).copy(order="F")
    a[order - 1, order - 1] = -1
    a[order - 1, : order - 1] = a[order:, order - 1] = 0
    a[: order - 1, order - 1] = a[order - 1, order:] = 0
    *_, info = scipy.linalg.get_lapack_funcs(("potrf",), (a,))[0](a, lower=True)
    assert info == order
    A = on_disk(tmp_path / "Z", lower_only(a))
    with refused(tmp_path, NotPositiveDefiniteError, f"^{order}-th leading") as ours:
        cho_factor(A, memory=BUDGETS[np.dtype(dtype).name], progress=False)
    assert ours.value.info == order


def test_progress_rises_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advanced: list[float] = []
    advance = oc._util.progress.Meter.advance

    def noting(self: Any, work: float) -> None:
        advanced.append(work)
        advance(self, work)

    A = on_disk(tmp_path / "Z", matrix("c16"))
    monkeypatch.setattr(oc._util.progress.Meter, "advance", noting)
    report = cho_factor(A, memory=BUDGETS["complex128"], progress=False).report
    assert report is not None
    assert min(advanced) >= 0
    assert sum(advanced) == pytest.approx(report.flops) == pytest.approx(4 * N**3 / 3)
