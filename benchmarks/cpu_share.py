"""Control groups that give a process a share of a processor."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.memory_limit import remove_group
from outcore._util import cgroups

PERIOD_US = 5000
"""Microseconds after which a process gets its share again."""

_FILES = {1: ("cpu.cfs_period_us", "cpu.cfs_quota_us"), 2: ("cpu.max",)}


@contextmanager
def cpu_shares(count: int, share: float) -> Iterator[list[Path]]:
    """Create groups of `share` of a processor each, and remove them at the end.

    The list has the files to which processes write their ids. It is empty if groups are impossible.
    """
    made: list[Path] = []
    try:
        for number in range(count):
            group = _make(f"outcore-bench-cpu-{os.getpid()}-{number}", share)
            if group is None:
                break
            made.append(group)
        yield [group / "cgroup.procs" for group in made] if len(made) == count else []
    finally:
        for group in made:
            remove_group(group)


def _make(name: str, share: float) -> Path | None:
    for version, parent in cgroups.groups("cpu"):
        group, quota = parent / name, int(PERIOD_US * share)
        texts = [str(PERIOD_US), str(quota)] if version == 1 else [f"{quota} {PERIOD_US}"]
        try:
            group.mkdir()
            for file, text in zip(_FILES[version], texts, strict=True):
                (group / file).write_text(text)
        except OSError:
            if group.exists():
                remove_group(group)
            continue
        return group
    return None
