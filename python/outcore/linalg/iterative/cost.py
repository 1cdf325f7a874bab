"""Planners of the iterative methods: what so many sweeps or iterations cost."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outcore.counts import count_of
from outcore.errors import InvalidError
from outcore.linalg.cost import SCAN_S_PER_BYTE, SWEEPS, Cost, Phase, Problem, flop_weight
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.cg import demands as demands_of_cg
from outcore.linalg.iterative.gauss_seidel import check_direction
from outcore.linalg.iterative.gauss_seidel import demands as demands_of_gauss_seidel
from outcore.linalg.iterative.gmres import demands as demands_of_gmres
from outcore.linalg.iterative.jacobi import demands as demands_of_jacobi
from outcore.linalg.iterative.plan import (
    Demands,
    IterativeGeometry,
    MatrixLayout,
    Pass,
    check_dtype,
    iterative_geometry,
    narrow_dtype,
    working_dtype,
)
from outcore.linalg.iterative.preconditioners import applied
from outcore.linalg.layouts import layout_of


def gauss_seidel_cost(problem: Problem) -> Cost:
    """Plan `gauss_seidel` with ``sweeps`` sweeps, from 0.

    With ``processes`` bytes and time are of the one that reads most, and memory of each; disk space
    is for all of them.
    """
    sweeps = _count(problem, "sweeps")
    processes = count_of("processes", problem.option("processes", 1))
    setting = _setting(problem, problem.option("assume_a", "gen"))
    direction = check_direction(problem.option("direction", None), setting.assume_a, processes)
    needs = demands_of_gauss_seidel(direction, is_half=setting.mirror is not None)
    times: dict[Pass, int] = {"setup": 1, "all": 1}
    if direction == "symmetric":
        times |= {"lower": sweeps - sweeps // 2, "upper": sweeps // 2}
    else:
        times["sweep"] = sweeps

    def shares(setting: Setting) -> Iterator[IterativeGeometry]:
        for rank in range(processes):
            yield _geometry(problem, setting, lambda _: [needs], rank, processes)

    if processes > 1:
        block = min(g.strips.block for g in shares(setting))
        setting = dataclasses.replace(setting, block=block)
    costs = [_cost(g, times, block_reads=sweeps) for g in shares(setting)]
    return dataclasses.replace(
        max(costs, key=lambda cost: cost.bytes_read),
        peak_memory_bytes=max(cost.peak_memory_bytes for cost in costs),
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )


def jacobi_cost(problem: Problem) -> Cost:
    """Plan `jacobi` with ``sweeps`` sweeps, from 0."""
    sweeps = _count(problem, "sweeps")
    setting = _setting(problem, problem.option("assume_a", "gen"))
    needs = demands_of_jacobi(is_half=setting.mirror is not None)
    g = _geometry(problem, setting, lambda _: [needs])
    checks = 0 if g.source_slot_bytes is None else 1
    return _cost(g, {"setup": 1, "all": sweeps + checks}, block_reads=sweeps)


def cg_cost(problem: Problem) -> Cost:
    """Plan `cg` with ``iterations`` iterations, from 0."""
    iterations = _count(problem, "iterations")
    given = problem.option("preconditioner", None)
    g = _geometry(problem, _setting(problem, "her"), lambda _: [demands_of_cg(given)])
    times, block_reads = applied(given, g, iterations, gives_product=False)
    return _cost(g, times | {"all": iterations + 1}, block_reads)


def gmres_cost(problem: Problem) -> Cost:
    """Plan `gmres` with ``iterations`` iterations, from 0."""
    iterations = _count(problem, "iterations")
    given, restart = problem.option("preconditioner", None), problem.option("restart", None)
    if given not in (None, "jacobi", "sweep", "ssor"):
        raise InvalidError(
            f"plans know preconditioner=None, 'jacobi', 'sweep' and 'ssor', have {given!r}"
        )
    if restart is not None:
        restart = count_of("restart", restart)
    setting = _setting(problem, problem.option("assume_a", "gen"))

    def choices(layout: MatrixLayout) -> list[Demands]:
        return demands_of_gmres(
            layout, problem.rhs, problem.memory_bytes, given, restart,
            is_half=setting.mirror is not None,
        )  # fmt: skip

    g = _geometry(problem, setting, choices)
    times, block_reads = applied(given, g, iterations, gives_product=True)
    residuals = math.ceil(iterations / g.demands.restart)
    return _cost(g, times | {"all": times.get("all", 0) + residuals}, block_reads, residuals)


def _count(problem: Problem, name: str) -> int:
    return count_of(name, problem.option(name, SWEEPS))


def _setting(problem: Problem, assume_a: Any) -> Setting:
    option = problem.option
    setting = Setting(
        None, 1, problem.memory_bytes, None, False, assume_a, option("pin", "auto"),
        option("block", None), option("storage", None),
    )  # fmt: skip
    setting.check()
    return setting


def _geometry(
    problem: Problem,
    setting: Setting,
    choices: Callable[[MatrixLayout], list[Demands]],
    rank: int = 0,
    processes: int = 1,
) -> IterativeGeometry:
    n, dtype = problem.n, problem.dtype
    check_dtype(dtype)
    order, (rows, cols) = layout_of(problem, order="C")
    wide = working_dtype(dtype, setting.storage)
    stored = dtype if setting.storage is None else narrow_dtype(wide)
    itself = MatrixLayout(n, dtype, wide, (rows, cols), order)
    layout = dataclasses.replace(itself, stored=stored)
    return iterative_geometry(
        layout, choices(layout), problem.memory_bytes, problem.rhs, block=setting.block,
        pin=setting.pin, source_slot_bytes=itself.slot_bytes if stored != dtype else None,
        rank=rank, processes=processes,
    )  # fmt: skip


def _cost(
    g: IterativeGeometry, times: Mapping[Pass, int], block_reads: int, checks: int = 1
) -> Cost:
    """Add up passes; with a copy of the matrix, `checks` of those over all of it are over A."""
    layout, itself = g.layout, g.source_slot_bytes
    tiles = g.tiles_in("all")
    phases = []
    steps = dict(times)
    read = 0
    if itself is not None:
        steps["all"] = steps.get("all", 0) - checks
        read = checks * tiles * itself
        written = tiles * layout.slot_bytes
        phases.append(Phase(layout.dtype, bytes_read=tiles * itself, bytes_written=written))
    blocks_bytes = g.blocks.file_bytes if g.blocks else 0
    elements = sum(count * g.elements(kind) for kind, count in times.items())
    flops = 2.0 * elements * g.columns
    if g.blocks:
        for number in range(g.strips.count):
            here = g.strips.extent(number)
            rows = here.stop - here.start
            flops += 2 / 3 * rows**3 + 2.0 * block_reads * rows**2 * g.columns
    phases.append(
        Phase(
            layout.dtype,
            bytes_read=read + g.bytes_read(steps) + block_reads * blocks_bytes,
            bytes_written=blocks_bytes,
            flops=flop_weight(layout.dtype) * flops,
            # Products with few columns go at the speed of the memory.
            other_seconds=elements * layout.stored.itemsize * SCAN_S_PER_BYTE,
        )
    )
    return Cost(
        method=g.describe(),
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=blocks_bytes + (0 if itself is None else tiles * layout.slot_bytes),
        words_lower_bound=None,
        phases=tuple(phases),
    )
