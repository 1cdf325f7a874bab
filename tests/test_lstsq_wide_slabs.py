"""Solutions of least norm if not even m x m elements fit: `lstsq` factors Aᵀ by slabs."""

import contextlib
import functools
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, one_thread
from qr_factors import assert_factors, q_and_r
from stopping import after_notes, interrupt
from tall import DTYPES, RATES, tall

import outcore as oc
from outcore.errors import (
    BudgetError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
    JournalError,
    NonFiniteError,
    SingularMatrixError,
)
from outcore.files import catalog
from outcore.linalg import (
    LeastSquaresReport,
    TransposedQRFactor,
    form_q,
    lstsq,
    open_factor,
    qr_factor,
    qr_solve,
)

__all__ = ["one_thread"]  # a fixture for every test here

M, N, MEMORY = 300, 400, 700_000

METHOD = "solution of least norm: QR of Aᵀ by slabs of "


def solve(A: Any, b: Any, **options: Any) -> tuple[Any, LeastSquaresReport]:
    return lstsq(A, b, **{"memory": MEMORY, "progress": False} | options)


def stored(path: Path, a: Matrix, order: str = "C", **options: Any) -> oc.Array:
    return oc.from_array(a, path, order=order, progress=False, **options)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1)
def decomposed(elements: bytes, dtype: str, shape: tuple[int, int]) -> tuple[Matrix, ...]:
    """Return SciPy's singular value decomposition of a matrix, in double precision."""
    a = np.frombuffer(elements, dtype).reshape(shape)
    found = scipy.linalg.svd(a.astype(np.result_type(dtype, np.float64)), full_matrices=False)
    return tuple(found)


def svd(a: Matrix) -> tuple[Matrix, ...]:
    """Return the same decomposition again while tests ask for that of one matrix."""
    return decomposed(a.tobytes(), a.dtype.str, a.shape)


def assert_solves(a: Matrix, b: Matrix, x: Matrix, scale: float = 30) -> None:
    """Compare as closely as the condition allows, not its square (Higham 2002, theorem 21.4)."""
    double = np.result_type(a.dtype, b.dtype, np.float64)
    left, values, right = svd(a)
    want = right.conj().T @ ((left.conj().T @ b.astype(double)).T / values).T
    eps = float(np.finfo(x.dtype).eps)
    bound = scale * len(a) * eps * values[0] / values[-1] * np.linalg.norm(want)
    assert np.linalg.norm(x - want) <= bound
    assert x.shape == want.shape
    rest = np.linalg.norm(b - a.astype(double) @ x)
    assert rest <= scale * len(a) * eps * values[0] * np.linalg.norm(x), "backward stable"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(M, N), (399, 400), (180, 900)])
