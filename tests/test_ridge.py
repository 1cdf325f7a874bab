"""Damped least squares near a consistent system, against exact rational arithmetic.

Where A x is nearly b, residuals and degrees of freedom are tiny: of the order of damp². They keep
their digits only if they are sums of small terms, not differences of large ones.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from linpack import one_thread
from rows_cases import Case, same
from stopping import interrupted_after, noted_at_once
from tall import ragged, tall

import outcore as oc
from outcore.errors import BudgetError, Interrupted, InvalidError
from outcore.linalg import LeastSquaresReport, lstsq

__all__ = ["noted_at_once", "one_thread"]  # fixtures for tests here

Matrix = list[list[Fraction]]


def fit(*problem: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    return lstsq(*problem, **{"memory": "2 MiB", "progress": False, "keep_r": True} | options)


class Exact(NamedTuple):
    """The solution, ‖W^½ (b - A x)‖₂, degrees of freedom, and covariance for unit variance."""

    x: npt.NDArray[Any]
    residual: float
    freedom: float
    covariance: npt.NDArray[Any]


def exactly(a: Any, b: Any, damp: float, w: Any = None) -> Exact:
    """Solve in rational arithmetic; a complex system as a real one of twice the size."""
    w = np.ones(len(a)) if w is None else w
    if np.iscomplexobj(a):
        real = np.block([[a.real, -a.imag], [a.imag, a.real]])
        found = exactly(real, np.concatenate([b.real, b.imag]), damp, np.tile(w, 2))
        n = a.shape[1]
        return Exact(
            found.x[:n] + 1j * found.x[n:], found.residual, found.freedom / 2,
            found.covariance[:n, :n] + 1j * found.covariance[n:, :n],
        )  # fmt: skip
    rows, right = fractions(a), [Fraction(float(value)) for value in b]
    weights, squared = [Fraction(float(value)) for value in w], Fraction(damp) ** 2
    n = a.shape[1]
    weighted = [
        [weight * value for value in row] for weight, row in zip(weights, rows, strict=True)
    ]
    product = times(transposed(rows), weighted)
    ridge = [[value + squared * (i == j) for j, value in enumerate(row)]
             for i, row in enumerate(product)]  # fmt: skip
    C = inverse(ridge)
    x = times(C, times(transposed(weighted), [[value] for value in right]))
    fitted = times(rows, x)
    rest = [one - other[0] for one, other in zip(right, fitted, strict=True)]
    square = sum((each * v * v for each, v in zip(weights, rest, strict=True)), Fraction(0))
    trace = sum((row[i] for i, row in enumerate(times(C, product))), Fraction(0))
    counted = sum(weight != 0 for weight in weights)
    covariance = times(times(C, product), C)
    return Exact(
        np.array([float(row[0]) for row in x]), root(square), float(counted - trace),
        np.array([[float(covariance[i][j]) for j in range(n)] for i in range(n)]),
    )  # fmt: skip


def root(square: Fraction) -> float:
    """The square root of a fraction that may be too small for a float."""
    scaled = square * Fraction(2) ** 400
    return float(np.sqrt(np.longdouble(float(scaled)))) * 2.0**-200


def fractions(a: Any) -> Matrix:
    return [[Fraction(float(value)) for value in row] for row in a]


def transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def times(a: Matrix, b: Matrix) -> Matrix:
    columns = transposed(b)
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in a
    ]


def inverse(matrix: Matrix) -> Matrix:
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in set(range(n)) - {i}:
            rows[j] = [one - rows[j][i] * other
                       for one, other in zip(rows[j], rows[i], strict=True)]  # fmt: skip
    return [row[n:] for row in rows]


def graded(m: int, n: int, least: float, dtype: str = "f8") -> npt.NDArray[Any]:
    """A matrix with singular values from 1 down to `least`."""
    count = min(m, n)
    left = np.linalg.qr(tall(m, count, np.result_type(dtype, "f8"), 1))[0]
    right = np.linalg.qr(tall(n, count, np.result_type(dtype, "f8"), 2))[0]
    return ((left * np.geomspace(1, least, count)) @ right.conj().T).astype(dtype)


def consistent(a: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A right-hand side that A x equals but for rounding."""
    right: npt.NDArray[Any] = (a @ tall(a.shape[1], 1, a.dtype, 3)[:, 0]).astype(a.dtype)
    return right


