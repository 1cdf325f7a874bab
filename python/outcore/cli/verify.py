"""``outcore verify``."""

from dataclasses import asdict
from pathlib import Path

import click

from outcore.cli.invocation import json_option, print_json
from outcore.verify import verify


@click.command("verify", short_help="Read arrays through and compare them with their checksums.")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--record", is_flag=True, help="Store checksums for later calls.")
@json_option
def command(paths: tuple[Path, ...], record: bool, as_json: bool) -> None:
    """Read arrays through, and compare every chunk with its checksum where there is one.

    The exit code is 1 at the first array that cannot be read or is not what it was.
    """
    found = []
    for path in paths:
        found.append(verify(path, record, progress=not as_json))
        if not as_json:
            click.echo(str(found[-1]))
    if as_json:
        print_json({"verified": [asdict(each) for each in found]})
