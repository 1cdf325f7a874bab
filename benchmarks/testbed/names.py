"""Names of what a testbed makes, and commands that make it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable

PREFIX = "outcore-bed-"

# Where Debian has the tools of root, which not every root has in its path.
os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def own(pid: int | None = None) -> str:
    """Give the beginning of the names that a process uses; this one by default."""
    return f"{PREFIX}{os.getpid() if pid is None else pid}"


def left_over(names: Iterable[str]) -> list[str]:
    """Choose the names of processes that are gone."""
    found = []
    for name in names:
        match = re.match(rf"{PREFIX}(\d+)", name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            found.append(name)
    return found


def missing(tools: Iterable[str]) -> list[str]:
    """Tell which programs are not there."""
    return [tool for tool in tools if shutil.which(tool) is None]


def run(*command: object) -> str:
    """Run a program; return what it prints."""
    words = [str(word) for word in command]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"{' '.join(words)}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout


def try_run(*command: object) -> None:
    """Run a program that undoes something; what is not there needs no undoing."""
    subprocess.run([str(word) for word in command], capture_output=True, check=False)
