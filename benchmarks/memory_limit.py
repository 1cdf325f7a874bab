"""A hard limit on the memory of child processes, page cache included: a control group."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from outcore._util import cgroups

# (limit, limit of memory and swap together or of swap alone, value of the latter)
_FILES = {
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    2: ("memory.max", "memory.swap.max"),
}


@dataclass(frozen=True)
class MemoryLimit:
    """A control group with a hard limit."""

    group: Path
    nbytes: int

    @property
    def members(self) -> Path:
        """The file to which a process writes its id to enter the group."""
        return self.group / "cgroup.procs"


@contextmanager
def memory_limit(nbytes: int) -> Iterator[MemoryLimit | None]:
    """Create a control group of `nbytes`, and remove it at the end; `None` if impossible."""
    found = _make(nbytes)
    try:
        yield found
    finally:
        if found is not None:
            remove_group(found.group)


def _make(nbytes: int) -> MemoryLimit | None:
    for version, parent in cgroups.groups("memory"):
        limit_name, swap_name = _FILES[version]
        group = parent / f"outcore-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        made = MemoryLimit(group, nbytes)
        try:
            (group / limit_name).write_text(str(nbytes))
            with suppress(OSError):  # absent if the kernel does not count swap
                (group / swap_name).write_text(str(nbytes if version == 1 else 0))
            if cgroups.read_number(group / limit_name) == nbytes and _can_enter(made):
                return made
        except OSError:
            pass
        remove_group(group)
    return None


def _can_enter(limit: MemoryLimit) -> bool:
    """Whether a process can enter the group: version 2 refuses this in some places."""
    child = os.fork()
    if child == 0:
        try:
            limit.members.write_text(str(os.getpid()))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def remove_group(group: Path) -> None:
    """End the processes of a control group, and remove it."""
    for _ in range(100):
        with suppress(FileNotFoundError):
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"cannot remove the control group {group}")
