"""``outcore mv``."""

from typing import Any

import click

from outcore.cli.places import ANY_PATH, TARGET, Failures, key_option, overwrite_option
from outcore.cli.verbs import Verb, wants_json
from outcore.files.move import move_files
from outcore.storage.volumes import AnyPath, PathLike


@click.command(
    "mv",
    cls=Verb,
    short_help="Rename files and directories, or move them into and out of pools.",
    example="outcore mv /scratch/A outcore://node1:7171/ada/A",
    groups={
        "Target": ("if_exists",),
        "Moving": ("resume",),
    },
)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=ANY_PATH)
@click.argument("target", type=TARGET)
@overwrite_option("-f", help="Replace an existing target.")
@click.option("--resume", is_flag=True, help="Resume a stopped move to another disk.")
@click.option("--memory", help="Memory for pieces on their way to another disk.  [default: 64MiB]")
@key_option
def command(sources: tuple[AnyPath, ...], target: PathLike, **options: Any) -> None:
    """Rename SOURCE to TARGET, or move each SOURCE into it if it is a directory.

    Within a pool or a file system a move is one atomic step, even for a directory. Otherwise SOURCE
    is copied as by `outcore cp -rp --verify`, and then removed. After an error the other sources
    are still moved, and the exit code is 1. A SOURCE never replaces an earlier target of the same
    call.
    """
    moved: list[dict[str, str]] = []
    failures = Failures({"moved": moved})

    def done(source: AnyPath, new: AnyPath) -> None:
        moved.append({"source": str(source), "target": str(new)})

    move_files(
        sources, target, progress=not wants_json(), done=done, failed=failures.failed, **options
    )
    failures.end()
