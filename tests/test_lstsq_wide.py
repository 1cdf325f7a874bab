"""Least squares with more columns than rows, streamed twice by columns, against SciPy."""

import itertools
import signal
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, one_thread
from tall import DTYPES, RATES, tall

import outcore as oc
from outcore._util import progress
from outcore.errors import BudgetError, ExistsError, Interrupted, InvalidError, NonFiniteError
from outcore.linalg import LeastSquaresReport, lstsq

__all__ = ["one_thread"]  # a fixture for every test here

M, N, MEMORY = 60, 1500, 600_000
"""A triangle of N x N elements takes 18 MB."""


def solve(*problem: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    return lstsq(*problem, progress=False, **{"memory": MEMORY} | options)


def wide(dtype: Any, seed: int = 0) -> Matrix:
    return tall(M, N, dtype, seed)


def assert_solves(
    a: Matrix, b: Matrix, x: Matrix, report: LeastSquaresReport, scale: float = 30
) -> None:
    """Compare as closely as the condition allows, not its square (Demmel & Higham 1993)."""
    double = np.result_type(a.dtype, np.float64)
    want = scipy.linalg.lstsq(a.astype(double), b.astype(double))[0]
    values = np.linalg.svd(a.astype(double), compute_uv=False)
    eps = float(np.finfo(x.dtype).eps)
    bound = scale * M * eps * values[0] / values[-1] * np.linalg.norm(want)
    assert np.linalg.norm(x - want) <= bound
    assert x.shape == want.shape
    rest = np.linalg.norm((b - a.astype(double) @ x).reshape(M, -1), axis=0)
    rounding = 30 * M * eps * (values[0] * np.linalg.norm(x) + np.linalg.norm(b))
    np.testing.assert_allclose(report.residual_norms, rest, rtol=1e-3, atol=rounding)
    assert report.method is not None
    assert report.method.startswith("solution of least norm")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_from_disk(tmp_path: Path, dtype: str, order: str) -> None:
    a, b = wide(dtype), tall(M, 3, dtype, 1)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(M, 64), progress=False)
    memory = MEMORY if dtype != "c16" else 2 * MEMORY
    before = names_below(tmp_path)
    for given in (b, b[:, 0], b.tolist()):
        if np.asarray(given).dtype != dtype:
            memory = 2 * MEMORY
        x, report = solve(A, given, memory=memory)
        assert x.dtype == np.result_type(a, np.asarray(given))
        assert_solves(a.astype(x.dtype), np.asarray(given), x, report)
        assert (report.verb, report.m, report.n, report.rank) == ("lstsq", M, N, M)
        assert report.notes == []
        assert report.peak_memory_bytes <= memory
        values = np.linalg.svd(a, compute_uv=False)
        assert values[0] / values[-1] / M < report.condition < M * values[0] / values[-1]
    assert names_below(tmp_path) == before
    B = oc.from_array(b, tmp_path / "b", chunks=(16, 3), progress=False)
    assert_solves(a, b, *solve(A, B, memory=memory))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_column_is_read_twice_as_planned(tmp_path: Path, dtype: str) -> None:
    m, n = 64, 2048
    a = tall(m, n, dtype)
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(m, 64), progress=False)
    options = {"m": m, "n": n, "dtype": dtype, "order": "F", "chunks": (m, 64), "rates": RATES}
    for memory, columns in ((700_000, 1), (1_000_000, 5), (200_000_000, 2)):
        budget = memory * a.itemsize // 8
        planned = oc.plan("lstsq", memory=budget, rhs=columns, **options)  # type: ignore[arg-type]
        x, report = solve(A, a[:, :columns], memory=budget)
        assert report.method == planned.method
        is_wide = planned.method.startswith("solution of least norm")
        assert is_wide == (memory < 10_000_000)
        read = A.nbytes * (1 + is_wide)
        assert report.bytes_read == planned.bytes_read == report.planned_bytes_read == read
        assert report.bytes_written == planned.bytes_written == 0
        assert report.peak_memory_bytes <= planned.peak_memory_bytes <= budget
        assert report.flops == pytest.approx(planned.flops)
        assert planned.disk_bytes == 0
        assert np.allclose(a @ x, a[:, :columns], atol=1e-2 if dtype in ("f4", "c8") else 1e-10)


