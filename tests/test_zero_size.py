"""Operands with no rows or no columns: the results of SciPy and NumPy, or an error with a fix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, one_thread

import outcore as oc
from outcore import linalg
from outcore.errors import InvalidError

__all__ = ["one_thread"]  # a fixture for every test here

N = 6
A_MATRIX = np.eye(N) * 3 + 1
NONE = [np.zeros((N, 0)), np.zeros((N, 0), "f4"), np.zeros((N, 0), "i4")]
EMPTY = [(0, 0), (0, 3), (3, 0), (0,)]
ITERATIVE = ["cg", "gmres", "jacobi", "gauss_seidel"]


@pytest.fixture
def A(tmp_path: Path) -> oc.Array:  # noqa: N802
    return oc.from_array(A_MATRIX, tmp_path / "A")


def solvers(A: oc.Array) -> dict[str, tuple[Any, Any]]:
    """Return each solver of A x = b with the call of SciPy that it must equal."""
    options: dict[str, Any] = {"progress": False}
    lu = linalg.lu_factor(A, **options)
    c = linalg.cho_factor(A, **options)
    qr = linalg.qr_factor(A, **options)
    return {
        "solve": (
            lambda b, **more: linalg.solve(A, b, **options, **more)[0],
            lambda b: scipy.linalg.solve(A_MATRIX, b),
        ),
        "solve, f4": (
            lambda b, **more: linalg.solve(A, b, factor_dtype="f4", **options, **more)[0],
            lambda b: scipy.linalg.solve(A_MATRIX, b),
        ),
        "lu_solve": (
            lambda b, **more: linalg.lu_solve(lu, b, **options, **more),
            lambda b: scipy.linalg.lu_solve(scipy.linalg.lu_factor(A_MATRIX), b),
        ),
        "cho_solve": (
            lambda b, **more: linalg.cho_solve(c, b, **options, **more),
            lambda b: scipy.linalg.cho_solve(scipy.linalg.cho_factor(A_MATRIX), b),
        ),
        "qr_solve": (
            lambda b, **more: linalg.qr_solve(qr, b, **options, **more),
            lambda b: np.linalg.lstsq(A_MATRIX, b, rcond=None)[0],
        ),
        "solve_triangular": (
            lambda b, **more: linalg.solve_triangular(A, b, **options, **more),
            lambda b: scipy.linalg.solve_triangular(A_MATRIX, b),
        ),
        "matmul": (
            lambda b, **more: linalg.matmul(A, b, **options, **more),
            lambda b: A_MATRIX @ b,
        ),
    }


def test_no_right_hand_sides_have_no_solutions(A: oc.Array, tmp_path: Path) -> None:
    for name, (ours, theirs) in solvers(A).items():
        for b in NONE:
            x, expected = ours(b), theirs(b)
            assert (x.shape, x.dtype) == (expected.shape, expected.dtype), name
            assert isinstance(x, np.ndarray)
            before = names_below(tmp_path)
            with pytest.raises(InvalidError, match=r"shape \(6, 0\).* on disk; leave out= out"):
                ours(b, out=tmp_path / "x")
            assert names_below(tmp_path) == before, name


def test_right_hand_sides_of_no_rows_do_not_fit(A: oc.Array) -> None:
    for name, (ours, theirs) in solvers(A).items():
        for shape in EMPTY[:2] + EMPTY[3:]:
            with pytest.raises(InvalidError, match=r"need a |must be as many as"):
                ours(np.zeros(shape))
            with pytest.raises(ValueError):  # noqa: PT011 - SciPy's and NumPy's own words
                assert theirs(np.zeros(shape)) is None, name


@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_methods_need_something_to_solve_for(A: oc.Array, name: str) -> None:
    for b in NONE:
        with pytest.raises(InvalidError, match=r"have shape \(6, 0\); leave the call out"):
            getattr(linalg, name)(A, b, progress=False)
    with pytest.raises(InvalidError, match=r"need a right-hand side of shape \(6,\) or \(6, k\)"):
        getattr(linalg, name)(A, np.zeros((0, 2)), progress=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda X: linalg.qr(X, progress=False),
        lambda X: linalg.qr(X, mode="economic", progress=False),
        lambda X: linalg.svd(X, 1, progress=False),
        lambda X: linalg.gram(X, progress=False),
        lambda X: linalg.gram(X, side="right", progress=False),
        lambda X: linalg.lstsq(X, np.zeros(len(X)), progress=False),
        lambda X: linalg.lstsq(A_MATRIX, np.zeros((N, 0)), progress=False),
    ],
)
def test_matrices_that_go_by_in_rows_have_some(call: Any) -> None:
    for shape in EMPTY:
        for dtype in ("f8", "c8"):
            with pytest.raises(
                InvalidError,
                match=r"at least one row and column as .*; numpy.linalg takes|as A, have \(0,\)",
            ):
                call(np.zeros(shape, dtype))


def test_iterators_without_rows() -> None:
    for call in (
        lambda rows: linalg.qr(rows, progress=False),
        lambda rows: linalg.gram(rows, progress=False),
        lambda rows: linalg.lstsq(rows, np.zeros(0), progress=False),
    ):
        with pytest.raises(InvalidError, match=r"has no rows; has it been used|at least one row"):
            call(iter([]))
    with pytest.raises(InvalidError, match="has no rows"):
        linalg.qr(iter([np.zeros((0, 3)), np.zeros((0, 3))]), progress=False)
    blocks = [np.zeros((0, 3)), A_MATRIX[:, :3], np.zeros((0, 3))]
    R, _ = linalg.qr(iter(blocks), progress=False)
    expected = np.linalg.qr(A_MATRIX[:, :3], mode="r")
    np.testing.assert_allclose(np.abs(R), np.abs(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(0, 0, 0), (0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 2), (3, 0, 0), (0, 3, 0)]
)
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_products_without_terms_or_elements(
    tmp_path: Path, m: int, k: int, n: int, dtype: str
) -> None:
    a, b = np.zeros((m, k), dtype), np.zeros((k, n), dtype)
    C: Matrix = linalg.matmul(a, b, progress=False)
    assert (C.shape, C.dtype) == ((m, n), np.dtype(dtype))
    assert not C.any()
    C = linalg.matmul(b, a, trans_a="T", trans_b="C", progress=False)
    assert (C.shape, C.dtype) == ((n, m), np.dtype(dtype))
    with pytest.raises(InvalidError, match="cannot be on disk; leave out= out"):
        linalg.matmul(a, b, out=tmp_path / "C", progress=False)
    assert not list(tmp_path.iterdir())


def test_triangles_of_order_0() -> None:
    for b in (np.zeros(0), np.zeros((0, 0)), np.zeros((0, 2))):
        x = linalg.solve_triangular(np.zeros((0, 0)), b, progress=False)
        assert x.shape == scipy.linalg.solve_triangular(np.zeros((0, 0)), b).shape


@pytest.mark.parametrize("shape", EMPTY)
def test_arrays_on_disk_have_elements(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Refuse arrays of zero size on disk, so that no verb meets one there."""
    with pytest.raises(InvalidError, match="integers of at least 1"):
        oc.from_array(np.zeros(shape), tmp_path / "Z")
    with pytest.raises(InvalidError, match="integers of at least 1"):
        oc.create_array(tmp_path / "Z", shape)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["solve", "lu", "cholesky", "qr", "lstsq", "svd", "matmul", "cg"])
def test_plans_of_nothing_are_refused(verb: str) -> None:
    for sizes in ({"n": 0}, {"n": 3, "rhs": 0}, {"n": 3, "m": 0}, {"n": 3, "k": 0}):
        with pytest.raises(InvalidError, match="must be an integer of at least 1, have 0"):
            oc.plan(verb, memory="1 GB", **sizes)
