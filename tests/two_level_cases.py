"""Matrices for two-level LU, and how they are cut."""

import functools

import numpy as np
from lu_by_method import factor_by

from outcore.linalg.lu.segments import Layout
from outcore.linalg.lu.two_level_geometry import TwoLevelGeometry
from outcore.linalg.lu.two_level_plan import two_level_geometry


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> TwoLevelGeometry:
    return two_level_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


factor = functools.partial(factor_by, "two-level")
