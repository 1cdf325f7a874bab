"""Measured child processes, which print their results as JSON on their last line."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.memory_limit import MemoryLimit

# The shell enters the group and becomes the process, so that all of it counts, including Python.
_ENTER = 'echo $$ > "$0" && exec "$@"'

KILLED = -9


@dataclass(frozen=True)
class Ended:
    """The end of a process: its result, or that memory or time ran out."""

    found: dict[str, Any] = field(default_factory=dict)
    is_out_of_memory: bool = False
    is_out_of_time: bool = False

    @property
    def seconds(self) -> float:
        """The time measured by the process."""
        return float(self.found["seconds"])


def run_module(
    module: str,
    arguments: Sequence[object],
    *,
    environment: Mapping[str, str],
    timeout_s: float | None = None,
    limit: MemoryLimit | None = None,
    launcher: Sequence[object] = (),
    python: str = sys.executable,
) -> Ended:
    """Run ``python -m module`` to its end, or kill it after `timeout_s`.

    `launcher` is the beginning of the command, such as that of mpiexec, `python` the interpreter.

    Raises
    ------
    RuntimeError
        If the process fails.
    """
    command = [*map(str, launcher), python, "-m", module, *map(str, arguments)]
    if limit is not None:
        command = ["/bin/sh", "-c", _ENTER, str(limit.members), *command]
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Ended(is_out_of_time=True)
        finally:
            # For every way of leaving; `Popen` waits for it.
            child.kill()
    if limit is not None and (child.returncode == KILLED or "MemoryError" in err):
        return Ended(is_out_of_memory=True)
    if child.returncode != 0:
        raise RuntimeError(f"{module} failed with {child.returncode}:\n{err}")
    return Ended(json.loads(out.splitlines()[-1]))
