"""Plans of products, triangular systems and iterative methods hold for any layout."""

from pathlib import Path

import numpy as np
import pytest
from definite import definite
from linpack import one_thread, random_matrix
from lu_by_method import RATES
from reported import reported

import outcore as oc
from outcore.errors import InvalidError
from outcore.linalg import jacobi
from outcore.linalg._products.matmul import matmul
from outcore.linalg._products.solve_triangular import solve_triangular
from outcore.report.report import Report

__all__ = ["one_thread"]  # a fixture for every test here

LAYOUTS = [("F", None), ("C", None), ("C", (96, 64)), ("F", (96, 64)), ("F", (100, 37))]
"""Rows, columns, a kind of squares, and chunks that divide nothing."""


def assert_read_as_planned(
    report: Report, planned: oc.Plan, *layouts: tuple[str, tuple[int, int] | None]
) -> None:
    """Compare the bytes read: exactly, except for chunks that are not whole disk blocks."""
    assert report.planned_bytes_read == planned.bytes_read
    beyond = report.bytes_read - planned.bytes_read
    assert 0 <= beyond <= 0.01 * planned.bytes_read if ("F", (100, 37)) in layouts else beyond == 0


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("b", LAYOUTS)
@pytest.mark.parametrize("a", LAYOUTS)
def test_products(
    tmp_path: Path,
    a: tuple[str, tuple[int, int] | None],
    b: tuple[str, tuple[int, int] | None],
) -> None:
    m, k, n, memory = 600, 500, 400, 4 << 20
    left, right = random_matrix(600, "f8")[:, :500], random_matrix(500, "f8", 1)[:, :400]
    A = oc.from_array(left, tmp_path / "A", order=a[0], chunks=a[1], progress=False)
    B = oc.from_array(right, tmp_path / "B", order=b[0], chunks=b[1], progress=False)
    _, report = reported(matmul, A, B, memory=memory, out=tmp_path / "C", progress=False)
    planned = oc.plan(
        "matmul", m=m, k=k, n=n, memory=memory, rates=RATES, order_a=a[0], chunks_a=a[1],
        order_b=b[0], chunks_b=b[1],
    )  # fmt: skip
    assert_read_as_planned(report, planned, a, b)
    assert report.bytes_written == planned.bytes_written
    if a == b:
        same = oc.plan("matmul", m=m, k=k, n=n, memory=memory, rates=RATES, order=a[0], chunks=a[1])
        assert same.bytes_read == planned.bytes_read


@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_triangular_systems(tmp_path: Path, order: str, chunks: tuple[int, int] | None) -> None:
    n, memory = 600, 1 << 20
    a = definite(n, "f8")
    T = oc.from_array(a, tmp_path / "T", order=order, chunks=chunks, progress=False)
    B = oc.from_array(a[:, :40], tmp_path / "B", order="F", progress=False)
    _, report = reported(
        solve_triangular, T, B, lower=True, memory=memory, out=tmp_path / "X", progress=False
    )
    planned = oc.plan(
        "solve_triangular", n=n, rhs=40, lower=True, memory=memory, rates=RATES, order=order,
        chunks=chunks,
    )  # fmt: skip
    assert_read_as_planned(report, planned, (order, chunks))


@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_rows_that_go_by(tmp_path: Path, order: str, chunks: tuple[int, int] | None) -> None:
    m, n, memory = 2000, 60, 2 << 20
    a = random_matrix(m, "f8")[:, :n]
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks, progress=False)
    _, report = oc.linalg.lstsq(A, a[:, 0], memory=memory, progress=False)
    planned = oc.plan("lstsq", m=m, n=n, memory=memory, rates=RATES, order=order, chunks=chunks)
    assert_read_as_planned(report, planned, (order, chunks))


@pytest.mark.parametrize("memory", [200_000, 400_000])
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_least_squares_by_slabs(
    tmp_path: Path, order: str, chunks: tuple[int, int] | None, memory: int
) -> None:
    m, n = 600, 250
    a = random_matrix(m, "f8")[:, :n]
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks, progress=False)
    _, report = oc.linalg.lstsq(A, a[:, 0], memory=memory, progress=False)
    planned = oc.plan("lstsq", m=m, n=n, memory=memory, rates=RATES, order=order, chunks=chunks)
    assert "slabs" in planned.method
    assert report.method == planned.method
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.bytes_written == report.planned_bytes_written == planned.bytes_written


def test_iterative_methods_are_planned_in_any_chunks(tmp_path: Path) -> None:
    n, memory, chunks = 640, 800_000, (64, 40)
    a = definite(n, "f8") + 50 * np.eye(n)
    A = oc.from_array(a, tmp_path / "A", chunks=chunks, progress=False)
    _, report = jacobi(A, np.ones(n), tol=None, max_sweeps=5, memory=memory, progress=False)
    planned = oc.plan("jacobi", n=n, memory=memory, sweeps=5, chunks=chunks, rates=RATES)
    assert report.bytes_read == planned.bytes_read
    with pytest.raises(InvalidError, match="chunks must be"):
        oc.plan("jacobi", n=n, memory=memory, chunks="all", rates=RATES)
