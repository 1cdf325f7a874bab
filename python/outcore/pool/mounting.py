"""Mount a pool in the file system, and unmount it."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outcore import _core
from outcore._util.mounts import parse_mounts
from outcore._util.signals import stop_on_signals
from outcore.errors import (
    DiskError,
    ExistsError,
    InvalidError,
    NotFoundError,
    OutcoreError,
    from_kind,
)
from outcore.pool.daemon_process import started_verb
from outcore.pool.directories import pool_directory_of
from outcore.pool.named_pool import NamedPools

_TYPES = ("fuse", "fuse.outcore")
_SOURCES = ("outcore:", "outcore+tls:")
_WAIT_S = 0.2
_OPEN_FILES_S = 10.0


def mounted_at(place: Path) -> str | None:
    """Return the address of the pool that is mounted at a directory; `None` if none is.

    Dead mounts, whose process has ended, are found too.
    """
    wanted, found = _absolute(place), None
    for mount in parse_mounts(Path("/proc/self/mountinfo").read_text()):
        is_pool = mount.fs_type in _TYPES and mount.source.startswith(_SOURCES)
        if is_pool and mount.point == wanted:
            found = mount.source
    return found


def _absolute(place: Path) -> str:
    """Return a path without links in its parent; a dead mount itself cannot be looked at."""
    directory, name = os.path.split(os.path.abspath(place))
    return os.path.join(os.path.realpath(directory), name)


def check_place(place: Path) -> None:
    """Refuse a directory that cannot be mounted on; unmount a dead mount there.

    Raises
    ------
    NotFoundError
        If it does not exist.
    InvalidError
        If it is no directory, or not empty, or inside a directory in which a pool stores its data.
    ExistsError
        If a pool is mounted there.
    """
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        raise NotFoundError(f"there is no directory {place}; create it first") from None
    except NotADirectoryError:
        raise InvalidError(f"need a directory to mount at, have the file {place}") from None
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise DiskError(f"cannot mount at {place}: {error.strerror}") from None
        # The process of an earlier mount was killed.
        unmount(place, lazy=True)
        names = os.listdir(place)
    if (address := mounted_at(place)) is not None:
        raise ExistsError(f"{address} is mounted at {place} already; run: outcore umount {place}")
    if names:
        raise InvalidError(
            f"need an empty directory to mount at, have {len(names)} names in {place}, which the "
            "mount would hide; choose another directory"
        )
    inside = pool_directory_of(Path(os.path.realpath(place)))
    if inside is not None:
        raise InvalidError(
            f"need a directory outside of those in which pools store their data, have {place} in "
            f"{inside}, where a pool does; choose another directory"
        )


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
        ``allow_other``, ``read_only`` and ``strict`` of `_core.Mount`.

    Raises
    ------
    OutcoreError
        If the pool or the directory does not exist, or the system refuses the mount.
    """
    check_place(place)
    # The kernel has applied the umask of each program already.
    os.umask(0)
    path = pools.path(url)
    core, address = path.root.core, path.root.url
    mount = None
    try:
        # From here on, a signal must not end the process without unmounting.
        with stop_on_signals():
            mount = _core.Mount(core, os.path.abspath(place), path.inside, address, **options)
            begun()
            while not mount.wait(_WAIT_S):
                pass
    except KeyboardInterrupt:
        if mounted_at(place) is not None:
            unmount(place, lazy=True)
        if mount is not None:
            mount.wait(_OPEN_FILES_S)


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
    if mounted_at(place) is None:
        raise NotFoundError(f"no pool is mounted at {place}; see: findmnt")
    target = _absolute(place)
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if os.geteuid() == 0 or helper is None:
        command = ["umount", *(["--lazy"] if lazy else []), "--", target]
    else:
        command = [helper, "-u", *(["-z"] if lazy else []), "--", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr or done.stdout).strip()
        raise DiskError(f"cannot unmount {place}: {why}; close what is open there, or give --lazy")
