"""Truncated SVD against SciPy's, and its reported errors against the true ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from linpack import one_thread, unit_roundoff
from stopping import interrupt
from tall import DTYPES, RATES, Counting, ragged, tall

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConvergenceWarning,
    ExistsError,
    Interrupted,
    InvalidError,
    NonFiniteError,
)
from outcore.linalg import SvdReport, svd
from outcore.linalg._rows.tall_q import TallQ

__all__ = ["one_thread"]  # a fixture for every test here

THRESHOLD = 30


def with_values(m: int, n: int, values: Any, dtype: str) -> Any:
    """Return a matrix with the given singular values."""
    u = scipy.linalg.qr(tall(m, len(values), dtype), mode="economic")[0]
    v = scipy.linalg.qr(tall(n, len(values), dtype, seed=1), mode="economic")[0]
    return ((u * values) @ v.conj().T).astype(dtype)


def assert_svd(a: Any, U: Any, s: Any, Vh: Any, report: SvdReport, accuracy: float) -> None:
    """Check orthonormality, SciPy's singular values, and the reported error."""
    eps = unit_roundoff(a.dtype)
    wide = np.result_type(a.dtype, np.float64)
    a, u, vh = a.astype(wide), U.astype(wide), Vh.astype(wide)
    (m, n), k = a.shape, len(s)
    assert (U.shape, Vh.shape) == ((m, k), (k, n))
    assert np.linalg.norm(np.eye(k) - u.conj().T @ u, 1) < THRESHOLD * m * eps
    assert np.linalg.norm(np.eye(k) - vh @ vh.conj().T, 1) < THRESHOLD * n * eps
    values = scipy.linalg.svdvals(a)
    least = THRESHOLD * max(m, n) * eps * values[0]
    assert (np.abs(s - values[:k]) <= accuracy * values[:k] + least).all()
    error = a - (u * s) @ vh
    best = np.linalg.norm(values[k:])
    assert np.linalg.norm(error) <= (1 + accuracy) * best + least
    assert np.linalg.norm(error, 2) <= report.error_bound + least
    size = np.linalg.norm(error)
    if size > 1e-2 * values[0]:
        assert report.frobenius_error == pytest.approx(size, rel=2e-2)
        assert report.error_bound <= report.frobenius_error
    else:
        assert report.frobenius_error == pytest.approx(size, rel=0.7, abs=least)
    residuals = np.linalg.norm(a.conj().T @ u - vh.conj().T * s, axis=0) / max(s[0], 1e-300)
    # Rounding limits small values: squares of A have an error of eps relative to the largest.
    rounding = THRESHOLD * max(m, n) ** 0.5 * eps * s[0] / np.maximum(s, eps**0.5 * s[0] + 1e-300)
    assert (np.abs(report.triplet_residuals - residuals) <= 1e-2 * residuals + rounding).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("stored", [False, True])
def test_decaying_values(tmp_path: Path, dtype: str, order: str, stored: bool) -> None:
    a = with_values(900, 70, 1.3 ** -np.arange(60), dtype)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(128, 35))
    out = tmp_path / "U" if stored else None
    memory = 120 * a.itemsize << 10
    U, s, Vh, report = svd(A, 8, seed=1, memory=memory, out=out, progress=False)
    assert s.dtype == a.real.dtype
    assert U.dtype == Vh.dtype == a.dtype
    assert_svd(a, U[...], s, Vh, report, 1e-4)
    assert report.passes <= 5
    assert max(report.triplet_residuals) < 1e-4
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= memory
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"A", "U"} if stored else {"A"})


@pytest.mark.parametrize("shape", [(300, 50), (50, 300), (60, 60)])
def test_all_singular_values(shape: tuple[int, int]) -> None:
    a = with_values(*shape, 1.1 ** -np.arange(50), "f8")
    U, s, Vh, report = svd(a, 50, progress=False)
    assert_svd(a, U, s, Vh, report, 1e-9)


def test_more_passes_for_slow_decay() -> None:
    a = with_values(400, 200, 1 / np.sqrt(1 + np.arange(200)), "f8")
    errors = []
    for power in (1, 2, 5):
        U, s, Vh, report = svd(a, 10, tol=None, power=power, seed=0, progress=False)
        assert report.passes == power + 1
        assert_svd(a, U, s, Vh, report, 0.2)
        errors.append(np.abs(s - scipy.linalg.svdvals(a)[:10]).max())
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    # Only the wanted vectors, without oversampling: all of the error lies beyond them.
    assert_svd(a, *svd(a, 10, tol=None, oversample=0, power=5, seed=0, progress=False), 0.2)
    oversampled = svd(a, 10, tol=None, power=1, oversample=60, seed=0, progress=False)[1]
    assert np.abs(oversampled - scipy.linalg.svdvals(a)[:10]).max() < errors[0] / 3


