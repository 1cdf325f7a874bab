"""Matrices and factors with truncated files: every verb reports them and leaves no files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import names_below, on_disk

import outcore as oc
from outcore import linalg
from outcore.errors import OutcoreError

N = 400
ONES = np.ones(N)
SMALL, LARGE = {"memory": "1 MB", "progress": False}, {"memory": "6 MB", "progress": False}

OF_A_MATRIX: dict[str, Callable[[Any, Path], object]] = {
    "lu_factor": lambda A, out: linalg.lu_factor(A, out=out, **SMALL),
    "cho_factor": lambda A, out: linalg.cho_factor(A, out=out, **SMALL),
    "qr_factor": lambda A, out: linalg.qr_factor(A, out=out, **SMALL),
    "gram": lambda A, out: linalg.gram(A, out=out, **SMALL),
    "qr": lambda A, out: linalg.qr(A, mode="economic", out=out, **LARGE),
    "svd": lambda A, out: linalg.svd(A, 5, out=out, **LARGE),
    "lstsq": lambda A, out: linalg.lstsq(A, ONES, out=out, **LARGE),
    "lstsq, slabs": lambda A, out: linalg.lstsq(A, ONES, out=out, memory="1.2 MB", progress=False),
    "slogdet": lambda A, out: linalg.slogdet(A, **SMALL),
    "solve": lambda A, out: linalg.solve(A, ONES, out=out, **SMALL),
    "solve, f4": lambda A, out: linalg.solve(A, ONES, factor_dtype="f4", out=out, **SMALL),
    "matmul": lambda A, out: linalg.matmul(A, ONES[:, None], out=out, **SMALL),
    "solve_triangular": lambda A, out: linalg.solve_triangular(A, ONES[:, None], out=out, **SMALL),
    "gauss_seidel": lambda A, out: linalg.gauss_seidel(A, ONES, out=out, pin=None, **SMALL),
    "jacobi": lambda A, out: linalg.jacobi(A, ONES, out=out, pin=None, **SMALL),
    "cg": lambda A, out: linalg.cg(A, ONES, out=out, pin=None, **SMALL),
    "gmres": lambda A, out: linalg.gmres(A, ONES, out=out, pin=None, **SMALL),
}
OF_FACTORS: dict[str, tuple[Callable[..., Any], Callable[[Any, Path], object]]] = {
    "lu_solve": (linalg.lu_factor, lambda lu, out: linalg.lu_solve(lu, ONES, **LARGE)),
    "cho_solve": (linalg.cho_factor, lambda c, out: linalg.cho_solve(c, ONES, **LARGE)),
    "qr_solve": (linalg.qr_factor, lambda qr, out: linalg.qr_solve(qr, ONES, **LARGE)),
    "slogdet": (linalg.lu_factor, lambda lu, out: linalg.slogdet(lu, **LARGE)),
    "cond_est": (linalg.lu_factor, lambda lu, out: linalg.cond_est(lu, **LARGE)),
    "cond_est, Cholesky": (linalg.cho_factor, lambda c, out: linalg.cond_est(c, **LARGE)),
    "export_lapack": (linalg.lu_factor, lambda lu, out: linalg.export_lapack(lu, out, **LARGE)),
    "form_q": (linalg.qr_factor, lambda qr, out: linalg.form_q(qr, out=out, **LARGE)),
    "preconditioner": (
        linalg.lu_factor,
        lambda lu, out: linalg.gmres(lu.source, ONES, preconditioner=lu, **LARGE),
    ),
}


def cut_off(content: Path) -> None:
    """Truncate the file of an array to half its length."""
    (shard,) = (path for path in (content / "c").rglob("*") if path.is_file())
    os.truncate(shard, shard.stat().st_size // 2)


@pytest.mark.parametrize("when", ["before it is opened", "afterwards"])
@pytest.mark.parametrize("verb", OF_A_MATRIX)
def test_a_matrix(tmp_path: Path, verb: str, when: str) -> None:
    a = definite(N, "f8")
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(64, 64), progress=False)
    before = names_below(tmp_path)
    cut_off(tmp_path / "A")
    given: Any = A
    if when != "afterwards":
        A.close()
        given = tmp_path / "A"
    with pytest.raises(OutcoreError, match="A") as told:
        OF_A_MATRIX[verb](given, tmp_path / "x")
    assert told.value.kind == "truncated"
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("verb", OF_FACTORS)
def test_factors(tmp_path: Path, verb: str) -> None:
    make, use = OF_FACTORS[verb]
    factor = make(on_disk(tmp_path / "A", definite(N, "f8")), **LARGE)
    before = names_below(tmp_path)
    cut_off(factor.path / factor.kind.array)
    with pytest.raises(OutcoreError) as told:
        use(factor, tmp_path / "x")
    assert told.value.kind == "truncated"
    assert names_below(tmp_path) == before
