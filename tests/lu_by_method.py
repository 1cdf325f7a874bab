"""LU of a matrix in memory, written to disk first, by a named method or one that a call chooses."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, lapack_ratio
from stopping import bits

import outcore as oc
from outcore.errors import DiskFullError
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg._geometry.segments import SegmentedGeometry
from outcore.linalg._lu import choice
from outcore.machine.rates import Rates
from outcore.report.report import Report

RATES = Rates(
    read_bytes_s=1e9, write_bytes_s=1e9,
    gemm_flops_s=dict.fromkeys(("float32", "float64", "complex64", "complex128"), 1e12),
    cores=1, threads=1, kernels="", measured_at="", directory="",
)  # fmt: skip

CHOSEN = pytest.mark.parametrize(
    ("method", "dtype", "n", "memory"),
    [
        ("block-columns", "f8", 700, 200_000),
        ("tournament", "c16", 650, 170_000),
        ("block-columns", "c16", 512, 250_000),
        ("tournament", "f8", 900, 149_000),
    ],
)
"""Budgets for which a call chooses a method, on a `slow_disk`, for `row_major` matrices."""


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set rates of a disk on which block columns pay, and drop the minimum size of matrices."""
    slow = Rates(**RATES.__dict__ | {"read_bytes_s": 1e6, "write_bytes_s": 1e6})
    monkeypatch.setattr(choice, "LEAST_BYTES", 1)
    monkeypatch.setattr(choice.rates, "stored", lambda where: slow)


def row_major(path: Path, a: Matrix) -> oc.Array:
    """Write a matrix in the layout of the cases in this file."""
    return oc.from_array(a, path, order="C", chunks=(64, 32), progress=False)


def assert_chosen(method: str, report: Report, memory: int) -> None:
    """Check that a call used this method, and kept to the budget for which it was chosen."""
    why = choice.ONLY if method == "tournament" else "block-columns for time and words"
    assert sum(note.startswith(why) for note in report.notes) == 1, report.notes
    assert report.verb != "solve" or method in str(report.method)
    assert report.peak_memory_bytes <= memory


def factor_by(
    method: str,
    path: Path,
    a: Matrix,
    memory: int,
    *,
    order: str = "C",
    chunks: tuple[int, int] = (64, 32),
    **options: Any,
) -> LUFactor:
    A = oc.from_array(a, path, order=order, chunks=chunks, progress=False)
    options = {"threads": 1, "progress": False} | options
    return lu_factor(A, memory=memory, method=method, **options)


def assert_finished(lu: LUFactor, expected: tuple[Matrix, Matrix], why: str = "") -> None:
    """Check the bits, and that no temporary files remain, except after a kill at the very end."""
    for have, want in zip(bits(lu), expected, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=why)
    names = {p.name for p in lu.path.iterdir()} - {"lock", "journal"}
    assert names == {"lu", "piv", "zarr.json"}


def assert_synced(spans: Matrix, array: int) -> None:
    """Check that a file was synced after its last write."""
    writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == array)]
    syncs = spans[(spans[:, 0] == 2) & (spans[:, 1] == array)]
    if len(writes):
        assert (syncs[:, 2] >= writes[:, 3].max()).any(), array


def some_lines(inside: int) -> Callable[[int], list[int]]:
    """Choose some random lines, and some at the end."""

    def numbers(count: int) -> list[int]:
        draw = np.random.default_rng(0)
        return [*draw.integers(2, count, inside).tolist(), *range(count - 60, count, 20)]

    return numbers


def assert_refused_for_temporary_files(
    A: oc.Array, a: Matrix, method: Any, memory: int, g: SegmentedGeometry, disk: Path
) -> None:
    """Check that a disk with space for the factors and half of the temporary files is refused."""
    free = oc.storage.volumes.place(disk / "x").volume.free_bytes()
    filler, factors = disk / "filler", g.tiles * g.panels * g.tile_bytes
    with filler.open("wb") as file:
        file.write(bytes(max(free - factors - g.scratch_bytes() // 2, 0)))
    run = functools.partial(
        lu_factor, A, memory=memory, out=disk / "F", method=method, progress=False
    )
    with pytest.raises(DiskFullError, match="of them for temporary files"):
        run()
    assert not (disk / "F").exists()
    filler.unlink()
    if free > factors + g.scratch_bytes() + (1 << 20):
        assert lapack_ratio(a, run()) < 30
