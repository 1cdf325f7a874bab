"""``outcore umount``."""

from pathlib import Path

import click

from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json, say
from outcore.pool.mounting import unmount


@click.command(
    "umount",
    cls=Verb,
    short_help="Unmount a pool.",
    example="outcore umount /mnt/sim",
    groups={
        "Open files": ("lazy",),
    },
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--lazy", is_flag=True, help="Detach the directory although files are open there.")
@json_option
def command(directory: Path, lazy: bool, as_json: bool) -> None:
    """Unmount the pool at DIRECTORY.

    Every write that a program has made is at the servers. Files that are open there keep the mount
    busy, unless --lazy is given.
    """
    unmount(directory, lazy=lazy)
    if as_json:
        print_json({"directory": str(directory)})
    else:
        say(f"{directory} is unmounted")
