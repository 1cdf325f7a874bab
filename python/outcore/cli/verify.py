"""``outcore verify``."""

from dataclasses import asdict
from typing import Any

import click

from outcore._util.printable import as_line
from outcore.array.verification import verify
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, say, wants_json
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
def command(paths: tuple[AnyPath, ...], record: bool) -> None:
    """Read arrays, and compare every chunk with its checksum if there is one.

    The exit code is 1 if an array is unreadable or has changed; the others are still read.
    """
    verified: list[dict[str, Any]] = []
    failures = Failures({"verified": verified})
    for path in failures.expanded(paths):
        with failures.noted(path):
            found = verify(path, record, progress=not wants_json())
            verified.append(asdict(found))
            say(as_line(str(found)))
    failures.end()
