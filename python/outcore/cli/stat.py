"""``outcore stat``."""

from typing import Any

import click

from outcore._util.printable import as_line
from outcore._util.sizes import format_bytes
from outcore.cli.listing import group_name, in_rows, time_of, to_dict, user_name
from outcore.cli.places import Failures, key_option, paths_argument
from outcore.cli.verbs import Verb, say
from outcore.storage.file_attributes import attribute_names
from outcore.storage.file_status import FileStatus, status_of
from outcore.storage.modes import as_letters
from outcore.storage.pool_stat import Silent
from outcore.storage.volumes import AnyPath


@click.command(
    "stat",
    cls=Verb,
    short_help="Print all attributes of files and directories.",
    example="outcore stat outcore://node1:7171/ada/A",
)
@paths_argument
@key_option
def command(paths: tuple[AnyPath, ...]) -> None:
    """Print size, owner, mode, times, attributes and pool layout of each PATH.

    If a server of a pool does not report its part of a file, the size is unknown, and the exit code
    is 1.
    """
    documents: list[dict[str, Any]] = []
    failures, silent = Failures({"entries": documents}), Silent()
    for path in failures.expanded(paths):
        with failures.noted(path):
            status = status_of(path, silent=silent)
            names = attribute_names(path) if status.kind != "link" else []
            say(("\n" if documents else "") + _as_text(status, names))
            documents.append(to_dict(status) | {"attributes": names})
            if status.unknown is not None:
                failures.note(path, f"{path}: its size is not known: {status.unknown}")
    failures.end()


def _as_text(status: FileStatus, names: list[str]) -> str:
    size = f"{status.nbytes} ({format_bytes(status.nbytes)})"
    rows = [
        (status.kind, str(status.path)),
        *([] if status.target is None else [("target", as_line(status.target))]),
        ("size", size if status.unknown is None else "?"),
        ("mode", f"{status.mode:04o} ({as_letters(status.kind, status.mode)})"),
        ("owner", f"{status.owner} ({user_name(status.owner)})"),
        ("group", f"{status.group} ({group_name(status.group)})"),
        ("modified", time_of(status.modified_ns)),
        ("changed", time_of(status.changed_ns)),
    ]
    if status.disk_bytes is not None:
        rows.append(("on disk", f"{status.disk_bytes} ({format_bytes(status.disk_bytes)})"))
    if status.servers:
        unit = format_bytes(status.stripe_unit_bytes)
        rows.append(("stripe unit", f"{status.stripe_unit_bytes} ({unit})"))
        if status.round_units is not None:
            rows.append(("round units", f"{status.round_units}, and the rest on the last server"))
        rows.append(("servers", " ".join(map(str, status.servers))))
    if names:
        rows.append(("attributes", " ".join(names)))
    return in_rows(rows)
