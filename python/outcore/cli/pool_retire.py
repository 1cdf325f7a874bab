"""``outcore pool retire``."""

from pathlib import Path

import click

from outcore import _core
from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json
from outcore.cli.places import POOL_KEY
from outcore.pool.named_pool import connect_named


@click.command(
    "retire",
    cls=Verb,
    short_help="Use a pool without an I/O server whose disk is dead.",
    example="outcore pool retire /mnt/a/pool 1",
    groups={
        "Retirement": ("undo",),
    },
)
@click.argument("target", metavar="URL|DIR")
@click.argument("server", metavar="NUMBER", type=click.IntRange(0, 2**32 - 1))
@click.option("--undo", is_flag=True, help="Allow a retired server to return.")
@POOL_KEY
@json_option
def retire(target: str, server: int, undo: bool, key: Path | None, as_json: bool) -> None:
    """Retire I/O server NUMBER of a pool: its data counts as lost.

    New files lie on the other servers. Files with a part on this server can be removed; fsck names
    them. If the server returns, the pool refuses it until --undo. The server must no longer answer.

    Name the pool by its address, or by its first directory, if that is on this machine.
    """
    pool = connect_named(target, key)
    if pool is None:
        _core.retire_server(target, server, undo)
    else:
        with pool:
            pool.retire(server, undo=undo)
    if as_json:
        print_json({"server": server, "is_retired": not undo})
    elif undo:
        click.echo(f"I/O server {server} is no longer retired; start it on its directory")
    else:
        click.echo(
            f"I/O server {server} is retired; list the files with a part there by: "
            f"outcore pool fsck {target}"
        )
