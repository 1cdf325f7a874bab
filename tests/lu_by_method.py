"""LU of a matrix in memory, put on disk first, by a method that is named; what all methods do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from linpack import Matrix
from stopping import bits

import outcore as oc
from outcore.linalg import LUFactor, lu_factor
from outcore.rates import Rates

RATES = Rates(
    read_bytes_s=1e9, write_bytes_s=1e9,
    gemm_flops_s=dict.fromkeys(("float32", "float64", "complex64", "complex128"), 1e12),
    cores=1, threads=1, kernels="", measured_at="", directory="",
)  # fmt: skip


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
    """To the last bit; temporary files are gone, if not what a kill at the very end leaves."""
    for have, want in zip(bits(lu), expected, strict=True):
        np.testing.assert_array_equal(have, want, err_msg=why)
    names = {p.name for p in lu.path.iterdir()} - {"lock", "journal"}
    assert names == {"lu", "piv", "zarr.json"}


def assert_synced(spans: Matrix, array: int) -> None:
    """A file was synced after the last write to it."""
    writes = spans[(spans[:, 0] == 1) & (spans[:, 1] == array)]
    syncs = spans[(spans[:, 0] == 2) & (spans[:, 1] == array)]
    if len(writes):
        assert (syncs[:, 2] >= writes[:, 3].max()).any(), array


def some_lines(inside: int) -> Callable[[int], list[int]]:
    """Choose so many lines by chance, and some of the end."""

    def numbers(count: int) -> list[int]:
        draw = np.random.default_rng(0)
        return [*draw.integers(2, count, inside).tolist(), *range(count - 60, count, 20)]

    return numbers
