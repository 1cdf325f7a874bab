"""Bytes that `solve` and related calls read, equal to their plans wherever chunks end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore.linalg import cond_est, lu_factor, solve

LAYOUTS = [
    ("F", None),
    ("C", None),
    ("F", (100, 70)),
    ("C", (100, 70)),
    ("F", (513, 64)),
    ("C", (64, 513)),
    ("C", (16, 700)),
    ("F", (700, 16)),
    ("F", (1, 1)),
    ("C", (1000, 1000)),
]
"""Orders and chunks; most chunks do not divide the order of the matrix."""


def matrix(path: Path, n: int, dtype: str, order: Any, chunks: Any) -> Any:
    rng = np.random.default_rng(n)
    a = rng.standard_normal((n, n))
    if dtype[0] == "c":
        a = a + 1j * rng.standard_normal((n, n))
    a = (a + 40 * np.eye(n)).astype(dtype)
    return oc.from_array(a, path, order=order, chunks=chunks, progress=False)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize(("n", "dtype"), [(330, "f8"), (257, "c16"), (700, "f4")])
@pytest.mark.parametrize("memory", [200_000, 1 << 20, 16 << 20])
def test_solve(tmp_path: Path, n: int, dtype: str, order: Any, chunks: Any, memory: int) -> None:
    if chunks == (1, 1):
        n = 67
    A = matrix(tmp_path / "A", n, dtype, order, chunks)
    plan = oc.plan(
        "solve", n=n, dtype=dtype, memory=memory, path=tmp_path, order=order, chunks=A.chunks,
    )  # fmt: skip
    x, report = solve(A, np.ones(n, dtype), memory=memory, progress=False)
    assert report.bytes_read == report.planned_bytes_read == plan.bytes_read
    assert report.bytes_written == report.planned_bytes_written
    np.testing.assert_allclose(A[...] @ x, np.ones(n), atol=1e-3 if dtype == "f4" else 1e-10)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize(("n", "dtype", "low"), [(330, "f8", "f4"), (257, "c16", "c8")])
@pytest.mark.parametrize("memory", [400_000, 4 << 20])
def test_solve_in_lower_precision(
    tmp_path: Path, n: int, dtype: str, low: str, order: Any, chunks: Any, memory: int
) -> None:
    if chunks == (1, 1):
        n = 67
    A = matrix(tmp_path / "A", n, dtype, order, chunks)
    _, report = solve(A, np.ones(n, dtype), factor_dtype=low, memory=memory, progress=False)
    assert "refinement" in report.method
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize("memory", [400_000, 4 << 20])
def test_cond_est(tmp_path: Path, order: Any, chunks: Any, memory: int) -> None:
    n = 67 if chunks == (1, 1) else 330
    A = matrix(tmp_path / "A", n, "f8", order, chunks)
    lu = lu_factor(A, memory=4 << 20, progress=False)
    found, report = cond_est(lu, np.inf, memory=memory, progress=False)
    assert report.bytes_read == report.planned_bytes_read
    assert found == pytest.approx(np.linalg.cond(A[...], np.inf), rel=0.7)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize("memory", [400_000, 4 << 20])
def test_a_look_for_symmetry(tmp_path: Path, order: Any, chunks: Any, memory: int) -> None:
    n = 67 if chunks == (1, 1) else 330
    rng = np.random.default_rng(0)
    a = rng.standard_normal((n, n))
    a = a + a.T + 100 * np.eye(n)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks, progress=False)
    _, report = solve(A, np.ones(n), assume_a="auto", memory=memory, progress=False)
    assert "Cholesky" in report.method
    assert report.bytes_read == report.planned_bytes_read


def test_a_copy_in_boxes_lower_than_its_tiles_stays_in_its_memory(tmp_path: Path) -> None:
    # Boxes of 9 rows and tiles of 64: the last tile has 8 rows of the matrix, all in the last box.
    n = 648
    A = matrix(tmp_path / "A", n, "f8", "C", (16, n))
    _, report = solve(A, np.ones(n), factor_dtype="f4", memory=200_000, progress=False)
    assert "refinement" in report.method
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= 200_000
