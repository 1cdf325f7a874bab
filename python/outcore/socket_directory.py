"""A directory for the sockets of one process, which the next one removes if that was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "outcore-sockets-"
_LOCK = "lock"


class SocketDirectory:
    """A new directory for sockets, below that for temporary files; `close` removes it.

    What processes of this user that were killed have left is removed first. A directory is held by
    a lock on a file in it, which the kernel lets go of with the process: so none that is in use is
    removed, whatever number its process has, and in whatever container it is.

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
            # Another process may take it for one that was left, until the lock is held.
            if _hold(self._handle):
                return
            os.close(self._handle)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_left() -> None:
    """Remove directories of this user that no process holds."""
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
    """Lock an open file, unless another process has, or has removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(lock).st_nlink > 0
