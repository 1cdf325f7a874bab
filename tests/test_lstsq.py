"""Least squares with rows that are streamed once, against SciPy."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from linpack import one_thread
from source_cases import Column, Table
from tall import DTYPES, RATES, Counting, ragged, tall

import outcore as oc
from outcore.errors import BudgetError, ExistsError, Interrupted, InvalidError, NonFiniteError
from outcore.linalg import LeastSquaresReport, lstsq
from outcore.linalg._rows import tsqr

__all__ = ["one_thread"]  # a fixture for every test here


def solve(*problem: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    options.setdefault("memory", "2 MiB")
    return lstsq(*problem, progress=False, **options)


def assert_solves(a: Any, b: Any, x: Any, report: LeastSquaresReport, scale: float = 30) -> None:
    """Compare with SciPy, as closely as the conditioning allows (Higham 2002, theorem 20.1)."""
    want = scipy.linalg.lstsq(a, b)[0]
    eps = float(np.finfo(x.dtype).eps)
    values = np.linalg.svd(a, compute_uv=False)
    condition = values[0] / values[len(want) - 1 if len(a) >= len(want) else -1]
    residual = np.linalg.norm(b - a @ want)
    error = np.linalg.norm(x - want)
    bound = condition * np.linalg.norm(want) + condition**2 * residual / values[0]
    assert error <= scale * len(want) * eps * bound
    norms = np.linalg.norm((b - a @ x).reshape(len(a), -1), axis=0)
    assert np.allclose(
        report.residual_norms, norms, rtol=1e3 * eps, atol=1e3 * eps * np.linalg.norm(b)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_from_disk(tmp_path: Path, dtype: str, order: str) -> None:
    a, b = tall(1500, 24, dtype), tall(1500, 3, dtype, seed=1)
    chunks = (128, 24) if order == "C" else (256, 16)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks)
    B = oc.from_array(b, tmp_path / "b", order=order, chunks=(256, 3))
    x, report = solve(A, B, memory="600 KiB")
    assert x.dtype == a.dtype
    assert_solves(a, b, x, report)
    assert report.bytes_read == report.planned_bytes_read >= a.nbytes + b.nbytes
    assert report.peak_memory_bytes <= 600 << 10
    assert (report.m, report.n, report.rank) == (1500, 24, 24)


def test_bytes_are_those_of_the_plan_and_of_the_matrix(tmp_path: Path) -> None:
    """Where chunks are whole pages, the call reads every byte once."""
    m, n, memory = 4096, 32, "1 MiB"
    for order in ("C", "F"):
        A = oc.create_array(tmp_path / order, (m, n), order=order)
        for first in range(0, m, 512):
            A[first : first + 512] = tall(512, n, "f8", first)
        planned = oc.plan("lstsq", m=m, n=n, memory=memory, order=order, rates=RATES)
        report = solve(A, np.ones(m), memory=memory)[1]
        assert report.bytes_read == report.planned_bytes_read == planned.bytes_read == A.nbytes
        assert report.bytes_written == planned.bytes_written == 0
        assert report.peak_memory_bytes <= planned.peak_memory_bytes <= 1 << 20
        assert report.flops == pytest.approx(planned.flops)


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_iterators_of_ragged_blocks(dtype: str) -> None:
    a, b = tall(700, 20, dtype), tall(700, 2, dtype, seed=1)
    x, report = solve(ragged(a, [1, 0, 300, 7]), ragged(b, [11, 200]))
    assert_solves(a, b, x, report)
    pairs = zip(ragged(a, [5, 90]), ragged(b, [5, 90]), strict=True)
    again, report = solve(pairs)
    assert_solves(a, b, again, report)
    assert report.m == 700
    assert report.bytes_read == 0


@pytest.mark.parametrize("later", ["f8", "c8"])
def test_an_iterator_whose_blocks_become_wider_is_refused(later: str) -> None:
    """The call does not round them to the type of the first block."""
    a, b = tall(700, 20, "f4"), tall(700, 2, "f8", seed=1)
    blocks = [a[:300], a[300:].astype(later)]
    for run in (lambda: solve(iter(blocks), b.astype("f4")), lambda: oc.linalg.gram(iter(blocks)),
                lambda: oc.linalg.qr(iter(blocks), progress=False)):  # fmt: skip
        with pytest.raises(InvalidError, match=r"need elements of float32 .* from row 300"):
            run()
    narrower = [a[:300].astype("f8"), a[300:], np.ones((2, 20), "i4")]
    x, report = solve(iter(narrower), np.concatenate([b, b[:2]]))
    whole = np.concatenate([a.astype("f8"), np.ones((2, 20))])
    assert_solves(whole, np.concatenate([b, b[:2]]), x, report)


@examples(40)
@given(
    heights=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    others=st.lists(st.integers(0, 60).filter(bool), min_size=1, max_size=6),
    m=st.integers(1, 150),
    step=st.integers(1, 40),
)
def test_any_heights(heights: list[int], others: list[int], m: int, step: int) -> None:
    """The iterators and the method cut the rows anywhere."""
    a, b = tall(m, 6, "f8"), tall(m, 2, "f8", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tsqr, "factor_rows", lambda n, dtype: step)
        x, report = solve(ragged(a, heights), ragged(b, others))
    assert_solves(a, b, x, report, scale=1000)
    assert report.m == m


def test_each_row_is_taken_once() -> None:
    a, b = Counting(tall(5000, 10, "f8")), Counting(tall(5000, 1, "f8"))
    solve(a, b, memory="300 KiB")
    assert a.times.tolist() == b.times.tolist() == [1] * 5000


def test_vectors_memmaps_lists_and_integers(tmp_path: Path) -> None:
    a = np.random.default_rng(0).integers(-9, 9, (300, 5))
    b = a @ np.arange(5)
    np.save(tmp_path / "a.npy", a)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    stored = oc.from_array(a.astype("i2"), tmp_path / "A")
    vector = oc.from_array(b.astype("f8"), tmp_path / "b")
    for matrix in (a, mapped, stored, stored.path, a.tolist(), ragged(a, [50])):
        for right in (b, vector, b.tolist(), ragged(b, [40])):
            if not isinstance(right, Iterator):
                x, report = solve(matrix, right)
                assert x.shape == (5,)
                assert x.dtype == np.float64
                assert np.allclose(x, np.arange(5))
                assert report.residual_norms[0] < 1e-9
            matrix = a
    x, _ = solve(ragged(a, [50]), (piece for piece in np.array_split(b, 7)))
    assert np.allclose(x, np.arange(5))
    assert x.shape == (5,)


def test_either_may_be_complex_or_of_more_precision() -> None:
    a, b = tall(60, 4, "f4"), tall(60, 1, "c16")
    x, report = solve(a, b)
    assert x.dtype == np.complex128
    assert_solves(a.astype("f8"), b, x, report)
    assert solve(a, b.real)[0].dtype == np.float64
    assert solve(a, b.real, dtype="f4")[0].dtype == np.float32
    x, report = solve(tall(60, 4, "c16"), b.real)
    assert_solves(tall(60, 4, "c16"), b.real, x, report)


@pytest.mark.parametrize("dtype", DTYPES)
def test_least_norm_solution_of_lower_rank(dtype: str) -> None:
    a = tall(400, 7, dtype) @ tall(7, 12, dtype, seed=1)
    b = tall(400, 2, dtype, seed=2)
    x, report = solve(ragged(a, [33]), b)
    wide = np.result_type(a.dtype, np.float64)
    want = scipy.linalg.lstsq(a.astype(wide), b.astype(wide), cond=1e-4)[0]
    assert report.rank == 7
    assert any("rank 7 of 12" in note for note in report.notes)
    assert np.linalg.norm(x - want) < 1e3 * np.finfo(dtype).eps * np.linalg.norm(want)
    norms = np.linalg.norm(b - a @ want, axis=0)
    assert np.allclose(report.residual_norms, norms, rtol=1e3 * np.finfo(dtype).eps)


def test_cond_is_what_counts_as_zero() -> None:
    u = scipy.linalg.qr(tall(200, 6, "f8"), mode="economic")[0]
    v = scipy.linalg.qr(tall(6, 6, "f8", seed=1))[0]
    values = 10.0 ** -np.arange(0, 12, 2)
    a, b = u * values @ v, tall(200, 1, "f8", seed=2)
    for cond, rank in ((1e-5, 3), (1e-9, 5), (None, 6)):
        x, report = solve(a, b, cond=cond)
        assert report.rank == rank
        want = (v[:rank].T / values[:rank]) @ u.T[:rank] @ b
        assert np.linalg.norm(x - want) < 1e-4 * np.linalg.norm(want)
    assert 1e10 < report.condition < 1e12


def test_fewer_rows_than_columns() -> None:
    a, b = tall(5, 9, "f8"), tall(5, 2, "f8", seed=1)
    x, report = solve(a, b)
    assert np.allclose(x, np.linalg.pinv(a) @ b)
    assert report.rank == 5
    x, report = solve(a[:1], b[:1])
    assert np.allclose(x, np.linalg.pinv(a[:1]) @ b[:1])
    assert report.rank == 1
    assert solve(np.full((1, 1), 2.0), np.ones(1))[0].tolist() == [0.5]


def test_zeros() -> None:
    x, report = solve(np.zeros((30, 4)), np.ones(30))
    assert x.tolist() == [0] * 4
    assert report.rank == 0
    assert report.condition == np.inf
    assert report.residual_norms[0] == pytest.approx(30**0.5)


@pytest.mark.parametrize("m", [3, 40])
def test_ridge(m: int) -> None:
    a, b = tall(m, 8, "c16"), tall(m, 2, "c16", seed=1)
    x, report = solve(a, b, damp=0.7)
    want = np.linalg.solve(a.conj().T @ a + 0.49 * np.eye(8), a.conj().T @ b)
    assert np.allclose(x, want)
    assert np.allclose(report.residual_norms, np.linalg.norm(b - a @ want, axis=0))
    assert report.m == m


def test_many_right_hand_sides_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tsqr, "factor_rows", lambda n, dtype: 37)
    a, b = tall(900, 33, "f8"), tall(900, 150, "f8", seed=1)
    x, report = solve(a, b)
    assert_solves(a, b, x, report)


def test_the_report_can_be_printed_and_saved() -> None:
    _, report = solve(tall(50, 3, "f8"), np.ones(50))
    assert re.search(r"lstsq, m = 50, n = 3, float64\n", str(report))
    assert re.search(r"condition +about [^\n]*(.|\n)*rank +3", str(report))
    assert report.to_dict()["rank"] == 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_nan_and_infinity_are_refused_with_their_index(tmp_path: Path, order: str) -> None:
    a = tall(500, 6, "f8")
    a[321, 4], a[400, 0] = np.nan, np.inf
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(64, 6))
    for matrix in (A, a, ragged(a, [77])):
        with pytest.raises(NonFiniteError, match=r"A\[321, 4\] is nan") as refused:
            solve(matrix, np.ones(500))
        assert refused.value.index == (321, 4)
    with pytest.raises(NonFiniteError, match=r"b\[7, 1\] is inf"):
        solve(tall(9, 2, "f8"), np.where(np.arange(18).reshape(9, 2) == 15, np.inf, 1))
    with pytest.raises(InvalidError, match="overflow float32"):
        solve(np.full((100, 2), 1e38, "f4"), np.ones(100, "f4"))


def test_numbers_of_numpy_are_numbers() -> None:
    a, b = tall(20, 3, "f8"), np.ones(20)
    expected, _ = solve(a, b, damp=2.0, cond=0.25)
    x, _ = solve(a, b, damp=np.int64(2), cond=np.float32(0.25))
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("named", [False, True])
def test_tables_and_their_columns_are_matrices_and_vectors(named: bool) -> None:
    a, b = tall(20, 3, "f8"), np.arange(20.0)
    for matrix, right in [(a, b), (a.T[:, :3].copy(), b[:3])]:
        x, _ = solve(Table(matrix), Column(right, named=named))
        np.testing.assert_array_equal(x, solve(matrix, right)[0])


def test_bad_input_is_refused() -> None:
    a, b = tall(20, 3, "f8"), np.ones(20)
    for problem, message in [
        ((a, b[:19]), "A has 20 rows, b has 19"),
        ((a,), "need b="),
        ((ragged(a, [3]),), "must give pairs"),
        ((zip([a], [b[:5]], strict=True),), "differ in rows"),
        ((iter([a, a[:, :2]]), b), r"need blocks of shape \(rows, 3\) .*A, have one of \(20, 2\)"),
        ((iter([]), b), "the iterator A has no rows"),
        ((iter([a]), b[:15]), "b ends after 15 rows, A has more"),
        ((iter([a[:4]]), b), "A ends after 4 rows, b has more"),
        ((a[None], b), "need a matrix"),
        ((a[:0], b[:0]), "at least one row"),
        ((a.astype("U"), b), "A has elements of"),
        ((a.astype(np.longdouble), b), "at most double precision"),
        (([[1, 2], [3]], b), "A is no matrix"),
        ((iter([a, a * 1j]), np.ones(40)), "need elements of float64 from A"),
    ]:
        with pytest.raises(InvalidError, match=message):
            solve(*problem)
    for options, message in [
        ({"damp": -1}, "damp must be"),
        ({"damp": np.nan}, "damp must be"),
        ({"cond": 2}, "cond must be"),
        ({"cond": "x"}, "cond must be"),
        ({"damp": True}, "damp must be"),
        ({"threads": 0}, "threads must be"),
    ]:
        with pytest.raises(InvalidError, match=message):
            solve(a, b, **options)


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    a, b = tall(2000, 50, "f8"), tall(2000, 1, "f8")
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(512, 10))
    for matrix in (A, a):
        with pytest.raises(BudgetError, match=r"need \d+ bytes .* raise memory=") as refused:
            solve(matrix, b, memory=50_000)
        need = int(str(refused.value).split()[1])
        x, report = solve(matrix, b, memory=need)
        assert_solves(a, b, x, report)
        assert report.peak_memory_bytes <= need
    with pytest.raises(BudgetError, match=r"need \d+ bytes"):
        oc.plan("lstsq", m=2000, n=50, memory=50_000, rates=RATES)


def test_a_stop_leaves_nothing(tmp_path: Path) -> None:
    A = oc.from_array(tall(600, 5, "f8"), tmp_path / "A", chunks=(64, 5))

    def blocks() -> Iterator[Any]:
        yield np.ones(100)
        signal.raise_signal(signal.SIGINT)
        yield np.ones(500)

    with pytest.raises(Interrupted, match="call lstsq again"):
        solve(A, blocks())
    assert [path.name for path in tmp_path.iterdir()] == ["A"]


def test_a_vector_goes_along_in_blocks_as_high_as_those_of_the_matrix(tmp_path: Path) -> None:
    """High chunks and a budget for one block: steps of a few rows would take 40 times as long."""
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((9000, 16)), rng.standard_normal(9000)
    with oc.from_array(a, tmp_path / "A", chunks=(4096, 16), order="F", progress=False) as A:
        for memory in (700_000, 1_300_000):
            x, report = lstsq(A, b, memory=memory, progress=False)
            np.testing.assert_allclose(x, np.linalg.lstsq(a, b)[0])
            assert report.spans is not None
            assert len(report.spans) < 60, memory


@pytest.mark.parametrize("columns", [None, 3])
def test_a_solution_on_disk(tmp_path: Path, columns: int | None) -> None:
    a = tall(900, 24, "f8")
    b = tall(900, 1, "f8", seed=1)[:, 0] if columns is None else tall(900, columns, "f8", seed=1)
    out = tmp_path / "x"
    x, report = solve(a, b, out=out, memory="600 KiB")
    assert isinstance(x, oc.Array)
    assert_solves(a, b, x[...], report)
    assert report.planned_bytes_written == x.nbytes <= report.bytes_written < x.nbytes + 4096
    assert report.peak_memory_bytes <= 600 << 10
    with pytest.raises(ExistsError, match="pass if_exists='overwrite'"):
        solve(a, b, out=out)
    again, report = solve(a, 2 * b, out=out, if_exists="overwrite")
    assert_solves(a, 2 * b, again[...], report)
    A = oc.from_array(a, tmp_path / "A", progress=False)
    with pytest.raises(InvalidError, match="operand itself"):
        solve(A, b, out=tmp_path / "A", if_exists="overwrite")
    assert np.array_equal(A[...], a)


def test_what_fails_leaves_no_solution(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError):
        solve(np.full((9, 2), np.nan), np.ones(9), out=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