def test_from_memory_and_of_mixed_types(tmp_path: Path) -> None:
    a, b = wide("f8"), tall(M, 2, "c16", 1)
    np.save(tmp_path / "a.npy", a)
    for given in (a, np.asfortranarray(a), np.load(tmp_path / "a.npy", mmap_mode="r"), a.tolist()):
        assert_solves(a, b.real, *solve(given, b.real))
    x, report = solve(a, b, memory=2 * MEMORY)
    assert x.dtype == np.complex128
    assert_solves(a.astype("c16"), b, x, report)
    integers = np.random.default_rng(0).integers(-9, 9, (M, N))
    A = oc.from_array(integers.astype("i2"), tmp_path / "I", order="F", progress=False)
    for matrix in (integers, A, A.path):
        assert_solves(integers.astype("f8"), b.real, *solve(matrix, iter([b.real])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_depend_on_each_other(tmp_path: Path, dtype: str) -> None:
    a, b = wide(dtype), tall(M, 2, dtype, 1)
    a[10:] = (tall(M - 10, 10, dtype, 2) @ a[:10]).astype(dtype)
    x, report = solve(a, b, memory=2 * MEMORY, cond=1e-4)
    double = np.result_type(dtype, "f8")
    want = scipy.linalg.lstsq(a.astype(double), b.astype(double), cond=1e-4)[0]
    eps = float(np.finfo(dtype).eps)
    assert np.linalg.norm(x - want) < 1e4 * eps * np.linalg.norm(want)
    assert report.rank == 10
    assert any("rank 10 of 60" in note for note in report.notes)
    rest = np.linalg.norm(b - a @ want, axis=0)
    np.testing.assert_allclose(report.residual_norms, rest, rtol=1e4 * eps)
    x, report = solve(np.zeros((M, N), dtype), b, memory=2 * MEMORY)
    assert not x.any()
    assert (report.rank, report.condition) == (0, np.inf)
    np.testing.assert_allclose(report.residual_norms, np.linalg.norm(b, axis=0), rtol=1e2 * eps)


@pytest.mark.parametrize(
    ("dtype", "condition", "scale"),
    [("f8", 1e9, 1.0), ("f4", 1e4, 1.0), ("c16", 1e12, 1.0), ("f4", 3e4, 1e32), ("f8", 1e9, 1e295)],
)
def test_the_condition_counts_not_its_square(dtype: str, condition: float, scale: float) -> None:
    left = np.linalg.qr(tall(M, M, dtype))[0]
    right = np.linalg.qr(tall(N, M, dtype, 1))[0]
    a = ((left * np.geomspace(1, 1 / condition, M)) @ right.conj().T).astype(dtype)
    b = tall(M, 1, dtype, 2)
    given = ((part * scale).astype(dtype) for part in (a, b))
    x, report = solve(*given, memory=2 * MEMORY, cond=1e-30)
    assert report.rank == M
    report.residual_norms = [norm / scale for norm in report.residual_norms]
    assert_solves(a, b, x, report)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_ridge(dtype: str) -> None:
    a, b = wide(dtype), tall(M, 2, dtype, 1)
    x, report = solve(a, b, damp=20.0, memory=2 * MEMORY)
    want = a.conj().T @ np.linalg.solve(a @ a.conj().T + 400 * np.eye(M), b)
    np.testing.assert_allclose(x, want, atol=1e-13)
    np.testing.assert_allclose(report.residual_norms, np.linalg.norm(b - a @ want, axis=0))


@pytest.mark.parametrize(
    ("dtype", "scale"), [("f8", 1e-200), ("f8", 1e200), ("f4", 1e-30), ("c8", 1e30)]
)
def test_extreme_scales(dtype: str, scale: float) -> None:
    a, b = wide(dtype), tall(M, 2, dtype, 1)
    x, report = solve((a * scale).astype(dtype), (b * scale).astype(dtype), memory=2 * MEMORY)
    report.residual_norms = [norm / scale for norm in report.residual_norms]
    assert_solves(a, b, x, report)


def test_a_solution_on_disk(tmp_path: Path) -> None:
    a, b = wide("f8"), tall(M, 2, "f8", 1)
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(M, 64), progress=False)
    for given in (b, b[:, 0]):
        x, report = solve(A, given, out=tmp_path / "x", if_exists="overwrite")
        assert isinstance(x, oc.Array)
        assert_solves(a, given, x[...], report)
        assert report.planned_bytes_written == x.nbytes <= report.bytes_written < x.nbytes + 4096
        assert report.peak_memory_bytes <= MEMORY
    with pytest.raises(ExistsError):
        solve(A, b, out=tmp_path / "x")
    with pytest.raises(InvalidError, match="operand itself"):
        solve(A, b, out=tmp_path / "A", if_exists="overwrite")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    a, b = wide("f8"), np.ones(M)
    for order in "CF":
        bad = a.copy()
        bad[7, 1300] = np.nan
        A = oc.from_array(bad, tmp_path / order, order=order, chunks=(M, 64), progress=False)
        for matrix in (A, bad):
            with pytest.raises(NonFiniteError, match=r"A\[7, 1300\] is nan") as refused:
                solve(matrix, b, out=tmp_path / "x")
            assert refused.value.index == (7, 1300)
    with pytest.raises(NonFiniteError, match=r"b\[5, 0\] is inf"):
        solve(a, np.where(np.arange(M) == 5, np.inf, 1))
    for right, match in [
        (np.ones(M - 1), "A has 60 rows, b has 59"),
        (iter([np.ones(M - 1)]), "b ends after 59 rows, A has more"),
        (iter([np.ones(M), np.ones(1)]), "A ends after 60 rows, b has more"),
    ]:
        with pytest.raises(InvalidError, match=match):
            solve(a, right)
    with pytest.raises(InvalidError, match="overflow"):
        solve(a * 1e-150, b * 1e200)
    with pytest.raises(BudgetError, match=r"least squares with 1500 columns.* or copy A to disk"):
        solve(iter([a]), b)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["C", "F"]


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    a, b = wide("f8"), np.ones(M)
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(M, 16), progress=False)
    for matrix in (A, a):
        with pytest.raises(BudgetError, match=r"with 60 rows and 1500 columns.*order=\"F\"") as no:
            solve(matrix, b, memory=50_000)
        need = int(str(no.value).split()[1])
        x, report = solve(matrix, b, memory=need)
        assert_solves(a, b, x, report)
        assert report.peak_memory_bytes <= need
    nearly = oc.from_array(tall(90, 100, "f8"), tmp_path / "B", chunks=(1, 100), progress=False)
    with pytest.raises(BudgetError, match=r"need \d+ bytes") as no:
        solve(nearly, np.ones(90), memory=50_000)
    solve(nearly, np.ones(90), memory=int(str(no.value).split()[1]))


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_stop_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    A = oc.from_array(wide("f8"), tmp_path / "A", order="F", chunks=(M, 64), progress=False)
    b = tall(M, 60, "f8", 1)
    clock = itertools.count()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))

    def stop(done: float, left: float) -> None:
        if share < done < 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="call lstsq again"):
        lstsq(A, b, memory=3 * MEMORY, out=tmp_path / "x", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["A"]


@pytest.mark.parametrize("shape", [(1, 40), (7, 40), (30, 31)])
def test_the_condition_of_a_wide_matrix(shape: tuple[int, int]) -> None:
    """A matrix of full rank has a finite condition: that of A."""
    a = np.random.default_rng(0).standard_normal(shape)
    _, report = oc.linalg.lstsq(a, np.ones(shape[0]), progress=False)
    assert report.rank == shape[0]
    np.testing.assert_allclose(report.condition, np.linalg.cond(a), rtol=1e-8)
    a[-1] = a[0] if shape[0] > 1 else 0
    _, report = oc.linalg.lstsq(a, np.ones(shape[0]), progress=False)
    assert report.rank == shape[0] - 1
    assert report.condition > 1e12


def test_no_hidden_share_where_no_disk_was_used() -> None:
    """For operands in memory the report does not mention the disk."""
    _, report = oc.linalg.lstsq(np.eye(4), np.ones(4), progress=False)
    assert "hidden" not in str(report)
