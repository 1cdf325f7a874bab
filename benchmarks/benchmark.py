"""The frame of each benchmark's process around its measurements."""

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import environment, machine
from benchmarks.figures import Figure, table
from benchmarks.options import add_options, size_of
from benchmarks.scratch import scratch_directory


@dataclass(frozen=True)
class Outcome:
    """The results of a benchmark."""

    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Place and scale: ``size`` is ``"full"``, ``"quick"`` or ``"tiny"``.

    ``keep`` stores the results so far, for a long benchmark that somebody may stop.
    """

    size: str
    scratch: Path
    output: Path
    keep_env: bool
    keep: Callable[[Outcome], None] = lambda _: None

    def child_environment(self) -> dict[str, str]:
        """Return the environment of a measured process."""
        return environment.for_child(keep=self.keep_env)


def main(name: str, measure: Callable[[Setting], Outcome]) -> None:
    """Run a benchmark as a command: measure, print the table, store the result."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    add_options(parser)
    given = parser.parse_args()
    output = Path(given.output).resolve()
    output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _stop)
    with scratch_directory(Path(given.scratch or output).resolve()) as scratch:
        size, found = size_of(given), machine.describe(scratch)
        flags = "" if size == "full" else f" --{size}"

        def keep(outcome: Outcome) -> None:
            document = {
                "benchmark": name,
                "size": size,
                "command": f"python -m benchmarks {name}{flags}",
                "environment": "kept" if given.keep_env else "OPENBLAS_* variables removed",
                "machine": found,
                "figures": [figure.to_dict() for figure in outcome.figures],
                "details": outcome.details,
            }
            (output / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")

        setting = Setting(size, scratch, output, given.keep_env, keep)
        outcome = measure(setting)
        keep(outcome)
    print(table(outcome.figures, is_quick=setting.size != "full"))


def _stop(number: int, frame: object) -> NoReturn:
    # An exception removes scratch files, control groups and children.
    sys.exit(128 + number)
