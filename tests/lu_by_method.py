"""LU of a matrix in memory, put on disk first, by a method that is named."""

from pathlib import Path
from typing import Any

from linpack import Matrix

import outcore as oc
from outcore.linalg import LUFactor, lu_factor


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
