"""Cholesky and QR in any layout move the planned bytes, with a copy in tiles where that is less."""

from pathlib import Path

import numpy as np
import pytest
from definite import cholesky_ratio, definite, lower_only, upper_only
from linpack import Matrix, one_thread, random_matrix
from lu_by_method import RATES
from qr_factors import assert_factors
from stopping import kill_at_line

import outcore as oc
from outcore.errors import InvalidError, NonFiniteError
from outcore.linalg import cho_factor, qr_factor, solve
from outcore.report.report import Report

__all__ = ["one_thread"]  # a fixture for every test here

TRIANGLES = [
    (1024, "f8", 1 << 20, "C", None, "copied"),
    (1000, "c16", 2 << 20, "C", None, "copied"),
    (700, "f4", 500_000, "C", None, "copied"),
    (1024, "f8", 600_000, "C", (16, 1024), "copied"),
    (600, "c16", 1_000_000, "C", (600, 640), "copied"),
    (777, "f4", 700_000, "C", (64, 32), "direct"),
    (500, "f8", 300_000, "C", (64, 512), "copied"),
    (500, "f8", 300_000, "C", (64, 511), "direct"),
    (511, "c8", 1_000_000, "C", (100, 37), "direct"),
    (512, "f8", 2 << 20, "F", None, "direct"),
    (500, "f8", 300_000, "F", (64, 64), "direct"),
    (511, "c8", 1_000_000, "F", (100, 37), "direct"),
    (777, "f4", 700_000, "F", (777, 16), "direct"),
    (640, "c16", 2 << 20, "C", (64, 64), "direct"),
]
"""Order for the lower triangle; that of the transpose for the upper one."""

OBLONG = [
    ((1024, 1024), "f8", 2 << 20, "C", None, "copied"),
    ((1000, 512), "c16", 2 << 20, "C", None, "copied"),
    ((1024, 1024), "f8", 700_000, "C", (16, 1024), "copied"),
    ((1000, 600), "c16", 900_000, "C", (8, 640), "copied"),
    ((600, 777), "f4", 700_000, "C", (64, 32), "direct"),
    ((500, 400), "f8", 300_000, "C", (64, 512), "copied"),
    ((500, 400), "f8", 300_000, "C", (64, 511), "direct"),
    ((511, 511), "c8", 1_000_000, "C", (100, 37), "direct"),
    ((512, 512), "f8", 2 << 20, "F", None, "direct"),
    ((500, 333), "f8", 500_000, "F", (100, 37), "direct"),
    ((333, 500), "c16", 1_000_000, "F", (64, 64), "direct"),
    ((777, 250), "f4", 700_000, "F", (777, 16), "direct"),
]


def assert_as_planned(report: Report | None, planned: oc.Plan, how: str, memory: int) -> Report:
    assert report is not None
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.bytes_written == report.planned_bytes_written == planned.bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    for method in (report.method, planned.method):
        assert method is not None
        assert ("copied to tiles" in method) == (how == "copied")
    return report


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("n", "dtype", "memory", "order", "chunks", "how"), TRIANGLES)
def test_cholesky(
    tmp_path: Path, n: int, dtype: str, memory: int, order: str,
    chunks: tuple[int, int] | None, how: str, lower: bool,
) -> None:  # fmt: skip
    a = definite(n, dtype)
    if not lower:
        order, chunks = {"C": "F", "F": "C"}[order], chunks and chunks[::-1]
    half = (lower_only if lower else upper_only)(a)
    A = oc.from_array(half, tmp_path / "Z", order=order, chunks=chunks, progress=False)
    factor = cho_factor(A, lower=lower, memory=memory, progress=False)
    assert cholesky_ratio(a, factor) < 30
    planned = oc.plan(
        "cholesky", n=n, dtype=dtype, memory=memory, order=order, chunks=A.chunks, lower=lower,
        rates=RATES,
    )  # fmt: skip
    report = assert_as_planned(factor.report, planned, how, memory)
    if how == "copied":
        assert any(f"lower={not lower}" in note for note in report.notes)
        # The triangle in chunks, its tiles written and read, and L.
        assert report.bytes_read < planned_in_fortran_order(n, dtype, memory) + 1.3 * a.nbytes


