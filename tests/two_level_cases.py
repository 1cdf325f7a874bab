"""Matrices for two-level LU, and how they are cut."""

from pathlib import Path
from typing import Any

import numpy as np
from linpack import Matrix

import outcore as oc
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg.lu.segments import Layout
from outcore.linalg.lu.two_level_geometry import TwoLevelGeometry
from outcore.linalg.lu.two_level_plan import two_level_geometry


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> TwoLevelGeometry:
    return two_level_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


def factor(
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
    return lu_factor(A, memory=memory, method="two-level", **options)
