"""``outcore pool``: the daemons of a pool on this machine, and checks of any pool."""

import contextlib
import os
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from outcore import _core
from outcore._util.printable import as_line
from outcore.cli.places import POOL_KEY
from outcore.cli.verbs import Verb, VerbGroup, end, say, wants_json
from outcore.errors import InvalidError, OutcoreError
from outcore.pool import local_pool
from outcore.pool.daemon_process import DaemonProcess
from outcore.pool.fsck import FsckReport
from outcore.pool.fsck import fsck as check
from outcore.pool.named_pool import connect_named, is_address
from outcore.pool.pool import Pool
from outcore.pool.scrub import ScrubReport
from outcore.pool.scrub import scrub as compare
from outcore.pool.state import PoolState, make_key, without_password
from outcore.storage.pool_path import is_url

MOST_ID = 2**32 - 2
"""Largest id of users and groups; the next number means nobody."""


def _on_this_machine(context: click.Context, parameter: click.Parameter, given: str) -> Path:
    """Return the path of a directory; refuse the address of a pool."""
    if is_url(given):
        raise click.BadParameter(
            f"need the first directory of a pool on this machine, have the address {given}; "
            f"'outcore df {given}' shows its servers"
        )
    return Path(given)


DIRECTORY = click.argument("directory", callback=_on_this_machine)


@click.group(
    "pool",
    cls=VerbGroup,
    short_help="Start, show, stop and check the daemons of a pool.",
    example="outcore pool up /mnt/a/pool /mnt/b/pool",
)
def command() -> None:
    """Start, show and stop the daemons of a pool on this machine; check any pool."""


@command.command(
    "up",
    cls=Verb,
    short_help="Start the daemons of a pool.",
    example="outcore pool up /mnt/a/pool /mnt/b/pool",
    groups={
        "Directories": ("dirs", "new"),
        "Metadata": ("store",),
        "Network": ("listen", "tls", "metrics", "page"),
    },
)
@click.option("--dirs", is_flag=True, help="State that DIR... are all directories of the pool.")
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--listen",
    metavar="HOST[:PORT]",
    help="Address at which other machines reach this one.  [default: none]",
)
@click.option(
    "--metrics",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port of the manager's metrics for Prometheus; the I/O servers use the next ports.",
)
@click.option(
    "--page",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port of the manager's page for people on this machine; 0 takes any free port.",
)
@click.option("--tls/--no-tls", default=None, help="Encrypt network traffic, or not.")
@click.option(
    "--store",
    metavar="URL",
    help="PostgreSQL database with the metadata: postgres://user@host/database.  "
    "[default: in the first DIR]",
)
@click.option(
    "--new",
    is_flag=True,
    help="Make a new server in an empty DIR although a server is missing.",
)
def up(
    directories: tuple[Path, ...],
    dirs: bool,
    listen: str | None,
    metrics: int | None,
    page: int | None,
    tls: bool | None,
    store: str | None,
    new: bool,
) -> None:
    """Start a manager, and an I/O server for each DIR.

    Each DIR is best on a disk of its own. The first DIR also has the manager's files, and in its
    directory "pool" the key, the settings and the logs. To start a pool again, name its first DIR
    only: the other directories and options are those of the last start. To add or leave out
    directories, name all of them after --dirs; new ones become new servers. If some daemons of the
    pool run, the missing ones are started.

    An empty DIR is refused while a server of the pool is missing, because its disk may not be
    mounted. With --new the DIR still becomes a new server.
    """
    started = []
    if len(directories) == 1 and not dirs and not new:
        left_out = []
        starting = local_pool.start_again(
            directories[0], listen, metrics, tls=tls, store=store, page=page
        )
    else:
        left_out = local_pool.left_out(directories)
        starting = local_pool.start(
            directories, listen, metrics, tls=tls, store=store, page=page, new=new
        )
    for daemon in starting:
        started.append(daemon)
        say(_as_line(daemon))
    if left_out:
        gone = local_pool.retired(Path(directories[0]).absolute())
        left_out = [each for each in left_out if _server_of(each) not in gone]
    url = local_pool.url_of(directories[0])
    key = str(PoolState(Path(directories[0]).absolute()).key)
    daemons = [daemon.to_dict() for daemon in started]
    missing = [str(each) for each in left_out]
    document = {"url": url, "key": key, "daemons": daemons, "left_out": missing}
    end(document, f"the pool is {url}, its key {key}")
    for each in left_out:
        click.echo(
            f"warning: {each} belongs to this pool and was not named: its data cannot be "
            "reached; stop the pool, and start it with this directory too",
            err=True,
        )


