"""``outcore pool scrub`` and ``outcore pool fsck``."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from outcore._util.printable import as_line
from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json, say
from outcore.cli.places import POOL_KEY
from outcore.errors import InvalidError
from outcore.pool.fsck import FsckReport
from outcore.pool.fsck import fsck as check
from outcore.pool.named_pool import connect_named, is_address
from outcore.pool.pool import Pool
from outcore.pool.scrub import ScrubReport
from outcore.pool.scrub import scrub as compare

_TARGETS = click.argument("targets", metavar="URL|DIR...", nargs=-1, required=True)


@click.command(
    "scrub",
    cls=Verb,
    short_help="Compare all data of a pool with their checksums.",
    example="outcore pool scrub outcore://node1:7171 --key pool.key --rate 50MB/s",
)
@_TARGETS
@POOL_KEY
@click.option(
    "--rate", metavar="BYTES/s", help="Limit for the reads of each server, such as 50MB/s."
)
@json_option
def scrub(targets: tuple[str, ...], key: Path | None, rate: str | None, as_json: bool) -> None:
    """Compare every block of a pool with its checksum, while the pool is in use.

    Name the pool by its address, or by its directories: one of a pool that runs on this machine, or
    all of a pool that does not run. The exit code is 1 if a block is damaged, or a server could not
    be reached.
    """
    bytes_per_s = None if rate is None else rate.removesuffix("/s")
    with _open(targets, key) as pool:
        report = compare(pool, rate=bytes_per_s, progress=not as_json)
    _end(report, report.damage, as_json)


@click.command(
    "fsck",
    cls=Verb,
    short_help="Compare a pool's records of its files with their data.",
    example="outcore pool fsck outcore://node1:7171 --key pool.key",
    groups={
        "Repair": ("repair",),
    },
)
@_TARGETS
@POOL_KEY
@click.option("--repair", is_flag=True, help="Remove data that no file owns, and finish removals.")
@json_option
def fsck(targets: tuple[str, ...], key: Path | None, repair: bool, as_json: bool) -> None:
    """Compare the manager's records of files with the data files of the servers.

    Name the pool as for scrub; it may be in use. Without --repair nothing changes, and the report
    lists the possible repairs. The exit code is 1 if an inconsistency is left, or a server could
    not be reached.
    """
    with _open(targets, key) as pool:
        report = check(pool, repair=repair)
    _end(report, report.findings, as_json)


def _end(report: ScrubReport | FsckReport, found: Iterable[object], as_json: bool) -> None:
    """Print a report; exit with 1 if the pool is damaged, or was not checked completely."""
    if as_json:
        print_json(report.to_dict())
    else:
        for each in (*found, *report.unchecked):
            say(as_line(str(each)))
        say(str(report))
    if not report.is_well:
        raise click.exceptions.Exit(1)


def _open(targets: Sequence[str], key: Path | None) -> Pool:
    """Open the pool of a command line."""
    if is_address(targets[0]) and len(targets) > 1:
        raise InvalidError("need one address of a pool, or its directories")
    if pool := connect_named(targets[0], key):
        return pool
    directories = [Path(target) for target in targets]
    for directory in directories:
        # An empty directory would become a new server.
        if not (directory / "server.json").is_file():
            raise InvalidError(
                f"{directory} is no directory of a pool; name all directories of the pool"
            )
    if not (directories[0] / "manager" / "metadata.sqlite").is_file():
        raise InvalidError(
            f"{directories[0]} has no files of a manager; name the pool's first directory first"
        )
    return Pool.embedded(directories)
