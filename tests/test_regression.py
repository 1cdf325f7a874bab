"""Weighted least squares, variances and covariances, as in statistics.

The expected values are those that NIST certifies (Statistical Reference Datasets, linear
regression, Longley and Norris: https://www.itl.nist.gov/div898/strd/lls/lls.shtml), exact rational
arithmetic, and textbook formulas in NumPy.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from linpack import one_thread
from rows_cases import Case
from stopping import interrupted_after, noted_at_once
from tall import DTYPES, RATES, ragged, tall

import outcore as oc
from outcore.errors import BudgetError, ExistsError, Interrupted, InvalidError, NonFiniteError
from outcore.linalg import LeastSquaresReport, lstsq

__all__ = ["noted_at_once", "one_thread"]  # fixtures for every test here

LONGLEY = """
60323 83.0 234289 2356 1590 107608 1947    61122 88.5 259426 2325 1456 108632 1948
60171 88.2 258054 3682 1616 109773 1949    61187 89.5 284599 3351 1650 110929 1950
63221 96.2 328975 2099 3099 112075 1951    63639 98.1 346999 1932 3594 113270 1952
64989 99.0 365385 1870 3547 115094 1953    63761 100.0 363112 3578 3350 116219 1954
66019 101.2 397469 2904 3048 117388 1955   67857 104.6 419180 2822 2857 118734 1956
68169 108.4 442769 2936 2798 120445 1957   66513 110.8 444546 4681 2637 121950 1958
68655 112.6 482704 3813 2552 123366 1959   69564 114.2 502601 3931 2514 125368 1960
69331 115.7 518173 4806 2572 127852 1961   70551 116.9 554894 4007 2827 130081 1962
"""
NORRIS = """
0.1 0.2 338.8 337.4 118.1 118.2 888.0 884.6 9.2 10.1 228.1 226.5 668.5 666.3 998.5 996.3
449.1 448.6 778.9 777.0 559.2 558.2 0.3 0.4 0.1 0.6 778.1 775.5 668.8 666.9 339.3 338.0
448.9 447.5 10.8 11.6 557.7 556.0 228.3 228.1 998.0 995.8 888.8 887.6 119.6 120.2 0.3 0.3
0.6 0.3 557.6 556.8 339.3 339.1 888.0 887.2 998.5 999.0 778.9 779.0 10.2 11.1 117.6 118.3
228.9 229.2 668.4 669.1 449.2 448.9 0.2 0.5
"""

CERTIFIED: dict[str, Any] = {
    "Longley": (
        LONGLEY, 7,
        [-3482258.63459582, 15.0618722713733, -0.358191792925910e-01, -2.02022980381683,
         -1.03322686717359, -0.511041056535807e-01, 1829.15146461355],
        [890420.383607373, 84.9149257747669, 0.334910077722432e-01, 0.488399681651699,
         0.214274163161675, 0.226073200069370, 455.478499142212],
        304.854073561965, 9,
    ),
    "Norris": (
        NORRIS, 2,
        [-0.262323073774029, 1.00211681802045],
        [0.232818234301152, 0.429796848199937e-03],
        0.884796396144373, 34,
    ),
}  # fmt: skip
"""Data, columns, coefficients, their standard errors, residual standard deviation, freedom."""


def fit(*problem: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    return lstsq(*problem, **{"memory": "2 MiB", "progress": False, "keep_r": True} | options)


def certified(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    data = np.array(CERTIFIED[name][0].split(), float).reshape(-1, CERTIFIED[name][1])
    return np.column_stack([np.ones(len(data)), data[:, 1:]]), data[:, 0]


@pytest.mark.parametrize("name", CERTIFIED)
@pytest.mark.parametrize("doubled", [False, True])
def test_certified_values(tmp_path: Path, name: str, doubled: bool) -> None:
    """A row of weight 2 counts as two rows, except in the degrees of freedom."""
    a, b = certified(name)
    _, _, coefficients, errors, deviation, freedom = CERTIFIED[name]
    options: dict[str, Any] = {}
    if doubled:
        a, b = np.vstack([a, a[:1]]), np.append(b, b[:1])
        options["weights"] = np.array([0.5, *np.ones(len(b) - 2), 0.5])
    A = oc.from_array(a, tmp_path / "A", chunks=(4, a.shape[1]), progress=False)
    x, report = fit(A, b, **options)
    np.testing.assert_allclose(x, coefficients, rtol=1e-7)
    assert report.degrees_of_freedom == freedom + doubled
    scale = report.residual_variances[0] * (1 + doubled / freedom)
    assert scale == pytest.approx(deviation**2, rel=1e-9)
    found = np.sqrt(np.diag(report.covariance(scale=scale)))
    np.testing.assert_allclose(found, errors, rtol=1e-7)
    assert "variance " in str(report)


def inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Invert a small matrix exactly, by Gauss-Jordan elimination."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in set(range(n)) - {i}:
            rows[j] = [
                one - rows[j][i] * other for one, other in zip(rows[j], rows[i], strict=True)
            ]
    return [row[n:] for row in rows]


def test_covariance_in_exact_arithmetic() -> None:
    """Fit a weighted polynomial, as in NIST's Wampler data, at 8 points."""
    a = np.vander(np.arange(8), 4, increasing=True)
    w = np.array([1, 2, 3, 4, 4, 3, 2, 1])
    exact = [
        [sum((Fraction(int(p[i] * p[j] * v)) for p, v in zip(a, w, strict=True)), Fraction(0))
         for j in range(4)]
        for i in range(4)
    ]  # fmt: skip
    want = np.array([[float(value) for value in row] for row in inverse(exact)])
    _, report = fit(a, np.ones(8), weights=w)
    np.testing.assert_allclose(report.covariance(scale=1.0), want, rtol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("damp", [0.0, 3.0])
def test_by_formula(tmp_path: Path, dtype: str, damp: float) -> None:
    """Use weights of 0, a singular value below damp, and k right-hand sides; one pass on disk."""
    n, k, m = 9, 2, 700
    a, b = tall(m, n, dtype), tall(m, k, dtype, seed=1)
    a[:, 3] *= 1e-2
    w = np.random.default_rng(3).integers(0, 4, m).astype(b.real.dtype)
    A = oc.from_array(a, tmp_path / "A", chunks=(64, n), progress=False)
    B = oc.from_array(b, tmp_path / "B", chunks=(100, k), progress=False)
    W = oc.from_array(w, tmp_path / "w", chunks=(90,), progress=False)
    x, report = fit(A, B, weights=W, damp=damp)
    assert x.dtype == a.dtype
    wide = a.astype(np.result_type(dtype, "f8"))
    rows = w[:, None] * wide
    C = np.linalg.inv(wide.conj().T @ rows + damp**2 * np.eye(n))
    want = C @ (rows.conj().T @ b)
    rest = w @ abs(b - wide @ want) ** 2
    freedom = np.count_nonzero(w) - np.trace(wide @ C @ rows.conj().T).real
    tol = 2e3 * np.finfo(dtype).eps
    np.testing.assert_allclose(x, want, rtol=0, atol=tol * abs(want).max())
    np.testing.assert_allclose(report.residual_norms, np.sqrt(rest), rtol=tol)
    np.testing.assert_allclose(report.degrees_of_freedom, freedom, rtol=tol)
    np.testing.assert_allclose(report.residual_variances, rest / freedom, rtol=tol)
    covariance = C @ (wide.conj().T @ rows) @ C * rest[1] / freedom
    found = report.covariance(1)
    assert found.dtype == wide.dtype
    np.testing.assert_allclose(found, covariance, rtol=0, atol=tol * abs(covariance).max())
    assert report.R is not None
    product = report.R.conj().T @ report.R
    expected = wide.conj().T @ rows
    np.testing.assert_allclose(product, expected, rtol=0, atol=tol * abs(expected).max())
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_read >= a.nbytes + b.nbytes + w.nbytes
    with pytest.raises(InvalidError, match="need column= of 2"):
        report.covariance()
    with pytest.raises(InvalidError, match="need column= from 0 to 1, have 2"):
        report.covariance(2)


@pytest.mark.parametrize("damp", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_lower_rank_by_the_pseudo_inverse(dtype: str, damp: float) -> None:
    a, b = tall(60, 3, dtype) @ tall(3, 6, dtype, seed=1), tall(60, 1, dtype, seed=2)[:, 0]
    x, report = fit(a, b, damp=damp)
    assert report.rank == (6 if damp else 3)
    inverse = np.linalg.pinv(a.conj().T @ a + damp**2 * np.eye(6), rcond=1e-10, hermitian=True)
    freedom = 60 - np.trace(a @ inverse @ a.conj().T).real
    want = inverse @ (a.conj().T @ b)
    scale = np.linalg.norm(b - a @ want) ** 2 / freedom
    np.testing.assert_allclose(x, want, atol=1e-11)
    expected = scale * inverse @ a.conj().T @ a @ inverse
    np.testing.assert_allclose(report.covariance(), expected, rtol=0, atol=1e-11)


def test_where_weights_come_from(tmp_path: Path) -> None:
    a, b, w = tall(300, 4, "f8"), tall(300, 1, "f8", seed=1), np.arange(300) % 3 + 1
    want = np.linalg.solve(a.T @ (w[:, None] * a), a.T @ (w[:, None] * b))
    W = oc.from_array(w, tmp_path / "w", chunks=(64,), progress=False)
    for given in (w, w.tolist(), w[:, None], W, W.path, w.astype("f4")):
        np.testing.assert_allclose(fit(a, b, weights=given)[0], want)
    for heights in ([7, 31], [300]):
        x, report = fit(ragged(a, [50]), b, weights=ragged(w, heights))
        np.testing.assert_allclose(x, want)
        assert report.degrees_of_freedom == 296
    pairs = zip(np.array_split(a, 3), np.array_split(b[:, 0], 3), strict=True)
    np.testing.assert_allclose(fit(pairs, weights=w)[0], want[:, 0])
    single, ones = a.astype("f4"), b.astype("f4")
    assert fit(single, ones, weights=w.astype("f4"))[0].dtype == np.float32
    assert fit(single, ones, weights=w)[0].dtype == np.float64


def test_bad_weights_are_refused() -> None:
    a, b, w = tall(20, 3, "f8"), np.ones(20), np.ones(20)
    negative, infinite = w.copy(), w.copy()
    negative[7], infinite[5] = -1, np.inf
    for given, message in [
        (w[:19], "A has 20 rows, weights has 19"),
        (np.ones((20, 2)), "need a vector as weights, have 2 columns"),
        (w * 1j, "need real weights, have complex128"),
        (negative, r"need weights of at least 0, have -1.0 as weights\[7\]"),
        (iter([w[:9]]), "weights ends after 9 rows, A has more"),
        (w * 1e308, "numbers as large as those of A overflow"),
    ]:
        with pytest.raises(InvalidError, match=message):
            fit(a * 1e200, b, weights=given)
    with pytest.raises(NonFiniteError, match=r"weights\[5, 0\] is inf"):
        fit(a, b, weights=infinite)
    _, report = fit(a, b, keep_r=False)
    with pytest.raises(InvalidError, match="call lstsq with keep_r=True"):
        report.covariance()


@pytest.mark.parametrize("damp", [0.0, 2.0])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_more_columns_than_rows(tmp_path: Path, dtype: str, damp: float) -> None:
    """Stream the columns twice; rows of weight 0 count as absent."""
    m, n = 24, 2000
    a, b = tall(n, m, dtype).T.copy(order="F"), tall(m, 2, dtype, seed=1)
    w = np.arange(m) % 4 / b.dtype.type(2).real
    b[w == 0] = 100
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(m, 64), progress=False)
    W = oc.from_array(w.astype(b.real.dtype), tmp_path / "w", progress=False)
    options: dict[str, Any] = {"memory": 400_000, "keep_r": False}
    x, report = fit(A, b, weights=W, damp=damp, **options)
    assert "second pass" in report.method
    rows = np.sqrt(w)[:, None] * a.astype(np.result_type(dtype, "f8"))
    inverse = np.linalg.pinv(rows @ rows.conj().T + damp**2 * np.eye(m), 1e-8, hermitian=True)
    want = rows.conj().T @ inverse @ (np.sqrt(w)[:, None] * b)
    tol = 300 * np.finfo(dtype).eps
    np.testing.assert_allclose(x, want, rtol=0, atol=tol * abs(want).max())
    rest = np.linalg.norm(np.sqrt(w)[:, None] * b - rows @ want, axis=0)
    np.testing.assert_allclose(report.residual_norms, rest, rtol=tol, atol=300 * tol)
    freedom = np.count_nonzero(w) - np.trace(rows @ rows.conj().T @ inverse).real
    assert report.degrees_of_freedom == pytest.approx(freedom, abs=float(tol) * m)
    assert report.bytes_read == report.planned_bytes_read
    assert report.peak_memory_bytes <= 400_000
    with pytest.raises(BudgetError, match="or leave out keep_r="):
        fit(A, b, weights=W, damp=damp, memory=400_000)


def test_the_plan_knows_them(tmp_path: Path) -> None:
    a, b, w = tall(3000, 60, "f8"), tall(3000, 1, "f8", seed=1), np.ones(3000)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    options: dict[str, Any] = {"memory": "2 MB", "damp": 1.0, "keep_r": True}
    x, report = fit(A, b, weights=w, out=tmp_path / "x", **options)
    plan = oc.plan("lstsq", m=3000, n=60, weights=True, out=True, rates=RATES, **options)
    assert report.bytes_read == plan.bytes_read
    assert x.nbytes == plan.bytes_written
    assert report.peak_memory_bytes <= plan.peak_memory_bytes <= 2_000_000
    for name in ("damp", "weights"):
        with pytest.raises(BudgetError, match=f"leave out {name}="):
            oc.plan("lstsq", m=900, n=600, memory="1.2 MB", rates=RATES, **{name: 2.0})
        given = np.ones(3000) if name == "weights" else 1.0
        with pytest.raises(BudgetError, match=f"leave out {name}="):
            fit(A, b, keep_r=False, memory=130_000, **{name: given})


def test_only_the_same_weights_and_damp_are_gone_on_with(tmp_path: Path) -> None:
    case = Case("weighted", tmp_path)
    for number, changed in enumerate(({}, {"damp": 1.0}, {"weights": np.ones(len(case.a))})):
        out = tmp_path / f"X{number}"
        with pytest.raises(Interrupted), interrupted_after(3):
            case.run(out)
        whole = case.run(tmp_path / f"W{number}", **changed)
        found = case.run(out, **changed)
        np.testing.assert_array_equal(found[0][...], whole[0][...])
        assert any("resumed" in note for note in found[2].notes) == (not changed)


def test_r_is_opened_with_the_solution(tmp_path: Path) -> None:
    a, b = certified("Norris")
    A = oc.from_array(a, tmp_path / "A", progress=False)
    options: dict[str, Any] = {"out": tmp_path / "x", "if_exists": "open", "weights": np.ones(36)}
    first = fit(A, b, **options)[1]
    x, again = fit(A, b, **options)
    assert any("opened" in note for note in again.notes)
    np.testing.assert_allclose(x[...], CERTIFIED["Norris"][2], rtol=1e-9)
    np.testing.assert_array_equal(again.covariance(), first.covariance())
    with pytest.raises(ExistsError, match="weights"):
        fit(A, b, **options | {"weights": np.arange(36)})
    (tmp_path / "x" / "outcore.made-R.npy").unlink()
    np.testing.assert_array_equal(fit(A, b, **options)[1].covariance(), first.covariance())


@pytest.mark.parametrize("damp", [0.1, 0.5, 30.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_damping_far_below_the_norm_of_a(damp: float, dtype: str) -> None:
    """Dummy variables beside an intercept: A has dependent columns."""
    draw = np.random.default_rng(0)
    group = draw.integers(0, 10, 5000)
    a = np.zeros((5000, 11), "f4")
    a[:, 0] = 1
    a[np.arange(5000), 1 + group] = 1
    b = (group + draw.standard_normal(5000)).astype("f4")
    _, s, vh = np.linalg.svd(a.astype("f8"), full_matrices=False)
    half = (s / (s**2 + damp**2))[:, None] * vh
    expected = half.T @ half
    _, report = fit(a, b, damp=damp, dtype=dtype)
    rtol = 1e-3 if dtype == "f4" else 1e-11
    found = report.covariance(scale=1.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * expected.max())
    freedom = 5000 - np.sum(s**2 / (s**2 + damp**2))
    np.testing.assert_allclose(report.degrees_of_freedom, freedom, rtol=1e-6)
