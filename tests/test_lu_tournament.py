"""LU with tournament pivoting, against closed forms, exact arithmetic and LAPACK's ratios."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from linpack import (
    Matrix,
    hpl_residual,
    lapack_ratio,
    one_thread,
    packed,
    random_matrix,
    row_order,
    triangles,
)
from lu_by_method import assert_refused_for_temporary_files
from tournament_cases import cut, factor, played

import outcore as oc
from outcore.blas.lapack import kernels
from outcore.errors import (
    BudgetError,
    GrowthWarning,
    InvalidError,
    NonFiniteError,
)
from outcore.linalg import (
    cond_est,
    export_lapack,
    lu_factor,
    lu_solve,
    open_factor,
    slogdet,
)
from outcore.linalg._lu.block_columns.row_panel import factor_rows, multiply_back

__all__ = ["one_thread"]  # a fixture for every test here

CASES = [
    ("f4", 700, 160_000, "C", (64, 32)),
    ("f8", 700, 200_000, "C", (64, 32)),
    ("f8", 512, 200_000, "F", (64, 32)),
    ("c8", 640, 200_000, "C", (64, 64)),
    ("c16", 384, 250_000, "C", (64, 32)),
    ("c16", 400, 300_000, "F", (64, 32)),
    ("f4", 640, 160_000, "F", (37, 53)),
]


@pytest.mark.parametrize(("dtype", "n", "memory", "order", "chunks"), CASES)
def test_types_and_layouts(
    tmp_path: Path, dtype: str, n: int, memory: int, order: str, chunks: tuple[int, int]
) -> None:
    g = cut(n, dtype, memory, order, chunks)
    assert played(g) >= 3
    assert g.is_copied == (order == "F")
    a = random_matrix(n, dtype)
    lu = factor(tmp_path / "Z", a, memory, order=order, chunks=chunks)
    assert lapack_ratio(a, lu) < 30
    assert not np.array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    b = random_matrix(n, dtype, 1)[:, 0]
    assert hpl_residual(a, lu_solve(lu, b, progress=False), b) < 16
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= lu.norm1 <= norm1 * (1 + 1e-5)
    L, U = triangles(lu)
    growth = np.abs(U).max() * np.abs(L).max() / np.abs(a).max()
    # The growth of complex elements is measured by |re| + |im|.
    assert growth / slack**3 * 0.999 < lu.growth < growth * slack**3 * 1.001
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]
    report = lu.report
    assert report is not None
    assert re.fullmatch(rf"tournament pivoting of \d+ of {n} columns", report.method)
    assert any(note.startswith("largest element of L: ") for note in report.notes)
    assert report.peak_memory_bytes <= memory
    assert report.flops == pytest.approx((4 if dtype[0] == "c" else 1) * 2 * n**3 / 3)
    assert open_factor(lu.path).growth == lu.growth


def test_what_takes_factors_takes_these(tmp_path: Path) -> None:
    n = 400
    a = random_matrix(n, "f8")
    lu = factor(tmp_path / "Z", a, 160_000)
    sign, logdet = np.linalg.slogdet(a)
    found = slogdet(lu)
    assert (found.sign, found.logabsdet) == (sign, pytest.approx(logdet, rel=1e-12))
    assert cond_est(lu, progress=False)[0] == pytest.approx(np.linalg.cond(a, 1), rel=0.5)
    b = random_matrix(n, "f8", 1)[:, :3]
    x = lu_solve(lu, b, trans="T", progress=False)
    np.testing.assert_allclose(a.T @ x, b, rtol=0, atol=1e-9)
    exported, piv, _ = export_lapack(lu, tmp_path / "lapack", progress=False)
    np.testing.assert_array_equal(exported[...], packed(lu))
    x = scipy.linalg.lu_solve((exported[...], piv), b)
    np.testing.assert_allclose(a @ x, b, rtol=0, atol=1e-9)


def test_partial_pivoting_where_all_is_in_memory(tmp_path: Path) -> None:
    n = 200
    g = cut(n, "f8", 300_000, "C", (64, 32))
    assert len(g.block_columns) >= 2
    assert not played(g)
    a = random_matrix(n, "f8")
    lu = factor(tmp_path / "Z", a, 300_000)
    theirs, piv = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(lu.piv, piv)
    np.testing.assert_allclose(packed(lu), theirs, rtol=0, atol=1e-11)
    assert lu.report is not None
    assert lu.report.method == "tournament pivoting, in memory throughout: partial pivoting"
    assert not lu.report.notes


def test_exact_arithmetic(tmp_path: Path) -> None:
    """Where no operation rounds, L U equals P A to the last bit, whichever rows won."""
    draw, n = np.random.default_rng(3), 384
    L = np.tril(draw.integers(-1, 2, (n, n)), -1) + np.eye(n)
    U = np.triu(draw.integers(-3, 4, (n, n)), 1) + np.diag(draw.choice([-4.0, 4.0], n))
    lu = factor(tmp_path / "LU", L @ U, 160_000)
    # The first of equal candidates wins every round.
    np.testing.assert_array_equal(lu.piv, np.arange(n))
    np.testing.assert_array_equal(packed(lu), scipy.linalg.lu_factor(L @ U)[0])

    i, j = np.ogrid[:n, :n]
    # Consecutive ones in each row: totally unimodular, so elements stay 0 or 1 in magnitude.
    ones = ((i <= j) & (j <= i + draw.integers(0, n, (n, 1)))).astype(float)
    intervals = ones[draw.permutation(n)][:, draw.permutation(n)]
    lu = factor(tmp_path / "intervals", intervals, 160_000)
    found_L, found_U = triangles(lu)
    np.testing.assert_array_equal(found_L @ found_U, intervals[row_order(lu.piv)])
    assert np.abs(found_L).max() == np.abs(found_U).max() == lu.growth == 1


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_sizes_one_off_each_boundary(tmp_path: Path, order: str, step: int) -> None:
    seen = set()
    for n in (320, 384, 416):
        n += step
        seen.add(played(cut(n, "f8", 160_000, order, (64, 32))))
        a = random_matrix(n, "f8", n)
        lu = factor(tmp_path / f"{n}", a, 160_000, order=order)
        assert sorted(row_order(lu.piv)) == list(range(n))
        assert lapack_ratio(a, lu) < 30
        assert lu.report is not None
        assert lu.report.peak_memory_bytes <= 160_000
    assert max(seen) >= 3


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 33])
def test_small_orders(tmp_path: Path, n: int) -> None:
    a = random_matrix(n, "f8")
    lu = factor(tmp_path / "Z", a, 300_000)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30


def test_kms_with_rows_permuted(tmp_path: Path) -> None:
    """Factor r^|i-j|, whose determinant is (1 - r²)^(n - 1).

    In a block column, lower rows are multiples of each other. So stacks are singular except for
    rounding. A row may win in place of one that is 1/r or 1/r² times as large.
    """
    n, rho = 600, 0.9
    order = np.random.default_rng(5).permutation(n)
    i, j = np.ogrid[:n, :n]
    a = (rho ** np.abs(i - j))[order]
    assert played(cut(n, "f8", 160_000, "C", (64, 32))) >= 5
    lu = factor(tmp_path / "Z", a, 160_000)
    assert np.abs(order[row_order(lu.piv)] - np.arange(n)).max() <= 3
    assert lapack_ratio(a, lu) < 30
    assert lu.growth < rho**-3
    assert slogdet(lu).logabsdet == pytest.approx((n - 1) * np.log(1 - rho**2), rel=1e-13)


def test_wilkinson_growth_is_told(tmp_path: Path) -> None:
    n = 400
    a = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    a[:, -1] = 1
    with pytest.warns(GrowthWarning, match=re.escape(f"factor of {2.0 ** (n - 1):.3g}:")):
        lu = factor(tmp_path / "Z", a, 160_000)
    assert lu.growth == 2.0 ** (n - 1)
    np.testing.assert_array_equal(lu.piv, np.arange(n))


def test_singular_leading_block(tmp_path: Path) -> None:
    """A case that breaks solvers that pivot within a block only."""
    n = 400
    a = random_matrix(n, "f8")
    a[: n // 2, : n // 2] = 0
    lu = factor(tmp_path / "Z", a, 160_000)
    assert lu.info == 0
    assert lapack_ratio(a, lu) < 30


def test_hadamard(tmp_path: Path) -> None:
    """All entries have the same magnitude, and |det| = n^(n/2)."""
    n = 512
    a = scipy.linalg.hadamard(n).astype(float)
    lu = factor(tmp_path / "Z", a, 160_000)
    assert lapack_ratio(a, lu) < 30
    assert slogdet(lu).logabsdet == pytest.approx(n / 2 * np.log(n), rel=1e-13)


@pytest.mark.parametrize("scale", ["rows", "columns"])
def test_scales_far_apart(tmp_path: Path, scale: str) -> None:
    n = 400
    a = random_matrix(n, "f8")
    by = 10.0 ** np.random.default_rng(1).uniform(-100, 100, n)
    a = a * (by[:, None] if scale == "rows" else by)
    lu = factor(tmp_path / "Z", a, 160_000)
    L, U = triangles(lu)
    by_columns = by if scale == "columns" else np.ones(n)
    wanted = a[row_order(lu.piv)]
    size = np.abs(L) @ np.abs(U)
    assert (np.abs(L @ U - wanted) <= 30 * n * np.finfo(float).eps * size).all()
    if scale == "columns":
        growth = np.abs(U / by_columns).max() * np.abs(L).max() / np.abs(a / by_columns).max()
        assert growth < 1000


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("at", [5, 63, 64, 128, 250, 383])
def test_a_column_of_zeros(tmp_path: Path, at: int) -> None:
    a = random_matrix(384, "f8")
    a[:, at] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match=f"number {at + 1} is exactly zero"):
        lu = factor(tmp_path / "Z", a, 160_000)
    assert lu.info == at + 1
    assert lapack_ratio(a, lu) < 30
    assert np.isfinite(packed(lu)).all()
    with pytest.raises(oc.errors.SingularMatrixError):
        lu_solve(lu, np.ones(384), progress=False)


def test_a_row_of_zeros(tmp_path: Path) -> None:
    """A zero row loses every round except the last."""
    a = random_matrix(384, "f8")
    a[17] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 384 is exactly zero"):
        lu = factor(tmp_path / "Z", a, 160_000)
    assert row_order(lu.piv)[-1] == 17
    assert lapack_ratio(a, lu) < 30


def test_a_matrix_of_low_rank(tmp_path: Path) -> None:
    """A matrix of ones: after the first pivot all elements are zero, in every stack."""
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 2 is exactly zero"):
        lu = factor(tmp_path / "Z", np.ones((384, 384)), 160_000)
    L, U = triangles(lu)
    np.testing.assert_array_equal(L @ U, np.ones((384, 384)))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (300, 20), (3, 200), (383, 383), (350, 96)])
def test_what_is_not_finite_is_named(
    tmp_path: Path, order: str, value: float, where: tuple[int, int]
) -> None:
    a = random_matrix(384, "f8")
    a[where] = value
    with pytest.raises(NonFiniteError, match=rf"A\[{where[0]}, {where[1]}\] is") as told:
        factor(tmp_path / "Z", a, 160_000, order=order)
    assert told.value.index == where
    assert not (tmp_path / "Z.lu").exists()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(70, 33), (100, 100), (300, 130), (10, 5)])
def test_steps_on_rows(dtype: str, shape: tuple[int, int]) -> None:
    """Compare pivots and factors with LAPACK's, and multiply the factors."""
    m, k = shape
    a: Matrix = random_matrix(m, dtype)[:, :k].copy()
    R, piv = a.copy(), np.empty(k, np.int32)
    info = factor_rows(kernels(a.dtype), R, piv, np.empty(m * 32, dtype))
    (getrf,) = scipy.linalg.get_lapack_funcs(("getrf",), (a,))
    theirs, their_piv, their_info = getrf(a)
    assert info == their_info
    np.testing.assert_array_equal(piv, their_piv)
    scale = np.finfo(dtype).eps * m * np.abs(theirs).max()
    np.testing.assert_allclose(R, theirs, rtol=0, atol=100 * scale)
    T = R[:k].copy()
    multiply_back(kernels(a.dtype), T)
    rows = np.arange(m)
    for i, j in enumerate(piv):
        rows[[i, j]] = rows[[j, i]]
    np.testing.assert_allclose(T, a[rows[:k]], rtol=0, atol=100 * scale)


