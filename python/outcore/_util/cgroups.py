"""Control groups of this process, in both versions of the interface."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield (version, directory) of `controller`'s groups, from the process's own to the root.

    In a container the kernel may name groups that the container cannot see, so the directories may
    not exist.
    """
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            version, bases = 2, [ROOT, ROOT / "unified"]
        elif controller in controllers.split(","):
            version, bases = 1, [ROOT / controller, ROOT / controllers]
        else:
            continue
        for base in dict.fromkeys(bases):
            own = base / name.lstrip("/")
            for group in [own, *own.parents]:
                if not group.is_relative_to(base):
                    break
                yield version, group


def read_text(path: Path) -> str | None:
    """Return a small file's text without white space at its ends; `None` if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the number in a small file; `None` if it holds none."""
    text = read_text(path)
    return int(text) if text is not None and text.isdigit() else None


def cpu_quota() -> float | None:
    """Return the processors that the control groups allow this process; `None` is no limit.

    Source: kernel documentation, ``cpu.max`` (version 2), ``cpu.cfs_quota_us`` (version 1).
    """
    found = []
    for version, group in groups("cpu"):
        if version == 2:
            quota, _, period = (read_text(group / "cpu.max") or "max").partition(" ")
        else:
            quota = read_text(group / "cpu.cfs_quota_us") or "-1"
            period = read_text(group / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)
