"""Scripts under a hard memory limit: the kernel kills a script above it."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from timeouts import HANG_S

BASE = Path("/sys/fs/cgroup")
FIXED = 150 << 20
"""Memory of a process besides its budget: the interpreter, NumPy, SciPy, threads' stacks."""

_ENTER = """
import os, sys
with open(os.path.join(sys.argv.pop(1), "cgroup.procs"), "w") as procs:
    procs.write(str(os.getpid()))
"""

_TELL = """
with open("/proc/self/status") as status:
    print("most KiB", *[line.split()[1] for line in status if line.startswith("VmHWM")])
"""


class Limit:
    """A control group with a hard limit, of either version of the interface."""

    def __init__(self) -> None:
        self.version = 2 if (BASE / "cgroup.controllers").exists() else 1
        base = BASE if self.version == 2 else BASE / "memory"
        self.path = base / f"outcore-test-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()

    def set(self, limit: int) -> None:
        names = ["memory.max", "memory.swap.max"]
        if self.version == 1:
            names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        (self.path / names[0]).write_text(str(limit))
        if (self.path / names[1]).exists():
            (self.path / names[1]).write_text("0" if self.version == 2 else str(limit))

    def remove(self) -> None:
        for pid in (self.path / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        self.path.rmdir()

    def run(
        self, script: str, cwd: Path, *arguments: str, warnings: str = "error"
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a directory, in the group from its first line."""
        whole = _ENTER + script + _TELL
        return subprocess.run(
            [sys.executable, "-W", warnings, "-c", whole, str(self.path), *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
        )

    def survived(
        self,
        script: str,
        cwd: Path,
        budget: int,
        *arguments: str,
        warnings: str = "error",
        fixed: int = FIXED,
    ) -> str:
        """Run a script with a `budget`, its first argument; return its output."""
        self.set(budget + fixed)
        done = self.run(script, cwd, str(budget), *arguments, warnings=warnings)
        assert done.returncode == 0, done.stderr
        said, found, most_kib = done.stdout.rpartition("most KiB ")
        assert found
        assert int(most_kib) << 10 < budget + fixed
        return said


@contextmanager
def memory_limit() -> Iterator[Limit]:
    """Create a control group, and remove it; skip the test if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("a memory limit needs root")
    try:
        found = Limit()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        try:
            found.set(1 << 30)
        except OSError as error:
            pytest.skip(f"memory control groups have no limit here: {error}")
        yield found
    finally:
        found.remove()
