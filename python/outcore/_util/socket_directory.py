"""A directory for the sockets of one process; later processes remove it if that was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "outcore-sockets-"
_LOCK = "lock"


class SocketDirectory:
    """A new directory for sockets, inside the one for temporary files; `close` removes it.

    The constructor first removes the directories that killed processes of this user left. A process
    owns its directory by a lock on a file in it, which the kernel releases with the process. So a
    directory in use is never removed, even across containers and reused process numbers.

    Attributes
    ----------
    path
        The directory.
    """

    def __init__(self) -> None:
        remove_left()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Until this process holds the lock, another one may take the directory for a leftover.
            if _hold(self._handle):
                return
            os.close(self._handle)

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_left() -> None:
    """Remove the directories of this user that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.lstat().st_uid != os.getuid():
                continue
            handle = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _hold(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _hold(lock: int) -> bool:
    """Lock an open file; `False` if another process has locked, or removed, the file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(lock).st_nlink > 0
