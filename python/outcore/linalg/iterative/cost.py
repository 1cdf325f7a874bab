"""Plans of the iterative methods: the cost of a number of sweeps or iterations."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outcore._util.counts import count_of
from outcore.array.array import Array
from outcore.errors import InvalidError
from outcore.layout.elements import array_of
from outcore.linalg._geometry.layouts import layout_of
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._tiles.cost import (
    SCAN_S_PER_BYTE,
    SWEEPS,
    Cost,
    Phase,
    Problem,
    flop_weight,
    of_several,
)
from outcore.linalg.iterative.arguments import Setting, check_omega
from outcore.linalg.iterative.cg import demands as demands_of_cg
from outcore.linalg.iterative.gauss_seidel import check_direction
from outcore.linalg.iterative.gauss_seidel import demands as demands_of_gauss_seidel
from outcore.linalg.iterative.gmres import demands as demands_of_gmres
from outcore.linalg.iterative.groups import Choices, Divider, Division
from outcore.linalg.iterative.jacobi import demands as demands_of_jacobi
from outcore.linalg.iterative.plan import (
    Demands,
    MatrixLayout,
    Pass,
    check_dtype,
    narrow_dtype,
    working_dtype,
)
from outcore.linalg.iterative.preconditioners import applied, sweeps_in
from outcore.storage.volumes import place


def gauss_seidel_cost(problem: Problem) -> Cost:
    """Plan `gauss_seidel` with ``sweeps`` sweeps, starting from 0.

    With ``processes``, bytes and time are those of the process that reads most, and memory is per
    process. Disk space is the sum over all of them. Each process sends its rows of x in every
    sweep, over the network of ``link``.
    """
    sweeps = _count(problem, "sweeps")
    processes = count_of("processes", problem.option("processes", 1))
    setting = _setting(problem, problem.option("assume_a", "gen"))
    direction = check_direction(problem.option("direction", None), setting.assume_a, processes)
    needs = demands_of_gauss_seidel(direction, is_half=setting.mirror is not None)
    times: dict[Pass, int] = {"all": 1}
    if direction == "symmetric":
        times |= {"lower": sweeps - sweeps // 2, "upper": sweeps // 2}
    else:
        times["sweep"] = sweeps

    dividers = [
        _divider(problem, setting, lambda *_: [needs], rank, processes) for rank in range(processes)
    ]
    size = min(each.divide().size for each in dividers)
    block = min(each.divide(size).geometry.strips.block for each in dividers)
    omega = _omega(problem)
    costs = [_cost(each, each.divide(size, block), times, sweeps, omega) for each in dividers]
    link = problem.option("link", None)
    most = max(costs, key=lambda cost: cost.bytes_read + cost.bytes_written)
    return dataclasses.replace(
        of_several(costs, link),
        words_lower_bound=most.words_lower_bound,
        peak_memory_bytes=max(cost.peak_memory_bytes for cost in costs),
        disk_bytes=sum(cost.disk_bytes for cost in costs),
    )


def jacobi_cost(problem: Problem) -> Cost:
    """Plan `jacobi` with ``sweeps`` sweeps, starting from 0."""
    sweeps = _count(problem, "sweeps")
    setting = _setting(problem, problem.option("assume_a", "gen"))
    needs = demands_of_jacobi(is_half=setting.mirror is not None)
    divider = _divider(problem, setting, lambda *_: [needs])
    checks = 0 if divider.source_slot_bytes is None else 1
    omega = _omega(problem, math.inf)
    return _cost(divider, divider.divide(), {"all": sweeps + checks}, sweeps, omega)


def cg_cost(problem: Problem) -> Cost:
    """Plan `cg` with ``iterations`` iterations, starting from 0."""
    iterations = _count(problem, "iterations")
    given = problem.option("preconditioner", None)
    if given not in (None, "jacobi", "ssor"):
        raise InvalidError(f"plans know preconditioner=None, 'jacobi' and 'ssor', have {given!r}")
    needs = demands_of_cg(given, problem.dtype)
    divider = _divider(problem, _setting(problem, "her"), lambda *_: [needs])
    division = divider.divide()
    times, block_reads = applied(given, division.geometry, iterations, gives_product=False)
    omega = _omega(problem, is_used=sweeps_in(given))
    return _cost(divider, division, times | {"all": iterations + 1}, block_reads, omega)


def gmres_cost(problem: Problem) -> Cost:
    """Plan `gmres` with ``iterations`` iterations, starting from 0."""
    iterations = _count(problem, "iterations")
    given, restart = problem.option("preconditioner", None), problem.option("restart", None)
    if given not in (None, "jacobi", "sweep", "ssor"):
        raise InvalidError(
            f"plans know preconditioner=None, 'jacobi', 'sweep' and 'ssor', have {given!r}"
        )
    if restart is not None:
        restart = count_of("restart", restart)
    setting = _setting(problem, problem.option("assume_a", "gen"))

    def choices(
        layout: MatrixLayout, width: int, memory_bytes: int, is_least: bool
    ) -> list[Demands]:
        return demands_of_gmres(
            layout, width, memory_bytes, given, restart, is_least=is_least,
            is_half=setting.mirror is not None,
        )  # fmt: skip

    divider = _divider(problem, setting, choices)
    division = divider.divide()
    times, block_reads = applied(given, division.geometry, iterations, gives_product=True)
    residuals = math.ceil(iterations / division.geometry.demands.restart)
    times["all"] = times.get("all", 0) + residuals
    omega = _omega(problem, is_used=sweeps_in(given))
    return _cost(divider, division, times, block_reads, omega, residuals)


def _count(problem: Problem, name: str) -> int:
    return count_of(name, problem.option(name, SWEEPS))


def _omega(problem: Problem, most: float = 2, *, is_used: bool = True) -> float:
    omega: float = problem.option("omega", 1.0)
    check_omega(omega, most)
    return omega if is_used else 1.0


def _setting(problem: Problem, assume_a: Any) -> Setting:
    option = problem.option
    return Setting(
        1, assume_a, block=option("block", None), pin=option("pin", "auto"),
        storage=option("storage", None), out=option("out", None) or None,
    )  # fmt: skip


def _divider(
    problem: Problem, setting: Setting, choices: Choices, rank: int = 0, processes: int = 1
) -> Divider:
    n, itself_in = problem.n, problem.on_disk
    order, (rows, cols), _ = layout_of(problem, order="C")
    wide = working_dtype(problem.dtype, setting.storage)
    check_dtype(itself_in, wide)
    stored = itself_in if setting.storage is None else narrow_dtype(wide)
    itself = MatrixLayout(n, itself_in, wide, (rows, cols), order)
    rhs = _right_hand_sides(problem, wide)
    if setting.out is not None and rank == 0:
        rhs = rhs._replace(out=place(setting.out))
    return Divider(
        dataclasses.replace(itself, stored=stored),
        itself.slot_bytes if stored != itself_in else None,
        rhs, None, choices, setting, problem.memory_bytes, rank, processes,
    )  # fmt: skip


def _right_hand_sides(problem: Problem, dtype: np.dtype[Any]) -> RightHandSide:
    """Return the given right-hand sides, or as many in memory of the matrix's type."""
    n, b = problem.n, problem.option("b", None)
    if b is None:
        b = np.broadcast_to(np.zeros((), dtype), (n, problem.rhs))
    elif not isinstance(b, Array):
        b = array_of(b, "right-hand sides")
    if b.shape not in ((n,), (n, problem.rhs)) or (b.ndim == 1 and problem.rhs != 1):
        raise InvalidError(
            f"b= has shape {b.shape}, need ({n}, {problem.rhs}): give n= and rhs= of it"
        )
    return RightHandSide(b, "N", n, dtype, None)


