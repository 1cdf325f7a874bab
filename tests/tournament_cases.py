"""Matrices for LU with tournament pivoting, and their geometries."""

import functools

import numpy as np
from lu_by_method import factor_by

from outcore.linalg._geometry.segments import Layout
from outcore.linalg._lu.block_columns.plan import tournament_geometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> TournamentGeometry:
    return tournament_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


def played(g: TournamentGeometry) -> int:
    """Return the number of block columns whose pivots a tournament chooses."""
    return sum(not g.is_whole(s) for s in g.block_columns)


factor = functools.partial(factor_by, "tournament")
