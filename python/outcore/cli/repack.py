"""``outcore repack``."""

from dataclasses import asdict

import click

from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json
from outcore.cli.places import key_option, paths_argument
from outcore.convert.repack import repack
from outcore.files.globbing import expanded
from outcore.storage.volumes import AnyPath


@click.command(
    "repack",
    cls=Verb,
    short_help="Rewrite arrays that other software wrote to.",
    example="outcore repack /scratch/A",
)
@paths_argument
@key_option
@json_option
def command(paths: tuple[AnyPath, ...], as_json: bool) -> None:
    """Rewrite arrays that other software wrote to, in outcore's own layout.

    zarr-python and others replace whole shard files. The command rewrites each such file beside the
    old one, and renames it. Other arrays stay unchanged.
    """
    found = []
    for path in expanded(paths):
        found.append(repack(path, progress=not as_json))
        if not as_json:
            click.echo(str(found[-1]))
    if as_json:
        print_json({"repacked": [asdict(each) for each in found]})
