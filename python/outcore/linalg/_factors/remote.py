"""The bytes of factors in a pool that a process gets from I/O servers of others."""

from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath


class RemoteBytes:
    """Counts bytes of one file on other I/O servers than that of this process.

    Outside of pools there are none. In a pool that other programs serve, all bytes are.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: AnyPath) -> None:
        self._is_remote: list[bool] = []
        if isinstance(path, PoolPath):
            found = path.stat()
            self._stripes, self._unit = found.stripes, found.stripe_unit_bytes
            self._servers = found.servers
            self._is_remote = [each != path.root.own_server for each in found.servers]

    def server(self, offset: int, nbytes: int) -> int | None:
        """Return the server of some adjacent bytes; `None` if there are several, or no pool."""
        if not self._is_remote:
            return None
        first = self._stripes.locate(offset)[0]
        units = range(offset - offset % self._unit, offset + nbytes, self._unit)
        is_on_one = all(self._stripes.locate(unit)[0] == first for unit in units)
        return self._servers[first] if is_on_one else None

    def of(self, offset: int, nbytes: int) -> int:
        """Return how many of some adjacent bytes are on other servers."""
        if not any(self._is_remote):
            return 0
        total, end = 0, offset + nbytes
        while offset < end:
            step = min(self._unit - offset % self._unit, end - offset)
            total += step * self._is_remote[self._stripes.locate(offset)[0]]
            offset += step
        return total
