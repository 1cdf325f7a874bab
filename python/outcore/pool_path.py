"""Names in a pool: what `pathlib.Path` is to a directory.

As text, a name in a pool embedded in ``/mnt/a`` (and other directories) is
``outcore:/mnt/a::sim/u``, and one in a served pool ``outcore://host:port/sim/u``, or
``outcore+tls://host:port/sim/u`` if the connection to it is encrypted.
"""

import contextlib
import os
import re
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from outcore import _core
from outcore.errors import (
    ExistsError,
    InvalidError,
    NotFoundError,
)
from outcore.hints import hints_of, mode_bits
from outcore.pool_file import PoolFile
from outcore.pool_stat import PoolStat, Silent

_EMBEDDED = re.compile(r"(outcore:/.*?::)(.*)", re.DOTALL)
_SERVED = re.compile(r"(outcore(?:\+tls)?):/{1,2}([^/:]+:[0-9]+)(?:/(.*))?", re.DOTALL)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_FORMS = (
    "write outcore:/DIRECTORY::NAME for an embedded pool, outcore://HOST:PORT/NAME for a served one"
)


@dataclass(eq=False)
class PoolRoot:
    """An open pool, as its names hold it.

    Attributes
    ----------
    url
        What comes before a name when it is written as text.
    core, volume
        The pool, and its files.
    is_shared
        Whether other processes may have it open too.
    key
        File with the key that it was connected with.
    process
        The process that opened it: a fork of that cannot use it.
    """

    url: str
    core: _core.Pool
    is_shared: bool = False
    key: str | None = None
    volume: _core.Volume = field(init=False)
    process: int = field(default_factory=os.getpid)
    _held: set[str] = field(default_factory=set)
    _looked_at: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.volume = self.core.volume()
        _OPEN[self.url] = [*_others(self), weakref.ref(self)]

    def is_alike(self, other: "PoolRoot") -> bool:
        """Whether it is the same pool at the same place, opened once more or not."""
        return self is other or (self.url, self.core.id) == (other.url, other.core.id)

    def hold(self, name: str) -> bool:
        """Hold a name for one call of this process; `False` if another has it."""
        with self._lock:
            if name in self._held:
                return False
            self._held.add(name)
            return True

    def let_go(self, name: str) -> None:
        """Let go of a name."""
        with self._lock:
            self._held.discard(name)

    def is_held(self, name: str) -> bool:
        """Whether a call holds the name."""
        with self._lock:
            return name in self._held

    def is_first_look(self, directory: str) -> bool:
        """Whether this is the first call with this directory, or so many others came since."""
        with self._lock:
            is_first = directory not in self._looked_at
            if len(self._looked_at) >= _MOST_LOOKED_AT:
                self._looked_at.clear()
            self._looked_at.add(directory)
            return is_first

    def close(self) -> None:
        """Close the pool; its URL is that of who opened it before, if that is still open."""
        if others := _others(self):
            _OPEN[self.url] = others
        else:
            _OPEN.pop(self.url, None)
        self.core.close()


_MOST_LOOKED_AT = 10_000
"""Directories that an open pool remembers."""

_OPEN: "dict[str, list[weakref.ref[PoolRoot]]]" = {}
"""By URL, the one that was opened last behind the others."""


def _others(root: PoolRoot) -> "list[weakref.ref[PoolRoot]]":
    """List the pools at the URL of one that are open besides it."""
    return [each for each in _OPEN.get(root.url, ()) if each() not in (None, root)]


