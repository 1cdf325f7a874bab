"""Names of a testbed's objects, and commands that create them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable

PREFIX = "outcore-bed-"

# Debian's directories of administration tools, which not every root has in its path.
os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def own(pid: int | None = None) -> str:
    """Return the prefix of a process's names; of this process by default."""
    return f"{PREFIX}{os.getpid() if pid is None else pid}"


def left_over(names: Iterable[str]) -> list[str]:
    """Return the names of dead processes."""
    found = []
    for name in names:
        match = re.match(rf"{PREFIX}(\d+)", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            found.append(name)
    return found


def missing(tools: Iterable[str]) -> list[str]:
    """Return the programs that are not installed."""
    return [tool for tool in tools if shutil.which(tool) is None]


def run(*command: object) -> str:
    """Run a program; return its output."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"{' '.join(words)}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout


def try_run(*command: object) -> None:
    """Run a program that undoes something, and ignore its failure."""
    subprocess.run([str(word) for word in command], capture_output=True, check=False)
