"""Results that do not fit on a disk: a clear error, no left-overs, and success with more space."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definite import definite
from linpack import names_below, on_disk, random_matrix
from stopping import fill_up

import outcore as oc
from outcore import linalg
from outcore.errors import DiskFullError

N = 600
LEFT = 300_000
"""Free bytes: enough for directories and notes, but not for a result."""
SMALL, LARGE = {"memory": "8 MB", "progress": False}, {"memory": "60 MB", "progress": False}

Call = Callable[[Any, np.ndarray[Any, Any], Path], object]

WITH_FACTORS: dict[str, tuple[Callable[..., Any], Call]] = {
    "lu_solve": (linalg.lu_factor, lambda lu, b, out: linalg.lu_solve(lu, b, out=out, **SMALL)),
    "cho_solve": (linalg.cho_factor, lambda c, b, out: linalg.cho_solve(c, b, out=out, **SMALL)),
    "qr_solve": (linalg.qr_factor, lambda qr, b, out: linalg.qr_solve(qr, b, out=out, **SMALL)),
    "export_lapack": (linalg.lu_factor, lambda lu, b, out: linalg.export_lapack(lu, out, **SMALL)),
    "form_q": (linalg.qr_factor, lambda qr, b, out: linalg.form_q(qr, out=out, **SMALL)),
}
WITH_THE_MATRIX: dict[str, Call] = {
    "gram": lambda A, b, out: linalg.gram(A, out=out, **SMALL),
    "qr": lambda A, b, out: linalg.qr(A, mode="economic", out=out, **LARGE),
    "qr, R": lambda A, b, out: linalg.qr(A, out=out, **LARGE),
    "svd": lambda A, b, out: linalg.svd(A, 300, out=out, **LARGE),
    "lstsq": lambda A, b, out: linalg.lstsq(A, b, out=out, **LARGE),
    "solve": lambda A, b, out: linalg.solve(A, b, out=out, **SMALL),
    "solve, f4": lambda A, b, out: linalg.solve(A, b, factor_dtype="f4", out=out, **SMALL),
    "gauss_seidel": lambda A, b, out: linalg.gauss_seidel(A, b, out=out, **SMALL),
    "cg": lambda A, b, out: linalg.cg(A, b, out=out, **SMALL),
    "matmul": lambda A, b, out: linalg.matmul(A, b, out=out, **SMALL),
    "solve_triangular": lambda A, b, out: linalg.solve_triangular(
        A, b, lower=True, out=out, **SMALL
    ),
}
BESIDE_THE_MATRIX: dict[str, Call] = {
    "factors of solve": lambda A, b, out: linalg.solve(A, b[:, 0], memory="1 MB", progress=False),
    "factors in f4": lambda A, b, out: linalg.solve(
        A, b[:, 0], factor_dtype="f4", memory="1 MB", progress=False
    ),
    "factors of slogdet": lambda A, b, out: linalg.slogdet(A, memory="1 MB", progress=False),
    "a copy in f4": lambda A, b, out: linalg.gauss_seidel(
        A, b[:, :2], storage="f4", scratch=out.parent, memory="10 MB", progress=False
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*WITH_FACTORS, *WITH_THE_MATRIX, *BESIDE_THE_MATRIX])
def test_said_and_nothing_left(tmp_path: Path, small_disk: Path, name: str) -> None:
    a, b = definite(N, "f8"), random_matrix(N, "f8", 1)
    A: Any = on_disk((small_disk if name in BESIDE_THE_MATRIX else tmp_path) / "A", a)
    if name in WITH_FACTORS:
        make, call = WITH_FACTORS[name]
        A = make(A, **SMALL)
    else:
        call = (WITH_THE_MATRIX | BESIDE_THE_MATRIX)[name]
    filler = small_disk / "filler"
    fill_up(filler)
    os.truncate(filler, filler.stat().st_size - LEFT)
    os.sync()
    before = names_below(small_disk)
    with pytest.raises(DiskFullError, match=r"free|room") as told:
        call(A, b, small_disk / "x")
    assert told.value.kind == "disk_full"
    assert names_below(small_disk) == before

    filler.unlink()
    os.sync()
    call(A, b, small_disk / "x")
    if name not in BESIDE_THE_MATRIX:
        assert oc.files.catalog.recognise(small_disk / "x").state == "whole"
