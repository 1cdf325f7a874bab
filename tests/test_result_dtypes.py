"""Results have NumPy's promoted type of the operands, wherever the operands are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import outcore as oc

N, COLUMNS = 96, 3
FLOATS = ["f4", "f8", "c8", "c16"]
PAIRS = [("f4", "f8"), ("f8", "f4"), ("f4", "c8"), ("f4", "c16"), ("c8", "f8"), ("c16", "f4")]
PAIRS += [("i8", "f4"), ("?", "c8")]
PLACES = ["disk, order F", "disk, order C", "memory"]
MEMORY = "1 MB"


def matrix(dtype: str, m: int = N, n: int = N, *, seed: int = 0) -> Any:
    """Return a well-conditioned matrix with elements that each type holds, except for noise."""
    draw = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iub":
        a = (draw.random((m, n)) < 0.2).astype(dtype)
    else:
        a = draw.standard_normal((m, n)) / n
        if np.dtype(dtype).kind == "c":
            a = a + 1j * draw.standard_normal((m, n)) / n
        a = a.astype(dtype)
    return a if m != n else (a + (n * np.eye(n)).astype(dtype)).astype(dtype)


def placed(a: Any, where: str, path: Path) -> Any:
    """Return the matrix in memory, or on disk in whole pages of an order."""
    if where == "memory":
        return a
    return oc.from_array(a, path, order=where[-1], chunks=(64, 64), progress=False)


def expected(*dtypes: str) -> np.dtype[Any]:
    """Return NumPy's promoted type, with integers and booleans as float64, as in SciPy."""
    return np.result_type(*("f8" if np.dtype(each).kind in "iub" else each for each in dtypes))


def assert_like(found: Any, want: Any, dtype: np.dtype[Any]) -> None:
    """Compare with a double-precision result, to the precision of the type."""
    assert found.dtype == dtype
    error = np.abs(np.asarray(found[...]) - want).max() / np.abs(want).max()
    assert error < 50 * np.sqrt(N) * np.finfo(dtype).eps


def double(a: Any) -> Any:
    """Convert to double precision."""
    return a.astype(np.result_type(a, "f8"))


def solved(a: Any, b: Any) -> Any:
    """Return SciPy's solution in double precision."""
    return scipy.linalg.lstsq(double(a), double(b))[0]