def planned_in_fortran_order(n: int, dtype: str, memory: int) -> int:
    """Return the bytes read from a matrix in the order that Cholesky prefers."""
    return oc.plan("cholesky", n=n, dtype=dtype, memory=memory, rates=RATES).bytes_read


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(("shape", "dtype", "memory", "order", "chunks", "how"), OBLONG)
def test_qr(
    tmp_path: Path, shape: tuple[int, int], dtype: str, memory: int, order: str,
    chunks: tuple[int, int] | None, how: str,
) -> None:  # fmt: skip
    a = random_matrix(max(shape), dtype)[: shape[0], : shape[1]]
    A = oc.from_array(a, tmp_path / "Z", order=order, chunks=chunks, progress=False)
    qr = qr_factor(A, memory=memory, progress=False)
    assert_factors(a, qr)
    planned = oc.plan(
        "qr_factor", m=shape[0], n=shape[1], dtype=dtype, memory=memory, order=order,
        chunks=A.chunks, rates=RATES,
    )  # fmt: skip
    report = assert_as_planned(qr.report, planned, how, memory)
    noted = any("from_array" in note for note in report.notes)
    words = (report.bytes_read + report.bytes_written) / a.nbytes
    assert noted if how == "copied" or words > 10 else order == "C" or not noted


def stored(path: Path, order: str, a: Matrix) -> oc.Array:
    return oc.from_array(a, path, order=order, progress=False)


def test_solve_reads_the_triangle_that_lies_well(tmp_path: Path) -> None:
    """A whole Hermitian matrix offers both triangles, so C order moves no more than F order."""
    n, memory = 1024, 2 << 20
    a, b = definite(n, "c16"), random_matrix(n, "c16")[:, :2]
    moved = []
    for order in "CF":
        A = stored(tmp_path / order, order, a)
        x, report = solve(A, b, assume_a="pos", memory=memory, progress=False)
        np.testing.assert_allclose(a @ x, b, atol=1e-9)
        planned = oc.plan(
            "solve", n=n, dtype="c16", assume_a="pos", memory=memory, order=order, rhs=2,
            rates=RATES,
        )  # fmt: skip
        assert "copied" not in planned.method
        moved.append((report.bytes_read, planned.bytes_read))
    assert moved[0] == moved[1]


def test_solve_goes_on_with_the_triangle_of_a_stopped_run(tmp_path: Path) -> None:
    """Without the stopped run, a matrix in C order would use the upper triangle."""
    n, memory = 1024, 2 << 20
    a, b = definite(n, "f8"), random_matrix(n, "f8")[:, :1]
    A = stored(tmp_path / "Z", "C", a)

    def stop(done: float, left: float) -> None:
        if done > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cho_factor(A, memory=memory, progress=stop)
    assert (tmp_path / "Z.cho").exists()
    x, _ = solve(A, b, assume_a="pos", memory=memory, progress=False)
    np.testing.assert_allclose(a @ x, b, atol=1e-9)


@pytest.mark.parametrize("verb", [cho_factor, qr_factor])
def test_a_process_that_dies_while_it_copies(tmp_path: Path, verb: object) -> None:
    a = definite(1024, "f8")
    stored(tmp_path / "Z", "C", a).close()

    def run() -> oc.linalg.CholeskyFactor | oc.linalg.QRFactor:
        return verb(tmp_path / "Z", memory=2 << 20, progress=False)  # type: ignore[operator, no-any-return]

    assert kill_at_line(40, run, ("_geometry/tile_copy.py",))
    factor = run()
    if isinstance(factor, oc.linalg.CholeskyFactor):
        assert cholesky_ratio(a, factor) < 30
    else:
        assert_factors(a, factor)
    assert factor.report is not None
    assert factor.report.bytes_read == factor.report.planned_bytes_read


def test_what_is_not_finite_is_found_in_a_copy(tmp_path: Path) -> None:
    a = definite(1024, "f8")
    a[1000, 5] = np.nan
    A = stored(tmp_path / "Z", "C", a)
    with pytest.raises(NonFiniteError) as refused:
        cho_factor(A, memory=2 << 20, progress=False)
    assert refused.value.index == (1000, 5)
    with pytest.raises(NonFiniteError) as refused:
        qr_factor(A, memory=2 << 20, progress=False)
    assert refused.value.index == (1000, 5)


def test_layouts_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidError, match="order must be"):
        oc.plan("cholesky", n=100, memory="1 MiB", order="K", rates=RATES)
    with pytest.raises(InvalidError, match="chunks must be"):
        oc.plan("qr_factor", n=100, memory="1 MiB", chunks=(5,), rates=RATES)
