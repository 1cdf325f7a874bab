"""``outcore pool backup`` and ``outcore pool restore``."""

from pathlib import Path

import click

from outcore import _core
from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json


@click.command(
    "backup",
    cls=Verb,
    short_help="Copy the metadata of a pool, also while it runs.",
    example="outcore pool backup /mnt/a/pool /mnt/b/pool.backup",
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def backup(directory: Path, target: Path, as_json: bool) -> None:
    """Copy the metadata of the pool in DIRECTORY to the new file TARGET.

    DIRECTORY is the first of the pool. The metadata are names, rights and layouts. TARGET contains
    all earlier changes, whether the pool runs or not, but no file data. Run this as the user who
    runs the manager.
    """
    _core.backup_metadata(str(directory), str(target))
    if as_json:
        print_json({"backup": str(target)})
    else:
        click.echo(f"{target} is a copy of the metadata of the pool in {directory}")


@click.command(
    "restore",
    cls=Verb,
    short_help="Restore the metadata of a stopped pool from a copy.",
    example="outcore pool restore /mnt/a/pool /mnt/b/pool.backup",
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("copy", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def restore(directory: Path, copy: Path, as_json: bool) -> None:
    """Restore COPY, which `outcore pool backup` made of the pool in DIRECTORY.

    The pool must not run. The replaced store is kept. Files created after COPY lose their names:
    after the next start, `outcore pool fsck` lists their data. New files never get their data.
    """
    replaced = _core.restore_metadata(str(directory), str(copy))
    if as_json:
        print_json({"replaced": replaced})
        return
    kept = "" if replaced is None else f"; the replaced store is in {replaced}"
    click.echo(f"the pool in {directory} has the metadata of {copy}{kept}")
    click.echo(f"start it, then check it with: outcore pool fsck {directory}")
