"""Matrices for LU by block columns with partial pivoting, and their geometries."""

import functools

import numpy as np
from lu_by_method import factor_by

from outcore.linalg._geometry.segments import Layout
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.plan import partial_geometry


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> PartialGeometry:
    return partial_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


factor = functools.partial(factor_by, "block-columns")
