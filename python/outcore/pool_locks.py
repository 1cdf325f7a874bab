"""Names in a pool that a call holds: nobody else writes there meanwhile.

Who wants to hold a directory of a served pool makes a file in it, its *claim*, whose name says
which process that is; then it lists the directory, and holds it if nobody else alive has a claim.

Two never hold it at once. Of their two claims one was made after the other, and whose that is
lists the directory after that. The first claim is found there: it goes only when its owner lets go,
or when its process is gone. No two claims ever have the same name. So a claim that is removed
late, by several, or by a request of a process that was killed meanwhile, is nobody else's. Wherever
a process is killed, it leaves a claim of its own at most, and everybody on its machine sees that
it is gone.

Of several that make claims at once, who sees an older one takes its own back, and the oldest waits
for that. So one of them gets it. Which is older is for that alone: nobody holds it by being so.
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

from outcore.errors import BusyError, DeniedError, ExistsError, NotFoundError, OutcoreError
from outcore.pool_path import PoolPath
from outcore.pool_stat import PoolStat
from outcore.processes import has_ended, process_fields, started_in

LOCK_FILE = "lock"
"""In a directory on a disk that a call holds: see `outcore.volumes.exclusive`."""

OWNER = r"([0-9]{1,9})\.([0-9]*)\.([0-9]*)\.[0-9a-f]{16}\.(.*)"
"""Pattern of the part of a name that says which process of which machine it is of."""

_CLAIM = re.compile(rf"{LOCK_FILE}\.{OWNER}")

_PAUSE_S = 0.02
_MOST_PAUSES = 100


class _Claim(NamedTuple):
    """A claim on a directory: when it was made, its name, and whose it is."""

    made_ns: int
    name: str
    process: int
    started: str
    numbered_in: str
    host: str

    @property
    def is_left(self) -> bool:
        """Whether its process was of this machine, and is gone."""
        return is_gone(str(self.process), self.started, self.numbered_in, self.host)


def is_lock(name: str) -> bool:
    """Whether what has this name in a directory is there while a call holds that."""
    return name == LOCK_FILE or _CLAIM.fullmatch(name) is not None


@contextmanager
def held(path: PoolPath, doing: str) -> Iterator[None]:
    """Hold a name for one call.

    A pool in this process is in no other, so it is noted in memory. In a served pool there is a
    claim as well. That of a process of this machine that is gone is removed by the next who holds
    the name, and in a pool in this process any that is left.

    Raises
    ------
    BusyError
        If another call has it.
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
    """Whether a call holds the name: not if its process was of this machine, and is gone.

    Who may not list a directory is told that nobody does.
    """
    if path.root.is_held(path.inside):
        return True
    try:
        return path.root.is_shared and not all(claim.is_left for claim in _claims(path))
    except DeniedError:
        return False


@contextmanager
def _claimed(path: PoolPath, doing: str) -> Iterator[None]:
    mine = path / _new_name()
    try:
        mine.open("x").close()
        _remove_all(path, _wait_for_others(path, mine, doing))
        yield
    finally:
        with contextlib.suppress(OutcoreError):
            _remove(mine)


def _wait_for_others(path: PoolPath, mine: PoolPath, doing: str) -> list[_Claim]:
    """Wait until nobody alive has a claim but this call; return the claims that were left."""
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
    """Remove a claim, and its directory if there is nothing else in it."""
    claim.root.core.remove_one(claim.inside)
    # Another may use the directory, or have removed it just now.
    with contextlib.suppress(ExistsError, NotFoundError):
        claim.root.core.remove_one(claim.parent.inside)


def remove_left_claims(path: PoolPath) -> None:
    """Remove claims whose processes are gone, and the directory if nothing else is in it."""
    claims = _claims(path)
    _remove_all(path, [claim for claim in claims if claim.is_left or not path.root.is_shared])
    if not claims:
        with contextlib.suppress(ExistsError, NotFoundError):
            path.root.core.remove_one(path.inside)


def new_owner() -> str:
    """Return a text that matches `OWNER`, for a name of this process that is never used again."""
    process = os.getpid()
    return f"{process}.{_started(process)}.{_numbered_in()}.{secrets.token_hex(8)}.{_host()}"


def is_gone(
    process: str, started: str, numbered_in: str, host: str, *, is_alone: bool = False
) -> bool:
    """Whether the process in a name was of this machine, and is gone; see `OWNER`.

    If this process `is_alone`, every other is.
    """
    is_here = (numbered_in, host) == (_numbered_in(), _host())
    if is_here and (not is_alone or int(process) == os.getpid()):
        return _is_gone(int(process), started)
    return is_alone


def _new_name() -> str:
    return f"{LOCK_FILE}.{new_owner()}"


def _host() -> str:
    return quote(os.fsencode(socket.gethostname()), safe="")


def _numbered_in() -> str:
    """Which processes of a machine have numbers by the same count: containers have their own."""
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
        pass  # another user's, of whom /proc may say nothing
    return False


def _started(process: int) -> str:
    """When a process was started, in ticks: another one may have its number later."""
    fields = process_fields(process)
    return started_in(fields) if fields else ""


def _busy(path: PoolPath, doing: str, who: str) -> BusyError:
    return BusyError(
        f"{path} is in use by {who}, so it cannot be used for {doing}; wait for the other to end, "
        "or choose another name"
    )