def _bytes_of_x(divider: Divider, division: Division) -> int:
    """Bytes of all solutions in the rows of this process, which it sends if there are others."""
    strips, rhs = division.geometry.strips, divider.rhs
    extents = [strips.extent(number) for number in range(strips.count)]
    rows = sum(here.stop - here.start for here in extents)
    return rows * rhs.columns * rhs.solution_dtype.itemsize if divider.processes > 1 else 0


def _cost(
    divider: Divider,
    division: Division,
    times: Mapping[Pass, int],
    block_reads: int,
    omega: float,
    checks: int = 1,
) -> Cost:
    """Add up passes; `times` are those for each group of right-hand sides.

    With a copy of the matrix, `checks` of the passes over the whole matrix read A itself.
    """
    g, rhs, groups = division.geometry, divider.rhs, division.groups
    layout, itself = g.layout, g.source_slot_bytes
    tiles = g.tiles_in("all")
    phases = []
    steps = {kind: groups * count for kind, count in times.items()}
    if g.blocks:
        steps["setup"] = 1
    read = 0
    if itself is not None:
        steps["all"] = steps.get("all", 0) - groups * checks
        read = groups * checks * tiles * itself
        written = tiles * layout.slot_bytes
        phases.append(Phase(layout.dtype, bytes_read=tiles * itself, bytes_written=written))
    blocks_bytes = g.blocks.file_bytes if g.blocks else 0
    width = rhs.columns * rhs.parts
    elements = sum(count * g.elements(kind) for kind, count in times.items())
    flops = 2.0 * elements * width
    if g.blocks:
        for number in range(g.strips.count):
            here = g.strips.extent(number)
            rows = here.stop - here.start
            flops += 2 / 3 * rows**3 + 2.0 * block_reads * rows**2 * width
    b_bytes = rhs.b.nbytes if isinstance(rhs.b, Array) else 0
    x_bytes = layout.n * rhs.columns * rhs.solution_dtype.itemsize if rhs.out else 0
    phases.append(
        Phase(
            layout.dtype,
            bytes_read=read + g.bytes_read(steps) + groups * block_reads * blocks_bytes + b_bytes,
            bytes_written=blocks_bytes + x_bytes,
            flops=flop_weight(layout.dtype) * flops,
            # Memory bandwidth limits products with few columns.
            other_seconds=groups * elements * layout.stored.itemsize * SCAN_S_PER_BYTE,
            bytes_sent=times.get("sweep", 0) * _bytes_of_x(divider, division),
        )
    )
    return Cost(
        method=division.describe(omega),
        peak_memory_bytes=g.memory_bytes + division.room.beside_bytes,
        disk_bytes=blocks_bytes + x_bytes + (0 if itself is None else tiles * layout.slot_bytes),
        words_lower_bound=g.words_lower_bound(steps),
        phases=tuple(phases),
    )
