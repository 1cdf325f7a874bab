"""``outcore serve``."""

import contextlib
from pathlib import Path

import click

from outcore import _core
from outcore._util.signals import wait_for_signals
from outcore.cli.verbs import Verb, end
from outcore.storage.pool_path import check_text

_ONLY_READS = (
    "; its disk takes no writes, but its data can be read: make room, or make it writable and "
    "start again"
)


@click.command(
    "serve",
    cls=Verb,
    short_help="Run the manager or an I/O server of a pool, until stopped.",
    example="outcore serve manager --config manager.conf",
    groups={
        "Settings": ("config",),
    },
)
@click.argument("role", type=click.Choice(["manager", "io"]))
@click.option(
    "--config",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of settings: lines of name = value.",
)
def command(role: str, config: Path) -> None:
    """Run the manager or an I/O server of a pool, until Ctrl-C or SIGTERM.

    One line gives its addresses. Both roles need the settings directory, listen and key_file, with
    metrics as an option, and page of a manager. An I/O server also needs manager, with server,
    advertise, threads and memory_bytes as options. See docs/operations.md.
    """
    daemon = _core.Daemon(role, check_text(str(config)))
    said = {
        "role": role, "pool": daemon.pool, "server": daemon.server, "listen": daemon.addresses,
        "metrics": daemon.metrics, "page": daemon.page, "is_writable": daemon.is_writable,
    }  # fmt: skip
    # Ctrl-C and SIGTERM are its normal end.
    with contextlib.suppress(KeyboardInterrupt):
        who = "manager" if daemon.server is None else f"I/O server {daemon.server}"
        metrics = f"; metrics at {daemon.metrics}" if daemon.metrics else ""
        metrics += f"; page at {daemon.page}" if daemon.page else ""
        where = " ".join(daemon.addresses)
        reads = "" if daemon.is_writable else _ONLY_READS
        end(said, f"{who} of pool {daemon.pool} listens on {where}{metrics}{reads}")
        wait_for_signals()
    daemon.stop()
