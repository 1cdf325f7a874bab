"""Plans of calls that use factors on disk. By default the same budget created the factors.

Right-hand sides and solutions are in memory, in the type of the factors.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from outcore.linalg._cholesky.plan import cholesky_geometry_of, cholesky_solve_bytes_read
from outcore.linalg._estimate.cond_est import USUAL_SOLVES, vectors_bytes
from outcore.linalg._factors.sweeps import cut_sweep, ring_bytes
from outcore.linalg._geometry.factor_plan import solve_bytes_read, solve_flops
from outcore.linalg._geometry.layouts import tile_of
from outcore.linalg._lu.choice import planned_lu
from outcore.linalg._lu.export_plan import ExportGeometry
from outcore.linalg._output.factor import CHOLESKY, LU, QR
from outcore.linalg._rhs.condition import with_probes
from outcore.linalg._slab_qr.plan import slab_qr_geometry
from outcore.linalg._slab_qr.solve_plan import PROBES, Tiles, solve_phase
from outcore.linalg._tiles.cost import Cost, Phase, Problem
from outcore.linalg._tiles.grains import pages


class _Factors(NamedTuple):
    """Order, type, and tiles of factors."""

    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]


def lu_solve_cost(problem: Problem) -> Cost:
    """Plan `lu_solve`."""
    lu = _lu_factors(problem)
    read = solve_bytes_read(*lu)
    return _solving(problem, lu, read, "one over L and one over U", LU.words(lu.n, lu.n))


def cho_solve_cost(problem: Problem) -> Cost:
    """Plan `cho_solve`."""
    c = _cholesky_factors(problem)
    least = CHOLESKY.words(c.n, c.n)
    return _solving(problem, c, cholesky_solve_bytes_read(*c), "two over L", least)


def qr_solve_cost(problem: Problem) -> Cost:
    """Plan `qr_solve`."""
    m, n, tile = problem.m or problem.n, problem.n, tile_of(problem)
    # With more columns than rows, the factors are those of the transpose.
    shape = max(m, n), min(m, n)
    if tile is None:
        g = slab_qr_geometry(shape, problem.on_disk, problem.memory_bytes)
        tile = g.rows, g.columns
    tiles = Tiles(shape, problem.dtype, tile, problem.stored)
    probes, group = with_probes(
        PROBES, lambda probes: tiles.group(problem.memory_bytes, problem.rhs, 1, 0, probes)
    )
    return Cost(
        method=f"one pass over Q and one over R for {group} columns at once",
        peak_memory_bytes=tiles.fixed_bytes(probes) + tiles.width_bytes(group),
        disk_bytes=0,
        words_lower_bound=QR.words(*shape),
        phases=(solve_phase(tiles, problem.rhs, group),),
    )


def cond_est_cost(problem: Problem) -> Cost:
    """Plan `cond_est` in the 1-norm, with the number of solves that most matrices need.

    It uses factors of LU, or of Cholesky with the option ``assume_a="pos"``.
    """
    is_pos = problem.option("assume_a", "gen") == "pos"
    factors = (_cholesky_factors if is_pos else _lu_factors)(problem)
    each = (cholesky_solve_bytes_read if is_pos else solve_bytes_read)(*factors)
    beside = vectors_bytes(factors.n, factors.dtype)
    block_tiles, _ = cut_sweep(factors, problem.memory_bytes, 0, 2, beside)
    return Cost(
        method=f"{USUAL_SOLVES} solves, as most matrices take",
        peak_memory_bytes=ring_bytes(factors, block_tiles) + beside,
        disk_bytes=0,
        words_lower_bound=None,
        phases=(
            Phase(
                dtype=factors.dtype,
                bytes_read=USUAL_SOLVES * each,
                flops=solve_flops(factors.n, factors.dtype, USUAL_SOLVES),
            ),
        ),
    )


def export_cost(problem: Problem) -> Cost:
    """Plan `export_lapack`."""
    g = ExportGeometry.of(*_lu_factors(problem), problem.memory_bytes)
    first = min(g.strip_bytes, g.bytes_written)
    phase = Phase(
        dtype=g.dtype,
        bytes_read=g.bytes_read,
        bytes_written=g.bytes_written,
        ends_read_bytes=first,
        ends_written_bytes=first,
    )
    return Cost(
        method=f"one pass, in strips of {g.strip} columns",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=g.bytes_written,
        words_lower_bound=g.words_lower_bound,
        phases=(phase,),
    )


def slogdet_cost(problem: Problem) -> Cost:
    """Plan `slogdet` of a matrix: its LU, and a read of the tiles with the diagonal."""
    factoring, (rows, columns) = planned_lu(problem)
    looked_at = -(-problem.n // columns) * pages(rows * columns * problem.dtype.itemsize)
    look = Phase(dtype=problem.dtype, bytes_read=looked_at)
    return dataclasses.replace(factoring, phases=(*factoring.phases, look))


def _lu_factors(problem: Problem) -> _Factors:
    tile, problem = tile_of(problem), _as_made(problem)
    if tile is None:
        _, tile = planned_lu(problem)
    return _Factors(problem.n, problem.dtype, tile)


def _as_made(problem: Problem) -> Problem:
    """Return the problem in the type that the factors have on disk."""
    return dataclasses.replace(problem, dtype=problem.on_disk, stored=None)


def _cholesky_factors(problem: Problem) -> _Factors:
    tile, problem = tile_of(problem), _as_made(problem)
    if tile is None:
        g = cholesky_geometry_of(problem)
        tile = g.rows, g.columns
    return _Factors(problem.n, problem.dtype, tile)


def _solving(
    problem: Problem, factors: _Factors, bytes_read: int, passes: str, least: float
) -> Cost:
    block_tiles, _ = cut_sweep(factors, problem.memory_bytes, 0, problem.rhs, dtype=problem.dtype)
    rows, columns = factors.tile
    return Cost(
        method=f"two passes, {passes}, in blocks of {block_tiles} tiles of {rows} x {columns}",
        peak_memory_bytes=ring_bytes(factors, block_tiles, problem.dtype),
        disk_bytes=0,
        words_lower_bound=least,
        phases=(
            Phase(
                dtype=problem.dtype,
                bytes_read=bytes_read,
                flops=solve_flops(factors.n, problem.dtype, problem.rhs),
            ),
        ),
    )
