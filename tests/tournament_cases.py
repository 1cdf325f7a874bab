"""Matrices for LU with tournament pivoting, and how they are cut."""

from pathlib import Path
from typing import Any

import numpy as np
from linpack import Matrix

import outcore as oc
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg.lu.segments import Layout
from outcore.linalg.lu.tournament_geometry import TournamentGeometry
from outcore.linalg.lu.tournament_plan import tournament_geometry


def cut(n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]) -> TournamentGeometry:
    return tournament_geometry(n, np.dtype(dtype), memory, Layout(order, chunks))


def played(g: TournamentGeometry) -> int:
    """Block columns whose pivots a tournament chooses."""
    return sum(not g.is_whole(s) for s in g.block_columns)


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
    return lu_factor(A, memory=memory, method="tournament", **options)
