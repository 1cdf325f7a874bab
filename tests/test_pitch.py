"""Columns of matrices in memory are padded where that is faster, without visible effects."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import outcore as oc
from outcore._core import Arena
from outcore.linalg._tiles.pitch import allocate_matrix, matrix_bytes, pitch

N = 2048
"""Columns of 32 KiB in complex128."""


def test_columns_are_padded_where_they_would_share_a_set_of_the_cache() -> None:
    assert pitch(4096, 8) == 4096 + 64
    assert pitch(2048, 16) == 2048 + 32
    assert pitch(8192, 4) == 8192 + 128
    # The first column is too short for a pad; the others need none.
    assert pitch(4095, 8) == 4095
    assert pitch(2048, 8) == 2048
    assert pitch(4096 + 64, 8) == 4096 + 64


@pytest.mark.parametrize(("rows", "columns"), [(2048, 3), (2047, 3), (1, 1), (4096, 5)])
def test_a_matrix_takes_the_memory_that_it_says(rows: int, columns: int) -> None:
    dtype = np.dtype("c16")
    arena = Arena(10 << 20)
    matrix = allocate_matrix(arena, rows, columns, dtype)
    assert matrix.shape == (rows, columns)
    assert arena.peak_bytes <= matrix_bytes(rows, columns, 16) < arena.peak_bytes + 4096
    matrix[:] = 1  # touches all of it
    if rows == 2048:
        assert matrix.strides == (16, (2048 + 32) * 16)


def random(seed: int, columns: int = N) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = (rng.standard_normal((N, columns), np.float32) for _ in range(2))
    return np.asfortranarray(next(parts) + 1j * next(parts).astype(np.complex128))


LAYOUTS = {
    "tiles": {},
    # Whole columns, which are contiguous on disk and padded in memory.
    "whole columns": {"chunks": (N, 48)},
    "C": {"order": "C"},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"order": "F", **LAYOUTS[request.param]}


@pytest.fixture(scope="module")
def stored(layout: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> oc.Array:
    return oc.from_array(random(0), tmp_path_factory.mktemp("pitch") / "A", **layout)


@pytest.mark.exhaustive
def test_lu_is_that_of_lapack_and_moves_what_the_plan_says(
    stored: oc.Array, tmp_path: Path
) -> None:
    factor = oc.linalg.lu_factor(stored, out=tmp_path / "LU", memory="12 MiB", progress=False)
    lu, piv = scipy.linalg.lu_factor(random(0), check_finite=False)
    assert np.array_equal(factor.piv, piv)
    exported, _, _ = oc.linalg.export_lapack(factor, tmp_path / "exported", progress=False)
    assert np.abs(exported[...] - lu).max() <= 1e-10 * np.abs(lu).max()
    as_planned(factor.report)


@pytest.mark.exhaustive
def test_qr_moves_what_the_plan_says(layout: dict[str, Any], tmp_path: Path) -> None:
    a = random(0, N // 3)
    A = oc.from_array(a, tmp_path / "A", **layout)
    factor = oc.linalg.qr_factor(A, memory="8 MiB", progress=False)
    as_planned(factor.report)
    x = oc.linalg.qr_solve(factor, a @ np.ones(N // 3), progress=False)
    assert np.abs(x - 1).max() < 1e-10


def test_products_are_those_of_numpy_and_move_what_the_plan_says(
    stored: oc.Array, tmp_path: Path
) -> None:
    B = random(1, 96)
    C = oc.linalg.matmul(stored, B, out=tmp_path / "C", memory="12 MiB", progress=False)
    expected = random(0) @ B
    assert np.abs(C[...] - expected).max() <= 1e-12 * np.abs(expected).max()
    as_planned(C.report)


def as_planned(report: oc.Report | None) -> None:
    assert report is not None
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= report.memory_bytes
