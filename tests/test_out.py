"""Paths that ``out=`` refuses: anything that the call still needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import on_disk, one_thread, random_matrix

import outcore as oc
from outcore.errors import InvalidError
from outcore.linalg import (
    export_lapack,
    form_q,
    gram,
    lu_factor,
    lu_solve,
    matmul,
    open_factor,
    qr_factor,
    qr_solve,
    solve,
)

__all__ = ["one_thread"]  # a fixture for every test here

N = 60


@pytest.fixture(name="A")
def matrix(tmp_path: Path) -> oc.Array:
    oc.create_group(tmp_path / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "Z")
    return on_disk(tmp_path / "folder" / "Z", random_matrix(N, "f8"), (64, 32))


@pytest.mark.parametrize(
    "out", ["folder/Z", "link", "folder", "folder/../link/", "folder/Z.lu", "folder/Z.cho"]
)
def test_solutions_do_not_replace_what_they_need(tmp_path: Path, A: oc.Array, out: str) -> None:
    a = A[...]
    with pytest.raises(InvalidError, match="out= would replace"):
        solve(A, np.ones(N), out=tmp_path / out, if_exists="overwrite")
    with pytest.raises(InvalidError, match="out= would replace"):
        solve(A, np.ones(N), out=tmp_path / "x", factors=tmp_path / "x", if_exists="overwrite")
    np.testing.assert_array_equal(oc.open_array(A.path)[...], a)


@pytest.mark.parametrize("out", ["folder/Z", "link", "folder"])
def test_products_do_not_replace_operands(tmp_path: Path, A: oc.Array, out: str) -> None:
    a = A[...]
    with pytest.raises(InvalidError, match=r"out= (is an operand|holds Z)"):
        matmul(A, A, out=tmp_path / out, if_exists="overwrite")
    np.testing.assert_array_equal(oc.open_array(A.path)[...], a)


@pytest.mark.parametrize("out", ["folder/Z/x", "folder/Z/c/x", "link/x"])
def test_results_do_not_lie_in_operands(tmp_path: Path, A: oc.Array, out: str) -> None:
    before = sorted(A.path.rglob("*"))
    target, ones = tmp_path / out, np.ones(N)
    lu = lu_factor(A, progress=False)
    b = oc.from_array(ones, tmp_path / "b", progress=False)
    calls: list[Callable[[], Any]] = [
        lambda: matmul(A, A, out=target),
        lambda: solve(A, ones, out=target),
        lambda: solve(A, ones, factors=target),
        lambda: lu_factor(A, out=target),
        lambda: gram(A, out=target),
        lambda: lu_solve(lu, b, out=b.path / "x"),
        lambda: lu_solve(lu, ones, out=lu.path / "x"),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(InvalidError, match=r"(out=|factors=) lies in"):
            call()
        assert sorted(A.path.rglob("*")) == before, number
    solve(A, ones, progress=False)


def test_results_do_not_replace_factors(A: oc.Array) -> None:
    lu, qr = lu_factor(A, progress=False), qr_factor(A, progress=False)
    with pytest.raises(InvalidError, match="out= would replace"):
        lu_solve(lu, np.ones(N), out=lu.path, if_exists="overwrite")
    with pytest.raises(InvalidError, match="out= would replace"):
        qr_solve(qr, np.ones(N), out=qr.path, if_exists="overwrite")
    with pytest.raises(InvalidError, match="out= is an operand"):
        export_lapack(lu, lu.path, if_exists="overwrite")
    with pytest.raises(InvalidError, match="out= is an operand"):
        form_q(qr, out=qr.path, if_exists="overwrite")
    for factor in (lu, qr):
        open_factor(factor.path)


def test_threads_are_any_integer(A: oc.Array) -> None:
    count: Any = np.int64(1)
    x, report = solve(A, np.ones(N), threads=count, progress=False)
    assert report.threads == 1
    assert matmul(A, x, threads=count, progress=False).shape == (N,)
