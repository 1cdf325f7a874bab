"""LU out of core against SciPy, closed forms and LAPACK's test ratios."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import zarr
from known_matrices import SYSTEMS, System, hadamard, kahan
from linpack import (
    Matrix,
    hpl_residual,
    lapack_ratio,
    on_disk,
    one_thread,
    packed,
    random_matrix,
    row_order,
    solve_ratio,
)

import outcore as oc
from outcore._core import Arena, Trace
from outcore.errors import BudgetError, ClosedError, ConsumedError, GrowthWarning
from outcore.linalg import lu_factor, lu_solve, open_factor
from outcore.linalg._factors import storage as factor_storage
from outcore.linalg._geometry.factor_plan import DTYPES, LuGeometry, lu_geometry
from outcore.linalg._output.factor import Kind
from outcore.linalg._output.journal import Journal
from outcore.report.report import Report
from outcore.storage.volumes import Place, bytes_on_disk

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 300_000


def factor(path: Path, a: Matrix, memory: int | str = TINY, **options: Any) -> oc.linalg.LUFactor:
    return lu_factor(on_disk(path, a), memory=memory, progress=False, **options)


def test_the_budgets_here_make_many_slabs() -> None:
    for dtype in DTYPES:
        assert len(lu_geometry(500, np.dtype(dtype), TINY).slabs()) >= 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_types(tmp_path: Path, dtype: str) -> None:
    a = random_matrix(500, dtype)
    lu = factor(tmp_path / "Z", a, threads=2)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lu.piv.dtype == np.int32
    assert lapack_ratio(a, lu) < 30
    b = random_matrix(500, dtype, 1)[:, 0]
    x = lu_solve(lu, b, progress=False)
    assert x.dtype == a.dtype
    assert hpl_residual(a, x, b) < 16
    assert solve_ratio(a, x, b) < 30
    # For complex types the norm is a lower bound within √2.
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= lu.norm1 <= norm1 * (1 + 1e-5)
    assert lu.info == 0
    growth = np.abs(np.triu(packed(lu))).max() / np.abs(a).max()
    assert growth / 1.5 < lu.growth < growth * 1.5
    assert lu.path == tmp_path / "Z.lu"
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]


def edges_of(geometry: Callable[..., Any], limit: int, memory: int, dtype: str = "f8") -> list[int]:
    """Return orders within one of each change in the number of panels, tiles or slabs."""

    def cut(n: int) -> tuple[int, int, int]:
        g = geometry(n, np.dtype(dtype), memory)
        return g.panels, g.tiles, len(g.slabs())

    seen: set[tuple[bool, bool, int]] = set()
    found: set[int] = set()
    for n in range(2, limit):
        before, now = cut(n - 1), cut(n)
        # One of each kind of change, and of each number of slabs.
        change = (now[0] > before[0], now[1] > before[1], now[2] if now[2] > before[2] else 0)
        if any(change) and change not in seen:
            seen.add(change)
            found |= {n - 1, n, n + 1}
    return sorted(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["c16", "f4", "c8"])
def test_sizes_one_off_each_boundary_of_other_types(tmp_path: Path, dtype: str) -> None:
    """Panels of complex128 are half as wide as those of float64."""
    memory = {"f4": 110_000, "c8": 150_000, "c16": 300_000}[dtype]
    for n in edges_of(lu_geometry, 260, memory, dtype):
        a = random_matrix(n, dtype, n)
        lu = factor(tmp_path / str(n), a, memory)
        np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
        assert lapack_ratio(a, lu) < 30


@pytest.mark.parametrize("n", [1, 2, 3, *edges_of(lu_geometry, 260, 150_000)])
def test_sizes_one_off_each_boundary(tmp_path: Path, n: int) -> None:
    a = random_matrix(n, "f8", n)
    lu = factor(tmp_path / "Z", a, 150_000)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30
    assert hpl_residual(a, lu_solve(lu, a @ np.ones(n), progress=False), a @ np.ones(n)) < 16


def test_kms_with_rows_permuted_larger_than_its_budget(tmp_path: Path) -> None:
    """r^|i-j| = L U with L = r^(i-j) and U = (1 - r²) r^(j-i), the first row without the factor."""
    n, rho = 1500, 0.9
    order = np.random.default_rng(5).permutation(n)

    def element(rows: slice, cols: slice) -> Matrix:
        i, j = order[rows, None], np.arange(n)[None, cols]
        return np.asarray(rho ** np.abs(i - j))

    A = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", fill=element, progress=False)
    lu = lu_factor(A, memory="1 MiB", progress=False)
    assert n * n * 8 > 16 * lu.report.peak_memory_bytes  # type: ignore[union-attr]
    np.testing.assert_array_equal(order[row_order(lu.piv)], np.arange(n))
    i, j = np.ogrid[:n, :n]
    power = rho ** np.abs(i - j)
    expected = np.where(i > j, power, np.where(i > 0, (1 - rho**2) * power, power))
    np.testing.assert_allclose(packed(lu), expected, rtol=0, atol=1e-13)
    assert lu.growth == pytest.approx(1)


def test_a_singular_leading_block(tmp_path: Path) -> None:
    a = random_matrix(400, "f8")
    a[:200, :200] = 0
    lu = factor(tmp_path / "Z", a)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lu.piv[:200].min() >= 200, "no pivot can come from the block of zeros"
    assert lapack_ratio(a, lu) < 30


@pytest.mark.parametrize(("n", "dtype"), [(60, "f8"), (30, "f4"), (60, "c16")])
def test_wilkinson_growth_is_told(tmp_path: Path, n: int, dtype: str) -> None:
    a = (np.tril(-np.ones((n, n)), -1) + np.eye(n)).astype(dtype)
    a[:, -1] = 1
    with pytest.warns(GrowthWarning, match=re.escape(f"factor of {2.0 ** (n - 1):.3g}:")):
        lu = factor(tmp_path / "Z", a, 120_000)
    assert lu.growth == 2.0 ** (n - 1)
    assert lu.report is not None
    assert lu.report.growth == 2.0 ** (n - 1)
    assert f"pivots grew by a factor of {lu.growth:.3g}" in str(lu.report)
    assert open_factor(lu.path).growth == 2.0 ** (n - 1)
    np.testing.assert_array_equal(lu.piv, np.arange(n))


@pytest.mark.parametrize("make", [kahan, scipy.linalg.hilbert, lambda n: kahan(n).T])
def test_ill_conditioned(tmp_path: Path, make: Callable[[int], Matrix]) -> None:
    a = np.asfortranarray(make(200))
    lu = factor(tmp_path / "Z", a, 150_000)
    assert lapack_ratio(a, lu) < 30
    x = lu_solve(lu, a @ np.ones(200), progress=False)
    assert hpl_residual(a, x, a @ np.ones(200)) < 16


def test_of_equal_candidates_the_first_is_the_pivot(tmp_path: Path) -> None:
    """All steps are exact for these matrices, so that equal candidates stay equal."""
    draw, n = np.random.default_rng(3), 150
    L = np.tril(draw.integers(-1, 2, (n, n)), -1) + np.eye(n)
    U = np.triu(draw.integers(-3, 4, (n, n)), 1) + np.diag(draw.choice([-4.0, 4.0], n))
    # Consecutive ones in each row: totally unimodular, so elements stay 0 or 1 in magnitude.
    i, j = np.ogrid[:n, :n]
    ones = ((i <= j) & (j <= i + draw.integers(0, n, (n, 1)))).astype(float)
    intervals = ones[draw.permutation(n)][:, draw.permutation(n)]
    for name, a in {"LU": L @ U, "H": hadamard(128)[0], "intervals": intervals}.items():
        lu = factor(tmp_path / name, a, 120_000)
        theirs, piv = scipy.linalg.lu_factor(a)
        np.testing.assert_array_equal(lu.piv, piv)
        np.testing.assert_array_equal(packed(lu), theirs)
        swaps = np.count_nonzero(lu.piv != np.arange(lu.n))
        assert swaps > 50 if name == "intervals" else swaps == 0, name


@pytest.mark.parametrize(("system", "n"), SYSTEMS)
def test_solutions_from_a_formula(tmp_path: Path, system: System, n: int) -> None:
    a, b, expected = system(n)
    x = lu_solve(factor(tmp_path / "Z", a), b, progress=False)
    np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-10)
    assert hpl_residual(a, x, b) < 16


def geometry(n: int, dtype: str, memory: int) -> LuGeometry:
    return lu_geometry(n, np.dtype(dtype), memory)


def factor_file_bytes(report: Report, kind: str) -> int:
    """Return the bytes moved between memory and the file of the factors, from the trace."""
    assert report.spans is not None
    kinds = ["read", "write"]
    rows = report.spans[(report.spans[:, 0] == kinds.index(kind)) & (report.spans[:, 1] == 1)]
    return int(rows[:, 5].sum())


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [256, 511])
def test_moves_what_was_planned(tmp_path: Path, dtype: str, n: int) -> None:
    g = geometry(n, dtype, TINY)
    a = random_matrix(n, dtype)
    A = on_disk(tmp_path / "Z", a, chunks=(g.rows, g.columns))
    lu = lu_factor(A, memory=TINY, progress=False)
    report = lu.report
    assert report is not None
    # Exact for every order.
    assert factor_file_bytes(report, "read") == g.factor_bytes_read()
    assert factor_file_bytes(report, "write") == g.factor_bytes_written()
    assert report.bytes_written == report.planned_bytes_written == g.factor_bytes_written()
    assert report.bytes_read == report.planned_bytes_read
    beyond = report.planned_bytes_read - g.matrix_bytes_read() - g.factor_bytes_read()
    if n % g.rows == 0:
        assert beyond == 0
        assert report.words_moved() == g.words_moved()
    else:
        assert 0 <= beyond < 0.2 * n * n * A.dtype.itemsize
    assert report.words_lower_bound is not None
    assert report.words_moved() > report.words_lower_bound
    assert g.memory_bytes / 2 < report.peak_memory_bytes <= report.memory_bytes == TINY
    assert report.notes == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_budget_that_is_asked_for_is_enough_and_the_least(dtype: str) -> None:
    draw = np.random.default_rng(8)
    for n in map(int, [*draw.integers(1, 20_000, 60), 1, 8, 9, 1500, 4000, 16384]):
        for memory in (1, 70_000, 600_000):
            try:
                assert geometry(n, dtype, memory).memory_bytes <= memory
            except BudgetError as refused:
                need = int(str(refused).split()[1])
                assert memory < geometry(n, dtype, need).memory_bytes <= need
                with pytest.raises(BudgetError, match=f"need {need} "):
                    geometry(n, dtype, need - 1)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_every_budget_from_the_least_on_suffices(tmp_path: Path, dtype: str) -> None:
    """Every accepted budget suffices to the end."""
    n = 103
    a = random_matrix(n, dtype)
    A = on_disk(tmp_path / "Z", a, chunks=(31, 17))
    piv = scipy.linalg.lu_factor(a)[1]
    with pytest.raises(oc.OutcoreError, match="need") as refused:
        lu_factor(A, memory=10_000, progress=False)
    least = int(str(refused.value).split()[1])
    with pytest.raises(oc.OutcoreError, match=f"need {least} "):
        lu_factor(A, memory=least - 1, progress=False)
    for memory in (least, least + 1, *(int(least * f) for f in (1.05, 1.3, 1.7, 4))):
        lu = lu_factor(A, memory=memory, progress=False, if_exists="overwrite")
        assert lu.report is not None
        assert lu.report.peak_memory_bytes <= memory
        np.testing.assert_array_equal(lu.piv, piv)


@pytest.mark.parametrize(("n", "dtype"), [(512, "f8"), (450, "c8"), (333, "f4")])
def test_overwrite_a_gives_the_same_factors(tmp_path: Path, n: int, dtype: str) -> None:
    g = geometry(n, dtype, TINY)
    a = random_matrix(n, dtype)
    beside = factor(tmp_path / "Y", a)
    A = on_disk(tmp_path / "Z", a, chunks=(g.rows, g.columns))
    before = bytes_on_disk(tmp_path / "Z")
    lu = lu_factor(A, memory=TINY, overwrite_a=True, progress=False)
    np.testing.assert_array_equal(lu.piv, beside.piv)
    np.testing.assert_array_equal(packed(lu), packed(beside))
    assert lapack_ratio(a, lu) < 30
    assert lu.report is not None
    assert lu.report.peak_memory_bytes <= TINY
    slab_bytes = g.slab_panels * g.tiles * g.tile_bytes
    after = bytes_on_disk(tmp_path / "Z") + bytes_on_disk(lu.path)
    assert after <= before + slab_bytes + (64 << 10)
    with pytest.raises(ClosedError):
        A[0, 0]
    with pytest.raises(ConsumedError, match=r"Z\.lu"):
        oc.open_array(tmp_path / "Z")
    with pytest.raises(ConsumedError):
        lu_factor(tmp_path / "Z", memory=TINY, out=tmp_path / "other", progress=False)
    again = open_factor(lu.path)
    assert again.places == lu.places
    b = np.ones(n, dtype)
    assert hpl_residual(a, lu_solve(again, b, memory=TINY, progress=False), b) < 16


def test_other_zarr_readers_see_the_factors(tmp_path: Path) -> None:
    """Overwrite A, so that the panels are in another order on disk."""
    A = on_disk(tmp_path / "Z", random_matrix(300, "f8"), chunks=(64, 32))
    lu = lu_factor(A, memory="1 MB", overwrite_a=True, progress=False)
    assert lu.places != tuple(range(len(lu.places)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = zarr.open_group(lu.path, mode="r")
    with oc.open_array(lu.path / "lu") as ours:
        np.testing.assert_array_equal(theirs["lu"][...], ours[...])
    np.testing.assert_array_equal(theirs["piv"][...], lu.piv)


def test_overwrite_a_with_factors_elsewhere(tmp_path: Path) -> None:
    a = random_matrix(200, "f8")
    A = on_disk(tmp_path / "deep" / "below" / "Z", a, chunks=(64, 32))
    out = tmp_path / "other" / "place"
    lu = lu_factor(A, memory="1 MB", out=out, overwrite_a=True, progress=False)
    assert lu.path == out
    assert lapack_ratio(a, lu) < 30


def test_padding_is_zeros(tmp_path: Path) -> None:
    """Padding of tiles is zero, without old contents of memory."""
    n = 333
    lu = factor(tmp_path / "Z", random_matrix(n, "f8"))
    rows, columns = (-(-n // size) * size for size in lu.tile)
    whole = np.full((rows, columns), np.nan, order="F")
    lu.open_tiles(Arena(1 << 20)).submit_read([0, 0], [1, 1], whole).wait()
    assert rows > n
    assert columns > n
    assert not whole[n:].any()
    assert not whole[:, n:].any()
    assert whole[:n, :n].all()


def test_everything_is_durable_before_the_factors_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    flush, write_group, remove = oc.Array.flush, factor_storage.write_group, Journal.remove

    def flushing(self: oc.Array) -> None:
        flush(self)
        steps.append(f"{self.path.name} is durable")

    def writing(where: Place, kind: Kind, state: str, values: dict[str, Any]) -> None:
        write_group(where, kind, state, values)
        steps.append(state)

    def removing(self: Journal) -> None:
        remove(self)
        steps.append("no journal")

    A = on_disk(tmp_path / "Z", random_matrix(100, "f8"))
    monkeypatch.setattr(oc.Array, "flush", flushing)
    monkeypatch.setattr(factor_storage, "write_group", writing)
    monkeypatch.setattr(Journal, "remove", removing)
    lu_factor(A, progress=False)
    assert steps == ["piv is durable", "complete", "no journal"]


def test_factors_are_replaced_when_asked(tmp_path: Path) -> None:
    a, b = random_matrix(200, "f8", 1), random_matrix(300, "f4", 2)
    factor(tmp_path / "Y", a, out=tmp_path / "F")
    lu = factor(tmp_path / "Z", b, out=tmp_path / "F", if_exists="overwrite")
    assert (lu.n, lu.dtype) == (300, np.float32)
    assert lapack_ratio(b, lu) < 30


def test_large_finite_elements_are_no_infinities(tmp_path: Path) -> None:
    """The sum of a column overflows, but every element is finite."""
    a = np.diag(np.full(40, 1e308)) + np.triu(np.full((40, 40), 1e308), 38)
    lu = factor(tmp_path / "Z", a, 120_000)
    np.testing.assert_array_equal(np.triu(packed(lu)), np.triu(a))


def test_every_step_is_in_the_trace(tmp_path: Path) -> None:
    """Count the blocks from disk, and for each panel its check, its factoring and its updates."""
    a = random_matrix(600, "f8")
    lu = lu_factor(on_disk(tmp_path / "Z", a), memory=TINY, progress=False)
    assert lu.report is not None
    assert lu.report.spans is not None
    g = geometry(600, "f8", TINY)
    slabs = g.slabs()
    assert len(slabs) > 2
    streamed = sum(len(list(g.blocks_below(K))) for s in slabs for K in range(s.first))
    first = slabs[0].last - slabs[0].first
    caught_up = sum(K for K in (1, 2, 4, 8, 16, 32) if first > K)
    steps = (lu.report.spans[:, 0] == Trace.kinds().index("compute")).sum()
    assert steps == streamed + 3 * g.panels + caught_up
