"""The costs of `solve`."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from outcore._util.counts import count_of
from outcore._util.sizes import format_bytes, format_seconds
from outcore.errors import BudgetError, InvalidError
from outcore.linalg._cholesky.plan import cholesky_costs
from outcore.linalg._estimate.cond_est import USUAL_SOLVES
from outcore.linalg._factors.sweeps import PlannedFactors, sweep_part
from outcore.linalg._geometry.box_reads import StreamReads, pass_box_bytes, pass_ring_bytes
from outcore.linalg._geometry.factor_plan import lu_geometry, solve_bytes_read, solve_flops
from outcore.linalg._geometry.layouts import LAYOUT_OPTIONS, layout_of
from outcore.linalg._lu.choice import planned_lu
from outcore.linalg._lu.slabs.loads import lu_cost
from outcore.linalg._output.factor import CHOLESKY, LU, Kind
from outcore.linalg._rhs.condition import PROBES, probe_bytes, with_probes
from outcore.linalg._systems.hermitian import LookGeometry
from outcore.linalg._systems.refine_plan import (
    RefineGeometry,
    copy_bounce_bytes,
    copy_boxes,
    copy_height,
    refine_geometry,
)
from outcore.linalg._tiles.cost import SCAN_S_PER_BYTE, Cost, Phase, Problem, of_several

ASSUMPTIONS = ("gen", "sym", "her", "pos", "auto")

PLANNED_STEPS = 4
"""Steps of refinement that a plan assumes: the most that matrices of moderate condition need."""

_COPY_S_PER_BYTE = 4 * SCAN_S_PER_BYTE
"""Seconds to round and check an element, per byte of the copy."""


def solve_plan(problem: Problem) -> Cost:
    """Plan `solve` with the given options.

    Raises
    ------
    InvalidError
        If the options name a method of LU, which `solve` chooses itself.
    """
    if "method" in problem.options:
        raise InvalidError(
            f"the plan of 'solve' has no method=, have {problem.options['method']!r}; leave it "
            "out, or plan 'lu' with it"
        )
    return solve_cost(problem)


def solve_cost(problem: Problem) -> Cost:
    """Plan `solve`: the factors, passes over them, then a pass over A for the residual.

    The factors are those of LU, or of Cholesky with the option ``assume_a="pos"``. With the option
    ``factor_dtype``, they are those of a copy of A in that type, with `PLANNED_STEPS` of
    refinement. With the option ``condition=True``, the solves of `cond_est` come last.

    With the option ``processes``, several processes divide all of this.

    With the option ``overwrite_a`` there is no residual. With ``assume_a="pos"``, a pass over A
    then comes first, which compares its triangles.
    """
    assume_a = problem.option("assume_a", "gen")
    if assume_a not in ASSUMPTIONS:
        raise InvalidError(
            f"assume_a must be one of {', '.join(map(repr, ASSUMPTIONS))}, have {assume_a!r}"
        )
    for name in LAYOUT_OPTIONS:
        problem.option(name, None)
    low = lower(problem.dtype, problem.option("factor_dtype", None))
    if low is not None:
        return _refined_cost(problem, low)
    if assume_a == "pos":
        # If a matrix has both triangles, Cholesky reads the one that suits its layout.
        options = {**problem.options, "lower": problem.option("order", "F") == "F"}
        costs, tile = cholesky_costs(dataclasses.replace(problem, options=options))
    else:
        planned = planned_lu(problem)
        costs, tile = [*(planned.of_each or [planned.cost])], planned.tile
    solving, checking = passes_of_each(problem, tile, len(costs))
    conditions = conditions_of_each(problem, problem.dtype, tile, len(costs))
    first: list[Phase] = []
    peak_bytes = max(cost.peak_memory_bytes for cost in costs)
    if problem.option("overwrite_a", False):
        # There is no matrix to form the residual with.
        checking = [()] * len(costs)
        if assume_a == "pos":
            first.append(looking_phase(problem))
            peak_bytes = max(peak_bytes, _look(problem).memory_bytes)
    whole = [
        dataclasses.replace(
            cost, phases=(*first, *cost.phases, *solved, *checked, *estimated),
            peak_memory_bytes=peak_bytes,
        )
        for cost, solved, checked, estimated in zip(
            costs, solving, checking, conditions, strict=True
        )
    ]  # fmt: skip
    return of_several(whole, problem.option("link", None))


def _look(problem: Problem) -> LookGeometry:
    chunks = layout_of(problem).chunks
    return LookGeometry.of(problem.n, problem.on_disk.itemsize, chunks, problem.memory_bytes)


def looking_phase(problem: Problem) -> Phase:
    """Plan the comparison of the triangles of A. It stops early if they differ."""
    look = _look(problem)
    bytes_read = _reads(problem, look.bounce_bytes).bytes_of_grid((look.side, look.side))
    return Phase(
        dtype=problem.dtype, bytes_read=bytes_read, other_seconds=SCAN_S_PER_BYTE * bytes_read
    )


def condition_phases(
    problem: Problem, dtype: np.dtype[Any], tile: tuple[int, int]
) -> tuple[Phase, ...]:
    """Plan `cond_est` with factors of this type and tile shape, if the problem includes it."""
    return conditions_of_each(problem, dtype, tile, 1)[0]


def conditions_of_each(
    problem: Problem, dtype: np.dtype[Any], tile: tuple[int, int], processes: int
) -> list[tuple[Phase, ...]]:
    """Return the `condition_phases` of each process. The first one has the vectors."""
    if not problem.option("condition", False):
        return [()] * processes
    factors, kind = PlannedFactors(problem.n, dtype, tile), kind_of(problem)
    return [(estimating_phase(kind, factors, rank, processes),) for rank in range(processes)]


def estimating_phase(kind: Kind, factors: PlannedFactors, rank: int, processes: int) -> Phase:
    """Plan the solves of `cond_est` as one of several processes, which wait for the first."""
    each, _ = sweep_part(kind, factors, 1, rank, processes)
    nbytes, flops = USUAL_SOLVES * each, solve_flops(factors.n, factors.dtype, USUAL_SOLVES)
    sent = nbytes if processes > 1 else 0
    return Phase(dtype=factors.dtype, bytes_read=nbytes, flops=flops, bytes_sent=sent)


def solving_phase(
    kind: Kind, factors: PlannedFactors, dtype: np.dtype[Any], rhs: int, rank: int, processes: int
) -> Phase:
    """Plan a solve as one of several processes, which divide the columns of x, in type `dtype`."""
    nbytes, _ = sweep_part(kind, factors, 1, rank, processes)
    own = -(-rhs * (rank + 1) // processes) - -(-rhs * rank // processes)
    # Each process also gets the columns of all others.
    sent = nbytes + own * factors.n * dtype.itemsize if processes > 1 else 0
    flops = solve_flops(factors.n, dtype, own)
    return Phase(dtype=dtype, bytes_read=nbytes, flops=flops, bytes_sent=sent)


def kind_of(problem: Problem) -> Kind:
    """Return the kind of the factors of a system."""
    return CHOLESKY if problem.option("assume_a", "gen") == "pos" else LU


def lower(dtype: np.dtype[Any], given: npt.DTypeLike | None) -> np.dtype[Any] | None:
    """Check ``factor_dtype=``; `None` if it is the type of the matrix itself, or not given.

    Raises
    ------
    InvalidError
        If it is not the single precision of the matrix's type.
    """
    if given is None:
        return None
    try:
        found = np.dtype(given)
    except TypeError as error:
        raise InvalidError(f"factor_dtype is no type: {error}") from None
    if found == dtype:
        return None
    fits = {"float64": "f4", "complex128": "c8"}.get(dtype.name)
    if fits and found == np.dtype(fits):
        return found
    fix = f"use factor_dtype={fits!r}" if fits else "leave factor_dtype out"
    raise InvalidError(f"cannot refine a solution in {dtype} with factors in {found}; {fix}")


def passes(problem: Problem, tile: tuple[int, int]) -> tuple[Phase, Phase]:
    """Plan a forward and a backward pass over factors in tiles of this shape, and one over A."""
    ((solving,),), ((checking,),) = passes_of_each(problem, tile, 1)
    return solving, checking


def passes_of_each(
    problem: Problem, tile: tuple[int, int], processes: int
) -> tuple[list[tuple[Phase, ...]], list[tuple[Phase, ...]]]:
    """Return the `passes` of each process: those over the factors, and those over A."""
    n, dtype, rhs = problem.n, problem.dtype, problem.rhs
    factors, kind = PlannedFactors(n, dtype, tile), kind_of(problem)
    whole = _reads(problem, 0)
    ring = pass_ring_bytes(whole.slot_bytes, problem.memory_bytes, problem.on_disk, dtype)
    box = pass_box_bytes(ring, problem.on_disk, dtype)
    flops = solve_flops(n, dtype, rhs) / processes
    # The processes add up their products with blocks of A.
    sent = n * rhs * dtype.itemsize if processes > 1 else 0
    return [
        (solving_phase(kind, factors, dtype, rhs, rank, processes),) for rank in range(processes)
    ], [
        (Phase(dtype=dtype, bytes_read=read, flops=flops, bytes_sent=sent),)
        for read in _reads(problem, ring // 4).bytes_of_shares(box, processes)
    ]


def _bytes_of_pass(problem: Problem, ring: int) -> int:
    box = pass_box_bytes(ring, problem.on_disk, problem.dtype)
    return _reads(problem, ring // 4).bytes_of_pass(box)


def _reads(problem: Problem, bounce_bytes: int) -> StreamReads:
    n = problem.n
    return StreamReads((n, n), problem.on_disk, layout_of(problem), bounce_bytes, problem.disk())


class Passes(NamedTuple):
    """The number of passes, and the sum of their columns."""

    times: int
    columns: int


def refining_phase(
    n: int,
    dtype: np.dtype[Any],
    low: np.dtype[Any],
    tile: tuple[int, int],
    solved: Passes,
    multiplied: Passes,
    bytes_of_pass: int,
) -> Phase:
    """Plan refinement: solves with the factors, and products with A, each of which is a pass."""
    return Phase(
        dtype=dtype,
        bytes_read=solved.times * solve_bytes_read(n, low, tile) + multiplied.times * bytes_of_pass,
        flops=solve_flops(n, dtype, solved.columns + multiplied.columns),
    )


def planned_refining(
    n: int,
    dtype: np.dtype[Any],
    low: np.dtype[Any],
    tile: tuple[int, int],
    columns: int,
    most: int,
    deflated: int,
    bytes_of_pass: int,
) -> Phase:
    """Plan `PLANNED_STEPS` of refinement, in groups of at most `most` columns.

    Additional `deflated` vectors take part in two steps. A pass over A reads `bytes_of_pass`.
    """
    steps = PLANNED_STEPS + 1
    planned = Passes(steps * -(-columns // most), steps * columns + 2 * deflated)
    return refining_phase(n, dtype, low, tile, planned, planned, bytes_of_pass)


def _refined_cost(problem: Problem, low: np.dtype[Any]) -> Cost:
    n, dtype = problem.n, problem.dtype
    if count_of("processes", problem.option("processes", 1)) > 1:
        raise InvalidError(
            f"need processes=1 with factor_dtype={low}, have {problem.options['processes']}; leave "
            "one of them out"
        )
    # The copy has the tiles of its factors, whatever the layout of A.
    options = {name: value for name, value in problem.options.items() if name not in LAYOUT_OPTIONS}
    factoring = lu_cost(dataclasses.replace(problem, dtype=low, stored=None, options=options))
    g = lu_geometry(n, low, problem.memory_bytes)
    tile = g.rows, g.columns
    layout = layout_of(problem)
    box = copy_boxes(layout, problem.on_disk, tile, problem.memory_bytes)
    copy_bytes = copy_height(n, tile[0], box[0]) * n * low.itemsize
    copying = Phase(
        dtype=low,
        bytes_read=_reads(problem, copy_bounce_bytes(problem.memory_bytes)).bytes_of_grid(box),
        bytes_written=copy_bytes,
        other_seconds=_COPY_S_PER_BYTE * copy_bytes,
    )

    def cut(probes: int) -> RefineGeometry:
        return refine_geometry(
            n, dtype, low, tile, problem.memory_bytes, problem.rhs,
            beside_bytes=probe_bytes(n, dtype, probes),
        )  # fmt: skip

    refined = with_probes(PROBES, cut)[1]
    pass_bytes = _bytes_of_pass(problem, refined.ring_bytes)
    refining = planned_refining(
        n, dtype, low, tile, problem.rhs, refined.columns, refined.deflated, pass_bytes
    )
    # The factors take the disk space of the copy, which grows by a slab.
    panels = g.panels + g.slab_panels
    return dataclasses.replace(
        factoring,
        method=f"in {low.name}: {factoring.method}; {PLANNED_STEPS} steps of refinement are "
        "assumed",
        peak_memory_bytes=max(factoring.peak_memory_bytes, refined.memory_bytes),
        disk_bytes=panels * g.tiles * g.tile_bytes,
        words_lower_bound=None,
        phases=(copying, *factoring.phases, refining, *condition_phases(problem, low, tile)),
    )


def solve_notes(problem: Problem, seconds: Callable[[Cost], float]) -> list[str]:
    """Compare with LU in the type of the matrix, if ``factor_dtype`` was given.

    With ``assume_a="auto"``, compare with Cholesky, since a plan cannot test the matrix. `seconds`
    returns the time of a cost on the machine of the plan.
    """
    low = lower(problem.dtype, problem.option("factor_dtype", None))
    if low is None:
        return _if_positive(problem, seconds) if problem.option("assume_a", "gen") == "auto" else []
    try:
        text = f"{format_seconds(seconds(solve_cost(_in_full(problem))))} in {problem.dtype}"
    except BudgetError:
        text = f"{problem.dtype} needs more memory"
    least = pays_from(problem, seconds)
    memory = format_bytes(problem.memory_bytes)
    pays = "does not pay with" if least is None else f"pays from n = {least} on, with"
    return [f"{text}; {low} {pays} {memory} of memory"]


def _if_positive(problem: Problem, seconds: Callable[[Cost], float]) -> list[str]:
    options = {**problem.options, "assume_a": "pos"}
    try:
        cost = solve_cost(dataclasses.replace(problem, options=options))
        text = f"it takes {format_seconds(seconds(cost))}, by Cholesky"
    except BudgetError:
        text = "Cholesky needs more memory"
    return [
        "assume_a='auto' depends on the matrix, which a plan does not see: this is LU, as for "
        f"'gen'; if it is Hermitian positive definite, {text}; the examination of A is not counted"
    ]


def pays_from(
    problem: Problem, seconds: Callable[[Cost], float], most: int = 1 << 18
) -> int | None:
    """Find the least order, in steps of 256, from which lower precision takes less time.

    The result is `None` if it never does, up to order `most` or the largest that fits. The order of
    `problem` itself does not matter.
    """

    def time(n: int, *, is_full: bool) -> float:
        # Both times are by slabs. The best method is not needed for each order.
        low = dataclasses.replace(problem, n=n, options={**problem.options, "method": "slabs"})
        try:
            return seconds(solve_cost(_in_full(low) if is_full else low))
        except BudgetError:
            return math.inf

    def pays(n: int) -> bool:
        # If neither fits, larger orders need no test.
        full = time(n, is_full=True)
        return full == math.inf or time(n, is_full=False) < full

    n = 256
    while not pays(n):
        n *= 2
        if n > most:
            return None
    below = n // 2
    while n - below > 256:
        middle = (n + below) // 2 // 256 * 256
        n, below = (middle, below) if pays(middle) else (n, middle)
    return n if time(n, is_full=False) < math.inf else None


def _in_full(problem: Problem) -> Problem:
    options = {name: value for name, value in problem.options.items() if name != "factor_dtype"}
    return dataclasses.replace(problem, options=options)