def test_as_scipy(tmp_path: Path, dtype: str, order: str, shape: tuple[int, int]) -> None:
    m, n = shape
    a, b = tall(m, n, dtype), tall(m, 3, dtype, 1)
    A = stored(tmp_path / "A", a, order)
    memory = int(1.9 * a.itemsize * m * m)
    for given in (b, b[:, 0], oc.from_array(b, tmp_path / "b")):
        before = names_below(tmp_path)
        x, report = solve(A, given, memory=memory)
        assert x.dtype == a.dtype
        assert isinstance(x, np.ndarray)
        right = np.asarray(given[...])
        assert x.shape == (n, *right.shape[1:])
        assert_solves(a, right, x)
        assert report.method is not None
        assert report.method.startswith(METHOD)
        assert (report.verb, report.m, report.n, report.rank) == ("lstsq", m, n, m)
        assert report.residual_norms == [0.0] * (right.size // m)
        assert report.peak_memory_bytes <= memory
        # The call reads a b on disk in whole disk blocks.
        beside = report.bytes_read - report.planned_bytes_read
        assert beside == 0 or (given is not b and 0 < beside < 8192 * 3)
        assert report.bytes_written == report.planned_bytes_written > a.nbytes
        assert report.words_lower_bound == m * n
        values = svd(a)[1]
        condition = np.linalg.norm(values) * np.linalg.norm(1 / values)
        assert condition / 3 < report.probed_condition < 3 * condition
        assert names_below(tmp_path) == before, "the factors are gone"


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    *itertools.product(DTYPES, ({"order": "C"}, {"order": "F"})),
    ("f8", {"order": "C", "chunks": (64, 256)}),
    ("c8", {"order": "F", "chunks": (256, 48)}),
    ("f4", {"order": "C", "chunks": (1, 1024)}),
]


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS, ids=str)
def test_the_plan_is_what_the_call_does(tmp_path: Path, dtype: str, layout: dict[str, Any]) -> None:
    """Compare the bytes, and the budget below which columns are no longer streamed."""
    m, n, k = 512, 1024, 5
    a = tall(m, n, dtype)
    A, b = stored(tmp_path / "A", a, **layout), tall(m, k, dtype, 1)
    ways, copies = set(), 0
    for memory in (100_000, 500_000, 1_500_000, 3_000_000, 9_000_000, 24_000_000):
        budget = memory * a.itemsize // 8
        planned = None
        options = {"m": m, "n": n, "rhs": k, "dtype": dtype, "rates": RATES} | layout
        with contextlib.suppress(BudgetError):
            planned = oc.plan("lstsq", memory=budget, **options)
        if planned is None:
            with pytest.raises(BudgetError, match="two panels of a QR of 1024 x 512"):
                solve(A, b, memory=budget)
            ways.add(None)
            continue
        x, report = solve(A, b, memory=budget)
        assert report.method == planned.method
        assert report.bytes_read == planned.bytes_read == report.planned_bytes_read
        assert report.bytes_written == planned.bytes_written == report.planned_bytes_written
        assert report.peak_memory_bytes <= planned.peak_memory_bytes <= report.memory_bytes
        assert report.words_lower_bound == planned.words_lower_bound
        assert report.flops == pytest.approx(planned.flops)
        np.testing.assert_allclose(a @ x, b, atol=1e-3 if dtype in ("f4", "c8") else 1e-12)
        copies += "copied to tiles first" in planned.method
        ways.add(planned.method.split(" by ")[0].split(" as ")[0])
    assert ways - {"solution of least norm: QR of columns"} == {
        None, METHOD.split(" by ")[0], "QR of rows",
    }  # fmt: skip
    if layout["order"] == "F":
        assert len(ways) == 4
    assert (copies > 0) == (layout["order"] == "F")


def test_either_may_be_complex(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), tall(M, 2, "c16", 1)
    x, _ = solve(stored(tmp_path / "A", a), b)
    assert x.dtype == np.complex128
    assert_solves(a, b, x)
    c = tall(M, N, "c8")
    x, _ = solve(stored(tmp_path / "C", c), b.real.tolist())
    assert x.dtype == np.complex128
    assert_solves(c.astype("c16"), b.real, x)


@pytest.mark.parametrize("condition", [1e6, 1e11])
def test_the_condition_counts_not_its_square(tmp_path: Path, condition: float) -> None:
    for dtype in ("f8", "c16"):
        left, right = np.linalg.qr(tall(M, M, dtype))[0], np.linalg.qr(tall(N, M, dtype, 1))[0]
        values = np.geomspace(1, 1 / condition, M)
        a = (left * values) @ right.conj().T
        b = tall(M, 1, dtype, 2)
        A = stored(tmp_path / dtype, a)
        x, report = solve(A, b, memory=2 * MEMORY if dtype == "c16" else MEMORY)
        want = right @ ((left.conj().T @ b) / values[:, None])
        assert np.linalg.norm(x - want) <= 30 * M * 2.2e-16 * condition * np.linalg.norm(want)
        assert condition / 3 < report.probed_condition < 30 * condition
        is_noted = any("A is ill-conditioned" in note for note in report.notes)
        assert is_noted == (report.probed_condition * N * 2.2e-16 >= 1)