def test_lower_rank_and_zeros() -> None:
    a = tall(500, 4, "c16") @ tall(4, 60, "c16", seed=1)
    U, s, Vh, report = svd(a, 9, progress=False)
    assert_svd(a, U, s, Vh, report, 1e-9)
    assert (s[4:] < 1e-9 * s[0]).all()
    U, s, Vh, report = svd(np.zeros((500, 60)), 9, progress=False)
    assert_svd(np.zeros((500, 60)), U, s, Vh, report, 1e-9)


def test_a_seed_gives_the_same_result_with_any_budget(tmp_path: Path) -> None:
    a = with_values(900, 70, 1.5 ** -np.arange(60), "f8")
    one, other = (
        svd(a, 5, tol=1e-11, seed=7, memory=memory, progress=False) for memory in ("1 MiB", "9 MiB")
    )
    np.testing.assert_allclose(one[1], other[1], rtol=1e-12)
    # Signs of singular vectors are arbitrary.
    for x, y in ((one[0], other[0]), (one[2].T, other[2].T)):
        np.testing.assert_allclose(np.abs((x * y).sum(axis=0)), 1, rtol=1e-10)
    again = svd(a, 5, tol=1e-11, seed=np.random.default_rng(7), memory="1 MiB", progress=False)
    assert np.array_equal(one[0], again[0])


def test_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    m, n, k = 4096, 64, 6
    A = oc.from_array(tall(m, n, "f8"), tmp_path / "A")
    for out, memory, power in ((None, "2 MiB", 1), (tmp_path / "U", "1 MiB", 2)):
        planned = oc.plan(
            "svd", m=m, n=n, k=k, memory=memory, power=power, out=out is not None, rates=RATES
        )
        *_, report = svd(A, k, tol=None, memory=memory, power=power, out=out, progress=False)
        assert report.bytes_read == planned.bytes_read
        assert report.bytes_written == planned.bytes_written
        # The arena keeps memory of one pass for the next, within the budget.
        assert max(planned.peak_memory_bytes, report.peak_memory_bytes) <= planned.memory_bytes
        assert report.flops == pytest.approx(planned.flops)
    assert planned.bytes_read >= 3 * A.nbytes + m * 16 * 8


def test_passes_are_counted() -> None:
    rows = Counting(tall(3000, 20, "f8"))
    svd(rows, 3, tol=None, power=1, memory="1 MiB", progress=False)
    assert set(rows.times) == {2}


def test_the_report_can_be_printed() -> None:
    *_, report = svd(tall(50, 10, "f8"), 3, progress=False)
    assert "block Krylov iteration with 10 vectors, 2 passes over A" in str(report)
    assert "in the Frobenius norm" in str(report)
    assert "of s[0], the largest of 3 triplets" in str(report)


@pytest.mark.parametrize("memory", ["1 MB", "20 MB"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_slow_decay_against_arpack(dtype: str, memory: str) -> None:
    """Compare slowly falling values (1/√i) and noise with ARPACK; bases have 1 to 9 blocks."""
    for a in (tall(600, 150, dtype), with_values(600, 150, 1 / np.sqrt(np.arange(1, 151)), dtype)):
        U, s, Vh, report = svd(a, 5, tol=1e-6, power=60, seed=1, memory=memory, progress=False)
        want = scipy.sparse.linalg.svds(a, 5, tol=1e-12, random_state=0)
        order = np.argsort(-want[1])
        np.testing.assert_allclose(s, want[1][order], rtol=1e-9)
        for found, vectors in ((U, want[0][:, order]), (Vh.T, want[2][order].T)):
            np.testing.assert_allclose(np.abs((found.conj() * vectors).sum(0)), 1, rtol=1e-6)
        assert max(report.triplet_residuals) <= 1e-6
        assert report.passes < 61


def test_a_basis_saves_passes() -> None:
    a = with_values(600, 300, 1 / np.sqrt(np.arange(1, 301)), "f8")
    passes = [
        svd(a, 5, tol=1e-6, power=60, seed=1, memory=memory, progress=False)[3].passes
        for memory in ("400 KB", "40 MB")
    ]
    assert passes[1] < 0.7 * passes[0]


@pytest.mark.parametrize("n", [41, 59, 60, 61, 64, 79, 80, 99])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_a_basis_that_nearly_fills_the_space(n: int, dtype: str) -> None:
    """With blocks of 20 vectors, few or no directions are left for the next block."""
    values = 1 / np.arange(1, n + 1)
    for a in (with_values(300, n, values, dtype), tall(300, n, dtype)):
        _, s, _, report = svd(a, 10, tol=1e-8, power=60, seed=1, progress=False)
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:10], rtol=1e-10)
        assert max(report.triplet_residuals) <= 1e-8


