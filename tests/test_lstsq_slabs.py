"""Least squares with too many columns to stream rows: `lstsq` factors by slabs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, names_below, on_disk, one_thread
from tall import DTYPES, RATES, tall
from test_lstsq import assert_solves

import outcore as oc
from outcore.errors import (
    BudgetError,
    ExistsError,
    InvalidError,
    NonFiniteError,
    SingularMatrixError,
)
from outcore.linalg import LeastSquaresReport, lstsq, open_factor, qr_factor, qr_solve
from outcore.linalg._geometry.factor_plan import DTYPES as NAMES

__all__ = ["one_thread"]  # a fixture for every test here

M, N, MEMORY = 400, 300, 700_000


def solve(A: Any, b: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    return lstsq(A, b, **{"memory": MEMORY, "progress": False} | options)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["F", "C"])
def test_as_scipy(tmp_path: Path, dtype: str, order: str) -> None:
    a, b = tall(M, N, dtype), tall(M, 3, dtype, 1)
    A = oc.from_array(a, tmp_path / "A", order=order)
    memory = MEMORY if dtype in ("f8", "c8") else 1_000_000 if dtype == "c16" else 500_000
    for given in (b, b[:, 0], oc.from_array(b, tmp_path / "b")):
        before = names_below(tmp_path)
        x, report = solve(A, given, memory=memory)
        assert x.dtype == a.dtype
        assert isinstance(x, np.ndarray)
        right = np.asarray(given[...])
        assert x.shape == (N, *right.shape[1:])
        assert_solves(a, right, x, report)
        assert (report.verb, report.m, report.n, report.rank) == ("lstsq", M, N, N)
        assert report.method.startswith("QR by slabs of ")
        assert report.peak_memory_bytes <= memory
        values = np.linalg.svd(a, compute_uv=False)
        condition = np.linalg.norm(values) * np.linalg.norm(1 / values)
        assert condition / 3 < report.probed_condition < 3 * condition
        assert names_below(tmp_path) == before, "the factors are gone"


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("dtype", NAMES)
def test_the_plan_is_what_the_call_does(tmp_path: Path, dtype: str) -> None:
    """Compare the bytes, and the budget below which rows are no longer streamed."""
    m, n, k = 1024, 512, 5
    A = on_disk(tmp_path / "A", tall(m, n, dtype))
    b = tall(m, k, dtype, 1)
    ways = set()
    for memory in ("1500 kB", "3 MB", "6 MB", "24 MB", "48 MB"):
        options = {"m": m, "n": n, "rhs": k, "dtype": dtype, "order": "F", "rates": RATES}
        try:
            planned = oc.plan("lstsq", memory=memory, **options)  # type: ignore[arg-type]
        except BudgetError:
            with pytest.raises(BudgetError):
                solve(A, b, memory=memory)
            continue
        report = solve(A, b, memory=memory)[1]
        assert report.method == planned.method
        assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
        assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
        assert report.peak_memory_bytes <= planned.peak_memory_bytes <= report.memory_bytes
        assert report.words_lower_bound == planned.words_lower_bound
        ways.add(planned.method.split()[1])
    assert ways == {"by", "of"}


def test_either_may_be_complex(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), tall(M, 2, "c16", 1)
    x, report = solve(oc.from_array(a, tmp_path / "A", order="F"), b)
    assert x.dtype == np.complex128
    assert_solves(a.astype("c16"), b, x, report)
    c = tall(M, N, "c8")
    x, report = solve(oc.from_array(c, tmp_path / "C", order="F"), b.real.tolist())
    assert x.dtype == np.complex128
    assert_solves(c.astype("c16"), b.real, x, report)


def test_right_hand_sides_of_any_type_and_strides(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), np.arange(3.0 * M).reshape(M, 3) % 7 - 3
    A = oc.from_array(a, tmp_path / "A", order="F")
    wanted = solve(A, b)[0]
    views = [
        b[::-1].copy()[::-1], b[:, ::-1].copy()[:, ::-1], np.repeat(b, 2, axis=1)[:, ::2],
        b.astype("i4"), b.astype("f2"), b.astype(">f8"), b.astype(object).tolist(),
    ]  # fmt: skip
    for view in views:
        np.testing.assert_array_equal(solve(A, view)[0], wanted)
    column = solve(A, np.broadcast_to(b[0, 0], M) > 0)[0]
    np.testing.assert_array_equal(column, solve(A, np.full(M, float(b[0, 0] > 0)))[0])
    views[0][5, 1] = np.nan
    with pytest.raises(NonFiniteError) as found:
        solve(A, views[0])
    assert found.value.index == (5, 1)


def test_factors_are_kept_and_used(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), tall(M, 2, "f8", 1)
    A = oc.from_array(a, tmp_path / "A", order="F")
    x, _ = solve(A, b, keep_factors=True)
    qr = open_factor(tmp_path / "A.qr")
    np.testing.assert_array_equal(qr_solve(qr, b, progress=False), x)  # type: ignore[arg-type]
    again, report = solve(A, b)
    np.testing.assert_array_equal(again, x)
    assert report.bytes_written == 0
    assert report.method == "existing QR factors"
    assert (tmp_path / "A.qr").exists(), "they are the caller's"
    with oc.open_array(tmp_path / "A", "r+") as array:
        array[3, 3] = 7
    a[3, 3] = 7
    with pytest.raises(ExistsError, match="as it was before"):
        solve(A, b)
    x, report = solve(A, b, if_exists="overwrite")
    assert_solves(a, b, x, report)
    assert not (tmp_path / "A.qr").exists()
    x, report = solve(A, b, factors=tmp_path / "elsewhere")
    assert_solves(a, b, x, report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A"]


def dependent(dtype: str) -> dict[str, Matrix]:
    a = tall(M, N, dtype)
    repeated, zero = a.copy(), a.copy()
    repeated[:, 200] = a[:, 3]
    zero[:, 150] = 0
    sine, cosine = np.sin(0.9), np.cos(0.9)
    kahan = np.diag(sine ** np.arange(N)) @ (np.eye(N) - cosine * np.triu(np.ones((N, N)), 1))
    return {
        "repeated": repeated,
        "zero": zero,
        "rank": (a[:, :9] @ tall(9, N, dtype)),
        "kahan": kahan.astype(dtype),
        "hilbert": np.asarray(1 / (np.add.outer(np.arange(M), np.arange(N)) + 1.0)).astype(dtype),
    }


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_columns_that_depend_on_each_other_are_refused(tmp_path: Path, dtype: str) -> None:
    """An error, not noise: the diagonal of Kahan's R hides that it is singular."""
    for name, a in dependent(dtype).items():
        A = oc.from_array(a, tmp_path / name, order="F")
        with pytest.raises(SingularMatrixError, match="columns of A depend on each other"):
            solve(A, np.ones(len(a), dtype))
        assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".qr")] == []


