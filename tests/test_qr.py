"""QR of tall matrices, by LAPACK's ratios and against SciPy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from linpack import names_below, one_thread, unit_roundoff
from stopping import interrupt
from tall import DTYPES, RATES, Counting, ragged, tall

import outcore as oc
from outcore.errors import (
    BudgetError,
    ExistsError,
    Interrupted,
    InvalidError,
    NonFiniteError,
)
from outcore.linalg import qr
from outcore.linalg._qr import plan as qr_plan
from outcore.linalg._rows import plan as row_plan
from outcore.linalg._rows import tall_q, tsqr, tsqr_plan
from outcore.linalg._rows.tall_q import TallQ

__all__ = ["one_thread"]  # a fixture for every test here

LAPACK_THRESHOLD = 30


def assert_triangle(a: Any, R: Any) -> None:
    """Check that R is upper triangular, and SciPy's up to the signs of its rows."""
    assert R.dtype == a.dtype
    assert np.array_equal(np.triu(R), R)
    want = scipy.linalg.qr(a, mode="economic")[1]
    eps = unit_roundoff(a.dtype)
    phases = R.diagonal() / want.diagonal()[: len(R)]
    assert np.allclose(np.abs(phases), 1, atol=1e4 * eps)
    error = np.linalg.norm(R - phases[:, None] * want, 1)
    assert error < LAPACK_THRESHOLD * len(a) * np.linalg.norm(a, 1) * eps


def assert_factors(a: Any, Q: Any, R: Any) -> None:
    """Check LAPACK's ratios for QR: ‖R - QᴴA‖₁ / (m ‖A‖₁ ε), ‖I - QᴴQ‖₁ / (m ε)."""
    m, n = a.shape[0], min(a.shape)
    wide = np.result_type(a.dtype, np.float64)
    q, r, whole = Q.astype(wide), R.astype(wide), a.astype(wide)
    bound = LAPACK_THRESHOLD * m * unit_roundoff(a.dtype)
    assert np.linalg.norm(np.eye(n) - q.conj().T @ q, 1) < bound
    assert np.linalg.norm(r - q.conj().T @ whole, 1) <= bound * np.linalg.norm(whole, 1)
    assert np.linalg.norm(whole - q @ r, 1) <= bound * np.linalg.norm(whole, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_r(tmp_path: Path, dtype: str, order: str) -> None:
    a = tall(1100, 30, dtype)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(128, 8 if order == "F" else 30))
    for rows in (A, A.path, a, ragged(a, [1, 400, 0, 77])):
        R, report = qr(rows, memory="1 MiB", progress=False)
        assert_triangle(a, R)
        assert (report.m, report.n) == a.shape
        assert report.bytes_read == report.planned_bytes_read
        assert report.peak_memory_bytes <= 1 << 20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_q_on_disk(tmp_path: Path, dtype: str, order: str) -> None:
    a = tall(1500, 30, dtype)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(128, 8 if order == "F" else 30))
    memory = 60 * a.itemsize << 10
    Q, R, report = qr(A, mode="economic", memory=memory, progress=False)
    assert Q.path == tmp_path / "A.q"
    assert_factors(a, Q[...], R)
    assert_triangle(a, R)
    assert report.peak_memory_bytes <= memory
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    with oc.open_array(Q.path) as again:
        assert np.array_equal(again[...], Q[...])


