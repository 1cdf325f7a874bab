"""``outcore repack``."""

from dataclasses import asdict

import click

from outcore.cli.places import key_option, paths_argument
from outcore.cli.verbs import Verb, end, say, wants_json
from outcore.convert.repack import repack
from outcore.files.several import expanded
from outcore.storage.volumes import AnyPath


@click.command(
    "repack",
    cls=Verb,
    short_help="Rewrite arrays that other software wrote to.",
    example="outcore repack /scratch/A",
)
@paths_argument
@key_option
def command(paths: tuple[AnyPath, ...]) -> None:
    """Rewrite arrays that other software wrote to, in outcore's own layout.

    zarr-python and others replace whole shard files. The command rewrites each such file beside the
    old one, and renames it. Other arrays stay unchanged.
    """
    found = []
    for path in expanded(paths):
        found.append(repack(path, progress=not wants_json()))
        say(str(found[-1]))
    end({"repacked": [asdict(each) for each in found]})
