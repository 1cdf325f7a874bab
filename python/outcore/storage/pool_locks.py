"""Locks on names in a pool: one call holds a name, and no other call writes there meanwhile.

To lock a directory of a served pool, a process creates an empty directory in it, its *claim*, whose
name identifies the process. Then it lists the directory. It holds the lock if no other live process
has a claim. No server has data of a claim, so only the manager makes and removes it.

Two processes never hold the lock at once. One of their two claims was created after the other, and
its owner lists the directory after that. This list contains the first claim, because a claim
disappears only when its owner releases the lock, or when its process has died. No two claims ever
have the same name. So removing a claim late, or several times, or by a delayed request of a killed
process, never removes another process's claim. A killed process leaves at most its own claim, and
every process on its machine can see that it has died.

If several processes create claims at once, a process that sees an older claim withdraws its own.
The oldest one waits for that, so one of them gets the lock. The age decides
only which caller withdraws: it never gives the lock.
"""

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

from outcore._util.this_machine import has_ended, process_fields, started_in
from outcore.errors import BusyError, DeniedError, ExistsError, NotFoundError, OutcoreError
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_stat import PoolStat

LOCK_FILE = "lock"
"""Name of the lock file in a locked directory on a disk: see `volumes.exclusive`."""

OWNER = r"([0-9]{1,9})\.([0-9]*)\.([0-9]*)\.[0-9a-f]{16}\.(.*)"
"""Pattern of the part of a name that identifies its process and machine."""

_CLAIM = re.compile(rf"{LOCK_FILE}\.{OWNER}")

_PAUSE_S = 0.02
_MOST_PAUSES = 100


class _Claim(NamedTuple):
    """A claim on a directory: its creation time, its name, and its owner."""

    made_ns: int
    name: str
    process: int
    started: str
    numbered_in: str
    host: str

    @property
    def is_left(self) -> bool:
        """Whether its process ran on this machine, and has died."""
        return is_gone(str(self.process), self.started, self.numbered_in, self.host)


def is_lock(name: str) -> bool:
    """Whether a name in a directory belongs to a lock of a call that holds the directory."""
    return name == LOCK_FILE or _CLAIM.fullmatch(name) is not None


@contextmanager
def held(path: PoolPath, doing: str) -> Iterator[None]:
    """Lock a name during one call.

    No other process can open an embedded pool, so its locks are in memory. In a served pool the
    call also creates a claim. The next call that locks the name removes the claims of dead
    processes of this machine; in an embedded pool, it removes all leftover claims.

    Raises
    ------
    BusyError
        If another call holds the lock.
    """
    if not path.root.hold(path.inside):
        raise _busy(path, doing, "another call")
    try:
        if path.root.is_shared:
            with _claimed(path, doing):
                yield
        else:
            _remove_all(path, _claims(path))
            yield
    finally:
        path.root.let_go(path.inside)


def is_held(path: PoolPath) -> bool:
    """Whether a call holds the name; a dead process of this machine does not count.

    If the caller may not list the directory, the answer is `False`.
    """
    if path.root.is_held(path.inside):
        return True
    try:
        return path.root.is_shared and not all(claim.is_left for claim in _claims(path))
    except DeniedError:
        return False


@contextmanager
def _claimed(path: PoolPath, doing: str) -> Iterator[None]:
    mine = path / f"{LOCK_FILE}.{new_owner()}"
    try:
        path.root.core.make_directory(mine.inside)
        _remove_all(path, _wait_for_others(path, mine, doing))
        yield
    finally:
        with contextlib.suppress(OutcoreError):
            _remove(mine)


def _wait_for_others(path: PoolPath, mine: PoolPath, doing: str) -> list[_Claim]:
    """Wait until no other live process has a claim; return the leftover claims."""
    for _ in range(_MOST_PAUSES):
        claims = {claim.name: claim for claim in _claims(path)}
        if (own := claims.pop(mine.name, None)) is None:
            raise _busy(path, doing, f"another that removed {mine}")
        left = [claim for claim in claims.values() if claim.is_left]
        others = [claim for claim in claims.values() if claim not in left]
        if not others:
            return left
        if min(others) < own:
            break
        time.sleep(_PAUSE_S)
    first = min(others)
    file = path / first.name
    who = f"process {first.process} on {first.host} (if that is gone, remove {file})"
    raise _busy(path, doing, who)


def _claims(path: PoolPath) -> list[_Claim]:
    try:
        names = path.root.core.names(path.inside)
    except NotFoundError:
        return []
    found = ((_CLAIM.fullmatch(name), status) for name, status in names)
    return [
        _Claim(PoolStat.of(status, 0).changed_ns, match[0], int(match[1]), *match.groups()[1:])
        for match, status in found
        if match is not None
    ]


def _remove_all(path: PoolPath, claims: list[_Claim]) -> None:
    for claim in claims:
        with contextlib.suppress(NotFoundError):
            _remove(path / claim.name)


def _remove(claim: PoolPath) -> None:
    """Remove a claim, and its directory if it is then empty."""
    claim.root.core.remove_one(claim.inside)
    # Another process may use the directory, or have removed it just now.
    with contextlib.suppress(ExistsError, NotFoundError):
        claim.root.core.remove_one(claim.parent.inside)


def remove_left_claims(path: PoolPath) -> None:
    """Remove the claims of dead processes, and the directory if it has no claims and is empty."""
    claims = _claims(path)
    _remove_all(path, [claim for claim in claims if claim.is_left or not path.root.is_shared])
    if not claims:
        with contextlib.suppress(ExistsError, NotFoundError):
            path.root.core.remove_one(path.inside)


def new_owner() -> str:
    """Return text that matches `OWNER`, for a unique name that identifies this process."""
    process = os.getpid()
    return f"{process}.{_started(process)}.{_numbered_in()}.{secrets.token_hex(8)}.{_host()}"


def is_gone(
    process: str, started: str, numbered_in: str, host: str, *, is_alone: bool = False
) -> bool:
    """Whether the process in a name ran on this machine, and has died; see `OWNER`.

    If this process `is_alone`, every other process counts as dead.
    """
    is_here = (numbered_in, host) == (_numbered_in(), _host())
    if is_here and (not is_alone or int(process) == os.getpid()):
        return _is_gone(int(process), started)
    return is_alone


def _host() -> str:
    return quote(os.fsencode(socket.gethostname()), safe="")


def _numbered_in() -> str:
    """Return the identifier of the PID namespace: containers number their processes separately."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _is_gone(process: int, started: str) -> bool:
    if fields := process_fields(process):
        return started_in(fields) != started or has_ended(fields)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # owned by another user, and /proc may hide it
    return False


def _started(process: int) -> str:
    """Return the start of a process in ticks, because a later process may have the same number."""
    fields = process_fields(process)
    return started_in(fields) if fields else ""


def _busy(path: PoolPath, doing: str, who: str) -> BusyError:
    return BusyError(
        f"{path} is in use by {who}, so it cannot be used for {doing}; wait for the other to end, "
        "or choose another name"
    )