@pytest.mark.parametrize("height", [7, 16, 40, 300])
@pytest.mark.parametrize("step", [3, 64])
@pytest.mark.parametrize("m", [20, 21, 40, 41, 300])
def test_wherever_the_rows_are_cut(
    tmp_path: Path, height: int, step: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks lower than n rows, blocks that end at row n, and a single block."""
    cut_at(monkeypatch, height, step)
    a = tall(m, 20, "f8")
    Q, R, _ = qr(a, mode="economic", out=tmp_path / "Q", progress=False, memory="4 MiB")
    assert_factors(a, Q[...], R)


def cut_at(patch: pytest.MonkeyPatch, height: int, step: int) -> None:
    """Set the number of rows of blocks and of steps."""

    def fit_rows(layouts: Any, dtype: Any, **_: Any) -> row_plan.Fit:
        return row_plan.Fit([row_plan.RowPlan(layouts[0], height, dtype, "F", 1)], 0)

    patch.setattr(qr_plan, "fit_rows", fit_rows)
    for module in (tsqr, tsqr_plan):
        patch.setattr(module, "factor_rows", lambda n, dtype: step)
    for module in (tall_q, tsqr_plan):
        patch.setattr(module, "Q_COLUMNS", 6)


@examples(30)
@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 40), st.integers(1, 20))
def test_r_of_any_shape(m: int, n: int, height: int, step: int) -> None:
    a = tall(m, n, "c16")
    with pytest.MonkeyPatch.context() as patch:
        cut_at(patch, height, step)
        R, _ = qr(ragged(a, [height]), progress=False, memory="1 MiB")
    assert R.shape == (min(m, n), n)
    assert np.array_equal(np.triu(R), R)
    assert np.allclose(R.conj().T @ R, a.conj().T @ a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_q_is_orthogonal_however_ill_conditioned(tmp_path: Path, dtype: str) -> None:
    """Columns of a Hilbert matrix, and a matrix of lower rank with zero columns."""
    hilbert = (1 / (np.arange(900)[:, None] + np.arange(18) + 1)).astype(dtype)
    assert np.linalg.cond(hilbert) > 1 / np.finfo(dtype).eps
    lower = tall(900, 4, dtype) @ tall(4, 18, dtype, seed=1)
    lower[:, [0, 7]] = 0
    lower[100:500] = 0
    for number, a in enumerate((hilbert, lower, np.zeros((900, 18), dtype))):
        out = tmp_path / str(number)
        Q, R, _ = qr(a, mode="economic", out=out, progress=False, memory="400 KiB")
        assert_factors(a, Q[...], R)


def test_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    """For R, A is read once.

    For Q, A is read, the reflections are written and read, Q is written.
    """
    m, n = 4096, 32
    for order, memory in (("C", 700 << 10), ("F", 8 << 20)):
        A = oc.from_array(tall(m, n, "f8"), tmp_path / order, order=order)
        planned = oc.plan("qr", m=m, n=n, memory=memory, order=order, rates=RATES)
        report: Any = qr(A, memory=memory, progress=False)[1]
        assert report.bytes_read == planned.bytes_read == A.nbytes
        assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
        planned = oc.plan("qr", m=m, n=n, memory=memory, order=order, mode="economic", rates=RATES)
        report = qr(A, mode="economic", memory=memory, progress=False)[2]
        assert report.bytes_read == planned.bytes_read
        assert report.bytes_written == planned.bytes_written == 2 * (report.bytes_read - A.nbytes)
        assert A.nbytes <= planned.bytes_read - A.nbytes < 1.2 * A.nbytes
        # The arena keeps memory of one pass for the next, within the budget.
        assert max(planned.peak_memory_bytes, report.peak_memory_bytes) <= memory
        assert report.flops == pytest.approx(planned.flops)


def test_each_row_is_taken_once(tmp_path: Path) -> None:
    rows = Counting(tall(5000, 10, "f8"))
    qr(rows, memory="300 KiB", progress=False)
    assert set(rows.times) == {1}
    qr(rows, mode="economic", out=tmp_path / "Q", memory="900 KiB", progress=False)
    assert set(rows.times) == {2}


def test_fewer_rows_than_columns() -> None:
    a = tall(4, 7, "f8")
    R, report = qr(a, progress=False)
    assert R.shape == (4, 7)
    assert_triangle(a, R)
    assert report.m == 4
    assert abs(qr(np.full((1, 1), 3.0), progress=False)[0][0, 0]) == 3


def test_bad_input_is_refused(tmp_path: Path) -> None:
    a = tall(50, 5, "f8")
    for arguments, message in [
        ({"mode": "full"}, "mode must be"),
        ({"mode": "economic"}, "give out="),
    ]:
        with pytest.raises(InvalidError, match=message):
            qr(a, progress=False, **arguments)  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match="number of rows for Q"):
        qr(ragged(a, [9]), mode="economic", out=tmp_path / "Q", progress=False)
    A = oc.from_array(a, tmp_path / "A")
    with pytest.raises(InvalidError, match="operand itself"):
        qr(A, mode="economic", out=A.path, progress=False)
    qr(A, mode="economic", progress=False)
    with pytest.raises(ExistsError, match=r"A\.q exists"):
        qr(A, mode="economic", progress=False)
    Q, R, _ = qr(A, mode="economic", if_exists="overwrite", progress=False)
    assert_factors(a, Q[...], R)
    a[44, 3] = np.nan
    for mode in ("r", "economic"):
        with pytest.raises(NonFiniteError, match=r"A\[44, 3\] is nan"):
            qr(oc.from_array(a, tmp_path / mode), mode=mode, progress=False)  # type: ignore[call-overload]
    assert not (tmp_path / "economic.q").exists()


@pytest.mark.parametrize("mode", ["r", "economic"])
def test_the_least_budget_that_is_named_suffices(tmp_path: Path, mode: str) -> None:
    a = tall(2000, 50, "f8")
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(512, 10))
    with pytest.raises(BudgetError, match=r"triangles of 50 x 50 elements") as refused:
        qr(A, mode=mode, memory=50_000, progress=False)  # type: ignore[call-overload]
    need = int(str(refused.value).split()[1])
    *_, R, report = qr(A, mode=mode, memory=need, progress=False)  # type: ignore[call-overload]
    assert_triangle(a, R)
    assert report.peak_memory_bytes <= need
    # `qr` does not serve square matrices larger than memory, and its error says so.
    with pytest.raises(BudgetError, match="stay in memory"):
        oc.plan("qr", m=10_000, n=10_000, memory="400 MB", rates=RATES)


@pytest.mark.parametrize("half", ["add", "build"])
def test_a_stop_leaves_nothing(tmp_path: Path, half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = tall(3000, 20, "f8")
    A = oc.from_array(a, tmp_path / "A")
    before = names_below(tmp_path)
    whole, calls = getattr(TallQ, half), [0]
    with monkeypatch.context() as patch:

        def stopped(self: TallQ, *arguments: Any) -> None:
            whole(self, *arguments)
            calls[0] += 1
            if calls[0] == 2:
                interrupt()

        patch.setattr(TallQ, half, stopped)
        with pytest.raises(Interrupted, match="call qr again"):
            qr(A, mode="economic", memory="400 KiB", progress=False)
    assert names_below(tmp_path) == before
    Q, R, _ = qr(A, mode="economic", progress=False)
    assert_factors(a, Q[...], R)


def test_a_stop_in_the_iterator() -> None:
    def blocks() -> Iterator[Any]:
        yield tall(10, 3, "f8")
        interrupt()

    with pytest.raises(Interrupted, match="call qr again"):
        qr(blocks(), progress=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("m", [1, 40, 199])
def test_wide(tmp_path: Path, dtype: str, order: str, m: int) -> None:
    """R is as large as A, and the call needs no n x n square."""
    a = tall(200, m, dtype).T.copy()
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(16, 50))
    memory = (m * 200 + m * m) * a.itemsize + 600_000
    for source in (A, a):
        options = {"m": m, "dtype": dtype, "order": order, "chunks": (16, 50), "rates": RATES}
        R, report = qr(source, memory=memory, progress=False)
        assert R.shape == (m, 200)
        assert_triangle(a, R)
        assert report.peak_memory_bytes <= memory
        Q, R, report = qr(source, mode="economic", memory=memory, out=tmp_path / "Q",
                          if_exists="overwrite", progress=False)  # fmt: skip
        assert Q.shape == (m, m)
        assert_triangle(a, R)
        assert_factors(a, Q[...], R)
        assert report.bytes_read == report.planned_bytes_read
        assert report.planned_bytes_written == Q.nbytes <= report.bytes_written < Q.nbytes + 4096
        assert report.peak_memory_bytes <= memory
        if source is A:
            plan = oc.plan("qr", n=200, memory=memory, mode="economic", **options)
            assert (plan.bytes_read, plan.bytes_written) == (report.bytes_read, Q.nbytes)
            assert report.peak_memory_bytes <= plan.peak_memory_bytes
            assert plan.method == report.method
            assert plan.words_lower_bound == report.words_lower_bound == m * 200 + m * m


def test_wide_where_the_square_does_not_fit() -> None:
    """Factor 3 x 20,000, where an n x n square would have 3.2 GB."""
    a = tall(20_000, 3, "f8").T.copy()
    R, report = qr(a, memory="20 MB", progress=False)
    assert_triangle(a, R)
    assert report.peak_memory_bytes <= 20_000_000
    with pytest.raises(BudgetError, match=r"triangles of 3 x 20000 elements.*qr_factor"):
        qr(a, memory="500 kB", progress=False)