def test_a_budget_too_small_is_refused(tmp_path: Path) -> None:
    a = random_matrix(384, "f8")
    with pytest.raises(BudgetError, match=r"need about \d+ bytes .* raise memory=") as told:
        factor(tmp_path / "Z", a, 50_000)
    assert not (tmp_path / "Z.lu").exists()
    need = int(str(told.value).split()[2])
    with pytest.raises(BudgetError):
        cut(384, "f8", int(need * 0.98), "C", (64, 32))
    assert lapack_ratio(a, factor(tmp_path / "Y", a, need)) < 30


def test_bad_arguments(tmp_path: Path) -> None:
    A = oc.from_array(random_matrix(64, "f8"), tmp_path / "Z", order="F")
    with pytest.raises(InvalidError, match="overwrite_a"):
        lu_factor(A, method="tournament", overwrite_a=True)
    with pytest.raises(InvalidError, match="at least 1"):
        cut(0, "f8", 1 << 20, "C", (64, 32))
    with pytest.raises(InvalidError, match="LU works in"):
        cut(64, "i4", 1 << 20, "C", (64, 32))
    lu = lu_factor(A, method="tournament", progress=False)
    with pytest.raises(oc.errors.ExistsError, match="if_exists='overwrite'"):
        lu_factor(A, method="tournament", progress=False)
    assert (
        lu_factor(A, method="tournament", if_exists="overwrite", progress=False).norm1 == lu.norm1
    )


def test_no_room_beside_the_factors(tmp_path: Path, small_disk: Path) -> None:
    a = random_matrix(1000, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="F", chunks=(64, 64), progress=False)
    g = cut(1000, "f8", 300_000, "F", (64, 64))
    assert g.widths
    assert_refused_for_temporary_files(A, a, "tournament", 300_000, g, small_disk)
