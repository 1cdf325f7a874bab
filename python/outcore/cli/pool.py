"""``outcore pool``: the daemons of a pool on this machine, and checks of any pool."""

import contextlib
import os
import pwd
from pathlib import Path

import click

from outcore import _core
from outcore.cli import pool_backup, pool_check, pool_retire
from outcore.cli.help import Verb
from outcore.cli.invocation import json_option, print_json
from outcore.errors import InvalidError, OutcoreError
from outcore.pool import local_pool
from outcore.pool.daemon_process import DaemonProcess
from outcore.pool.state import PoolState, make_key
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


@click.group("pool", short_help="Start, show, stop and check the daemons of a pool.")
def command() -> None:
    """Start, show and stop the daemons of a pool on this machine; check any pool."""


command.add_command(pool_check.scrub)
command.add_command(pool_check.fsck)
command.add_command(pool_retire.retire)
command.add_command(pool_backup.backup)
command.add_command(pool_backup.restore)


@command.command(
    "up",
    cls=Verb,
    short_help="Start the daemons of a pool.",
    example="outcore pool up /mnt/a/pool /mnt/b/pool",
    groups={
        "Directories": ("dirs", "new"),
        "Network": ("listen", "tls", "metrics"),
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
@click.option("--tls/--no-tls", default=None, help="Encrypt network traffic, or not.")
@click.option(
    "--new",
    is_flag=True,
    help="Make a new server in an empty DIR although a server is missing.",
)
@json_option
def up(
    directories: tuple[Path, ...],
    dirs: bool,
    listen: str | None,
    metrics: int | None,
    tls: bool | None,
    new: bool,
    as_json: bool,
) -> None:
    """Start a manager, and an I/O server for each DIR.

    Each DIR is best on a disk of its own. The first DIR also has the manager's files, and in its
    directory "pool" the key, the settings and the logs. To start a pool again, name its first DIR
    only: the other directories, --listen, --metrics and --tls are those of the last start. To add
    or leave out directories, name all of them after --dirs; new ones become new servers. If some
    daemons of the pool run, the missing ones are started.

    An empty DIR is refused while a server of the pool is missing, because its disk may not be
    mounted. With --new the DIR still becomes a new server.
    """
    started = []
    if len(directories) == 1 and not dirs and not new:
        left_out, starting = [], local_pool.start_again(directories[0], listen, metrics, tls=tls)
    else:
        left_out = local_pool.left_out(directories)
        starting = local_pool.start(directories, listen, metrics, tls=tls, new=new)
    for daemon in starting:
        started.append(daemon)
        if not as_json:
            click.echo(_as_line(daemon))
    if left_out:
        gone = local_pool.retired(Path(directories[0]).absolute())
        left_out = [each for each in left_out if _server_of(each) not in gone]
    url = local_pool.url_of(directories[0])
    key = str(PoolState(Path(directories[0]).absolute()).key)
    if as_json:
        daemons = [daemon.to_dict() for daemon in started]
        missing = [str(each) for each in left_out]
        print_json({"url": url, "key": key, "daemons": daemons, "left_out": missing})
    else:
        click.echo(f"the pool is {url}, its key {key}")
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
@json_option
def status(directory: Path, as_json: bool) -> None:
    """Print the running daemons of the pool whose first directory is DIRECTORY.

    The exit code is 1 if a daemon that was started does not run, or a signal has stopped it. A
    retired one need not run.
    """
    local_pool.check_started(directory)
    daemons = local_pool.running(directory)
    # The manager is asked only if servers may be retired.
    is_whole = all(daemon.is_alive for daemon in daemons)
    gone = [] if is_whole else local_pool.retired(directory)
    if as_json:
        documents = [each.to_dict() | {"is_retired": each.server in gone} for each in daemons]
        print_json({"daemons": documents})
    else:
        for daemon in daemons:
            click.echo(_as_line(daemon, is_retired=daemon.server in gone))
        if not daemons:
            click.echo(f"nothing runs in {directory}")
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
@json_option
def down(directory: Path, as_json: bool) -> None:
    """Stop the daemons of the pool whose first directory is DIRECTORY.

    Each daemon completes its pending requests, and makes their data durable.
    """
    stopped = local_pool.stop(directory)
    if as_json:
        print_json({"stopped": [daemon.to_dict() for daemon in stopped]})
    else:
        for daemon in reversed(stopped):
            click.echo(f"stopped {daemon.name}")
        if not stopped:
            click.echo(f"nothing ran in {directory}")


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
@json_option
def key(
    user: str | None,
    new: bool,
    pool_key: Path | None,
    output: Path | None,
    uid: int | None,
    gids: tuple[int, ...],
    as_json: bool,
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
        if as_json:
            print_json({"key": str(path)})
        else:
            click.echo(f"{path} is the key of a new pool")
        return
    if pool_key is None:
        raise click.UsageError("need --key, or OUTCORE_KEY, with the pool's key")
    number, groups = _identity(user, uid, gids)
    path = output or Path(f"{user}.key")
    _core.derive_key(str(pool_key), user, number, groups, str(path))
    if as_json:
        print_json({"user": user, "uid": number, "gids": groups, "key": str(path)})
    else:
        named = ", ".join(map(str, groups))
        click.echo(f"{path} is the key of {user}, user {number} of groups {named}")


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
    return f"{line}, listens on {where}{metrics}"
