"""Arrays of `numpy.ma`, and dask arrays of them: values below a mask are not elements."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from linpack import one_thread

import outcore as oc
from outcore.errors import InvalidError

__all__ = ["one_thread"]  # a fixture for every test here

N = 6
MASKED: Any = np.ma.masked_equal(np.arange(float(N)), 3.0)
SQUARE: Any = np.ma.masked_less(np.eye(N) + 4 * np.tri(N), 1.0)
LAZY: Any = dask.array.from_array(SQUARE, chunks=(2, N))
LAZY_VECTOR: Any = dask.array.from_array(MASKED, chunks=2)

WAYS: dict[str, Callable[[oc.Array, Path], Any]] = {
    "assigned": lambda A, at: A.__setitem__((slice(None), 0), MASKED),
    "one element": lambda A, at: A.__setitem__((0, 0), np.ma.masked),
    "block": lambda A, at: A.blocks().write((0, 0), SQUARE),
    "copied": lambda A, at: oc.from_array(MASKED, at / "B"),
    "rows": lambda A, at: oc.from_array(iter([SQUARE]), at / "B", shape=(N, N)),
    "slices": lambda A, at: oc.from_array(Sliced(), at / "B"),
    "fill": lambda A, at: oc.create_array(at / "B", N, fill=lambda rows: MASKED),
    "right-hand side": lambda A, at: oc.linalg.solve(A, MASKED, progress=False),
    "beginning": lambda A, at: oc.linalg.gauss_seidel(A, np.ones(N), x0=MASKED, progress=False),
    "operand": lambda A, at: oc.linalg.matmul(A, MASKED, progress=False),
    "least squares": lambda A, at: oc.linalg.lstsq(SQUARE, np.ones(N), progress=False),
    "blocks of rows": lambda A, at: oc.linalg.gram(iter([SQUARE]), progress=False),
    "dask, assigned": lambda A, at: A.__setitem__((slice(None), 0), LAZY_VECTOR),
    "dask, copied": lambda A, at: oc.from_array(LAZY, at / "B"),
    "dask, rows": lambda A, at: oc.from_array(iter([LAZY]), at / "B", shape=(N, N)),
    "dask, fill": lambda A, at: oc.create_array(at / "B", N, fill=lambda rows: LAZY_VECTOR),
    "dask, right-hand side": lambda A, at: oc.linalg.solve(A, LAZY_VECTOR, progress=False),
    "dask, operand": lambda A, at: oc.linalg.matmul(A, LAZY, progress=False),
    "dask, gram": lambda A, at: oc.linalg.gram(LAZY, progress=False),
    "dask, least squares": lambda A, at: oc.linalg.lstsq(A, LAZY_VECTOR, progress=False),
    "dask, wide": lambda A, at: oc.linalg.lstsq(LAZY[:3], np.ones(3), progress=False),
    "dask, blocks of rows": lambda A, at: oc.linalg.gram(iter([LAZY]), progress=False),
    "dask, pairs": lambda A, at: oc.linalg.lstsq(iter([(LAZY, np.ones(N))]), progress=False),
    "list": lambda A, at: oc.from_array([MASKED, MASKED], at / "B"),
    "transform": lambda A, at: oc.linalg.gram(A, transform=lambda X: SQUARE, progress=False),
    "preconditioner": lambda A, at: oc.linalg.gmres(
        A, np.ones(N), preconditioner=lambda R: MASKED[:, None], progress=False
    ),
}


class Sliced:
    """A source that returns masked blocks, as a variable of netCDF does."""

    shape, dtype = (N, N), np.dtype("f8")

    def __getitem__(self, box: Any) -> Any:
        return SQUARE[box]


def test_a_mask_is_not_dropped(tmp_path: Path) -> None:
    A = oc.from_array(np.eye(N), tmp_path / "A", order="F", progress=False)
    for name, give in WAYS.items():
        with pytest.raises(InvalidError, match=r"have \d+ of \d+ masked.*\.filled\(\)"):
            give(A, tmp_path)
        assert (A[...] == np.eye(N)).all(), name
        if (tmp_path / "B").exists():
            assert oc.open_array(tmp_path / "B", allow_incomplete=True).info().state != "whole"
            shutil.rmtree(tmp_path / "B")


def test_a_mask_of_nothing_is_none(tmp_path: Path) -> None:
    whole = np.ma.masked_array(np.arange(6.0), mask=False)
    A = oc.from_array(whole, tmp_path / "A", progress=False)
    A[...] = np.ma.masked_array(whole.data, mask=np.zeros(6, bool))
    assert A[...].tolist() == list(range(6))