class PoolPath:
    """A name in a pool: ``pool / "sim" / "u"``. Whatever of outcore takes a path takes one.

    It has what is used of `pathlib.Path`. As a string it is a URL, which outcore takes too as
    long as the pool is open in the process; if it is open several times, in the one that was
    opened last. Two are equal if they are one name in one pool, wherever that is reached.
    """

    __slots__ = ("_parts", "root")

    def __init__(self, root: PoolRoot, *names: str) -> None:
        parts: list[str] = []
        for name in names:
            if not isinstance(name, str) or name.startswith("/"):
                raise InvalidError(f"a name in a pool is relative, have {name!r}")
            check_text(name)
            parts += name.split("/")
        if "" in parts or "." in parts:
            parts = [part for part in parts if part not in ("", ".")]
        if ".." in parts:
            raise InvalidError(f"'..' cannot be in a name in a pool, have {'/'.join(names)!r}")
        self.root = root
        self._parts = tuple(parts)

    @property
    def inside(self) -> str:
        """Name in the pool, with ``/`` between its parts; of the root it is empty."""
        return "/".join(self._parts)

    @property
    def name(self) -> str:
        """The last part; of the root it is empty."""
        return self._parts[-1] if self._parts else ""

    @property
    def suffix(self) -> str:
        """What follows the last dot of the name, with it."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> "PoolPath":
        """The directory that it is in; of the root, the root."""
        return PoolPath(self.root, *self._parts[:-1])

    @property
    def parents(self) -> "tuple[PoolPath, ...]":
        """The directories above, the nearest first."""
        ends = range(len(self._parts) - 1, -1, -1)
        return tuple(PoolPath(self.root, *self._parts[:end]) for end in ends)

    def __truediv__(self, name: str) -> "PoolPath":
        return PoolPath(self.root, *self._parts, str(name))

    def with_name(self, name: str) -> "PoolPath":
        """Return what has another name in the same directory."""
        if not self._parts or "/" in name:
            raise InvalidError(f"{self} cannot be renamed to {name!r}")
        return PoolPath(self.root, *self._parts[:-1], name)

    def __str__(self) -> str:
        return self.root.url + self.inside

    def __repr__(self) -> str:
        return f"PoolPath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the URL, by which another process finds the pool."""
        return named, (str(self),)

    def __fspath__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PoolPath):
            return NotImplemented
        return self._parts == other._parts and self.root.core.id == other.root.core.id

    def __lt__(self, other: "PoolPath") -> bool:
        return (self.root.url, self._parts) < (other.root.url, other._parts)

    def __hash__(self) -> int:
        return hash((self.root.core.id, self._parts))

    def exists(self) -> bool:
        """Whether there is something of this name."""
        return not self._parts or self.root.volume.exists(self.inside)

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return not self._parts or self._is_directory() is True

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._parts) and self._is_directory() is False

    def is_symlink(self) -> bool:
        """Whether it is a link: there are none in a pool."""
        return False

    def _is_directory(self) -> bool | None:
        try:
            return self.root.core.stat(self.inside)[0]
        except NotFoundError:
            return None

    def iterdir(self) -> "Iterator[PoolPath]":
        """Yield what is in a directory, sorted."""
        for name, _ in self.root.core.names(self.inside):
            yield self / name

    def stat(self, *, silent: Silent | None = None) -> PoolStat:
        """Tell what it is; with `silent` also if servers cannot be reached; see `PoolStat`.

        Servers that do not answer are noted in `silent`, and not asked again.
        """
        core = self.root.core
        noted = None if silent is None else silent.of(core.id)
        status = core.stat(self.inside)
        if status[0]:
            return PoolStat.of(status, 0)
        for name, file, nbytes, unknown in core.page(self.inside, silent=noted)[0]:
            if not name:
                return PoolStat.of(file, nbytes, unknown)
        raise NotFoundError(f"{self} has become a directory; look again")

    def scandir(self, *, silent: Silent | None = None) -> "Iterator[tuple[PoolPath, PoolStat]]":
        """Yield what is in a directory, sorted, with what it is; see `Pool.scandir` and `stat`."""
        core = self.root.core
        noted = None if silent is None else silent.of(core.id)
        after, more = "", True
        while more:
            page, more = core.page(self.inside, after, silent=noted)
            for name, status, nbytes, unknown in page:
                if name:
                    yield self / name, PoolStat.of(status, nbytes, unknown)
            # An empty page would be asked for again.
            more = more and bool(page)
            after = page[-1][0] if page else ""

    def nbytes(self) -> int:
        """Length of a file, or of all files below a directory."""
        status = self.stat()
        if not status.is_directory:
            return status.nbytes
        found = list(self.scandir())
        return sum(path.nbytes() if one.is_directory else one.nbytes for path, one in found)

    def read_bytes(self) -> bytes:
        """Read a small file."""
        return self.root.volume.read_small(self.inside)

    def write_bytes(self, data: bytes) -> int:
        """Replace a small file, atomically and durably."""
        self.root.volume.replace_small(self.inside, data)
        return len(data)

    def open(
        self, mode: str = "r", hints: dict[str, Any] | None = None, *, permissions: int = 0o666
    ) -> PoolFile:
        """Open a file of bytes; see `Pool.open`."""
        kind = mode.replace("b", "", 1) if isinstance(mode, str) else ""
        if kind not in ("r", "r+", "w", "w+", "x", "x+", "a", "a+"):
            raise InvalidError(
                f"mode must be 'r', 'r+', 'w', 'x' or 'a', have {mode!r}; all but 'r' also read"
            )
        if kind in ("r", "r+"):
            is_written = kind == "r+"

            def open_core() -> _core.PoolFile:
                return self.root.core.open(self.inside, writable=is_written)

            return PoolFile(
                open_core(), str(self), writable=is_written, mode=_mode(kind),
                reopen=None if is_written else open_core,
            )  # fmt: skip
        layout = hints_of(hints) if hints else {}
        bits = mode_bits(permissions)
        for is_last in (False, True):
            if kind[0] != "x":
                with contextlib.suppress(NotFoundError):
                    return self._written(kind)
            try:
                made = self.root.core.create(self.inside, bits, **layout)
            except ExistsError:  # another may have made it just now
                if kind[0] == "x" or is_last:
                    raise
            else:
                break
        return PoolFile(made, str(self), writable=True, appends=kind[0] == "a", mode=_mode(kind))

    def _written(self, kind: str) -> PoolFile:
        """Open a file that is there to write it anew, or at its end."""
        found = self.root.core.open(self.inside, writable=True)
        appends = kind[0] == "a"
        file = PoolFile(found, str(self), writable=True, appends=appends, mode=_mode(kind))
        if appends:
            file.seek(0, 2)
        else:
            file.truncate(0)
        return file


