"""Solving with factors in lower precision: calls, and measures of a solution."""

from pathlib import Path
from typing import Any

import numpy as np
from linpack import Matrix

import outcore as oc
from outcore.linalg import solve

N, TINY = 300, 500_000
LOW = {"float64": "f4", "complex128": "c8"}
EPS = float(np.finfo(np.float64).eps)


def mixed(A: oc.Array | Path, b: Any, **more: Any) -> tuple[Any, oc.Report]:
    dtype = (A if isinstance(A, oc.Array) else oc.open_array(A)).dtype.name
    options: dict[str, Any] = {"memory": TINY, "factor_dtype": LOW[dtype], "progress": False}
    return solve(A, b, **options | more)


def backward_error(a: Matrix, x: Matrix, b: Matrix) -> float:
    scale = np.linalg.norm(a, 1) * np.abs(x).sum(axis=0) + np.abs(b).sum(axis=0)
    return float((np.abs(a @ x - b).sum(axis=0) / scale).max())