@command.command(
    "status",
    cls=Verb,
    short_help="Show which daemons of a pool run.",
    example="outcore pool status /mnt/a/pool",
)
@DIRECTORY
def status(directory: Path) -> None:
    """Print the running daemons of the pool whose first directory is DIRECTORY.

    The exit code is 1 if a daemon that was started does not run, or a signal has stopped it. A
    retired one need not run.
    """
    local_pool.check_started(directory)
    daemons = local_pool.running(directory)
    # The manager is asked only if servers may be retired.
    is_whole = all(daemon.is_alive for daemon in daemons)
    gone = [] if is_whole else local_pool.retired(directory)
    documents = [each.to_dict() | {"is_retired": each.server in gone} for each in daemons]
    lines = [_as_line(daemon, is_retired=daemon.server in gone) for daemon in daemons]
    lines = lines or [f"nothing runs in {directory}"]
    store = PoolState(directory.absolute()).store()
    if store is not None:
        lines.append(f"the metadata are in {store}")
    end({"daemons": documents, "store": store}, *lines)
    needed = [daemon for daemon in daemons if daemon.server not in gone]
    if not all(daemon.is_alive and not daemon.is_stopped for daemon in needed):
        raise click.exceptions.Exit(1)


@command.command(
    "down",
    cls=Verb,
    short_help="Stop the daemons of a pool.",
    example="outcore pool down /mnt/a/pool",
)
@DIRECTORY
def down(directory: Path) -> None:
    """Stop the daemons of the pool whose first directory is DIRECTORY.

    Each daemon completes its pending requests, and makes their data durable.
    """
    stopped = local_pool.stop(directory)
    lines = [f"stopped {daemon.name}" for daemon in reversed(stopped)]
    documents = [daemon.to_dict() for daemon in stopped]
    end({"stopped": documents}, *lines or [f"nothing ran in {directory}"])


@command.command(
    "key",
    cls=Verb,
    short_help="Make a key for a user, or for a pool.",
    example="outcore pool key ada --key /mnt/a/pool/pool/key -o ada.key",
    groups={
        "Key": ("new", "pool_key", "output"),
        "User": ("uid", "gids"),
    },
)
@click.argument("user", required=False)
@click.option("--new", is_flag=True, help="Make a key for a new pool.")
@click.option(
    "--key", "pool_key", metavar="FILE", envvar="OUTCORE_KEY",
    type=click.Path(path_type=Path), help="The pool's key.  [default: the file in OUTCORE_KEY]",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
    help="File of the new key.  [default: USER.key, or pool.key]",
)  # fmt: skip
@click.option(
    "--uid",
    type=click.IntRange(0, MOST_ID),
    help="User id, for a user that this machine does not know.",
)
@click.option(
    "--gid", "gids", type=click.IntRange(0, MOST_ID), multiple=True,
    help="A group id of the user; the first is the group of new files.",
)  # fmt: skip
def key(
    user: str | None,
    new: bool,
    pool_key: Path | None,
    output: Path | None,
    uid: int | None,
    gids: tuple[int, ...],
) -> None:
    """Derive a key for USER from the pool's key, in a new file of mode 0600.

    With --new, create a random key for a pool whose daemons are started one by one, on several
    machines; `outcore pool up` creates its own.

    The holder of the key is USER to the pool: it checks owner, group and mode of files, and refuses
    requests on behalf of other users. User id and groups default to those of this machine; they are
    bound to the key. To revoke it, create a new key for the pool, and new ones for its users.
    """
    if new == (user is not None):
        raise click.UsageError("need either USER or --new")
    if user is None:
        path = output or Path("pool.key")
        make_key(path)
        end({"key": str(path)}, f"{path} is the key of a new pool")
        return
    if pool_key is None:
        raise click.UsageError("need --key, or OUTCORE_KEY, with the pool's key")
    number, groups = _identity(user, uid, gids)
    path = output or Path(f"{user}.key")
    _core.derive_key(str(pool_key), user, number, groups, str(path))
    named = ", ".join(map(str, groups))
    end(
        {"user": user, "uid": number, "gids": groups, "key": str(path)},
        f"{path} is the key of {user}, user {number} of groups {named}",
    )


