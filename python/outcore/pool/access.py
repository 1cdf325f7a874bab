"""Access to pools by address: opened once per process, and found again in another process.

Libraries that know a file only by its URL recreate their objects in every thread and process. These
objects share the pools that this module keeps open.
"""

import atexit
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outcore.errors import BusyError, ForkedError, InvalidError
from outcore.pool.named_pool import NamedPools
from outcore.pool.pool import Pool
from outcore.storage.pool_path import PoolPath, root_and_name
from outcore.storage.pool_root import PoolRoot, open_root
from outcore.storage.volumes import PathLike

_SCHEME = re.compile(r"^outcore(?:\+tls)?://")


@dataclass(frozen=True)
class PoolAddress:
    """The address of a pool.

    Attributes
    ----------
    location
        ``HOST:PORT`` of a served pool, ``tls:HOST:PORT`` if clients reach it with TLS; the path of
        its UNIX socket; or the first directory of an embedded pool.
    key
        File of the key, if there is one.
    directories
        All directories of an embedded pool, to open it if this process has not opened it yet.
    """

    location: str
    key: str | None = None
    directories: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The prefix of names in the pool, as outcore writes them."""
        return f"outcore:{self.location}::" if self.is_path else self.url_of("")

    @property
    def is_path(self) -> bool:
        """Whether the address is a path in the file system of this machine."""
        return self.location.startswith("/")

    def url_of(self, name: str) -> str:
        """Return the URL, with ``//``, of a name in the pool, as other libraries expect it."""
        place = self.location.removeprefix("tls:")
        scheme = "outcore" if place == self.location else "outcore+tls"
        return f"{scheme}://{place}{':' * self.is_path}/{name.lstrip('/')}"


def key_file(key: PathLike | None) -> str | None:
    """Return the path of the key file: by default the value of the variable ``OUTCORE_KEY``."""
    file = os.environ.get("OUTCORE_KEY") if key is None else os.fspath(key)
    return None if file is None else os.path.abspath(file)


def split_url(text: str) -> tuple[str | None, str]:
    """Split a URL into the location of its pool, if any, and the name in the pool.

    URLs have the forms ``outcore://HOST:PORT/NAME``, ``outcore+tls://HOST:PORT/NAME``,
    ``outcore:///PATH:/NAME`` and, as outcore writes the last one, ``outcore:/PATH::NAME``. The URL
    ``outcore://NAME`` has a name and no pool. Any other text is a name.
    """
    try:
        where, name = root_and_name(text)
    except InvalidError:
        return None, _SCHEME.sub("", text)
    return _location(where), name


def _location(url: str) -> str:
    """Return the location of a pool, given the prefix of its names."""
    if url.endswith("::"):
        return url.removeprefix("outcore:").removesuffix("::")
    scheme, _, place = url.partition("://")
    return f"{'tls:' * scheme.endswith('+tls')}{place.rstrip('/')}"


class PoolAccess:
    """A pool that can be found again by its address, after a fork or in another process.

    Parameters
    ----------
    address
        Address of the pool.
    root
        The pool, if it is open.
    """

    def __init__(self, address: PoolAddress, root: PoolRoot | None = None) -> None:
        self._root = root or _find(address)
        self.address = address if self._root.is_shared else replace(address, key=None)

    @classmethod
    def of(cls, path: PoolPath) -> "PoolAccess":
        """Return the access to the pool of a name."""
        root = path.root
        key = None if root.key is None else key_file(root.key)
        return cls(PoolAddress(_location(root.url), key), root)

    @property
    def root(self) -> PoolRoot:
        """The pool, open in this process.

        Raises
        ------
        ForkedError
            If the pool is embedded in the parent of this forked process.
        """
        if self._root.process != os.getpid():
            self._root = _find(self.address)
        return self._root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolAccess) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __reduce__(self) -> tuple[Any, ...]:
        return PoolAccess, (self.address,)


def access_to(
    location: str | None, pool: Pool | None, key: PathLike | None, directories: Sequence[PathLike]
) -> PoolAccess:
    """Find a pool by its location, key or directories, or use the open pool if given.

    Raises
    ------
    InvalidError
        If no argument identifies a pool, or two arguments contradict each other.
    """
    names = tuple(os.path.abspath(os.fspath(each)) for each in directories)
    if pool is not None:
        found = PoolAccess.of(pool / "")
        if location not in (None, found.address.location):
            raise InvalidError(f"need one pool, have {pool!r} and the one at {location}; give one")
        return found
    if names:
        first = os.path.realpath(names[0])
        if location is not None and os.path.realpath(location) != first:
            raise InvalidError(
                f"need the pool in {location}, have directories= of the one in {first}; give one"
            )
        location = first
    if location is None:
        raise InvalidError(
            "need to know which pool: write outcore://HOST:PORT/NAME, or pass pool=, or "
            "directories= of an embedded one"
        )
    return PoolAccess(PoolAddress(location, key_file(key), names))


_KEPT: dict[tuple[int, PoolAddress], PoolRoot] = {}
"""Open pools, by process and address.

Entries of the parent of a forked process stay: their objects are useless here, but must not be
destroyed.
"""
_LOCK = threading.Lock()


def _find(address: PoolAddress) -> PoolRoot:
    """Find a pool that is open in this process, or open it until the process ends."""
    with _LOCK:
        mine = os.getpid(), address
        if (kept := _KEPT.get(mine)) is not None:
            return kept
        found = open_root(address.url)
        if found is not None and (not found.is_shared or key_file(found.key) == address.key):
            if found.process == os.getpid():
                return found
            if not found.is_shared:
                raise ForkedError(
                    f"the pool in {address.location} is embedded in process {found.process}, and "
                    "this is a fork of it; serve the pool with 'outcore pool up' to use it from "
                    "several processes"
                )
        _KEPT[mine] = _open(address)
        return _KEPT[mine]


def _open(address: PoolAddress) -> PoolRoot:
    try:
        if address.directories:
            return (Pool.embedded(address.directories) / "").root
        return NamedPools(address.key).path(address.url).root
    except BusyError as error:
        raise BusyError(
            f"{error}; serve the pool with 'outcore pool up' to use it from several processes"
        ) from None


def _close_kept() -> None:
    """Stop the servers of embedded pools in order when the process ends.

    Connections to served pools stay open, because closing takes long if a server has died.
    """
    for (process, _), root in list(_KEPT.items()):
        if process == os.getpid() and not root.is_shared:
            root.close()


def _forget_lock() -> None:
    """Replace the lock, because another thread may have held it at the moment of a fork."""
    global _LOCK
    _LOCK = threading.Lock()


atexit.register(_close_kept)
os.register_at_fork(after_in_child=_forget_lock)
