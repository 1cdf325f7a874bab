"""``outcore mount``."""

import os
from pathlib import Path

import click

from outcore.cli.verbs import Verb, end
from outcore.pool.mounting import serve_mount, start_mount
from outcore.pool.named_pool import NamedPools


@click.command(
    "mount",
    cls=Verb,
    short_help="Mount a pool in the file system.",
    example="outcore mount outcore://node1:7171/sim /mnt/sim",
    groups={
        "Access": ("allow_other", "read_only", "strict", "no_locks", "timeout", "key"),
        "Process": ("foreground",),
    },
)
@click.argument("pool")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--allow-other", is_flag=True, help="Let other users of this machine use the mount.")
@click.option("--read-only", is_flag=True, help="Refuse all writes.")
@click.option("--strict", is_flag=True, help="Ask the pool in each call. Cache nothing.")
@click.option("--no-locks", is_flag=True, help="Refuse locks of files, with ENOLCK.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.IntRange(1, 86_400),
    default=60,
    show_default=True,
    help="Fail calls with EIO after a server did not answer for so long.",
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(),
    help="The pool's key, or yours.  [default: the file in OUTCORE_KEY]",
)
@click.option("--foreground", is_flag=True, help="Run until unmounted, Ctrl-C or SIGTERM.")
def command(
    pool: str,
    directory: Path,
    allow_other: bool,
    read_only: bool,
    strict: bool,
    no_locks: bool,
    timeout: int,
    key: str | None,
    foreground: bool,
) -> None:
    """Mount POOL, or a directory in it, at DIRECTORY, which must be empty.

    Any program can then use its files. A process in the background serves the mount until outcore
    umount. Mounting again cleans up after a process that was killed. See docs/how-to/mount.md.
    """
    options = {
        "allow_other": allow_other, "read_only": read_only, "strict": strict, "no_locks": no_locks,
    }  # fmt: skip
    if foreground:
        pools = NamedPools(key, timeout)
        try:
            said = {"pool": pool, "directory": str(directory), "pid": os.getpid()}
            serve_mount(pools, pool, directory, lambda: _announce(said), **options)
        finally:
            pools.close()
        return
    flags = [f"--{name.replace('_', '-')}" for name, is_set in options.items() if is_set]
    keys = [] if key is None else ["--key", os.path.abspath(key)]
    said = start_mount(
        [*flags, *keys, "--timeout", str(timeout), "--", pool, str(directory)], directory
    )
    _announce(said)


def _announce(said: dict[str, object]) -> None:
    end(said, f"{said['pool']} is mounted at {said['directory']} by process {said['pid']}")