_TARGETS = click.argument("targets", metavar="URL|DIR...", nargs=-1, required=True)


@command.command(
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
def scrub(targets: tuple[str, ...], key: Path | None, rate: str | None) -> None:
    """Compare every block of a pool with its checksum, while the pool is in use.

    Name the pool by its address, or by its directories: one of a pool that runs on this machine, or
    all of a pool that does not run. The exit code is 1 if a block is damaged, or a server could not
    be reached.
    """
    bytes_per_s = None if rate is None else rate.removesuffix("/s")
    with _open(targets, key) as pool:
        report = compare(pool, rate=bytes_per_s, progress=not wants_json())
    _end(report, report.damage)


@command.command(
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
def fsck(targets: tuple[str, ...], key: Path | None, repair: bool) -> None:
    """Compare the manager's records of files with the data files of the servers.

    Name the pool as for scrub; it may be in use. Without --repair nothing changes, and the report
    lists the possible repairs. The exit code is 1 if an inconsistency is left, or a server could
    not be reached.
    """
    with _open(targets, key) as pool:
        report = check(pool, repair=repair)
    _end(report, report.findings)


def _end(report: ScrubReport | FsckReport, found: Iterable[object]) -> None:
    """Print a report; exit with 1 if the pool is damaged, or was not checked completely."""
    lines = [as_line(str(each)) for each in (*found, *report.unchecked)]
    end(report.to_dict(), *lines, str(report))
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
    if (directories[0] / "manager" / "database").is_file():
        raise InvalidError(
            f"need the pool in {directories[0]} running, since its metadata are in a database; "
            f"start it with: outcore pool up {directories[0]}"
        )
    if not (directories[0] / "manager" / "metadata.sqlite").is_file():
        raise InvalidError(
            f"{directories[0]} has no files of a manager; name the pool's first directory first"
        )
    return Pool.embedded(directories)


@command.command(
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
def retire(target: str, server: int, undo: bool, key: Path | None) -> None:
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
    text = (
        f"I/O server {server} is retired; list the files with a part there by: "
        f"outcore pool fsck {target}"
    )
    if undo:
        text = f"I/O server {server} is no longer retired; start it on its directory"
    end({"server": server, "is_retired": not undo}, text)


@command.command(
    "backup",
    cls=Verb,
    short_help="Copy the metadata of a pool, also while it runs.",
    example="outcore pool backup /mnt/a/pool /mnt/b/pool.backup",
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def backup(directory: Path, target: Path) -> None:
    """Copy the metadata of the pool in DIRECTORY to the new file TARGET.

    DIRECTORY is the first of the pool. The metadata are names, rights and layouts. TARGET contains
    all earlier changes, whether the pool runs or not, but no file data. Run this as the user who
    runs the manager.
    """
    _core.backup_metadata(str(directory), str(target))
    text = f"{target} is a copy of the metadata of the pool in {directory}"
    end({"backup": str(target)}, text)


@command.command(
    "restore",
    cls=Verb,
    short_help="Restore the metadata of a stopped pool from a copy.",
    example="outcore pool restore /mnt/a/pool /mnt/b/pool.backup",
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("copy", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def restore(directory: Path, copy: Path) -> None:
    """Restore COPY, which `outcore pool backup` made of the pool in DIRECTORY.

    The pool must not run. The replaced store is kept. Files created after COPY lose their names:
    after the next start, `outcore pool fsck` lists their data. New files never get their data.
    """
    replaced = _core.restore_metadata(str(directory), str(copy))
    kept = "" if replaced is None else f"; the replaced store is in {replaced}"
    end(
        {"replaced": replaced},
        f"the pool in {directory} has the metadata of {copy}{kept}",
        f"start it, then check it with: outcore pool fsck {directory}",
    )


@command.command(
    "migrate",
    cls=Verb,
    short_help="Move the metadata of a stopped pool to PostgreSQL, or back.",
    example="outcore pool migrate /mnt/a/pool --to postgres://me@db1/pool",
    groups={
        "Database": ("target", "source"),
    },
)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--to", "target", metavar="URL", help="Database that gets the metadata.")
@click.option("--from", "source", metavar="URL", help="Database that has the metadata.")
def migrate(directory: Path, target: str | None, source: str | None) -> None:
    """Move the metadata of the pool in DIRECTORY to a database, or back.

    DIRECTORY is the first of the pool, which must not run. URL names a database of PostgreSQL:
    postgres://user@host/database, or postgres:///database?host=/run/postgresql. A database that
    gets the metadata must be empty. The copy is compared with its source before it is used. If this
    call is killed, the source stays valid; call it again.
    """
    url = target if target is not None else source
    if url is None or (target is not None and source is not None):
        raise click.UsageError("need either --to or --from")
    is_back = target is None
    records, replaced = _core.migrate_metadata(str(directory), url, is_back)
    state = PoolState(directory.absolute())
    if state.path.is_dir():
        state.keep_settings(replace(state.settings(), store=target))
    where = directory if is_back else without_password(url)
    lines = [f"the metadata of the pool are in {where}: {records} records, equal to their source"]
    if replaced is not None:
        lines.append(f"the replaced store is in {replaced}")
    if not state.path.is_dir():
        lines.append(f"{'remove' if is_back else 'add'} store in the settings of the manager")
    end({"records": records, "replaced": replaced, "store": target and str(where)}, *lines)


def _identity(user: str, uid: int | None, gids: tuple[int, ...]) -> tuple[int, list[int]]:
    """Return the given user id and groups; the defaults are those of this machine."""
    if uid is not None and gids:
        return uid, list(gids)
    try:
        known = pwd.getpwnam(user)
    except KeyError:
        raise InvalidError(f"this machine knows no user {user!r}; pass --uid and --gid") from None
    groups = os.getgrouplist(user, known.pw_gid)
    mine = [known.pw_gid, *(group for group in groups if group != known.pw_gid)]
    return known.pw_uid if uid is None else uid, list(gids) or mine


def _server_of(directory: Path) -> int | None:
    with contextlib.suppress(OutcoreError):
        return local_pool.number_in(directory)
    return None


def _as_line(daemon: DaemonProcess, *, is_retired: bool = False) -> str:
    line = f"{daemon.name} in {daemon.directory}, process {daemon.pid}"
    where = " ".join(daemon.addresses)
    if is_retired and not daemon.is_alive:
        return f"{daemon.name} in {daemon.directory} was retired"
    if not daemon.is_alive:
        return f"{line}, IS GONE; see its log"
    if daemon.is_stopped:
        return f"{line}, IS STOPPED by a signal; resume it with: kill -CONT {daemon.pid}"
    metrics = f", metrics at {daemon.metrics}" if daemon.metrics else ""
    page = f", page at {daemon.page}" if daemon.page else ""
    return f"{line}, listens on {where}{metrics}{page}"
