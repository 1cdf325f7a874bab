"""The planners of all verbs, and those of calls that use factors on disk.

By default the same budget created the factors. Right-hand sides and solutions are in memory, in the
type of the factors.
"""

import dataclasses
from typing import Any

from outcore._util.counts import count_of
from outcore.errors import InvalidError
from outcore.linalg._cholesky.plan import cholesky_cost, cholesky_costs
from outcore.linalg._estimate.cond_est import USUAL_SOLVES, vectors_bytes
from outcore.linalg._factors.sweeps import PlannedFactors, cut_sweep, ring_bytes
from outcore.linalg._geometry.layouts import tile_of
from outcore.linalg._lstsq.plan import lstsq_cost
from outcore.linalg._lu.choice import lu_plan, planned_lu
from outcore.linalg._lu.export import ExportGeometry
from outcore.linalg._output.factor import CHOLESKY, LU, QR, Kind
from outcore.linalg._products.gram_plan import gram_cost
from outcore.linalg._products.matmul_plan import matmul_cost
from outcore.linalg._products.triangular_plan import triangular_cost
from outcore.linalg._qr.plan import qr_cost
from outcore.linalg._rhs.condition import with_probes
from outcore.linalg._slab_qr.form_q import form_q_cost
from outcore.linalg._slab_qr.loads import slab_qr_cost
from outcore.linalg._slab_qr.plan import PROBES, Tiles, slab_qr_geometry, solve_phase
from outcore.linalg._svd.plan import svd_cost
from outcore.linalg._systems.plan import estimating_phase, kind_of, solve_plan, solving_phase
from outcore.linalg._tiles.cost import Cost, Phase, Planner, Problem, of_several
from outcore.linalg._tiles.grains import pages
from outcore.linalg.iterative.cost import cg_cost, gauss_seidel_cost, gmres_cost, jacobi_cost


def lu_solve_cost(problem: Problem) -> Cost:
    """Plan `lu_solve`."""
    return _solving(problem, LU, "one over L and one over U")


def cho_solve_cost(problem: Problem) -> Cost:
    """Plan `cho_solve`."""
    return _solving(problem, CHOLESKY, "two over L")


def qr_solve_cost(problem: Problem) -> Cost:
    """Plan `qr_solve`."""
    m, n, tile = problem.m or problem.n, problem.n, tile_of(problem)
    # With more columns than rows, the factors are those of the transpose.
    shape = max(m, n), min(m, n)
    if tile is None:
        g = slab_qr_geometry(shape, problem.on_disk, problem.memory_bytes)
        tile = g.rows, g.columns
    tiles = Tiles(*shape, problem.dtype, *tile, problem.stored)
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
    kind, (processes, link) = kind_of(problem), _processes(problem)
    factors = _factors(problem, kind)
    beside = vectors_bytes(factors.n, factors.dtype)
    block_tiles, _ = cut_sweep(factors, problem.memory_bytes, 0, 2, beside, processes=processes)
    costs = [
        Cost(
            method=f"{USUAL_SOLVES} solves, as most matrices take",
            peak_memory_bytes=ring_bytes(factors, block_tiles, processes=processes) + beside,
            disk_bytes=0,
            words_lower_bound=None,
            phases=(estimating_phase(kind, factors, rank, processes),),
        )
        for rank in range(processes)
    ]
    return of_several(costs, link)


def export_cost(problem: Problem) -> Cost:
    """Plan `export_lapack`."""
    for name in ("processes", "link"):
        if name in problem.options:
            raise InvalidError(
                f"the plan of export_lapack, which runs in one process, has no option {name!r}; "
                "leave it out"
            )
    g = ExportGeometry.of(*_factors(problem, LU), problem.memory_bytes)
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
    factoring, (rows, columns), _ = planned_lu(problem)
    looked_at = -(-problem.n // columns) * pages(rows * columns * problem.dtype.itemsize)
    look = Phase(dtype=problem.dtype, bytes_read=looked_at)
    return dataclasses.replace(factoring, phases=(*factoring.phases, look))


def _factors(problem: Problem, kind: Kind) -> PlannedFactors:
    tile = tile_of(problem)
    # The type that the factors have on disk.
    made = dataclasses.replace(problem, dtype=problem.on_disk, stored=None)
    if tile is None:
        tile = cholesky_costs(made)[1] if kind is CHOLESKY else planned_lu(made).tile
    return PlannedFactors(made.n, made.dtype, tile)


def _processes(problem: Problem) -> tuple[int, Any]:
    """Return the number of processes, and the rate of their networks."""
    return count_of("processes", problem.option("processes", 1)), problem.option("link", None)


def _solving(problem: Problem, kind: Kind, passes: str) -> Cost:
    factors, (processes, link) = _factors(problem, kind), _processes(problem)
    rhs, dtype = problem.rhs, problem.dtype
    block_tiles, _ = cut_sweep(
        factors, problem.memory_bytes, 0, rhs, dtype=dtype, processes=processes
    )
    rows, columns = factors.tile
    dealt = f", dealt to {processes} processes" if processes > 1 else ""
    costs = [
        Cost(
            method=f"two passes, {passes}, in blocks of {block_tiles} tiles of {rows} x {columns}"
            f"{dealt}",
            peak_memory_bytes=ring_bytes(factors, block_tiles, dtype, processes),
            disk_bytes=0,
            words_lower_bound=kind.words(factors.n, factors.n),
            phases=(solving_phase(kind, factors, dtype, rhs, rank, processes),),
        )
        for rank in range(processes)
    ]
    return of_several(costs, link)


PLANNERS: dict[str, Planner] = {
    "lu": lu_plan,
    "cholesky": cholesky_cost,
    "qr": qr_cost,
    "qr_factor": slab_qr_cost,
    "form_q": form_q_cost,
    "lu_solve": lu_solve_cost,
    "cho_solve": cho_solve_cost,
    "qr_solve": qr_solve_cost,
    "slogdet": slogdet_cost,
    "export_lapack": export_cost,
    "cond_est": cond_est_cost,
    "lstsq": lstsq_cost,
    "gram": gram_cost,
    "svd": svd_cost,
    "solve": solve_plan,
    "gauss_seidel": gauss_seidel_cost,
    "jacobi": jacobi_cost,
    "cg": cg_cost,
    "gmres": gmres_cost,
    "matmul": matmul_cost,
    "solve_triangular": triangular_cost,
}
"""The planner of each verb, from its module ``linalg/*_plan.py``."""

FUNCTIONS = {"lu_factor": "lu", "cho_factor": "cholesky"}
"""Verbs of functions with other names."""