def is_as_planned() -> bool:
    """Return whether the last call read as many bytes as its plan said."""
    report = oc.last_report()
    return report is not None and report.bytes_read == report.planned_bytes_read


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("where", PLACES[:2])
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_solve(of_a: str, of_b: str, where: str, tmp_path: Path) -> None:
    """Solve a system with each kind of factors; the report names the type."""
    a, b = matrix(of_a), matrix(of_b, N, COLUMNS, seed=1)
    A = placed(a, where, tmp_path / "A")
    for right in (b, placed(b, where, tmp_path / "b")):
        x, report = oc.linalg.solve(A, right, memory=MEMORY, progress=False)
        assert_like(x, solved(a, b), expected(of_a, of_b))
        assert report.dtype == (x[:1].real if np.dtype(of_a).kind != "c" else x[:1]).dtype.name
        assert report.bytes_read == report.planned_bytes_read or right is not b
        assert report.peak_memory_bytes <= 1e6


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_lstsq(of_a: str, of_b: str, where: str, tmp_path: Path) -> None:
    """Least squares with streamed rows."""
    a, b = matrix(of_a, 3 * N, N // 4), matrix(of_b, 3 * N, COLUMNS, seed=1)
    A, B = placed(a, where, tmp_path / "A"), placed(b, where, tmp_path / "b")
    for left, right in ((A, B), (A, b), (a, B)):
        x, report = oc.linalg.lstsq(left, right, memory=MEMORY, progress=False)
        assert_like(x, solved(a, b), expected(of_a, of_b))
        assert report.dtype == x.dtype.name


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_matmul(of_a: str, of_b: str, where: str, tmp_path: Path) -> None:
    """Products that hold either operand in memory."""
    a, b = matrix(of_a, N, 2 * N), matrix(of_b, 2 * N, N, seed=1)
    A, B = placed(a, where, tmp_path / "A"), placed(b, where, tmp_path / "B")
    for left, right in ((A, B), (A, b), (a, B)):
        c = oc.linalg.matmul(left, right, memory=MEMORY, progress=False)
        assert_like(c, double(a) @ double(b), expected(of_a, of_b))
    c = oc.linalg.matmul(B, A, trans_a="T", trans_b="C", memory=MEMORY, progress=False)
    assert_like(c, double(b).T @ double(a).conj().T, expected(of_a, of_b))
    assert is_as_planned()


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_solve_triangular(of_a: str, of_b: str, where: str, tmp_path: Path) -> None:
    """Triangular systems."""
    t, b = matrix(of_a), matrix(of_b, N, COLUMNS, seed=1)
    T, B = placed(t, where, tmp_path / "T"), placed(b, where, tmp_path / "B")
    for left, right in ((T, B), (T, b), (t, B)):
        x = oc.linalg.solve_triangular(
            left, right, lower=True, memory=MEMORY, if_exists="overwrite", progress=False
        )
        assert_like(x, solved(np.tril(t), b), expected(of_a, of_b))
        assert is_as_planned()


@pytest.mark.parametrize("where", PLACES[:2])
@pytest.mark.parametrize(("of_a", "of_b"), [pair for pair in PAIRS if pair[0] in FLOATS])
@pytest.mark.parametrize("method", ["gauss_seidel", "jacobi", "cg", "gmres"])
def test_iterative_methods(method: str, of_a: str, of_b: str, where: str, tmp_path: Path) -> None:
    """Iterative methods, with a tolerance that single precision cannot reach."""
    a, b = matrix(of_a), matrix(of_b, N, COLUMNS, seed=1)
    a = ((a + a.conj().T) / 2).astype(of_a)
    dtype = expected(of_a, of_b)
    x, report = getattr(oc.linalg, method)(
        placed(a, where, tmp_path / "A"), b, tol=float(20 * np.finfo(dtype).eps), progress=False
    )
    assert_like(x, solved(a, b), dtype)
    assert report.backward_error is None or report.backward_error < 1e3 * np.finfo(dtype).eps


FACTORS: dict[str, tuple[Any, Any]] = {
    "lu": (oc.linalg.lu_factor, oc.linalg.lu_solve),
    "cho": (oc.linalg.cho_factor, oc.linalg.cho_solve),
    "qr": (oc.linalg.qr_factor, oc.linalg.qr_solve),
}


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize(("of_a", "of_b"), [pair for pair in PAIRS if pair[0] in FLOATS])
def test_saved_factors(kind: str, of_a: str, of_b: str, tmp_path: Path) -> None:
    """Factors keep their type, and solutions have the promoted type and its precision.

    Factors limit the accuracy of a solution. Hence the test takes matrices whose factors are exact,
    so that only the substitution decides.
    """
    factor, solve = FACTORS[kind]
    a = (np.diag(np.full(N, 4.0)) + np.diag(np.full(N - 1, 2.0), -1)).astype(of_a)
    a = a @ a.conj().T if kind == "cho" else a if kind == "lu" else np.diag(a.diagonal())
    b, dtype = matrix(of_b, N, COLUMNS, seed=1), expected(of_a, of_b)
    factors = factor(placed(a, "disk, order F", tmp_path / "A"), memory="4 MB", progress=False)
    assert factors.dtype == of_a
    on_disk = placed(b, "disk, order F", tmp_path / "b")
    for right in (b, on_disk, str(tmp_path / "b")):
        x = solve(factors, right, memory="4 MB", if_exists="overwrite", progress=False)
        assert_like(x, solved(a, b), dtype)
        assert is_as_planned() or right is not b


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(
    ("order", "chunks"),
    [("F", None), ("C", None), ("C", (40, 24)), ("F", (512, 1)), ("C", (1, 512))],
)
@pytest.mark.parametrize(("stored", "dtype"), [("f4", "f8"), ("c8", "c16"), ("i2", "f8")])
@pytest.mark.parametrize("kind", ["lu", "block-columns", "tournament", "cho", "cho upper", "qr"])
def test_factors_in_a_wider_type(
    kind: str, stored: str, dtype: str, chunks: Any, order: str, tmp_path: Path
) -> None:
    """The call converts the slabs, rows or copies that it reads, and the plan counts the bytes."""
    n = 300
    a = matrix(stored, n, n)
    a = np.tril(a, -1) + np.tril(a, -1).conj().T + np.diag(a.diagonal().real).astype(stored)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks, progress=False)
    method, _, upper = kind.partition(" ")
    options: dict[str, Any] = {"lower": not upper} if method == "cho" else {}
    if method in ("block-columns", "tournament"):
        options, method = {"method": method}, "lu"
    factor, solve = FACTORS[method]
    factors = factor(A, dtype=dtype, memory=700_000, progress=False, **options)
    report = factors.report
    assert factors.dtype == dtype
    assert report.dtype == np.dtype(dtype).name
    if kind != "tournament" and chunks != (512, 1):
        assert report.bytes_read == report.planned_bytes_read
    b = matrix(dtype, n, COLUMNS, seed=1)
    x = solve(factors, b, progress=False)
    assert_like(x, solved(a, b), np.dtype(dtype))
