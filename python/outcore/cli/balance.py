"""``outcore balance``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from outcore._util.printable import as_line
from outcore.balance.agent import serve
from outcore.balance.balance import Balance
from outcore.balance.directories import balance_of_directories
from outcore.balance.hosts import MOST_PAIRS, RUN, balance_of_hosts
from outcore.balance.page import write_page
from outcore.balance.pools import balance_of_pool
from outcore.cli.listing import in_columns
from outcore.cli.places import POOL_KEY
from outcore.cli.verbs import Verb, end
from outcore.errors import NotFoundError
from outcore.pool.named_pool import NamedPools, connect_running
from outcore.storage.pool_path import is_url


@click.command(
    "balance",
    cls=Verb,
    short_help="Measure whether disks or the network limit transfers.",
    example="outcore balance outcore://node1:7171 --key pool.key -o balance.html",
    groups={
        "Measured objects": ("dirs", "hosts", "directories"),
        "Measurement": ("seconds", "pairs", "run", "agent"),
        "Output": ("output",),
    },
)
@click.argument("targets", metavar="[POOL | DIR... | HOST...]", nargs=-1)
@click.option("--dirs", is_flag=True, help="Measure the directories DIR... of this machine.")
@click.option("--hosts", is_flag=True, help="Measure HOST..., each NAME or NAME=ADDRESS,ADDRESS.")
@click.option(
    "--directory", "directories", metavar="DIR", multiple=True,
    help="A directory on each host, for --hosts; several on several disks.  [default: the home]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=3.0, show_default=True,
    help="Time for each disk, and for each server of a pool.",
)  # fmt: skip
@click.option(
    "--pairs", type=click.IntRange(1), default=MOST_PAIRS, show_default=True,
    help="Pairs of hosts to measure; of more pairs, a random sample.",
)  # fmt: skip
@click.option(
    "--run", default=RUN, show_default=True, metavar="COMMAND",
    help="Command that runs outcore on a host, for --hosts.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Draw the result as an HTML page too."
)
@click.option("--agent", is_flag=True, hidden=True, help="Answer the requests of --hosts.")
@POOL_KEY
def command(
    targets: tuple[str, ...],
    dirs: bool,
    hosts: bool,
    directories: tuple[str, ...],
    seconds: float,
    pairs: int,
    run: str,
    output: Path | None,
    agent: bool,
    key: Path | None,
) -> None:
    """Measure disks, channels and processors, and say which limits transfers.

    POOL is the address of a pool, which this machine uses as a client, or the first directory of
    one that runs on this machine. Without a target, measure the current directory's disk. The
    result includes the predicted gain of another channel, another disk and another host. The
    measurement removes its files, of at most 512 MiB for each disk, however it ends.
    """
    if agent:
        serve(sys.stdin, click.echo)
        return
    if dirs and hosts:
        raise click.UsageError("need one of --dirs and --hosts, have both")
    if directories and not hosts:
        raise click.UsageError("--directory goes with --hosts; name directories after --dirs")
    if hosts:
        if not targets:
            raise click.UsageError("need the names of hosts after --hosts")
        found = balance_of_hosts(targets, directories or ("",), seconds, pairs=pairs, run=run)
    elif dirs or not targets:
        found = balance_of_directories([Path(each) for each in targets or (".",)], seconds)
    elif len(targets) > 1:
        raise click.UsageError("need one POOL; --dirs measures several directories")
    else:
        found = _of_pool(targets[0], key, seconds)
    if output:
        write_page(found, output)
    end(found.to_dict() | {"page": output}, _as_text(found))


def _of_pool(target: str, key: Path | None, seconds: float) -> Balance:
    if is_url(target):
        pools = NamedPools(key)
        try:
            return balance_of_pool(pools.path(target), seconds)
        finally:
            pools.close()
    pool = connect_running(Path(target), key)
    if pool is None:
        raise NotFoundError(
            f"no pool runs in {target}; start it with: outcore pool up {target}, or measure the "
            f"directory itself: outcore balance --dirs {target}"
        )
    with pool:
        return balance_of_pool(pool / "", seconds)


def _as_text(found: Balance) -> str:
    parts = [f"balance of {as_line(found.subject)}"]
    for rows in found.tables():
        if len(rows) > 1:
            parts.append("\n".join(in_columns([_printable(row) for row in rows])))
    parts.append("\n".join(map(as_line, found.findings())))
    return "\n\n".join(parts)


def _printable(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(as_line, row))
