"""Logical disks (partitioned secondary storage): one directory of a pool per process."""

from contextlib import ExitStack, suppress
from typing import Any

from outcore.errors import BusyError, ClosedError, ExistsError, InvalidError
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_locks import held
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_root import PoolRoot

_DIRECTORY = ".disks"


class LogicalDisk:
    """A directory for the files of one process, which all lie whole on one I/O server.

    ``disk / "name"`` is a path for any function that takes a path. Only the owner writes there, so
    that it never waits for a lock. Processes with separate disks share a server only if there are
    fewer servers than processes.

    References
    ----------
    Womble et al. (1993), section 3: each processor has its own logical disk, and treats it like its
    local memory; processors share data by messages.
    """

    def __init__(self, root: PoolRoot, rank: int, within: str) -> None:
        if rank < 0:
            raise InvalidError(f"a rank is at least 0, have {rank}")
        self.rank = rank
        self._path = PoolPath(root, within, _DIRECTORY, str(rank))
        servers = root.core.server_ids
        self._held = ExitStack()
        try:
            # The lock lies beside the disk, because all names on the disk are the owner's.
            owner = self._path.with_name(f"{rank}.owner")
            self._held.enter_context(held(owner, "a logical disk"))
        except BusyError as error:
            raise BusyError(
                f"logical disk {rank} belongs to another process or call; wait until that closes "
                f"it, or take another rank ({error})"
            ) from None
        try:
            with suppress(ExistsError):
                root.core.make_directory(self._path.inside)
            root.core.set_default_layout(self._path.inside, count=1, base=rank % len(servers))
        except BaseException:
            self._held.close()
            raise
        self._is_open = True

    def __repr__(self) -> str:
        return f"<outcore.LogicalDisk {self.rank} {self._path}>"

    @property
    def path(self) -> PoolPath:
        """Directory of the disk."""
        if not self._is_open:
            raise ClosedError(f"logical disk {self.rank} was closed; ask the pool for it again")
        return self._path

    def __truediv__(self, name: str) -> PoolPath:
        return self.path / name

    def open(self, name: str, mode: str = "r", hints: dict[str, Any] | None = None) -> PoolFile:
        """Open a file of bytes on the disk; see `Pool.open`."""
        return (self.path / name).open(mode, hints)

    def ls(self, name: str = "") -> list[str]:
        """List the names in a directory of the disk, sorted."""
        return [each.name for each in (self.path / name).iterdir()]

    def close(self) -> None:
        """Release the disk for other processes. Its files stay. A second call does nothing."""
        self._is_open = False
        self._held.close()

    def __enter__(self) -> "LogicalDisk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