def _mode(kind: str) -> str:
    """Spell a mode as Python's binary files do: ``"rb+"``."""
    return kind.replace("+", "") + "b" + "+" * ("+" in kind)


def open_root(url: str) -> PoolRoot | None:
    """Find the pool of a URL among those that are open in this process, or were before a fork.

    It is the one that was opened last, if there are several.
    """
    for each in reversed(_OPEN.get(url, [])):
        if (root := each()) is not None:
            return root
    return None


def is_url(path: object) -> bool:
    """Whether a path is the URL of a name in a pool."""
    return isinstance(path, str) and path.startswith(("outcore:/", "outcore+tls:/"))


def check_plain(path: str) -> str:
    """Refuse text that looks like a URL, and is none that outcore knows; return it.

    Raises
    ------
    InvalidError
        If it does, if no file can have that name, or if a shell would have put something else in
        its place: it is empty, or begins with ``~/``.
    """
    if not path:
        raise InvalidError("need a path, have an empty text; '.' is the current directory")
    if path == "~" or path.startswith("~/"):
        raise InvalidError(
            f"{path!r} is not expanded to your home directory; do that by os.path.expanduser, or "
            f"write './{path}' for what has this very name"
        )
    if path.startswith("outcore:"):
        raise InvalidError(f"{path} is no name in a pool; {_FORMS}")
    if found := _SCHEME.match(path):
        raise InvalidError(
            f"{path!r} is a URL of another kind, {found[1]}; give a plain path, or a name in a "
            f"pool: {_FORMS}"
        )
    return check_text(path)


def is_text(name: str) -> bool:
    """Whether a name can be one of a file: UTF-8 without zero bytes."""
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return False
    return "\0" not in name


def check_text(name: str) -> str:
    """Return a name; refuse one that no file can have.

    Raises
    ------
    InvalidError
        If it is not UTF-8, or has zero bytes.
    """
    if not is_text(name):
        raise InvalidError(f"a path is UTF-8 without zero bytes, have {name!r}; choose another")
    return name


def root_and_name(url: str) -> tuple[str, str]:
    """Cut a URL in two: what names in its pool begin with, as outcore writes it, and the name.

    Raises
    ------
    InvalidError
        If it is no URL of a pool.
    """
    if found := _EMBEDDED.fullmatch(url):
        return found[1], found[2]
    if found := _SERVED.fullmatch(url):
        return f"{found[1]}://{found[2]}/", found[3] or ""
    raise InvalidError(f"{url} is no name in a pool; {_FORMS}")


def named(url: str) -> PoolPath:
    """Find the name that a URL stands for, in a pool that is open in this process.

    Raises
    ------
    InvalidError
        If it is no URL of a pool, or the pool is not open.
    """
    where, name = root_and_name(url)
    root = open_root(where)
    if root is None:
        call = "oc.Pool.embedded" if where.endswith("::") else "oc.connect"
        raise InvalidError(
            f"the pool of {url} is not open in this process; open the pool with {call} first, and "
            "keep it open"
        )
    return PoolPath(root, name)