def check(
    found: tuple[Any, LeastSquaresReport], want: Exact, rtol: float, *, has_r: bool = True
) -> None:
    x, report = found
    np.testing.assert_allclose(x, want.x, rtol=0, atol=rtol * abs(want.x).max())
    np.testing.assert_allclose(report.residual_norms, [want.residual], rtol=rtol)
    np.testing.assert_allclose(report.degrees_of_freedom, want.freedom, rtol=rtol)
    variance = want.residual**2 / want.freedom
    np.testing.assert_allclose(report.residual_variances, [variance], rtol=3 * rtol)
    if has_r:
        top = abs(want.covariance).max()
        np.testing.assert_allclose(
            report.covariance(scale=1.0), want.covariance, rtol=0, atol=rtol * top
        )
        np.testing.assert_allclose(
            report.covariance(), variance * want.covariance, rtol=0, atol=4 * rtol * variance * top
        )


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("m", "n"), [(6, 6), (4, 7), (1, 3), (9, 5)])
@pytest.mark.parametrize("damp", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_figures_keep_their_digits_near_a_consistent_system(
    m: int, n: int, damp: float, dtype: str
) -> None:
    """The smallest singular value is below the first damping, and above the others."""
    a = graded(m, n, 1e-4, dtype)
    b = consistent(a)
    if m > n:
        b += 1e-5 * tall(m, 1, dtype, 4)[:, 0]
    check(fit(a, b, damp=damp), exactly(a, b, damp), 1e-7)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("m", "n"), [(6, 6), (4, 7)])
@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_single_precision_keeps_them_too(m: int, n: int, dtype: str) -> None:
    a = graded(m, n, 0.03, dtype)
    b = consistent(a)
    for damp in (0.1, 1e-2, 1e-3):
        check(fit(a, b, damp=damp), exactly(a, b, damp), 2e-4)


@pytest.mark.parametrize("damp", [1e-3, 1e-6])
def test_columns_that_are_streamed(tmp_path: Path, damp: float) -> None:
    """The second way of a wide matrix, whose triangle is that of its rows."""
    m, n = 5, 3000
    a = graded(m, n, 1e-3)
    b, w = consistent(a), np.array([1.0, 2.0, 0.5, 4.0, 1.0])
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(m, 256), progress=False)
    found = fit(A, b, damp=damp, weights=w, keep_r=False, memory=400_000)
    assert "second pass" in found[1].method
    wide = np.sqrt(w)[:, None] * a
    y = np.linalg.solve(wide @ wide.T + damp**2 * np.eye(m), np.sqrt(w) * b)
    u, s, _ = np.linalg.svd(wide, full_matrices=False)
    y = u @ ((u.T @ (np.sqrt(w) * b)) / (s**2 + damp**2))
    want = Exact(
        wide.T @ y, damp**2 * float(np.linalg.norm(y)),
        float(np.sum(damp**2 / (s**2 + damp**2))), np.zeros((0, 0)),
    )  # fmt: skip
    check(found, want, 1e-9, has_r=False)


