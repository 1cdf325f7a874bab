"""Operations on factors move the planned bytes, within the planned memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import one_thread, random_matrix
from lu_by_method import RATES

import outcore as oc
from outcore.errors import BudgetError, InvalidError
from outcore.linalg import (
    cho_factor,
    cho_solve,
    cond_est,
    export_lapack,
    lu_factor,
    lu_solve,
    qr_factor,
    qr_solve,
    slogdet,
)
from outcore.report.report import Report

__all__ = ["one_thread"]  # a fixture for every test here

N = 700
MEMORY = 1_200_000


def plan(verb: str, dtype: str, **options: Any) -> oc.Plan:
    return oc.plan(verb, n=N, dtype=dtype, memory=MEMORY, rates=RATES, **options)


def assert_as_planned(report: Report | None, planned: oc.Plan) -> None:
    assert report is not None
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.bytes_written == planned.bytes_written
    assert report.flops == pytest.approx(planned.flops)
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= MEMORY


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_solving(tmp_path: Path, dtype: str) -> None:
    a, b = definite(N, dtype), random_matrix(N, dtype, 1)[:, :3]
    b = np.asfortranarray(b)
    A = oc.from_array(a, tmp_path / "A", order="F", progress=False)
    lu = lu_factor(A, memory=MEMORY, method="slabs", progress=False)
    lu_solve(lu, b, memory=MEMORY, progress=False)
    assert_as_planned(oc.last_report(), plan("lu_solve", dtype, rhs=3, method="slabs"))
    cho = cho_factor(A, memory=MEMORY, progress=False)
    cho_solve(cho, b, memory=MEMORY, progress=False)
    assert_as_planned(oc.last_report(), plan("cho_solve", dtype, rhs=3))
    assert plan("cho_solve", dtype, rhs=3, tile=cho.tile) == plan("cho_solve", dtype, rhs=3)


def test_least_squares(tmp_path: Path) -> None:
    m = 900
    a = random_matrix(m, "f8")[:, :N]
    A = oc.from_array(a, tmp_path / "A", order="F", progress=False)
    qr = qr_factor(A, memory=MEMORY, progress=False)
    qr_solve(qr, np.asfortranarray(a[:, :2]), memory=MEMORY, progress=False)
    assert_as_planned(oc.last_report(), plan("qr_solve", "f8", m=m, rhs=2))


@pytest.mark.parametrize("order", ["C", "F"])
def test_determinant_and_condition(tmp_path: Path, order: str) -> None:
    A = oc.from_array(random_matrix(N, "f8"), tmp_path / "A", order=order, progress=False)
    planned = plan("slogdet", "f8", order=order)
    report = slogdet(A, memory=MEMORY, progress=False).report
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    lu = lu_factor(A, memory=MEMORY, method="slabs", progress=False)
    _, report = cond_est(lu, memory=MEMORY, progress=False)
    planned = plan("cond_est", "f8", method="slabs", order=order)
    solves = int(report.notes[0].split()[0])
    assert report.bytes_read * 5 == planned.bytes_read * solves
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= MEMORY
    cho = cho_factor(
        oc.from_array(definite(N, "f8"), tmp_path / "P", order="F", progress=False),
        memory=MEMORY, progress=False,
    )  # fmt: skip
    _, report = cond_est(cho, memory=MEMORY, progress=False)
    planned = plan("cond_est", "f8", assume_a="pos")
    assert report.bytes_read * 5 == planned.bytes_read * int(report.notes[0].split()[0])
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= MEMORY


def test_export(tmp_path: Path) -> None:
    n, memory = 1024, 2_000_000
    A = oc.from_array(random_matrix(n, "f8"), tmp_path / "A", order="F", progress=False)
    lu = lu_factor(A, memory=memory, method="slabs", progress=False)
    _, _, report = export_lapack(lu, memory=memory, progress=False)
    given = {"n": n, "memory": memory, "rates": RATES}
    planned = oc.plan("export_lapack", method="slabs", **given)
    assert report.bytes_read == report.planned_bytes_read == planned.bytes_read
    assert report.bytes_written == report.planned_bytes_written == planned.bytes_written
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert planned.disk_bytes == 8 * n * n
    assert oc.plan("export_lapack", tile=lu.tile, **given) == planned
    with pytest.raises(BudgetError, match="columns of an LU"):
        oc.plan("export_lapack", n=n, memory=1000, tile=lu.tile, rates=RATES)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(BudgetError):
        oc.plan("lu_solve", n=N, memory=60_000, tile=(512, 512), rates=RATES)
    with pytest.raises(InvalidError, match="no option 'order'"):
        plan("lu_solve", "f8", tile=(128, 16), order="C")


@pytest.mark.parametrize("verb", ["lu_solve", "cho_solve", "qr_solve", "cond_est", "form_q"])
@pytest.mark.parametrize("tile", [3, (0, 0), "x", (3,), (64, -1), 1.5])
def test_tiles_that_cannot_be_are_refused(verb: str, tile: Any) -> None:
    with pytest.raises(InvalidError, match="need tile= as rows and columns of at least 1"):
        plan(verb, "f8", tile=tile)
