"""The available memory, and the budget of a call."""

import os
from pathlib import Path

from outcore._core import Arena, limit_mapped_bytes
from outcore._util import cgroups
from outcore._util.sizes import format_bytes, parse_bytes
from outcore.errors import BudgetError

DEFAULT_SHARE = 0.5
"""A call without ``memory=`` uses this share of the available memory."""

LEAST_BYTES = 1 << 20
"""Smallest default budget."""

INDEXING_BYTES = 64 << 20
"""Size of the one arena, for the whole process, of plain indexing's bounce buffers."""

LEAST_BOUNCE_BYTES = 16 << 10
"""Smallest bounce memory for transfers that are not aligned on disk; they are slow with it."""

MOST_MAPPED_BYTES = 4 << 30
"""Upper limit of the bytes of a file that plain indexing keeps mapped."""

_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def cgroup_limits() -> list[tuple[str, int, int]]:
    """Memory limits of this process's control groups: (path, limit in bytes, bytes in use).

    The result covers both versions of the interface, from the process's own group to the root.
    """
    limits = []
    for version, group in cgroups.groups("memory"):
        limit_name, used_name = _MEMORY_FILES[version]
        limit = cgroups.read_number(group / limit_name)
        used = cgroups.read_number(group / used_name)
        if limit is not None and used is not None and limit < 1 << 60:
            limits.append((str(group), limit, used))
    return limits


def available_bytes() -> int:
    """Bytes that a new allocation can get, limited by the machine and by the control groups."""
    available = 1 << 30
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for _, limit, used in cgroup_limits():
        available = min(available, max(limit - used, 0))
    return available


def too_small(need: int, budget_bytes: int, what: str, fix: str = "raise memory=") -> BudgetError:
    """Return the error of a call that needs more memory than its budget."""
    return BudgetError(
        f"need {need} bytes ({format_bytes(need)}) of memory for {what}, have {budget_bytes} "
        f"({format_bytes(budget_bytes)}); {fix}"
    )


def resolve(memory: int | str | None) -> int:
    """Return the bytes of a ``memory=`` argument; for `None`, a share of the available memory."""
    if memory is None:
        return max(int(available_bytes() * DEFAULT_SHARE), LEAST_BYTES)
    return parse_bytes(memory)


def stream_bounce_bytes(memory_bytes: int, largest: int) -> int:
    """Return the bounce memory of a stream of blocks of at most `largest` bytes."""
    # Boxes at the edge of an array go through buffers of their own, also in a small budget.
    least = min(LEAST_BOUNCE_BYTES, max(memory_bytes - largest, 0))
    return min(max(memory_bytes // 4, least), INDEXING_BYTES)


indexing_arena = Arena(INDEXING_BYTES, short_lived=True)


def mapped_bytes() -> int:
    """Bytes of each file that plain indexing keeps mapped: a 16th of the memory.

    They are pages of the page cache, which the system reclaims when memory is short. Without them,
    repeated mapping makes reads several times slower.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for _, limit, _ in cgroup_limits()]
    return min(min([machine, *limits]) // 16, MOST_MAPPED_BYTES)


limit_mapped_bytes(mapped_bytes())