@pytest.mark.parametrize("damp", [1e-2, 1e-5])
@pytest.mark.parametrize(("m", "n", "zeros"), [(7, 5, 4), (7, 5, 1), (4, 6, 2)])
def test_rows_of_weight_zero_count_as_absent(m: int, n: int, zeros: int, damp: float) -> None:
    """With fewer rows left than columns, the residual is of the order of damp² too."""
    a, w = graded(m, n, 0.1), np.arange(1.0, m + 1)
    w[:zeros] = 0
    b = consistent(a)
    b[:zeros] = 5
    want = exactly(a, b, damp, w)
    # With m > n, the part of b outside of the range of A has a rounding error of the order of ε b.
    rtol = 1e-9 if m <= n else 1e-15 / damp**2
    check(fit(a, b, damp=damp, weights=w), want, rtol)
    check(fit(ragged(a, [3]), ragged(b, [2]), damp=damp, weights=ragged(w, [4])), want, rtol)


def test_badly_scaled_columns_keep_the_digits_of_each_coefficient() -> None:
    a = graded(12, 5, 0.1) * [1e6, 1.0, 1e-3, 1e3, 1e-6]
    b = tall(12, 1, "f8", 3)[:, 0]
    want = exactly(a, b, 1e-9)
    x, report = fit(a, b, damp=1e-9)
    np.testing.assert_allclose(x, want.x, rtol=1e-12)
    np.testing.assert_allclose(report.residual_norms, [want.residual], rtol=1e-12)


@pytest.mark.parametrize(("m", "n"), [(8, 5), (3, 5)])
def test_r_is_that_of_the_rows_of_a(m: int, n: int) -> None:
    a, w = tall(m, n, "f8"), np.arange(1.0, m + 1)
    _, damped = fit(a, np.ones(m), weights=w, damp=3.0)
    assert damped.R is not None
    np.testing.assert_allclose(damped.R.T @ damped.R, a.T @ (w[:, None] * a), atol=1e-13)
    plain = fit(a, np.ones(m), weights=w)[1].R
    np.testing.assert_array_equal(damped.R, plain)


@pytest.mark.parametrize("cond", [0.3, 0.05])
@pytest.mark.parametrize(("m", "n"), [(9, 6), (4, 6)])
def test_directions_below_cond_are_left_out(m: int, n: int, cond: float) -> None:
    """`cond` counts singular values of A and damp * I together."""
    a, b, damp = graded(m, n, 1e-3), tall(m, 1, "f8", 3)[:, 0], 1e-2
    x, report = fit(a, b, damp=damp, cond=cond)
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    kept = np.hypot(s, damp) >= cond * np.hypot(s[0], damp)
    u, s, vh = u[:, kept], s[kept], vh[kept]
    want = vh.T @ (s / (s**2 + damp**2) * (u.T @ b))
    assert report.rank == kept.sum() < min(m, n)
    np.testing.assert_allclose(x, want, atol=1e-13)
    np.testing.assert_allclose(report.residual_norms, [np.linalg.norm(b - a @ want)])
    np.testing.assert_allclose(report.degrees_of_freedom, m - np.sum(s**2 / (s**2 + damp**2)))
    np.testing.assert_allclose(
        report.covariance(scale=1.0), (vh.T * (s / (s**2 + damp**2)) ** 2) @ vh, atol=1e-11
    )


@pytest.mark.parametrize(("m", "n"), [(600, 40), (30, 40), (40, 40)])
@pytest.mark.parametrize("k", [1, 90])
def test_the_least_budget_suffices(m: int, n: int, k: int) -> None:
    a, b = tall(m, n, "f8"), tall(m, k, "f8", 1)
    with pytest.raises(BudgetError, match=r"need \d+ bytes") as refused:
        fit(a, b, damp=1.0, memory=20_000)
    need = int(str(refused.value).split()[1])
    for options in ({}, {"cond": 0.5}):
        report = fit(a, b, damp=1.0, memory=need, **options)[1]
        assert report.peak_memory_bytes <= need
    np.testing.assert_allclose(
        fit(a, b, damp=1.0, memory=need)[0],
        np.linalg.solve(a.T @ a + np.eye(n), a.T @ b), atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e-30), ("f4", 1e30), ("f8", 1e-250)])