def test_an_ill_conditioned_matrix_is_solved_with_a_note(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    U, V = np.linalg.qr(tall(M, N, "f8"))[0], np.linalg.qr(tall(N, N, "f8", 1))[0]
    a = (U * np.geomspace(1, 1e-13, N)[draw.permutation(N)]) @ V
    b = a @ np.ones(N)
    x, report = solve(oc.from_array(a, tmp_path / "A", order="F"), b)
    assert any("ill-conditioned" in note for note in report.notes)
    assert np.linalg.norm(b - a @ x) < 1e-12
    a = (U * np.geomspace(1, 1e-6, N)[draw.permutation(N)]) @ V
    assert solve(oc.from_array(a, tmp_path / "B", order="F"), b)[1].notes == []


def test_what_slabs_cannot_do_is_refused_with_a_way_out(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), np.ones(M)
    A = oc.from_array(a, tmp_path / "A", order="F")
    integers = oc.from_array(np.ones((M, N), "i8"), tmp_path / "I", order="F")
    before = names_below(tmp_path)
    for arguments, options, match in [
        ((a, b), {}, r"raise memory=, or copy A to disk with oc\.from_array"),
        ((iter([a]), iter([b])), {}, r"or copy A to disk"),
        ((A, iter([b])), {}, "or give b as an array"),
        ((A, b), {"damp": 0.1}, "or leave out damp="),
        ((integers, b), {"dtype": "f4", "memory": 500_000}, "or copy A to float32"),
        ((A, b), {"memory": 100_000}, r"need \d{6} bytes .* two panels of a QR of 400 x 300"),
    ]:
        with pytest.raises(BudgetError, match=match):
            solve(*arguments, **options)
    wide = oc.from_array(a.T.copy(), tmp_path / "W", order="F")
    with pytest.raises(BudgetError, match=r"need \d{6} bytes .* two panels of a QR of 400 x 300"):
        solve(wide, np.ones(N), memory=100_000)
    with pytest.raises(InvalidError, match="factors= is the matrix itself"):
        solve(A, b, factors=A.path)
    b[77] = np.nan
    with pytest.raises(NonFiniteError, match=r"b\[77"):
        solve(A, b)
    (tmp_path / "W").rename(tmp_path / "gone")
    assert names_below(tmp_path)[: len(before)] == before


def test_of_two_budgets_that_are_too_small_the_smaller_is_named(tmp_path: Path) -> None:
    very_tall = oc.from_array(tall(20_000, 40, "f8"), tmp_path / "A", order="F", chunks=(256, 40))
    with pytest.raises(BudgetError, match="least squares with 40 columns") as refused:
        solve(very_tall, np.ones(20_000), memory=50_000)
    need = int(str(refused.value).split()[1])
    assert solve(very_tall, np.ones(20_000), memory=need)[1].bytes_written == 0
    square = oc.from_array(tall(300, 300, "f8"), tmp_path / "B", order="F")
    with pytest.raises(BudgetError, match="two panels of a QR of 300 x 300") as refused:
        solve(square, np.ones(300), memory=50_000)
    need = int(str(refused.value).split()[1])
    assert solve(square, np.ones(300), memory=need)[1].peak_memory_bytes <= need


def test_other_verbs_name_it(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", tall(M, N, "f8"))
    for mode in ("r", "economic"):
        with pytest.raises(BudgetError, match="or factor A on disk with qr_factor"):
            oc.linalg.qr(A, mode=mode, memory=MEMORY, progress=False)  # type: ignore[call-overload]
    assert qr_factor(A, memory=MEMORY, progress=False).shape == (M, N)


def test_a_solution_on_disk(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), tall(M, 3, "f8", 1)
    A = oc.from_array(a, tmp_path / "A")
    for given in (b, b[:, 0], oc.from_array(b, tmp_path / "b")):
        x, report = solve(A, given, out=tmp_path / "x", if_exists="overwrite")
        assert isinstance(x, oc.Array)
        assert_solves(a, np.asarray(given[...]), x[...], report)
        assert report.peak_memory_bytes <= MEMORY
    with pytest.raises(ExistsError):
        solve(A, b, out=tmp_path / "x")
    with pytest.raises(InvalidError, match="choose another"):
        solve(A, b, out=tmp_path / "A", if_exists="overwrite")


def test_what_is_refused_leaves_no_solution_and_no_factors(tmp_path: Path) -> None:
    """The condition is known only once there is a solution, which is noise."""
    a = dependent("f8")["repeated"]
    A = oc.from_array(a, tmp_path / "A", order="F")
    for more in ({}, {"keep_factors": True}):
        with pytest.raises(SingularMatrixError, match="columns of A depend on each other"):
            solve(A, np.ones(M), out=tmp_path / "x", **more)
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "A.qr").exists(), "they were to be kept, and are right"


def test_factors_that_are_not_made_are_not_kept_silently(tmp_path: Path) -> None:
    a, b = tall(M, 20, "f8"), tall(M, 1, "f8", 1)
    for given, right in ((a, b), (a.T.copy(), b[:20])):
        report = solve(oc.from_array(given, tmp_path / "A", if_exists="overwrite"), right,
                       keep_factors=True)[1]  # fmt: skip
        assert any("no factors were kept" in note for note in report.notes)
        assert not (tmp_path / "A.qr").exists()
        assert solve(tmp_path / "A", right)[1].notes == []