def test_solutions_on_disk_and_in_groups(tmp_path: Path) -> None:
    a, b = tall(M, N, "c16"), tall(M, 200, "c16", 1)
    A = stored(tmp_path / "A", a)
    for number, given in enumerate((b, b[:, 0], oc.from_array(b, tmp_path / "b"))):
        x, report = solve(A, given, memory=2 * MEMORY, out=tmp_path / f"x{number}")
        assert isinstance(x, oc.Array)
        assert_solves(a, np.asarray(given[...]), x[...])
        assert report.peak_memory_bytes <= 2 * MEMORY
    assert report.bytes_read > 200 * M * 16 + 2 * a.nbytes
    with pytest.raises(ExistsError):
        solve(A, b, out=tmp_path / "x0")
    with pytest.raises(InvalidError, match="choose another"):
        solve(A, b, out=tmp_path / "A", if_exists="overwrite")


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_are_kept_and_used(tmp_path: Path, dtype: str) -> None:
    """The factors are those of Aᵀ, and `qr_solve` finds solutions of least norm with them."""
    a, b = tall(M, N, dtype), tall(M, 2, dtype, 1)
    A, memory = stored(tmp_path / "A", a), MEMORY * a.itemsize // 8
    x, _ = solve(A, b, memory=memory, keep_factors=True)
    qr = open_factor(tmp_path / "A.qr")
    assert isinstance(qr, TransposedQRFactor)
    assert qr.shape == (N, M)
    assert_factors(a.T, qr)
    np.testing.assert_array_equal(qr_solve(qr, b, memory=memory, progress=False), x)
    assert oc.last_report().m == M  # type: ignore[union-attr]
    assert oc.last_report().n == N  # type: ignore[union-attr]
    on_disk = qr_solve(qr, oc.from_array(b, tmp_path / "b"), memory=memory, progress=False)
    np.testing.assert_array_equal(on_disk[...], x)
    assert_solves(a, b + 1j, qr_solve(qr, b + 1j, memory=2 * memory, progress=False))
    with pytest.raises(InvalidError, match=rf"right-hand side of shape \({M},\)"):
        qr_solve(qr, np.ones(N), progress=False)
    Q, _ = form_q(qr, memory=memory, progress=False)
    np.testing.assert_allclose(Q[...], q_and_r(qr)[0], atol=1e-4)
    planned = oc.plan(
        "qr_solve", m=M, n=N, rhs=2, dtype=dtype, memory=memory, rates=RATES, tile=qr.tile
    )
    again, report = solve(A, b, memory=memory)
    np.testing.assert_array_equal(again, x)
    assert report.bytes_written == 0
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.method == "existing QR factors"
    assert (report.m, report.n, report.rank) == (M, N, M)
    assert (tmp_path / "A.qr").exists(), "they are the caller's"
    with oc.open_array(tmp_path / "A", "r+") as array:
        array[3, 3] = 7
    a[3, 3] = 7
    with pytest.raises(ExistsError, match="as it was before"):
        solve(A, b, memory=memory)
    x, _ = solve(A, b, memory=memory, if_exists="overwrite", factors=tmp_path / "A.qr")
    assert_solves(a, b, x)
    assert not (tmp_path / "A.qr").exists()


def test_factors_of_a_and_of_its_transpose_are_told_apart(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), tall(M, 2, "f8", 1)
    A = stored(tmp_path / "A", a, "F")
    factor = functools.partial(qr_factor, A, memory=MEMORY, progress=False)
    kept = factor()
    with pytest.raises(InvalidError, match="lstsq finds the one of least norm"):
        qr_solve(kept, b, progress=False)
    with pytest.raises(ExistsError, match=r"holds QR factors of .*, not transposed QR factors"):
        solve(A, b)
    assert_factors(a, open_factor(kept.path))  # type: ignore[arg-type]
    x, _ = solve(A, b, if_exists="overwrite", keep_factors=True)
    assert_solves(a, b, x)
    with pytest.raises(ExistsError, match="holds complete factors"):
        factor()
    assert_factors(a, factor(if_exists="overwrite"))

    shutil.rmtree(kept.path)
    with after_notes(1, interrupt), pytest.raises(Interrupted):
        factor()
    with pytest.raises(JournalError, match="stopped factorization by qr_factor, not by lstsq"):
        solve(A, b)
    assert_factors(a, factor())
    shutil.rmtree(kept.path)
    with after_notes(1, interrupt), pytest.raises(Interrupted, match="call lstsq again"):
        solve(A, b)
    with pytest.raises(IncompleteError, match=r"call lstsq on .*A again to finish it"):
        open_factor(kept.path)
    entry = catalog.recognise(kept.path)
    assert entry is not None
    assert "call lstsq with the same arguments" in entry.text
    with pytest.raises(JournalError, match="stopped factorization by lstsq, not by qr_factor"):
        factor()
    assert_factors(a, factor(resume=False))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_rows_that_depend_on_each_other_are_refused(tmp_path: Path, dtype: str) -> None:
    """An error, not a solution of noise."""
    a = tall(M, N, dtype)
    repeated, zero, first = a.copy(), a.copy(), a.copy()
    repeated[200], zero[150], first[0] = a[3], 0, 0
    given = {"repeated": repeated, "zero": zero, "first": first, "rank": a[:, :9] @ a[:9]}
    for name, matrix in given.items():
        for order in "CF":
            A = stored(tmp_path / (name + order), matrix, order)
            for more in ({}, {"out": tmp_path / "x"}):
                with pytest.raises(SingularMatrixError, match="the rows of A depend on each") as no:
                    solve(A, np.ones(M, dtype), **more)
                assert "leave out rows" in str(no.value)
            assert not (tmp_path / "x").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".qr")] == []


