"""Open the pool that a URL names."""

import stat
from pathlib import Path

from outcore.errors import NotFoundError
from outcore.pool import local_pool
from outcore.pool.connect import connect, connect_patiently
from outcore.pool.pool import Pool
from outcore.pool.state import KEY, STATE
from outcore.storage.pool_path import PoolPath, root_and_name
from outcore.storage.volumes import PathLike


class NamedPools:
    """Pools that are opened at their first use, and closed together.

    ``outcore://HOST:PORT/NAME``, ``outcore+tls://HOST:PORT/NAME`` and ``outcore:/SOCKET::NAME``
    name a path in a served pool. ``outcore:/DIRECTORY::NAME`` names one in the pool with this first
    directory: if its daemons run, this class connects to them, otherwise it opens the pool in this
    process. Calls fail after a server was unreachable for `patience_s`; by default for a minute.
    """

    def __init__(self, key: PathLike | None = None, patience_s: int | None = None) -> None:
        self._key = key
        self._patience_s = patience_s
        self._pools: dict[str, Pool] = {}

    def path(self, url: str) -> PoolPath:
        """Return the path that a URL names; its pool stays open.

        Raises
        ------
        InvalidError
            If it is not the URL of a pool.
        NotFoundError
            If the pool does not exist.
        """
        where, name = root_and_name(url)
        if where not in self._pools:
            self._pools[where] = self._open(where)
        return self._pools[where] / name

    def close(self) -> None:
        """Close all pools."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _open(self, where: str) -> Pool:
        if not where.endswith("::"):
            return connect_patiently(where, self._key, self._patience_s)
        path = Path(where.removeprefix("outcore:").removesuffix("::"))
        if not path.exists():
            raise NotFoundError(f"there is neither a socket nor a directory {path}; check the path")
        if stat.S_ISSOCK(path.stat().st_mode):
            return connect_patiently(f"outcore:{path}", self._key, self._patience_s)
        if pool := connect_running(path, self._key):
            return pool
        if not (path / "manager").is_dir():
            raise NotFoundError(f"there is no pool in {path}; name its first directory")
        return Pool._embedded(local_pool.directories(path), skips_retired=True)


def is_address(target: str) -> bool:
    """Whether a pool is named by its address, not by a directory."""
    return target.startswith(("outcore:", "outcore+tls:"))


def connect_named(target: str, key: PathLike | None = None) -> Pool | None:
    """Connect to the pool with this address, or with this directory as `connect_running` does."""
    return connect(target, key=key) if is_address(target) else connect_running(Path(target), key)


def connect_running(directory: Path, key: PathLike | None = None) -> Pool | None:
    """Connect to a pool whose daemons run on this machine; return `None` if they do not run.

    Parameters
    ----------
    directory
        Its first directory.
    key
        File with a key; by default the pool's own.
    """
    manager = local_pool.running_manager(directory)
    if manager is None:
        return None
    own = directory / STATE / KEY if key is None else key
    if manager.addresses[0].startswith("unix:"):
        return connect(f"outcore:{manager.addresses[0].removeprefix('unix:')}", key=own)
    return connect(local_pool.url_of(directory), key=own)
