"""Cholesky out of core against SciPy, closed forms and LAPACK's own measure."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import zarr
from definite import (
    cholesky_ratio,
    definite,
    factor_of,
    lower_only,
    mirrored_lower,
    upper_only,
)
from linpack import Matrix, on_disk, one_thread
from test_lu import edges_of, factor_file_bytes

import outcore as oc
from outcore._core import Arena, Trace
from outcore.errors import ClosedError, ConsumedError
from outcore.linalg import CholeskyFactor, cho_factor, open_factor
from outcore.linalg._cholesky.plan import cholesky_geometry
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.storage.volumes import bytes_on_disk

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 212_000


def factor(path: Path, a: Matrix, memory: int = TINY, **options: object) -> CholeskyFactor:
    A = on_disk(path, lower_only(a))
    return cho_factor(A, memory=memory, progress=False, **options)  # type: ignore[arg-type]


def test_the_budgets_here_make_many_slabs() -> None:
    for dtype in DTYPES:
        g = cholesky_geometry(500, np.dtype(dtype), TINY)
        assert len(g.slabs()) >= 7
        assert max(len(g.groups(part)) for slab in g.slabs() for part in g.parts(slab)) >= 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_four_types(tmp_path: Path, dtype: str) -> None:
    a = definite(500, dtype)
    found = factor(tmp_path / "Z", a, threads=2)
    L = factor_of(found)
    assert L.dtype == a.dtype
    assert cholesky_ratio(a, found) < 30
    expected = scipy.linalg.cholesky(a, lower=True)
    np.testing.assert_allclose(L, expected, rtol=0, atol=1e3 * np.finfo(dtype).eps)
    assert not np.triu(L, 1).any()
    assert not np.diagonal(L).imag.any()
    # For complex types the norm is a lower bound within √2.
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= found.norm1 <= norm1 * (1 + 1e-5)
    assert found.path == tmp_path / "Z.cho"
    assert sorted(p.name for p in found.path.iterdir()) == ["l", "zarr.json"]
    again = open_factor(found.path)
    assert isinstance(again, CholeskyFactor)
    assert (again.n, again.dtype, again.tile) == (500, a.dtype, found.tile)
    assert (again.norm1, again.report) == (found.norm1, None)


BOUNDARIES = [n + off for n in (17, 57, 65, 89, 129, 153, 193, 217, 257) for off in (-1, 0, 1)]


def test_the_boundaries_are_those_of_the_cuts() -> None:
    assert edges_of(cholesky_geometry, 260, 125_000) == BOUNDARIES


@pytest.mark.parametrize("n", [1, 2, 3, *BOUNDARIES])
def test_sizes_one_off_each_boundary(tmp_path: Path, n: int) -> None:
    a = definite(n, "f8", n)
    found = factor(tmp_path / "Z", a, 125_000)
    assert cholesky_ratio(a, found) < 30
    np.testing.assert_allclose(factor_of(found), scipy.linalg.cholesky(a, lower=True), atol=1e-12)


def test_min_of_i_and_j_larger_than_its_budget(tmp_path: Path) -> None:
    """min(i, j), counted from 1, is L Lᵀ with ones in all of L; every step is exact."""
    n = 1500

    def element(rows: slice, cols: slice) -> Matrix:
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return np.where(i >= j, np.minimum(i, j) + 1.0, np.nan)

    A = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", fill=element, progress=False)
    found = cho_factor(A, memory="1 MiB", progress=False)
    assert found.report is not None
    assert n * n * 8 > 16 * found.report.peak_memory_bytes
    np.testing.assert_array_equal(factor_of(found), np.tril(np.ones((n, n))))
    assert found.norm1 == n * (n + 1) / 2


def test_kms(tmp_path: Path) -> None:
    """r^|i-j| = L Lᵀ with L = r^(i-j), all but the first column times √(1 - r²)."""
    n, rho = 700, 0.9
    i, j = np.ogrid[:n, :n]
    found = factor(tmp_path / "Z", rho ** np.abs(i - j))
    scale = np.where(j > 0, np.sqrt(1 - rho**2), 1)
    expected = np.where(i >= j, rho ** np.abs(i - j) * scale, 0)
    np.testing.assert_allclose(factor_of(found), expected, rtol=0, atol=1e-13)


def test_ill_conditioned(tmp_path: Path) -> None:
    """A Hilbert matrix with just enough on the diagonal, and a graded one."""
    a = scipy.linalg.hilbert(200) + 1e-13 * np.eye(200)
    assert cholesky_ratio(a, factor(tmp_path / "H", a, 150_000)) < 30
    d = 10.0 ** np.linspace(0, -150, 200)
    b = d[:, None] * definite(200, "f8") * d
    assert cholesky_ratio(b, factor(tmp_path / "G", b, 150_000)) < 30


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "chunks"), [("C", (32, 64)), ("F", (64, 32)), ("C", (37, 53))])
def test_the_upper_triangle(
    tmp_path: Path, dtype: str, order: str, chunks: tuple[int, int]
) -> None:
    a = definite(310, dtype)
    A = oc.from_array(upper_only(a), tmp_path / "Z", order=order, chunks=chunks)
    found = cho_factor(A, lower=False, memory=TINY, progress=False)
    assert cholesky_ratio(a, found) < 30
    lower = mirrored_lower(a, tmp_path / "Y", order, chunks)
    same = cho_factor(lower, memory=TINY, progress=False)
    np.testing.assert_array_equal(factor_of(found), factor_of(same))
    assert not np.diagonal(factor_of(found)).imag.any()


def test_the_upper_triangle_in_c_order_is_read_like_the_lower_in_fortran_order(
    tmp_path: Path,
) -> None:
    a = definite(512, "c16")
    upper = oc.from_array(upper_only(a), tmp_path / "U", order="C", chunks=(32, 64))
    lower = oc.from_array(lower_only(a), tmp_path / "L", order="F", chunks=(64, 32))
    by_rows = cho_factor(upper, lower=False, memory=TINY, progress=False)
    by_columns = cho_factor(lower, memory=TINY, progress=False)
    assert by_rows.report is not None
    assert by_columns.report is not None
    assert by_rows.report.bytes_read == by_columns.report.bytes_read
    assert by_rows.report.bytes_read == by_rows.report.planned_bytes_read
    np.testing.assert_array_equal(factor_of(by_rows), factor_of(by_columns))


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [256, 511, 512])
def test_moves_what_was_planned(tmp_path: Path, dtype: str, n: int) -> None:
    g = cholesky_geometry(n, np.dtype(dtype), TINY)
    A = on_disk(tmp_path / "Z", lower_only(definite(n, dtype)), chunks=(g.rows, g.columns))
    report = cho_factor(A, memory=TINY, progress=False).report
    assert report is not None
    assert factor_file_bytes(report, "read") == g.factor_bytes_read()
    assert factor_file_bytes(report, "write") == g.factor_bytes_written()
    assert report.bytes_written == report.planned_bytes_written == g.factor_bytes_written()
    assert report.bytes_read == report.planned_bytes_read
    beyond = report.bytes_read - g.matrix_bytes_read(0, g.rows) - g.factor_bytes_read()
    assert beyond == 0 if n % 256 == 0 else 0 <= beyond < 0.05 * A.nbytes
    assert report.words_lower_bound is not None
    assert report.words_moved() > report.words_lower_bound
    assert g.memory_bytes / 2 < report.peak_memory_bytes <= report.memory_bytes == TINY
    assert report.notes == []


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_every_budget_from_the_least_on_suffices(tmp_path: Path, dtype: str) -> None:
    """No accepted budget runs out during the call."""
    a = definite(103, dtype)
    A = on_disk(tmp_path / "Z", lower_only(a), chunks=(31, 17))
    with pytest.raises(oc.OutcoreError, match="need") as refused:
        cho_factor(A, memory=10_000, progress=False)
    least = int(str(refused.value).split()[1])
    with pytest.raises(oc.OutcoreError, match=f"need {least} "):
        cho_factor(A, memory=least - 1, progress=False)
    for memory in (least, least + 1, *(int(least * f) for f in (1.05, 1.2, 1.3, 1.5, 1.7, 4, 99))):
        found = cho_factor(A, memory=memory, progress=False, if_exists="overwrite")
        assert found.report is not None
        assert found.report.peak_memory_bytes <= memory
        assert cholesky_ratio(a, found) < 30


def test_only_the_triangle_takes_room(tmp_path: Path) -> None:
    n = 1000
    found = factor(tmp_path / "Z", definite(n, "f8"), 1 << 20)
    g = cholesky_geometry(n, np.dtype("f8"), 1 << 20)
    assert found.tile == (g.rows, g.columns)
    room = bytes_on_disk(found.path)
    assert g.factor_bytes_written() <= room < g.factor_bytes_written() + (64 << 10)
    assert room < 0.6 * n * n * 8


@pytest.mark.parametrize(("n", "dtype"), [(512, "f8"), (450, "c8"), (333, "f4")])
def test_overwrite_a_gives_the_same_factor(tmp_path: Path, n: int, dtype: str) -> None:
    g = cholesky_geometry(n, np.dtype(dtype), TINY)
    a = definite(n, dtype)
    beside = factor(tmp_path / "Y", a)
    A = on_disk(tmp_path / "Z", lower_only(a), chunks=(g.rows, g.columns))
    found = cho_factor(A, memory=TINY, overwrite_a=True, progress=False)
    np.testing.assert_array_equal(factor_of(found), factor_of(beside))
    assert cholesky_ratio(a, found) < 30
    assert found.places != tuple(range(g.panels))
    assert found.report is not None
    assert found.report.peak_memory_bytes <= TINY
    after = bytes_on_disk(tmp_path / "Z") + bytes_on_disk(found.path)
    assert after < g.factor_bytes_written() + (64 << 10)
    with pytest.raises(ClosedError):
        A[0, 0]
    with pytest.raises(ConsumedError, match=r"Z\.cho"):
        oc.open_array(tmp_path / "Z")


def test_other_zarr_readers_see_the_factor(tmp_path: Path) -> None:
    """They see zeros above the diagonal, even if the panels are in any order on disk."""
    a = definite(300, "f8")
    A = on_disk(tmp_path / "Z", lower_only(a), chunks=(64, 32))
    moved = cho_factor(A, memory=250_000, overwrite_a=True, progress=False)
    for found in (factor(tmp_path / "Y", a), moved):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = zarr.open_group(found.path, mode="r")["l"][...]
        np.testing.assert_array_equal(theirs, factor_of(found))
        assert not np.triu(theirs, 1).any()


def test_padding_is_zeros(tmp_path: Path) -> None:
    """Tiles are written whole, without earlier contents of memory."""
    n = 333
    found = factor(tmp_path / "Z", definite(n, "f8"))
    rows, columns = (-(-n // size) * size for size in found.tile)
    whole = np.full((rows, columns), np.nan, order="F")
    found.open_tiles(Arena(1 << 20)).submit_read([0, 0], [1, 1], whole).wait()
    assert rows > n
    assert columns > n
    assert not whole[n:].any()
    assert not whole[:, n:].any()
    assert not np.triu(whole[:n, :n], 1).any()
    assert np.tril(whole[:n, :n])[np.tril_indices(n)].all()


def test_the_imaginary_part_of_the_diagonal_is_taken_as_zero(tmp_path: Path) -> None:
    """LAPACK does the same; the report says so if the imaginary part exceeds rounding."""
    a = definite(300, "c16")
    expected = factor(tmp_path / "X", a)
    rounding = a + 1e-17j * np.eye(300)
    assert factor(tmp_path / "Y", rounding).report.notes == []  # type: ignore[union-attr]
    wrong = a + 0.5j * np.diag(np.diagonal(a))
    found = factor(tmp_path / "Z", wrong)
    np.testing.assert_array_equal(factor_of(found), factor_of(expected))
    theirs = scipy.linalg.cholesky(wrong, lower=True)
    np.testing.assert_allclose(factor_of(found), theirs, atol=1e-12)
    assert found.report is not None
    assert found.report.notes == [
        "A is not Hermitian: its diagonal has imaginary parts of up to 0.5 of the real ones, which "
        "were taken as zero"
    ]


def test_large_finite_elements_are_no_infinities(tmp_path: Path) -> None:
    """The sum of a column overflows, but every element is finite."""
    a = np.diag(np.full(40, 1.7e308))
    a[1:, 0] = a[0, 1:] = 1e307
    assert np.isinf(factor(tmp_path / "Z", a, 120_000).norm1)


@pytest.mark.parametrize("memory", [TINY, 372_000, 2_400_000])
def test_every_step_is_in_the_trace(tmp_path: Path, memory: int) -> None:
    """Count the blocks from disk, and for each panel its check, its factoring and its updates."""
    n = 600
    found = factor(tmp_path / "Z", definite(n, "f8"), memory)
    assert found.report is not None
    assert found.report.spans is not None
    g = cholesky_geometry(n, np.dtype("f8"), memory)
    slabs = g.slabs()
    assert (len(slabs) > 2) == (memory < 2_400_000)
    parts = [part for slab in slabs for part in g.parts(slab)]
    assert len(parts) == len(slabs)
    streamed = sum(len(g.blocks(part, K)) for part in parts for K in range(part.slab.first))
    first = slabs[0].last - slabs[0].first
    # Each panel except a slab's last updates those to its right. In the first slab, after all
    # available panels are factored, the call waits for as many more. It waits for all the rest if
    # they are at most twice as many.
    updates = g.panels - len(slabs)
    waits = [K for K in (1, 2, 4, 8, 16, 32) if first > K and (K == 1 or first > 3 * K // 2)]
    caught_up, none_there = sum(waits), len(waits)
    steps = (found.report.spans[:, 0] == Trace.kinds().index("compute")).sum()
    # The first blocks of a slab are used for an eighth of its panels. Then, as panels arrive, they
    # are used for as many more, repeatedly, and for late ones.
    again = sum(
        min(len(g.blocks(part, 0)), g.ring_blocks)
        * (len({math.ceil(len(part.panels) / share) for share in (8, 4, 2, 1)}) - 1)
        for part in parts
        if part.slab.first
    )
    assert again > 0 or len(slabs) == 1
    assert steps == streamed + again + 2 * g.panels + updates + caught_up - none_there


def test_factors_are_replaced_when_asked(tmp_path: Path) -> None:
    a, b = definite(200, "f8", 1), definite(300, "f4", 2)
    factor(tmp_path / "Y", a, out=tmp_path / "F")
    found = factor(tmp_path / "Z", b, out=tmp_path / "F", if_exists="overwrite")
    assert (found.n, found.dtype) == (300, np.float32)
    assert cholesky_ratio(b, found) < 30
