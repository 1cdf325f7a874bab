"""Mount a pool in the file system, and unmount it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outcore import _core
from outcore._util.signals import stop_on_signals
from outcore.errors import OutcoreError, from_kind
from outcore.pool.daemon_process import started_verb
from outcore.pool.named_pool import NamedPools

_WAIT_S = 0.2


def mounted_at(place: Path) -> str | None:
    """Return the address of the pool that is mounted at a directory; `None` if none is.

    Dead mounts, whose process has ended, are found too.
    """
    return _core.Mount.address_at(str(place))


def serve_mount(
    pools: NamedPools, url: str, place: Path, begun: Callable[[], object], **options: bool
) -> None:
    """Mount a directory of a pool, and serve it in this process until it is unmounted.

    Ctrl-C and SIGTERM unmount it. Programs that have files open there get errors after a while.

    Parameters
    ----------
    pools
        Opens the pool, and keeps it open.
    url
        Address of the directory, as in ``outcore://node1:7171/sim``.
    place
        An empty directory.
    begun
        Called once it is mounted.
    options
        ``allow_other``, ``read_only``, ``strict`` and ``no_locks`` of `_core.Mount`.

    Raises
    ------
    OutcoreError
        If the pool or the directory does not exist, or the system refuses the mount.
    """
    where = os.path.abspath(place)
    # Before the pool is asked, which may take long.
    _core.Mount.check_place(where)
    path = pools.path(url)
    core, address = path.root.core, path.root.url
    mount = None
    try:
        # From here on, a signal must not end the process without unmounting.
        with stop_on_signals():
            mount = _core.Mount(core, where, path.inside, address, **options)
            begun()
            while not mount.wait(_WAIT_S):
                pass
    except KeyboardInterrupt:
        if mount is not None:
            mount.stop()


def start_mount(arguments: Sequence[str], place: Path) -> dict[str, Any]:
    """Start a process that mounts in the background; return its document once it is mounted.

    Parameters
    ----------
    arguments
        Those of ``outcore mount --foreground``.
    place
        The directory.

    Raises
    ------
    OutcoreError
        If it cannot mount.
    """
    with started_verb(["mount", "--foreground", *arguments]) as (_, said):
        if not said:
            raise OutcoreError(
                f"the mount at {place} did not start; run it with --foreground to see why"
            )
        if "error" in said:
            raise from_kind(said["error"]["kind"], said["error"]["message"])
    return said


def unmount(place: Path, *, lazy: bool = False) -> None:
    """Unmount a pool.

    Parameters
    ----------
    place
        The directory.
    lazy
        Whether to detach the directory now although files are open there.

    Raises
    ------
    NotFoundError
        If no pool is mounted there.
    DiskError
        If the system refuses, as it does while files are open there.
    """
    _core.Mount.unmount_at(str(place), lazy)
