"""``outcore verify``."""

from dataclasses import asdict

import click

from outcore.cli.invocation import json_option, print_json
from outcore.cli.places import key_option, paths_argument
from outcore.files.globbing import expanded
from outcore.verify import verify
from outcore.volumes import AnyPath


@click.command("verify", short_help="Read arrays through and compare them with their checksums.")
@paths_argument
@click.option("--record", is_flag=True, help="Store checksums for later calls.")
@key_option
@json_option
def command(paths: tuple[AnyPath, ...], record: bool, as_json: bool) -> None:
    """Read arrays through, and compare every chunk with its checksum where there is one.

    The exit code is 1 at the first array that cannot be read or is not what it was.
    """
    found = []
    for path in expanded(paths):
        found.append(verify(path, record, progress=not as_json))
        if not as_json:
            click.echo(str(found[-1]))
    if as_json:
        print_json({"verified": [asdict(each) for each in found]})
