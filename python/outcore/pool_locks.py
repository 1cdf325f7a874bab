"""Names in a pool that a call holds: nobody else writes there meanwhile."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outcore.errors import BusyError, ExistsError, NotFoundError, OutcoreError
from outcore.pool_path import PoolPath

LOCK_FILE = "lock"
"""In a directory that a call holds: here, or on a disk by `outcore.volumes.exclusive`."""

_OWNER = "lock_owner"
"""A hint with which a lock is made: who has it is known from when it is there."""

_NOT_A_LOCK = (ValueError, KeyError, TypeError)
"""What reading a file raises that says nothing of an owner."""


@contextmanager
def held(path: PoolPath, doing: str) -> Iterator[None]:
    """Hold a name for one call.

    A pool in this process is in no other, so it is noted in memory. In a served pool there is a
    `LOCK_FILE` as well, which says who holds it; that of a process of this machine that is gone is
    removed by the next who wants to hold the name, and in a pool in this process any that is left.

    Raises
    ------
    BusyError
        If another call has it.
    """
    if not path.root.hold(path.inside):
        raise _busy(path, doing, "another call")
    try:
        if path.root.is_shared:
            _take(path, doing)
        else:
            _remove_all_left(path)
        try:
            yield
        finally:
            if path.root.is_shared:
                with contextlib.suppress(OutcoreError):
                    _remove(path / LOCK_FILE)
    finally:
        path.root.let_go(path.inside)


def is_held(path: PoolPath) -> bool:
    """Whether a call holds the name: not if its process was of this machine, and is gone."""
    if path.root.is_held(path.inside):
        return True
    if not path.root.is_shared:
        return False
    try:
        return not _is_gone(json.loads(_said_by(path / LOCK_FILE)))
    except NotFoundError:
        return False
    except _NOT_A_LOCK:
        return True


def _take(path: PoolPath, doing: str) -> None:
    lock, mine = path / LOCK_FILE, json.dumps(_this_process())
    while True:
        try:
            with lock.open("x", {_OWNER: mine}) as file:
                file.write(mine.encode())
            return
        except ExistsError:
            pass
        try:
            found = _said_by(lock)
            owner = json.loads(found)
            is_gone = _is_gone(owner)
        except NotFoundError:
            continue  # let go of meanwhile
        except _NOT_A_LOCK:
            who = f"somebody of whom {lock} says nothing (if that is gone, remove it)"
            raise _busy(path, doing, who) from None
        if not is_gone:
            who = f"process {owner['process']} on {owner['host']} (if that is gone, remove {lock})"
            raise _busy(path, doing, who)
        _remove_stale(lock, found, doing)


def _said_by(lock: PoolPath) -> bytes:
    """Who has a lock, also if that was killed before it wrote into it."""
    found = lock.read_bytes()
    if not found:
        with contextlib.suppress(NotFoundError):
            found = lock.root.core.extended(lock.inside, f"hint.{_OWNER}")
    return found


def _remove_stale(lock: PoolPath, found: bytes, doing: str) -> None:
    """Remove the lock of a process that is gone.

    One does it at a time, and looks again: the lock that is there may be another's by now.
    """
    turn = lock.with_name(f"{LOCK_FILE}.turn")
    try:
        turn.open("x").close()
    except ExistsError:
        who = f"another that found its owner gone (if that is gone too, remove {turn})"
        raise _busy(lock.parent, doing, who) from None
    try:
        with contextlib.suppress(NotFoundError):
            if _said_by(lock) == found:
                lock.root.core.remove_one(lock.inside)
    finally:
        _remove(turn)


def _remove_all_left(path: PoolPath) -> None:
    """Remove locks from when the pool was served: nobody is in it who has them."""
    for name in (LOCK_FILE, f"{LOCK_FILE}.turn"):
        with contextlib.suppress(NotFoundError):
            _remove(path / name)


def _remove(lock: PoolPath) -> None:
    """Remove a lock, and its directory if there is nothing else in it."""
    lock.root.core.remove_one(lock.inside)
    # Another may use the directory, or have removed it just now.
    with contextlib.suppress(ExistsError, NotFoundError):
        lock.root.core.remove_one(lock.parent.inside)


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    return {"host": socket.gethostname(), "process": process, "started": _started(process)}


def _is_gone(owner: dict[str, Any]) -> bool:
    is_here = owner["host"] == _this_process()["host"]
    return bool(is_here and _started(int(owner["process"])) != owner["started"])


def _started(process: int) -> str:
    """When a process was started, in ticks: another one may have its number later."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _busy(path: PoolPath, doing: str, who: str) -> BusyError:
    return BusyError(
        f"{path} is in use by {who}, so it cannot be used for {doing}; wait for the other to end, "
        "or choose another name"
    )