@pytest.mark.parametrize(("m", "n"), [(6, 6), (4, 7), (9, 5)])
def test_extreme_scales(dtype: str, scale: float, m: int, n: int) -> None:
    a, b = graded(m, n, 0.1, "f8"), tall(m, 1, "f8", 3)[:, 0]
    want = exactly(a, b, 0.01)
    given = ((part * scale).astype(dtype) for part in (a, b))
    x, report = fit(*given, damp=0.01 * scale)
    rtol = 1e4 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(x, want.x, rtol=0, atol=rtol * abs(want.x).max())
    np.testing.assert_allclose(np.array(report.residual_norms) / scale, want.residual, rtol=rtol)
    np.testing.assert_allclose(report.degrees_of_freedom, want.freedom, rtol=rtol)


def test_a_covariance_below_the_rounding_of_r_is_refused() -> None:
    """With damp far below the rounding errors of R, these determine the variance."""
    draw = np.random.default_rng(0)
    group = draw.integers(0, 10, 500)
    a = np.zeros((500, 11), "f4")
    a[:, 0] = 1
    a[np.arange(500), 1 + group] = 1
    with pytest.raises(InvalidError, match=r'does not resolve; .*dtype="f8"'):
        fit(a, np.ones(500, "f4"), damp=1e-6, cond=0.0)[1].covariance(scale=1.0)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f4", "c8"])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (5, 9)])
def test_a_covariance_of_fewer_rows_than_columns(dtype: str, m: int, n: int) -> None:
    """Directions in which A has no rows have no variance, however small damp is beside A."""
    a, b = tall(n, m, dtype, 1).T.copy(), tall(m, 1, dtype, 2)[:, 0]
    wide = np.result_type(dtype, np.float64)
    want = exactly(a.astype(wide), b.astype(wide), 1e-3).covariance
    found = fit(a, b, damp=1e-3)[1].covariance(scale=1.0)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize("rows", [60, 40])
def test_rows_without_weight_are_not_called_dependent(tmp_path: Path, rows: int) -> None:
    """Rows of weight 0 fall out of [A, d I]; the others have full rank, and a small residual."""
    a, b = tall(1200, rows, "f4", 1).T.copy(), tall(rows, 1, "f4", 2)[:, 0]
    weights = np.linspace(0.5, 2, rows).astype("f4")
    weights[::2] = 0
    A = oc.from_array(a, tmp_path / "A", progress=False)
    _, report = lstsq(A, b, weights=weights, damp=1e-4, memory="6 MB", progress=False)
    scaled = a.astype("f8") * np.sqrt(weights.astype("f8"))[:, None]
    u, s, _ = np.linalg.svd(scaled, full_matrices=False)
    part = u.T @ (b * np.sqrt(weights.astype("f8")))
    s, part = s[: rows // 2], part[: rows // 2]
    residual = np.linalg.norm(part * 1e-8 / (s**2 + 1e-8))
    assert report.rank == rows // 2
    assert not [note for note in report.notes if "depend" in note]
    np.testing.assert_allclose(report.residual_norms, [residual], rtol=1e-3)


@pytest.mark.usefixtures("noted_at_once")
@pytest.mark.parametrize("verb", ["weighted", "least norm"])
def test_a_stopped_call_appends_the_damping_once(tmp_path: Path, verb: str) -> None:
    """Stop in each pass: the state has R without, or in the second pass with the rows damp * I."""
    case = Case(verb, tmp_path)
    whole = case.run(tmp_path / "W", damp=2.0)
    notes, resumed = 1, 0
    while True:
        out = tmp_path / f"X{notes}"
        try:
            with interrupted_after(notes):
                case.run(out, damp=2.0)
                break
        except Interrupted:
            pass
        found = case.run(out, damp=2.0)
        same(found, whole)
        assert found[2].residual_norms == whole[2].residual_norms
        assert found[2].degrees_of_freedom == whole[2].degrees_of_freedom
        resumed += any("resumed" in note for note in found[2].notes)
        notes += 2
    assert resumed > 3
