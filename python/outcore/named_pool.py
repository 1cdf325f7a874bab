"""From a URL to the pool that it names, opened."""

import stat
from pathlib import Path

from outcore import local_pool
from outcore.errors import NotFoundError
from outcore.pool import Pool
from outcore.pool_connect import connect
from outcore.pool_path import PoolPath, root_and_name
from outcore.pool_state import KEY, STATE
from outcore.volumes import PathLike


class NamedPools:
    """Pools that are opened when they are first named, and closed together.

    ``outcore://HOST:PORT/NAME``, ``outcore+tls://HOST:PORT/NAME`` and ``outcore:/SOCKET::NAME`` are
    in a served pool, ``outcore:/DIRECTORY::NAME`` in one whose first directory this is: it is
    asked for there if its daemons run, and else opened in this process.
    """

    def __init__(self, key: PathLike | None = None) -> None:
        self._key = key
        self._pools: dict[str, Pool] = {}

    def path(self, url: str) -> PoolPath:
        """Find the name that a URL stands for; its pool stays open.

        Raises
        ------
        InvalidError
            If it is no URL of a pool.
        NotFoundError
            If there is no pool.
        """
        where, name = root_and_name(url)
        if where not in self._pools:
            self._pools[where] = self._open(where)
        return self._pools[where] / name

    def close(self) -> None:
        """Close them."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _open(self, where: str) -> Pool:
        if not where.endswith("::"):
            return connect(where, key=self._key)
        path = Path(where.removeprefix("outcore:").removesuffix("::"))
        if not path.exists():
            raise NotFoundError(f"there is neither a socket nor a directory {path}; check the path")
        if stat.S_ISSOCK(path.stat().st_mode):
            return connect(f"outcore:{path}", key=self._key)
        if pool := connect_running(path, self._key):
            return pool
        if not (path / "manager").is_dir():
            raise NotFoundError(f"there is no pool in {path}; name its first directory")
        return Pool._embedded(local_pool.directories(path), skips_retired=True)


def is_address(target: str) -> bool:
    """Whether what names a pool is its address, and not a directory."""
    return target.startswith(("outcore:", "outcore+tls:"))


def connect_named(target: str, key: PathLike | None = None) -> Pool | None:
    """Connect to the pool of an address, or as `connect_running` to that of a directory."""
    return connect(target, key=key) if is_address(target) else connect_running(Path(target), key)


def connect_running(directory: Path, key: PathLike | None = None) -> Pool | None:
    """Connect to the pool whose daemons run on this machine; `None` if they do not.

    Parameters
    ----------
    directory
        Its first directory.
    key
        File with a key; by default the pool's own.
    """
    for daemon in local_pool.running(directory):
        if daemon.role == "manager" and daemon.is_alive:
            own = directory / STATE / KEY if key is None else key
            if daemon.addresses[0].startswith("unix:"):
                return connect(f"outcore:{daemon.addresses[0].removeprefix('unix:')}", key=own)
            return connect(local_pool.url_of(directory), key=own)
    return None
