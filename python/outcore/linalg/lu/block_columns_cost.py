"""What LU by block columns costs, for the plan."""

import math

from outcore.linalg.cost import Cost, Phase
from outcore.linalg.lu.block_columns_geometry import BlockColumn, BlockColumnGeometry
from outcore.linalg.lu.partial_geometry import PartialGeometry
from outcore.linalg.lu.plan import (
    PANEL_SHARE,
    REQUEST_S,
    LuGeometry,
    flops,
    gemm_flops,
    memory_seconds,
)
from outcore.linalg.lu.tournament_geometry import TournamentGeometry

TITLE = "tournament pivoting"
"""What the report and the plan call it, where the pivots are not those of partial pivoting."""


def partial_cost(g: PartialGeometry) -> Cost:
    """Give the cost of an LU by block columns with partial pivoting."""
    phases = [Phase(g.dtype, *g.copy_bytes())] if g.is_copied else []
    memory_s = memory_seconds(_whole(g)) / len(g.block_columns)
    slowdown = gemm_flops(_whole(g)) / flops(g.n, g.dtype)
    for k, s in enumerate(g.block_columns):
        if not g.is_loaded(s):
            phases.append(_update(g, k, memory_s))
        own = g.lower_flops(s)
        if g.is_whole(s):
            phases.append(Phase(g.dtype, *g.whole_bytes(s), own, own / PANEL_SHARE))
            continue
        slabs = g.slabs_of(s)
        panel = slabs.height * g.columns * g.dtype.itemsize
        ends = panel * slabs.slab_panels, panel
        own_memory_s = memory_s * own / (own + g.update_flops(s))
        phases.append(Phase(g.dtype, *g.slab_bytes(s), own, own * slowdown, own_memory_s, *ends))
        phases.append(Phase(g.dtype, *g.lower_bytes(s)))
    widest = max(s.width for s in g.block_columns)
    return _cost(g, f"{len(g.block_columns)} block columns of at most {widest}", phases)


def tournament_cost(g: TournamentGeometry) -> Cost:
    """Give the cost of an LU with tournament pivoting."""
    phases = [Phase(g.dtype, *g.copy_bytes())] if g.is_copied else []
    memory_s = memory_seconds(_whole(g)) / len(g.block_columns)
    played = 0
    for k, s in enumerate(g.block_columns):
        phases.append(_update(g, k, memory_s))
        own = g.lower_flops(s)
        own_work = (own + g.tournament_flops(s)) / PANEL_SHARE
        phases.append(
            Phase(g.dtype, *g.lower_bytes(s, is_spilled=not g.is_whole(s)), own, own_work)
        )
        played += not g.is_whole(s)
    columns = f"{len(g.block_columns)} block columns of at most "
    columns += f"{max(s.width for s in g.block_columns)}"
    how = f"{TITLE} in {played} of" if played else "partial pivoting in"
    return _cost(g, f"{how} {columns}", phases)


def _whole(g: BlockColumnGeometry) -> LuGeometry:
    return LuGeometry(g.n, g.dtype, g.rows, g.columns, 1, 1, 0, g.budget_bytes)


def _update(g: BlockColumnGeometry, k: int, memory_s: float) -> Phase:
    s = g.block_columns[k]
    work = g.update_flops(s)
    seconds = _list_seconds(g, s) + memory_s
    return Phase(g.dtype, *g.update_bytes(k), work, work, seconds)


def _list_seconds(g: BlockColumnGeometry, s: BlockColumn) -> float:
    # Rows in their place lie between those that were swapped; requests go eight at a time.
    return 3 * s.origin * math.ceil(s.origin / g.segment) * REQUEST_S / 8


def _cost(g: BlockColumnGeometry, how: str, phases: list[Phase]) -> Cost:
    return Cost(
        method=f"{how}, tiles of {g.rows} x {g.columns}",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=g.tile_bytes * g.tiles * g.panels + g.scratch_bytes(),
        words_lower_bound=g.words_lower_bound(),
        phases=tuple(phases),
    )