def test_the_memory_that_is_named_for_dependent_rows_suffices(tmp_path: Path) -> None:
    """It suffices for every layout, any right-hand sides, and each type of x."""
    a = tall(M, N, "f8")
    a[200] = a[3]
    for order, k, dtype, out in [
        ("C", 1, "f8", None), ("F", 100, "f8", tmp_path / "x"), ("C", 3, "c16", None),
    ]:  # fmt: skip
        A, b = stored(tmp_path / "A", a, order, if_exists="overwrite"), tall(M, k, dtype, 1)
        with pytest.raises(SingularMatrixError, match=r"raise memory= to \d+ bytes") as refused:
            solve(A, b, out=out)
        need = int(str(refused.value).split("raise memory= to ")[1].split()[0])
        x, report = solve(A, b, memory=need, out=out)
        assert report.rank == M - 1
        np.testing.assert_allclose(x[...], np.linalg.lstsq(a, b)[0], atol=1e-10)
        with pytest.raises(SingularMatrixError):
            solve(A, b, memory=need - 1, out=tmp_path / "y")


def test_that_rounding_leaves_a_residual_is_noted(tmp_path: Path) -> None:
    """The report says 0, the residual without rounding."""
    a, b = tall(M, N, "f8"), np.arange(float(M))
    a[200] = a[3] + 1e-12 * a[200]
    for options in ({}, {"cond": 0.0}):
        x, report = solve(stored(tmp_path / "A", a, if_exists="overwrite"), b, **options)
        assert report.residual_norms == [0.0]
        assert np.linalg.norm(b - a @ x) > 1e-3
        assert any("nor is ‖b - A x‖ zero" in note for note in report.notes)
        a[200] = a[3]


def test_what_cannot_be_done_is_refused_with_a_way_out(tmp_path: Path) -> None:
    a, b = tall(M, N, "f8"), np.ones(M)
    A = stored(tmp_path / "A", a)
    integers = stored(tmp_path / "I", np.ones((M, N), "i8"))
    before = names_below(tmp_path)
    for arguments, options, match in [
        ((a, b), {}, r"300 rows and 400 columns.* oc\.from_array"),
        ((A, iter([b])), {}, "300 rows and 400 columns.* or give b as an array"),
        ((A, b), {"damp": 0.1}, "300 rows and 400 columns.* or leave out damp="),
        ((integers, b), {"dtype": "f4", "memory": 500_000}, "or copy A to float32"),
        ((A, b), {"memory": 100_000}, r"need \d{6} bytes .* two panels of a QR of 400 x 300"),
    ]:
        with pytest.raises(BudgetError, match=match):
            solve(*arguments, **options)
    with pytest.raises(InvalidError, match="factors= is the matrix itself"):
        solve(A, b, factors=A.path)
    with pytest.raises(InvalidError, match=r"^factors= lies in the matrix"):
        solve(A, b, factors=A.path / "F")
    b[77] = np.nan
    with pytest.raises(NonFiniteError, match=r"b\[77"):
        solve(A, b)
    for bad in (np.nan, np.inf):
        wrong = a.copy()
        wrong[123, 321] = bad
        B = stored(tmp_path / "B", wrong, if_exists="overwrite")
        with pytest.raises(NonFiniteError, match=r"A\[123, 321\] is") as found:
            solve(B, np.ones(M))
        assert found.value.index == (123, 321)
    huge = stored(tmp_path / "B", a * 1e307, if_exists="overwrite")
    with pytest.raises(InvalidError, match="overflow float64; scale its rows"):
        solve(huge, np.ones(M))
    shutil.rmtree(tmp_path / "B")
    assert names_below(tmp_path) == before


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    for m, n, chunks, named in [
        (300, 301, None, "two panels of a QR of 301 x 300"),
        (40, 9000, (40, 16), "with 40 rows and 9000 columns"),
        (40, 9000, (1, 9000), "two panels of a QR of 9000 x 40"),
    ]:
        order = "F" if chunks == (40, 16) else "C"
        A = stored(tmp_path / "A", tall(m, n, "f8"), order, chunks=chunks, if_exists="overwrite")
        with pytest.raises(BudgetError, match=named) as refused:
            solve(A, np.ones(m), memory=20_000)
        need = int(str(refused.value).split()[1])
        x, report = solve(A, np.ones(m), memory=need)
        np.testing.assert_allclose(A[...] @ x, 1, atol=1e-9)
        assert report.peak_memory_bytes <= need
