"""``outcore doctor``."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from outcore.cli.verbs import Verb, end, wants_json
from outcore.machine.doctor import examine, show


@click.command(
    "doctor",
    cls=Verb,
    short_help="Examine the BLAS, threads, memory and a disk.",
    example="outcore doctor /scratch",
)
@click.argument("directory", default=".", type=click.Path(path_type=Path))
def command(directory: Path) -> None:
    """Examine the BLAS, threads, memory and the disk of DIRECTORY.

    DIRECTORY is the current one by default. Every finding that is not ok comes with one fix. The
    command takes about four seconds, and stores the rates that it measures for planning. The exit
    code is 1 if outcore cannot work there.
    """
    found = examine(directory)
    end({"ok": not found.failed, **asdict(found)})
    if not wants_json():
        show(found, Console())
    if found.failed:
        raise click.exceptions.Exit(1)
