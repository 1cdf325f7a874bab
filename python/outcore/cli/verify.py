"""``outcore verify``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.array.verification import verify
from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, say
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.storage.volumes import AnyPath


@click.command(
    "verify",
    cls=Verb,
    short_help="Read arrays through and compare them with their checksums.",
    example="outcore verify --record /scratch/A",
    groups={
        "Checksums": ("record",),
    },
)
@paths_argument
@click.option("--record", is_flag=True, help="Store checksums for later calls.")
@key_option
@json_option
def command(paths: tuple[AnyPath, ...], record: bool, as_json: bool) -> None:
    """Read arrays, and compare every chunk with its checksum if there is one.

    The exit code is 1 if an array is unreadable or has changed; the others are still read.
    """
    verified: list[dict[str, Any]] = []
    failures = Failures({"verified": verified}, as_json=as_json)
    for path in failures.expanded(paths):
        with failures.noted(path):
            found = verify(path, record, progress=not as_json)
            verified.append(asdict(found))
            if not as_json:
                say(as_line(str(found)))
    failures.end()
