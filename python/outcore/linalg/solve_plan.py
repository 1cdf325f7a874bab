"""What `solve` costs."""

import dataclasses

from outcore.linalg.cost import Cost, Phase, Problem
from outcore.linalg.lu_plan import lu_cost, lu_geometry, solve_bytes_read, solve_flops


def solve_cost(problem: Problem) -> Cost:
    """Plan `solve`: LU, a pass over L and one over U, then one over A for the residual."""
    factoring = lu_cost(problem)
    g = lu_geometry(problem.n, problem.dtype, problem.memory_bytes)
    phases = (*factoring.phases, *passes(problem, (g.rows, g.columns)))
    return dataclasses.replace(factoring, phases=phases)


def passes(problem: Problem, tile: tuple[int, int]) -> tuple[Phase, Phase]:
    """Plan a pass over L and one over U, with factors in such tiles; and a pass over A."""
    n, dtype = problem.n, problem.dtype
    flops = solve_flops(n, dtype, problem.rhs)
    return (
        Phase(dtype=dtype, bytes_read=solve_bytes_read(n, dtype, tile), flops=flops),
        Phase(dtype=dtype, bytes_read=n * n * dtype.itemsize, flops=flops),
    )
