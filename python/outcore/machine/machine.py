"""Properties of this machine: processors, file systems, direct I/O."""

import errno
import fcntl
import math
import mmap
import os
import struct
import tempfile
from pathlib import Path

from outcore._util import cgroups
from outcore._util.mounts import Mount, parse_mounts
from outcore.errors import DiskError, DiskFullError, OutcoreError, ReadOnlyError

_MOUNTS = Path("/proc/self/mountinfo")

# linux/fs.h: FS_IOC_GETFLAGS is _IOR('f', 1, long), FS_NOCOW_FL the "C" of chattr.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_NO_COPY_ON_WRITE = 0x00800000


def usable_cores() -> int:
    """Return the number of processors that affinity and control groups allow this process."""
    cores = len(os.sched_getaffinity(0))
    quota = cgroups.cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def find_mount(directory: Path, mounts: list[Mount]) -> Mount | None:
    """Return the mount that contains `directory`: the deepest one; of two equal ones, the later."""
    found = None
    for mount in mounts:
        inside = directory.is_relative_to(mount.point)
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def mount_of(directory: Path) -> Mount | None:
    """Return the mount that contains `directory`; `None` if the kernel does not report it."""
    text = cgroups.read_text(_MOUNTS)
    return None if text is None else find_mount(directory.resolve(), parse_mounts(text))


def nearest_directory(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    found = Path(os.path.abspath(path))
    while not found.is_dir():
        found = found.parent
    return found


def no_copy_on_write(directory: Path) -> bool:
    """Whether new files in `directory` are written in place even on Btrfs (``chattr +C``)."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.ioctl(handle, _GET_FLAGS, bytes(struct.calcsize("l")))
    except OSError:
        return False
    finally:
        os.close(handle)
    return bool(int.from_bytes(answer[:4], "little") & _NO_COPY_ON_WRITE)


def direct_io_works(directory: Path) -> bool:
    """Whether files in `directory` can be written and read with direct I/O.

    The test writes one page to a temporary file, because some file systems accept the flag when
    they open a file, but refuse the transfer.

    Raises
    ------
    ReadOnlyError, DiskFullError, DiskError
        If no file can be created there at all.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".outcore-doctor-", dir=directory)
    except OSError as error:
        raise _cannot_write(directory, error) from None
    try:
        os.close(handle)
        return _one_direct_page(name)
    finally:
        os.unlink(name)


def _one_direct_page(name: str) -> bool:
    page = mmap.mmap(-1, mmap.PAGESIZE)  # aligned memory, as direct I/O requires
    try:
        handle = os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise _cannot_write(Path(name).parent, error) from None
    try:
        os.pwritev(handle, [page], 0)
        return os.preadv(handle, [page], 0) == len(page)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise _cannot_write(Path(name).parent, error) from None
    finally:
        os.close(handle)


def _cannot_write(directory: Path, error: OSError) -> OutcoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"need one page on disk in {directory}, have none; free some room or choose another "
            "directory"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyError(
            f"cannot write to {directory}; check its permissions or choose another directory"
        )
    return DiskError(f"cannot write to {directory}: {error.strerror}; check the system log")
