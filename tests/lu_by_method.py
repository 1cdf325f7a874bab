"""LU of a matrix in memory, put on disk first, by a method that is named."""

from pathlib import Path
from typing import Any

from linpack import Matrix

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
