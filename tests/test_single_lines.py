"""Matrices of one row or one column, in chunks that are wider or higher than they are.

The stride along an axis of length 1 has no meaning, and memory as wide as a chunk has gaps there.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import outcore as oc

ROWS = 130
CHUNKS = [(50, 4), (4, 50), (3, 1), (1, 3), (200, 200)]
QUIET: dict[str, Any] = {"memory": "4 MB", "progress": False}


def line(*shape: int, seed: int = 0) -> Any:
    """Return random elements of a shape."""
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture(params=[f"{order} {i}" for order in "FC" for i in range(len(CHUNKS))])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that stores matrices in one order and chunk shape."""
    order, number = request.param.split()

    def put(a: Any, name: str) -> Any:
        chunks = CHUNKS[int(number)]
        return oc.from_array(a, tmp_path / name, order=order, chunks=chunks, progress=False)

    return put


@pytest.mark.exhaustive(every=2)
def test_one_column_of_a_tall_matrix(stored: Any) -> None:
    """Verbs that stream rows."""
    a, b = line(ROWS, 1), line(ROWS, 1, seed=1)
    A, B = stored(a, "A"), stored(b, "B")
    for left, right in ((A, B), (A, b), (a, B)):
        np.testing.assert_allclose(
            oc.linalg.lstsq(left, right, **QUIET)[0], scipy.linalg.lstsq(a, b)[0]
        )
    two = np.hstack([a, b])
    np.testing.assert_allclose(
        oc.linalg.lstsq(two, B, **QUIET)[0], scipy.linalg.lstsq(two, b)[0], atol=1e-14
    )
    size = np.linalg.norm(a)
    np.testing.assert_allclose(abs(oc.linalg.qr(A, **QUIET)[0]), [[size]])
    q, r, _ = oc.linalg.qr(A, mode="economic", **QUIET)
    np.testing.assert_allclose(q[...] @ r, a)
    np.testing.assert_allclose(oc.linalg.gram(A, **QUIET)[0], [[size**2]])
    np.testing.assert_allclose(oc.linalg.gram(A, side="right", **QUIET)[0], a @ a.T)
    u, s, vh, *_ = oc.linalg.svd(A, 1, **QUIET)
    np.testing.assert_allclose(s, [size])
    np.testing.assert_allclose(u * s @ vh, a)


@pytest.mark.exhaustive(every=2)
def test_one_row_of_a_wide_matrix(stored: Any) -> None:
    """Least squares with more columns than rows, and other verbs that stream rows."""
    a, b = line(1, 5000), line(1, 2, seed=1)
    A, B = stored(a, "A"), stored(b, "B")
    for right in (B, b):
        x, _ = oc.linalg.lstsq(A, right, memory="1 MB", progress=False)
        np.testing.assert_allclose(x, scipy.linalg.lstsq(a, b)[0])
    np.testing.assert_allclose(oc.linalg.gram(A, side="right", **QUIET)[0], a @ a.T)
    np.testing.assert_allclose(
        oc.linalg.svd(A, 1, memory="16 MB", progress=False)[1], [np.linalg.norm(a)]
    )


@pytest.mark.exhaustive(every=2)
def test_products(stored: Any) -> None:
    """Outer and inner products, and triangular systems with one right-hand side."""
    a, b = line(ROWS, 1), line(1, ROWS, seed=1)
    A, B = stored(a, "A"), stored(b, "B")
    np.testing.assert_allclose(oc.linalg.matmul(A, B, **QUIET), a @ b)
    np.testing.assert_allclose(oc.linalg.matmul(B, A, **QUIET), b @ a)
    np.testing.assert_allclose(oc.linalg.matmul(A, A, trans_a="T", **QUIET), a.T @ a)
    np.testing.assert_allclose(oc.linalg.matmul(B, B, trans_b="T", **QUIET), b @ b.T)
    t = np.tril(line(ROWS, ROWS)) + ROWS * np.eye(ROWS)
    x = oc.linalg.solve_triangular(stored(t, "T"), A, lower=True, **QUIET)
    np.testing.assert_allclose(x[...], scipy.linalg.solve_triangular(t, a, lower=True), atol=1e-15)


@pytest.mark.exhaustive
def test_systems(stored: Any) -> None:
    """Systems of order 1, and larger ones with one right-hand side."""
    for n in (1, ROWS):
        a = line(n, n) + 2 * n * np.eye(n)
        a, b = a + a.T, line(n, 1, seed=1)
        A, B = stored(a, f"A{n}"), stored(b, f"B{n}")
        want = scipy.linalg.solve(a, b)
        for make, solve in (
            (oc.linalg.lu_factor, oc.linalg.lu_solve),
            (oc.linalg.cho_factor, oc.linalg.cho_solve),
            (oc.linalg.qr_factor, oc.linalg.qr_solve),
        ):
            x = solve(make(A, **QUIET), B, if_exists="overwrite", **QUIET)
            np.testing.assert_allclose(x[...], want, atol=1e-14)
        for method in ("gauss_seidel", "jacobi", "cg", "gmres"):
            x, _ = getattr(oc.linalg, method)(A, B, tol=1e-13, **QUIET)
            np.testing.assert_allclose(x, want, atol=1e-12)
