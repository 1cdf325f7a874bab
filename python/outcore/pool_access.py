"""Pools by their addresses: opened once in a process, and found again in another.

Libraries that know no more of a file than its URL make what they need anew in every thread and
process. They share what is kept here.
"""

import atexit
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outcore.errors import BusyError, ForkedError, InvalidError
from outcore.named_pool import NamedPools
from outcore.pool import Pool
from outcore.pool_path import PoolPath, PoolRoot, open_root, root_and_name
from outcore.volumes import PathLike

_LOCAL = re.compile(r"outcore://(/.*?):(?:/(.*))?", re.DOTALL)
_SCHEME = re.compile(r"^outcore(?:\+tls)?://")


@dataclass(frozen=True)
class PoolAddress:
    """Where a pool is.

    Attributes
    ----------
    location
        ``HOST:PORT`` of a served pool, ``tls:HOST:PORT`` where it is reached with TLS; or the path
        of its UNIX socket; or the first directory of an embedded one.
    key
        File with the key, if there is one.
    directories
        All directories of an embedded pool, to open it if it is not open in the process.
    """

    location: str
    key: str | None = None
    directories: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """What names in the pool begin with, as outcore writes them."""
        return f"outcore:{self.location}::" if self.is_path else self.url_of("")

    @property
    def is_path(self) -> bool:
        """Whether the pool is found in the file system of this machine."""
        return self.location.startswith("/")

    def url_of(self, name: str) -> str:
        """Write a name in the pool as URL with ``//``, as other libraries want it."""
        place = self.location.removeprefix("tls:")
        scheme = "outcore" if place == self.location else "outcore+tls"
        return f"{scheme}://{place}{':' * self.is_path}/{name.lstrip('/')}"


def key_file(key: PathLike | None) -> str | None:
    """Name of the file with a key: by default what the variable ``OUTCORE_KEY`` names."""
    file = os.environ.get("OUTCORE_KEY") if key is None else os.fspath(key)
    return None if file is None else os.path.abspath(file)


def split_url(text: str) -> tuple[str | None, str]:
    """Cut a URL into the location of its pool, if it has one, and the name in the pool.

    These are URLs: ``outcore://HOST:PORT/NAME``, ``outcore+tls://HOST:PORT/NAME``,
    ``outcore:///PATH:/NAME`` and, as outcore writes the latter, ``outcore:/PATH::NAME``. The
    ``NAME`` of ``outcore://NAME`` is in no pool that it says. Anything else is a name.
    """
    if found := _LOCAL.fullmatch(text):
        return found[1], found[2] or ""
    try:
        where, name = root_and_name(text)
    except InvalidError:
        return None, _SCHEME.sub("", text)
    return _location(where), name


def _location(url: str) -> str:
    """Location of a pool, from what names in it begin with."""
    if url.endswith("::"):
        return url.removeprefix("outcore:").removesuffix("::")
    scheme, _, place = url.partition("://")
    return f"{'tls:' * scheme.endswith('+tls')}{place.rstrip('/')}"


class PoolAccess:
    """A pool, found again by its address after a fork or in another process.

    Parameters
    ----------
    address
        Where it is.
    root
        The pool, if it is open.
    """

    def __init__(self, address: PoolAddress, root: PoolRoot | None = None) -> None:
        self._root = root or _find(address)
        self.address = address if self._root.is_shared else replace(address, key=None)

    @classmethod
    def of(cls, path: PoolPath) -> "PoolAccess":
        """Access to the pool that a name is in."""
        root = path.root
        key = None if root.key is None else key_file(root.key)
        return cls(PoolAddress(_location(root.url), key), root)

    @property
    def root(self) -> PoolRoot:
        """The pool, open in this process.

        Raises
        ------
        ForkedError
            If it is embedded in the process that this one was forked from.
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
    """Find a pool by what of it is known, or take the one that is open.

    Raises
    ------
    InvalidError
        If nothing of it is known, or what is known does not fit.
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
"""By process and address. Those of the process that this one was forked from are kept too: what
they hold is of no use here, and must not be taken down."""
_LOCK = threading.Lock()


def _find(address: PoolAddress) -> PoolRoot:
    """Find a pool that is open in this process, or open it for the rest of the process."""
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

    Others are not told anything: they may be gone, and then it would take its time.
    """
    for (process, _), root in list(_KEPT.items()):
        if process == os.getpid() and not root.is_shared:
            root.close()


def _forget_lock() -> None:
    """Replace a lock that another thread may have held at the moment of a fork."""
    global _LOCK
    _LOCK = threading.Lock()


atexit.register(_close_kept)
os.register_at_fork(after_in_child=_forget_lock)
