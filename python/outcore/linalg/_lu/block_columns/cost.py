"""Costs of LU by block columns, for the plan."""

import dataclasses
import math

from outcore.linalg._geometry.factor_plan import LuGeometry, flops
from outcore.linalg._lu.block_columns.geometry import BlockColumnGeometry
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._lu.slabs.loads import PANEL_SHARE, gemm_flops, memory_seconds
from outcore.linalg._tiles.cost import Cost, Phase

TITLE = "tournament pivoting"
"""Name in report and plan of an LU whose pivots are not those of partial pivoting."""


def partial_cost(g: PartialGeometry) -> Cost:
    """Return the cost of an LU by block columns with partial pivoting."""
    phases = [Phase(g.dtype, *g.copy_bytes())] if g.is_copied else []
    memory_s = memory_seconds(_whole(g)) / len(g.block_columns)
    slowdown = gemm_flops(_whole(g)) / flops(g.n, g.dtype)
    for k, s in enumerate(g.block_columns):
        if not g.is_loaded(s):
            phases.append(_update(g, k, memory_s))
        own = g.lower_flops(s)
        if g.is_whole(s):
            whole = Phase(g.dtype, *g.whole_bytes(s), own, own / PANEL_SHARE)
            phases.append(_by_tiles(g, whole))
            continue
        slabs = g.slabs_of(s)
        panel = slabs.height * g.columns * g.dtype.itemsize
        ends = panel * slabs.slab_panels, panel
        own_memory_s = memory_s * own / (own + g.update_flops(s))
        work = Phase(g.dtype, *g.slab_bytes(s), own, own * slowdown, own_memory_s, *ends)
        phases.append(_by_tiles(g, work))
        phases.append(_by_tiles(g, Phase(g.dtype, *g.lower_bytes(s))))
    widest = max(s.width for s in g.block_columns)
    return _cost(g, f"{len(g.block_columns)} block columns of at most {widest}", phases)


def tournament_cost(g: TournamentGeometry) -> Cost:
    """Return the cost of an LU with tournament pivoting."""
    phases = [Phase(g.dtype, *g.copy_bytes())] if g.is_copied else []
    memory_s = memory_seconds(_whole(g)) / len(g.block_columns)
    played = 0
    for k, s in enumerate(g.block_columns):
        phases.append(_update(g, k, memory_s))
        own = g.lower_flops(s)
        own_work = (own + g.tournament_flops(s)) / PANEL_SHARE
        moved = g.lower_bytes(s, is_spilled=not g.is_whole(s))
        phases.append(_by_tiles(g, Phase(g.dtype, *moved, own, own_work)))
        played += not g.is_whole(s)
    columns = f"{len(g.block_columns)} block columns of at most "
    columns += f"{max(s.width for s in g.block_columns)}"
    how = f"{TITLE} in {played} of" if played else "partial pivoting in"
    return _cost(g, f"{how} {columns}", phases)


def _by_tiles(g: BlockColumnGeometry, phase: Phase) -> Phase:
    """Return the phase, which moves tiles, with its number of requests."""
    moved = phase.bytes_read + phase.bytes_written
    return dataclasses.replace(phase, requests=moved // g.tile_bytes)


def _whole(g: BlockColumnGeometry) -> LuGeometry:
    return LuGeometry(g.n, g.dtype, g.rows, g.columns, 1, 1, 0, g.budget_bytes)


def _update(g: BlockColumnGeometry, k: int, memory_s: float) -> Phase:
    s = g.block_columns[k]
    work = g.update_flops(s)
    read, written = g.update_bytes(k)
    gathers = lower_gathers(g, k) + source_gathers(g, k)
    tiles = (read - _gathered_bytes(g, k) + written) // g.tile_bytes
    return Phase(g.dtype, read, written, work, work, memory_s, requests=round(gathers + tiles))


def lower_gathers(g: BlockColumnGeometry, k: int) -> float:
    """Estimate how many runs of rows of L the update of block column `k` gathers.

    Rows that swaps have moved need their own reads, and so do the rows between them.
    """
    s, total = g.block_columns[k], 0.0
    for left in g.block_columns[:k]:
        end = left.origin + left.width
        count = math.ceil(left.width / g.segment)
        total += count * _runs(g.n - end, s.order, g.rows) + left.width / g.rows * (count + 1) / 2
    return total


def source_gathers(g: BlockColumnGeometry, k: int) -> float:
    """Estimate how many runs of rows of A the update of block column `k` gathers."""
    s = g.block_columns[k]
    chunk = g.segment if g.is_copied else g.layout.chunks[1]
    first = s.origin - (g.copied_from if g.is_copied else 0)
    end, total = first + g.source_columns(k), 0.0
    for left in range(first // chunk * chunk, end, chunk):
        # If only some columns of a chunk are read, adjacent rows are not contiguous on disk.
        is_whole = first <= left and left + chunk <= end
        total += _runs(g.n, s.order, g.rows) if is_whole else g.n
    return total


def _runs(rows: int, left: int, tile: int) -> float:
    """Estimate the runs of `rows` rows once all but `left` are rows of U, in any order.

    A remaining row stays in place unless a pivot came from its place: then the row that the pivot
    replaced takes it. A share of ``left / rows`` of the places is unchanged. The rows of each tile
    form a separate list.
    """
    stay = left / rows
    moved = left * (1 - stay)
    return rows - left + moved * (1 + stay) + left * stay / tile


def _gathered_bytes(g: BlockColumnGeometry, k: int) -> int:
    """Bytes of A and L among the bytes that an update reads."""
    s = g.block_columns[k]
    lower = sum(g.n - first for first in range(0, s.origin, g.segment)) * g.segment
    return (lower + g.n * g.source_columns(k)) * g.dtype.itemsize


def _cost(g: BlockColumnGeometry, how: str, phases: list[Phase]) -> Cost:
    return Cost(
        method=f"{how}, tiles of {g.rows} x {g.columns}",
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=g.tile_bytes * g.tiles * g.panels + g.scratch_bytes(),
        words_lower_bound=g.words_lower_bound(),
        phases=tuple(phases),
    )
