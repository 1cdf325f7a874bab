"""``outcore rm``."""

import sys
from pathlib import Path

import click

from outcore import catalog
from outcore.catalog import Entry
from outcore.cli.invocation import json_option, print_json
from outcore.errors import InvalidError
from outcore.sizes import format_bytes
from outcore.volumes import as_path, bytes_on_disk, is_there


@click.command("rm", short_help="Remove arrays, groups, factors, and what stopped calls left.")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@json_option
def command(paths: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Remove arrays, groups, factors, and what stopped calls left.

    Nothing else is ever removed: if one PATH is nothing of outcore's, none is.
    """
    entries = {}
    for path in paths:
        entry = catalog.recognise(path)
        if entry is None:
            raise InvalidError(_why_not(path))
        catalog.check_removable(entry)
        entries[entry.path] = entry
    sizes = {name: bytes_on_disk(as_path(name)) for name in entries}
    if not yes:
        _ask([_as_line(entry, sizes[entry.path]) for entry in entries.values()])
    for name, entry in entries.items():
        # One that lay within another is gone already.
        if is_there(as_path(name)):
            catalog.remove(entry)
    removed = [{"path": name, "kind": e.kind, "bytes": sizes[name]} for name, e in entries.items()]
    if as_json:
        print_json({"removed": removed})
        return
    for each in removed:
        click.echo(f"removed {each['kind']} {each['path']}")


def _as_line(entry: Entry, nbytes: int) -> str:
    line = f"{entry.kind} {entry.path} ({format_bytes(nbytes)})"
    return f"{line}, {entry.state}: {entry.text}" if entry.text else line


def _ask(what: list[str]) -> None:
    if not _is_terminal():
        raise click.UsageError("there is no terminal to ask on; pass --yes")
    click.echo("\n".join(what), err=True)
    if not click.confirm("remove?", err=True):
        click.echo("nothing was removed", err=True)
        raise click.exceptions.Exit(1)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _why_not(path: Path) -> str:
    if path.is_symlink():
        return f"{path} is a symbolic link; name what it points to"
    if path.name == "journal":
        return f"{path} is needed to go on with its factor; remove the factor, {path.parent}"
    return f"{path} is nothing of outcore's, so it is not removed; remove it yourself"
