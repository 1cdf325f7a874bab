"""Assumptions of `solve` about a matrix: Cholesky where they hold, LU otherwise."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, hpl_residual, on_disk, one_thread, random_matrix
from lu_by_method import RATES
from stopping import after_notes, interrupt, stop_after

import outcore as oc
from outcore.errors import (
    InvalidError,
    NonFiniteError,
    NotFoundError,
    NotPositiveDefiniteError,
    SymmetryWarning,
)
from outcore.linalg import cho_factor, lu_factor, solve
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._systems.hermitian import find_asymmetry

__all__ = ["one_thread"]  # a fixture for every test here

N, TINY = 300, 500_000


def positive(n: int, dtype: Any = "f8") -> Matrix:
    """Return a matrix that is Hermitian positive definite, to the last bit."""
    a = random_matrix(n, dtype)
    a = a @ a.conj().T / n + np.eye(n, dtype=dtype)
    lower = np.tril(a, -1)
    return lower + lower.conj().T + np.diag(a.diagonal().real)


def solved(A: oc.Array | Path, b: Any, assume_a: Any, **more: Any) -> tuple[Any, oc.Report]:
    return solve(A, b, assume_a=assume_a, **{"memory": TINY, "progress": False} | more)


def look(path: Path, memory: int = TINY) -> tuple[str, oc.Report]:
    return find_asymmetry(oc.open_array(path).place, memory, None, False)


@pytest.mark.parametrize("assume_a", ["pos", "auto"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_definite(tmp_path: Path, dtype: str, order: str, assume_a: str) -> None:
    a, b = positive(N, dtype), random_matrix(N, dtype, 1)[:, :3]
    A = oc.from_array(a, tmp_path / "Z", order=order, chunks=(77, 60))
    x, report = solved(A, b, assume_a)
    assert hpl_residual(a, x, b) < 16
    assert report.method == "Cholesky"
    assert report.backward_error is not None
    assert report.backward_error < N * np.finfo(dtype).eps
    assert report.verb == "solve"
    found = "A is Hermitian and its diagonal positive"
    assert (found in report.notes) == (assume_a == "auto")
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("assume_a", ["pos", "auto"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_not_positive_definite_after_all(tmp_path: Path, dtype: str, assume_a: str) -> None:
    """Hermitian with a positive diagonal, but with a negative eigenvalue."""
    a, b = positive(N, dtype), random_matrix(N, dtype, 1)[:, :3]
    a[200, 201] = a[201, 200] = 50
    x, report = solved(on_disk(tmp_path / "Z", a), b, assume_a)
    assert hpl_residual(a, x, b) < 16
    assert report.method == "LU"
    (note,) = [note for note in report.notes if "Cholesky failed" in note]
    assert "202" in note
    assert note.endswith("solved by LU")
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("assume_a", ["sym", "her", "gen"])
def test_kinds_that_are_solved_by_lu(tmp_path: Path, assume_a: str) -> None:
    a = random_matrix(N, "f8")
    a = a + a.T
    x, report = solved(on_disk(tmp_path / "Z", a), np.ones(N), assume_a)
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert report.method == "LU"
    assert (f"assume_a='{assume_a}': solved by LU" in report.notes) == (assume_a != "gen")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("at", [(5, 3), (3, 5), (299, 0), (0, 299), (150, 149), (298, 299)])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_one_element_makes_the_difference(tmp_path: Path, dtype: str, at: tuple[int, int]) -> None:
    a, b = positive(N, dtype), np.ones(N)
    a[at] = (
        np.nextafter(a[at].real, 9) + 1j * a[at].imag if dtype == "c8" else np.nextafter(a[at], 9)
    )
    x, report = solved(on_disk(tmp_path / "Z", a), b, "auto", memory=200_000)
    assert report.method == "LU"
    i, j = max(at), min(at)
    assert report.notes[0] == (
        f"A is not Hermitian: A[{i}, {j}] and A[{j}, {i}] differ: solved by LU"
    ) or report.notes[0] == (
        f"A is not Hermitian: A[{j}, {i}] and A[{i}, {j}] differ: solved by LU"
    )
    assert hpl_residual(a, x, b) < 16


def test_complex_matrices_that_are_symmetric_only(tmp_path: Path) -> None:
    a = positive(N, "c16")
    for name, changed in (("real", a.real + 1j * np.abs(a.imag)), ("diagonal", a.copy())):
        if name == "diagonal":
            changed[7, 7] += 1e-18j
        symmetric = changed if name == "diagonal" else np.tril(changed) + np.tril(changed, -1).T
        _, report = solved(on_disk(tmp_path / name, symmetric), np.ones(N), "auto")
        assert report.method == "LU"
        assert "not Hermitian" in report.notes[0]
        assert ("A[7, 7] is not real" in report.notes[0]) == (name == "diagonal")


def test_what_pos_promises_wrongly_is_said(tmp_path: Path) -> None:
    a = positive(N)
    a[3, 200] += 1
    A = on_disk(tmp_path / "Z", a)
    with pytest.warns(SymmetryWarning, match="assume_a='gen'"):
        _, report = solved(A, np.ones(N), "pos")
    assert report.backward_error is not None
    assert report.backward_error > 1e-6
    assert any("not Hermitian" in note for note in report.notes)


@pytest.mark.parametrize("assume_a", ["pos", "positive definite"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_small_difference_of_the_triangles_is_warned_of(
    tmp_path: Path, order: str, assume_a: str
) -> None:
    """Change either triangle by far less than the square root of the precision."""
    a, b = positive(N), random_matrix(N, "f8", 1)[:, :2]
    want = scipy.linalg.solve(a, b)
    for name, at in (("upper", (3, 200)), ("lower", (200, 3))):
        other = a.copy()
        other[at] += 1e-8
        A = oc.from_array(other, tmp_path / name, order=order)
        with pytest.warns(SymmetryWarning):
            x, _ = solved(A, b, assume_a)
        np.testing.assert_allclose(x, want, atol=1e-7)


@pytest.mark.parametrize("at", [(3, 200), (200, 3), (8, 7)])
def test_a_difference_is_warned_of_before_a_matrix_is_given_up(
    tmp_path: Path, at: tuple[int, int]
) -> None:
    """Warn before `overwrite_a`, since no residual follows; ignore differences from rounding."""
    a, b = positive(N), random_matrix(N, "f8", 1)[:, :2]
    for name, change in (("Z", 1e-8), ("R", 1e-15)):
        other = a.copy()
        other[at] += change
        A = on_disk(tmp_path / name, other, chunks=(64, 32))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            x, report = solved(A, b, "pos", overwrite_a=True, memory="1 MB")
        lower = np.tril(other) + np.tril(other, -1).T
        np.testing.assert_allclose(x, scipy.linalg.solve(lower, b), rtol=1e-9)
        assert report.bytes_read == report.planned_bytes_read
        said = "A[8, 7]" if at == (8, 7) else "A[200, 3] and A[3, 200] differ"
        assert any(said in note for note in report.notes) == (name == "Z")
        assert [one.category for one in found] == [SymmetryWarning] * (name == "Z")
        assert all(said in str(one.message) and one.filename == __file__ for one in found)


def test_the_look_before_a_matrix_is_given_up_is_planned(tmp_path: Path) -> None:
    n, memory = 1024, 12 << 20
    A = on_disk(tmp_path / "Z", positive(n))
    _, report = solved(A, np.ones(n), "pos", overwrite_a=True, memory=memory)
    planned = oc.plan(
        "solve", n=n, memory=memory, path=tmp_path, assume_a="pos", overwrite_a=True, rates=RATES
    )
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_read == pytest.approx(planned.bytes_read, rel=0.05)
    assert report.peak_memory_bytes <= planned.peak_memory_bytes


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("lower", [True, False])
def test_a_factorization_sees_the_blocks_on_the_diagonal(
    tmp_path: Path, order: str, lower: bool
) -> None:
    """Compare the triangles in diagonal blocks, unless one triangle is all zeros."""
    a = positive(N, "c16")
    A = oc.from_array(a, tmp_path / "A", order=order, progress=False)
    left_out = np.tril(a) if lower else np.triu(a)
    H = oc.from_array(left_out, tmp_path / "H", order=order, progress=False)
    options: dict[str, Any] = {"lower": lower, "memory": TINY, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cho_factor(A, **options)
        cho_factor(H, **options)
    for at in [(7, 3), (3, 7), (299, 298)]:
        other = a.copy()
        other[at] += 1e-3
        path = tmp_path / f"B{at[0]}"
        B = oc.from_array(other, path, order=order, progress=False)
        with pytest.warns(SymmetryWarning, match=r"lu_factor, or correct") as found:
            c = cho_factor(B, **options)
        (one,) = found
        elements = {f"A[{at[0]}, {at[1]}]", f"A[{at[1]}, {at[0]}]"}
        assert one.filename == __file__
        assert all(element in str(one.message) for element in elements)
        assert c.report is not None
        assert any("A is not Hermitian" in note for note in c.report.notes)
        assert c.report.bytes_read == c.report.planned_bytes_read


SINGLE = [("f4", "f8"), ("f4", "c16"), ("c8", "c16"), ("c8", "f8")]
"""Types of A and b, where the arithmetic is in double precision and A in single."""


def nearly_mirrored(dtype: str, change: float = 0.0) -> Matrix:
    """Return a matrix whose upper triangle is rounded otherwise, and has elements changed.

    It stays positive definite with a change below 1.
    """
    a = positive(N, dtype)
    above = np.triu_indices(N, 1)
    a[above] *= a.real.dtype.type(1 + 1e-7)
    a[range(20), range(200, 220)] += change
    return a


@pytest.mark.parametrize(("dtype", "right"), SINGLE)
@pytest.mark.parametrize("order", ["C", "F"])
def test_rounding_of_a_matrix_in_single_precision_is_no_difference(
    tmp_path: Path, order: str, dtype: str, right: str
) -> None:
    """Solve in double precision, in which the rounding of the elements is not small."""
    for change in (0.0, 0.9):
        a, b = nearly_mirrored(dtype, change), random_matrix(N, right, 1)[:, :2]
        A = oc.from_array(a, tmp_path / f"Z{change}", order=order, progress=False)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            x, report = solved(A, b, "pos", memory="2 MB")
        assert x.dtype == np.result_type(dtype, right)
        assert [one.category for one in found] == [SymmetryWarning] * (change > 0)
        assert any("not Hermitian" in note for note in report.notes) == (change > 0)


@pytest.mark.parametrize(("dtype", "wide"), [("f4", "f8"), ("c8", "c16")])
@pytest.mark.parametrize("lower", [True, False])
def test_factors_in_double_precision_of_a_matrix_in_single(
    tmp_path: Path, lower: bool, dtype: str, wide: str
) -> None:
    a = nearly_mirrored(dtype)
    if dtype == "c8":
        a[range(N), range(N)] += 1e-7j * a.diagonal().real
    A = on_disk(tmp_path / "Z", a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = cho_factor(A, dtype=wide, lower=lower, memory=TINY, progress=False)
    assert c.dtype == wide
    assert c.report is not None
    assert not any("not Hermitian" in note for note in c.report.notes)


@pytest.mark.parametrize("method", ["cg", "gauss_seidel"])
@pytest.mark.parametrize(("dtype", "right"), SINGLE)
def test_iterations_in_double_precision_with_a_matrix_in_single(
    tmp_path: Path, dtype: str, right: str, method: str
) -> None:
    A = oc.from_array(nearly_mirrored(dtype), tmp_path / "Z", chunks=(64, 64), progress=False)
    options: dict[str, Any] = {} if method == "cg" else {"assume_a": "pos"}
    b = random_matrix(N, right, 1)[:, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SymmetryWarning)
        getattr(oc.linalg, method)(A, b, tol=1e-4, progress=False, **options)


@pytest.mark.parametrize("dtype", ["i8", "u2"])
def test_integers_are_not_rounded(tmp_path: Path, dtype: str) -> None:
    """Warn of the smallest difference of integers, which are exact, also if it is small."""
    a = np.full((N, N), 3, dtype)
    np.fill_diagonal(a, 60_000)
    for change in (0, 1):
        a[3, 200] += np.dtype(dtype).type(change)
        A = on_disk(tmp_path / f"Z{change}", a)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            solved(A, np.ones(N), "pos", memory="2 MB")
        assert [one.category for one in found] == [SymmetryWarning] * change


def test_a_resumed_factorization_knows_of_a_difference(tmp_path: Path) -> None:
    a = positive(N)
    a[7, 3] += 1e-3
    A = on_disk(tmp_path / "A", a)
    stop_after(2, A, cho_factor, memory=TINY)
    with pytest.warns(SymmetryWarning, match=r"A\[(7, 3|3, 7)\]"):
        c = cho_factor(A, memory=TINY, progress=False)
    assert c.report is not None
    assert "resumed at panel" in c.report.notes[0]


@pytest.mark.parametrize(
    ("long", "short"),
    [("general", "gen"), ("symmetric", "sym"), ("hermitian", "her"), ("positive definite", "pos")],
)
def test_the_long_names_of_scipy(tmp_path: Path, long: Any, short: Any) -> None:
    a, b = positive(N), np.ones(N)
    A = on_disk(tmp_path / "Z", a)
    x, report = solved(A, b, long)
    assert report.notes == solved(A, b, short)[1].notes
    np.testing.assert_allclose(x, scipy.linalg.solve(a, b))
    plans = [
        oc.plan("solve", n=N, memory=TINY, assume_a=name, rates=RATES) for name in (long, short)
    ]
    assert plans[0] == plans[1]
    if short != "gen":
        x, _ = oc.linalg.gauss_seidel(A, b, assume_a=long, tol=1e-10, progress=False)
        np.testing.assert_allclose(x, scipy.linalg.solve(a, b), rtol=1e-7)


@pytest.mark.parametrize("name", ["banded", "tridiagonal", "diagonal", "upper triangular"])
def test_structures_that_are_not_made_use_of(tmp_path: Path, name: Any) -> None:
    A = on_disk(tmp_path / "Z", positive(N))
    for call in (oc.linalg.solve, oc.linalg.gauss_seidel, oc.linalg.gmres):
        with pytest.raises(InvalidError, match=f"assume_a='{name}' does not exist"):
            call(A, np.ones(N), assume_a=name, progress=False)


@pytest.mark.parametrize("method", ["cg", "gauss_seidel", "gmres", "jacobi"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_iterations_see_the_blocks_on_the_diagonal(tmp_path: Path, order: str, method: str) -> None:
    a = positive(N)
    a[7, 3] += 1e-3
    A = oc.from_array(a, tmp_path / "Z", order=order, chunks=(64, 64), progress=False)
    options: dict[str, Any] = {} if method == "cg" else {"assume_a": "pos"}
    with pytest.warns(SymmetryWarning, match=r"A\[(7, 3|3, 7)\]"):
        getattr(oc.linalg, method)(A, np.ones(N), tol=1e-8, progress=False, **options)


def test_a_matrix_in_memory_is_told_where_it_can_be_solved_with(tmp_path: Path) -> None:
    for given in (np.eye(3), [[1.0]]):
        for call in (oc.linalg.solve, oc.linalg.gmres, oc.linalg.cg):
            with pytest.raises(InvalidError, match=r"in memory; scipy.linalg .* oc.from_array"):
                call(given, np.ones(3))  # type: ignore[arg-type]
        for factor in (lu_factor, cho_factor, oc.linalg.qr_factor, oc.linalg.slogdet):
            with pytest.raises(InvalidError, match="need a matrix on disk"):
                factor(given)


def test_right_hand_sides_by_their_path(tmp_path: Path) -> None:
    """Use an array by its path; a file of another format raises an error with a fix."""
    a, b = positive(N), random_matrix(N, "f8", 1)[:, :2]
    A = on_disk(tmp_path / "Z", a)
    oc.from_array(b, tmp_path / "b", progress=False)
    x, _ = solved(A, tmp_path / "b", "gen")
    np.testing.assert_allclose(x[...], scipy.linalg.solve(a, b))
    np.save(tmp_path / "b.npy", b)
    calls: list[Any] = [oc.linalg.solve, oc.linalg.gmres, oc.linalg.lstsq, oc.linalg.matmul]
    for call in calls:
        with pytest.raises(NotFoundError, match="copy it with"):
            call(A, str(tmp_path / "b.npy"), progress=False)


@pytest.mark.parametrize("value", [0.0, -1.0, -1e-300])
def test_the_diagonal_must_be_positive(tmp_path: Path, value: float) -> None:
    a = positive(N)
    a[7, 7] = value
    x, report = solved(on_disk(tmp_path / "Z", a), np.ones(N), "auto")
    assert report.method == "LU"
    assert report.notes[0] == f"A[7, 7] = {value:.6g} is not positive: solved by LU"
    assert hpl_residual(a, x, np.ones(N)) < 16


@pytest.mark.parametrize("at", [(7, 7), (8, 200), (200, 8)])
def test_nan(tmp_path: Path, at: tuple[int, int]) -> None:
    a = positive(N)
    a[at] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        solved(on_disk(tmp_path / "Z", a), np.ones(N), "auto")
    assert caught.value.index == at
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("dtype", ["f8", "c8", "c16"])
def test_the_look_reads_a_matrix_once_or_hardly(tmp_path: Path, dtype: str) -> None:
    n, memory = 1024, 16 << 20
    A = on_disk(tmp_path / "Z", positive(n, dtype), chunks=(256, 128))
    why, report = look(A.path, memory)
    assert why == ""
    assert report.bytes_read == report.planned_bytes_read == A.nbytes
    assert report.peak_memory_bytes <= memory
    B = on_disk(tmp_path / "Y", random_matrix(n, dtype), chunks=(256, 128))
    why, report = look(B.path, memory)
    assert why
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_read <= A.nbytes // 2, "two boxes on the diagonal"


@pytest.mark.parametrize("n", [1, 2, 30, 257])
@pytest.mark.parametrize("memory", [20_000, 100_000, 10 << 20])
def test_any_order_and_memory(tmp_path: Path, n: int, memory: int) -> None:
    a = positive(n, "c16")
    A = on_disk(tmp_path / "Z", a, chunks=(64, 16))
    why, report = look(A.path, memory)
    assert why == ""
    assert report.peak_memory_bytes <= memory
    a[n - 1, 0] += 1 + 1j
    B = on_disk(tmp_path / "Y", a, chunks=(64, 16))
    assert look(B.path, memory)[0]


def test_what_is_begun_goes_on_without_a_look(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    stop_after(2, A, memory=TINY)
    x, report = solved(A, np.ones(N), "auto")
    assert any("resumed" in note for note in report.notes)
    assert any("A was not examined" in note for note in report.notes)
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


def test_a_stopped_cholesky_goes_on(tmp_path: Path) -> None:
    a = positive(N)
    A = on_disk(tmp_path / "Z", a)
    with after_notes(1, interrupt), pytest.raises(oc.errors.Interrupted, match="call solve again"):
        solved(A, np.ones(N), "auto")
    assert {p.name for p in tmp_path.iterdir()} == {"Z", "Z.cho"}
    x, report = solved(A, np.ones(N), "auto")
    assert report.method == "Cholesky"
    assert any("resumed" in note for note in report.notes)
    assert hpl_residual(a, x, np.ones(N)) < 16
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


def test_ready_factors_are_used_and_kept(tmp_path: Path) -> None:
    a = positive(N)
    A = on_disk(tmp_path / "Z", a)
    cho_factor(A, memory=TINY, progress=False)
    x, report = solved(A, np.ones(N), "pos")
    assert report.bytes_written == 0
    assert any("used the factors in" in note for note in report.notes)
    assert hpl_residual(a, x, np.ones(N)) < 16
    lu_factor(A, memory=TINY, progress=False)
    _, report = solved(A, np.ones(N), "auto")
    assert report.method == "LU"
    assert report.bytes_written == 0
    assert {p.name for p in tmp_path.iterdir()} == {"Z", "Z.cho", "Z.lu"}


def test_with_overwrite_a(tmp_path: Path) -> None:
    """With "auto" the call risks nothing; with "pos" the caller accepts the risk."""
    a = positive(N)
    for name, assume_a, method in (("one", "auto", "LU"), ("two", "pos", "Cholesky")):
        A = on_disk(tmp_path / name, a, chunks=(64, 32))
        x, report = solved(A, np.ones(N), assume_a, overwrite_a=True, memory="1 MB")
        assert report.method == method
        assert hpl_residual(a, x, np.ones(N)) < 16
    a[200, 201] = a[201, 200] = 50
    A = on_disk(tmp_path / "three", a, chunks=(64, 32))
    with pytest.raises(NotPositiveDefiniteError):
        solved(A, np.ones(N), "pos", overwrite_a=True, memory="1 MB")


def test_with_lower_precision(tmp_path: Path) -> None:
    a = positive(N)
    x, report = solved(on_disk(tmp_path / "Z", a), np.ones(N), "auto", factor_dtype="f4")
    assert report.method.startswith("LU in float32")
    assert any("makes no difference to refinement" in note for note in report.notes)
    assert hpl_residual(a, x, np.ones(N)) < 16


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_the_plan_of_cholesky_is_what_the_run_does(tmp_path: Path, dtype: str) -> None:
    n, memory = 1024, 3 << 20
    A = on_disk(tmp_path / "Z", positive(n, dtype))
    _, report = solved(A, np.ones(n), "pos", memory=memory)
    planned = oc.plan("solve", n=n, dtype=dtype, memory=memory, path=tmp_path, assume_a="pos")
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_read == pytest.approx(planned.bytes_read, rel=0.05)
    assert report.bytes_written == planned.bytes_written
    assert report.flops == pytest.approx(planned.flops, rel=1e-2)
    assert planned.flops < 0.6 * oc.plan("solve", n=n, dtype=dtype, memory=memory).flops


def test_plans_of_unknown_assumptions(tmp_path: Path) -> None:
    for assume_a in ("gen", "auto", "sym"):
        assert oc.plan("solve", n=N, memory=TINY, path=tmp_path, assume_a=assume_a).flops > 0
    with pytest.raises(InvalidError, match="assume_a must be one of"):
        oc.plan("solve", n=N, memory=TINY, path=tmp_path, assume_a="spd")
