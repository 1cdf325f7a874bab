"""Matrices for LU by block columns with partial pivoting, and their geometries."""

import functools

import numpy as np
from lu_by_method import factor_by

from outcore.linalg.lu.block_columns_plan import partial_geometry
from outcore.linalg.lu.partial_geometry import PartialGeometry
from outcore.linalg.lu.segments import Layout


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> PartialGeometry:
    return partial_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


factor = functools.partial(factor_by, "block-columns")