def test_triplets_that_have_not_converged_are_told() -> None:
    a = tall(600, 150, "f8")
    text = (
        r"of 5 singular triplets, from number \d on, have not converged to tol=0.0001 in 3 passes"
    )
    with pytest.warns(ConvergenceWarning, match=text):
        U, s, Vh, report = svd(a, 5, power=2, seed=1, progress=False)
    assert_svd(a, U, s, Vh, report, 0.2)
    assert max(report.triplet_residuals) > 1e-4


def test_the_error_is_never_said_to_be_larger_than_the_matrix() -> None:
    """Ten triplets explain little of a matrix of noise."""
    a = np.random.default_rng(1).standard_normal((2000, 300))
    U, s, Vh, report = svd(a, 10, tol=None, power=2, seed=0, progress=False)
    error = np.linalg.norm(a - (U * s) @ Vh)
    assert report.frobenius_error == pytest.approx(error, rel=1e-10)
    assert np.linalg.norm(a - (U * s) @ Vh, 2) < report.error_bound <= error


def test_bad_input_is_refused(tmp_path: Path) -> None:
    a = tall(50, 10, "f8")
    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((a, 0), {}, "k must be an integer from 1 to 10"),
        ((a, 11), {}, "k must be an integer from 1 to 10"),
        ((a, 2.0), {}, "k must be an integer"),
        ((a, 2), {"power": 0}, "power must be an integer of at least 1"),
        ((a, 2), {"oversample": -1}, "oversample must be"),
        ((a, 2), {"tol": 0.0}, "tol must be above 0"),
        ((a, 2), {"tol": np.nan}, "tol must be above 0"),
        ((a, 2), {"seed": "x"}, "seed must be an integer of at least 0.* have 'x'"),
        ((a, 2), {"seed": -1}, "seed must be an integer of at least 0.* have -1"),
        ((ragged(a, [7]), 2), {"power": 4}, "only once, and svd needs 5 passes"),
        ((np.full((50, 10), 3e38, "f4"), 2), {}, "overflow float32"),
    ]
    for arguments, options, message in bad:
        with pytest.raises(InvalidError, match=message):
            svd(*arguments, progress=False, **options)
    with pytest.raises(InvalidError, match="needs k="):
        oc.plan("svd", m=100, n=10, memory="1 MiB", rates=RATES)
    svd(a, 2, out=tmp_path / "U", progress=False)
    with pytest.raises(ExistsError, match="U exists"):
        svd(a, 2, out=tmp_path / "U", progress=False)
    U = svd(a, 2, out=tmp_path / "U", if_exists="overwrite", progress=False)[0]
    with pytest.raises(InvalidError, match="operand itself"):
        svd(U, 1, out=tmp_path / "U", if_exists="overwrite", progress=False)
    a[31, 4] = -np.inf
    with pytest.raises(NonFiniteError, match=r"A\[31, 4\] is -inf"):
        svd(a, 2, progress=False)


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    a = with_values(3000, 50, 1.5 ** -np.arange(30), "f8")
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(512, 10))
    for out in (None, tmp_path / "U"):
        with pytest.raises(BudgetError, match=r"need \d+ bytes") as refused:
            svd(A, 5, memory=50_000, out=out, progress=False)
        assert ("give out=" in str(refused.value)) == (out is None)
        need = int(str(refused.value).split()[1])
        U, s, Vh, report = svd(A, 5, memory=need, out=out, progress=False)
        assert_svd(a, U[...], s, Vh, report, 1e-6)
        assert report.peak_memory_bytes <= need


@pytest.mark.parametrize("half", ["add", "build"])
def test_a_stop_leaves_nothing(tmp_path: Path, half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = tall(3000, 20, "f8")
    whole = getattr(TallQ, half)

    def stopped(self: TallQ, *arguments: Any) -> None:
        whole(self, *arguments)
        interrupt()

    monkeypatch.setattr(TallQ, half, stopped)
    for out in (None, tmp_path / "U"):
        with pytest.raises(Interrupted, match="call svd again"):
            svd(a, 3, out=out, memory="1 MiB", progress=False)
    assert list(tmp_path.iterdir()) == []
