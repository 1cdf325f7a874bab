"""``outcore umount``."""

from pathlib import Path

import click

from outcore.cli.verbs import Verb, end
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
def command(directory: Path, lazy: bool) -> None:
    """Unmount the pool at DIRECTORY.

    Every write that a program has made is at the servers. Files that are open there keep the mount
    busy, unless --lazy is given.
    """
    unmount(directory, lazy=lazy)
    end({"directory": str(directory)}, f"{directory} is unmounted")
