"""Open pools of this process, and the pool of a URL among them."""

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from outcore import _core


@dataclass(eq=False)
class PoolRoot:
    """An open pool, shared by its names.

    Attributes
    ----------
    url
        Prefix of a name that is written as text.
    core, volume
        The pool, and its volume of files.
    is_shared
        Whether other processes may have the pool open too.
    key
        File of the key that the connection used.
    process
        The process that opened the pool: its forks cannot use it.
    own_server
        Number of the I/O server of this process, in a pool of a parallel job; `None` in others.
    """

    url: str
    core: _core.Pool
    is_shared: bool = False
    key: str | None = None
    volume: _core.Volume = field(init=False)
    process: int = field(default_factory=os.getpid)
    own_server: int | None = None
    _held: set[str] = field(default_factory=set)
    _looked_at: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.volume = self.core.volume()
        _OPEN[self.url] = [*_others(self), weakref.ref(self)]

    def is_alike(self, other: "PoolRoot") -> bool:
        """Whether it is the same pool at the same place, even if it was opened a second time."""
        return self is other or (self.url, self.core.id) == (other.url, other.core.id)

    def hold(self, name: str) -> bool:
        """Lock a name for one call of this process; `False` if another call holds it."""
        with self._lock:
            if name in self._held:
                return False
            self._held.add(name)
            return True

    def let_go(self, name: str) -> None:
        """Release a name."""
        with self._lock:
            self._held.discard(name)

    def is_held(self, name: str) -> bool:
        """Whether a call holds the name."""
        with self._lock:
            return name in self._held

    def is_first_look(self, directory: str) -> bool:
        """Whether the directory is new to this object, or was forgotten after many others."""
        with self._lock:
            is_first = directory not in self._looked_at
            if len(self._looked_at) >= _MOST_LOOKED_AT:
                self._looked_at.clear()
            self._looked_at.add(directory)
            return is_first

    def close(self, *, is_failing: bool = False) -> None:
        """Close the pool; its URL then finds the pool object opened before, if still open.

        If an error closes it, no observer is called: observers may wait for dead servers.
        """
        try:
            if close_observers and not is_failing and self in open_roots():
                for observe in list(close_observers):
                    observe(self)
        finally:
            if others := _others(self):
                _OPEN[self.url] = others
            else:
                _OPEN.pop(self.url, None)
            self.core.close()


close_observers: list[Callable[[PoolRoot], None]] = []
"""Functions that are called with each pool of this process just before it closes, unless an error
closes it."""

_MOST_LOOKED_AT = 10_000
"""Number of directories that an open pool remembers."""

_OPEN: "dict[str, list[weakref.ref[PoolRoot]]]" = {}
"""Open pools by URL, in the order of opening."""


def _others(root: PoolRoot) -> "list[weakref.ref[PoolRoot]]":
    """Return the other open pools at the URL of a pool."""
    return [each for each in _OPEN.get(root.url, ()) if each() not in (None, root)]


def open_roots() -> list[PoolRoot]:
    """List the pools that this process has opened and not closed."""
    roots = [each() for opened in _OPEN.values() for each in opened]
    return [root for root in roots if root is not None and root.process == os.getpid()]


def open_root(url: str) -> PoolRoot | None:
    """Find the pool of a URL among those opened in this process, or before a fork.

    If several are open, the result is the one opened last.
    """
    for each in reversed(_OPEN.get(url, [])):
        if (root := each()) is not None:
            return root
    return None
