"""Names in a pool, with the interface of `pathlib.Path`.

As text, a name in a pool embedded in ``/mnt/a`` (and other directories) is
``outcore:/mnt/a::sim/u``. A name in a served pool is ``outcore://host:port/sim/u``, or
``outcore+tls://host:port/sim/u`` if the connection is encrypted.
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
from outcore.layout.hints import hints_of, mode_bits
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_stat import PoolStat, Silent

_EMBEDDED = re.compile(r"(outcore:/.*?::)(.*)", re.DOTALL)
_SERVED = re.compile(r"(outcore(?:\+tls)?):/{1,2}([^/:]+:[0-9]+)(?:/(.*))?", re.DOTALL)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_FORMS = (
    "write outcore:/DIRECTORY::NAME for an embedded pool, outcore://HOST:PORT/NAME for a served one"
)


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

    def close(self) -> None:
        """Close the pool; its URL then finds the pool object opened before, if still open."""
        if others := _others(self):
            _OPEN[self.url] = others
        else:
            _OPEN.pop(self.url, None)
        self.core.close()


_MOST_LOOKED_AT = 10_000
"""Number of directories that an open pool remembers."""

_OPEN: "dict[str, list[weakref.ref[PoolRoot]]]" = {}
"""Open pools by URL, in the order of opening."""


def _others(root: PoolRoot) -> "list[weakref.ref[PoolRoot]]":
    """Return the other open pools at the URL of a pool."""
    return [each for each in _OPEN.get(root.url, ()) if each() not in (None, root)]


class PoolPath:
    """A name in a pool: ``pool / "sim" / "u"``. Every function of outcore with a path accepts one.

    It has the commonly used methods of `pathlib.Path`. As a string it is a URL, which outcore
    accepts as long as the pool is open in the process. If it is open several times, the URL means
    the pool opened last. Two names are equal if they are the same name in the same pool, at any
    address.
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
        """Name in the pool, with ``/`` between its parts; empty for the root."""
        return "/".join(self._parts)

    @property
    def name(self) -> str:
        """The last part; empty for the root."""
        return self._parts[-1] if self._parts else ""

    @property
    def suffix(self) -> str:
        """The last dot of the name and the text after it."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def parent(self) -> "PoolPath":
        """The parent directory; the root is its own parent."""
        return PoolPath(self.root, *self._parts[:-1])

    @property
    def parents(self) -> "tuple[PoolPath, ...]":
        """The parent directories, nearest first."""
        ends = range(len(self._parts) - 1, -1, -1)
        return tuple(PoolPath(self.root, *self._parts[:end]) for end in ends)

    def __truediv__(self, name: str) -> "PoolPath":
        return PoolPath(self.root, *self._parts, str(name))

    def with_name(self, name: str) -> "PoolPath":
        """Return the path of another name in the same directory."""
        if not self._parts or "/" in name:
            raise InvalidError(f"{self} cannot be renamed to {name!r}")
        return PoolPath(self.root, *self._parts[:-1], name)

    def __str__(self) -> str:
        return self.root.url + self.inside

    def __repr__(self) -> str:
        return f"PoolPath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the URL, which another process resolves to its own open pool."""
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
        """Whether the name exists."""
        return not self._parts or self.root.volume.exists(self.inside)

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return not self._parts or self._is_directory() is True

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._parts) and self._is_directory() is False

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link: a pool has none."""
        return False

    def _is_directory(self) -> bool | None:
        try:
            return self.root.core.stat(self.inside)[0]
        except NotFoundError:
            return None

    def iterdir(self) -> "Iterator[PoolPath]":
        """Yield the entries of a directory, sorted."""
        for name, _ in self.root.core.names(self.inside):
            yield self / name

    def stat(self, *, silent: Silent | None = None) -> PoolStat:
        """Return the attributes; with `silent`, servers may be unreachable; see `PoolStat`.

        Servers that do not answer are added to `silent`, and not asked again.
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
        """Yield the sorted entries of a directory with their attributes; see `Pool.scandir`."""
        core = self.root.core
        noted = None if silent is None else silent.of(core.id)
        after, more = "", True
        while more:
            page, more = core.page(self.inside, after, silent=noted)
            for name, status, nbytes, unknown in page:
                if name:
                    yield self / name, PoolStat.of(status, nbytes, unknown)
            # An empty page would be requested repeatedly.
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
        """Return the content of a small file."""
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
            except ExistsError:  # another process may have created it just now
                if kind[0] == "x" or is_last:
                    raise
            else:
                break
        return PoolFile(made, str(self), writable=True, appends=kind[0] == "a", mode=_mode(kind))

    def _written(self, kind: str) -> PoolFile:
        """Open an existing file to overwrite it, or to append."""
        found = self.root.core.open(self.inside, writable=True)
        appends = kind[0] == "a"
        file = PoolFile(found, str(self), writable=True, appends=appends, mode=_mode(kind))
        if appends:
            file.seek(0, 2)
        else:
            file.truncate(0)
        return file


def _mode(kind: str) -> str:
    """Return a mode in the spelling of Python's binary files: ``"rb+"``."""
    return kind.replace("+", "") + "b" + "+" * ("+" in kind)


def open_root(url: str) -> PoolRoot | None:
    """Find the pool of a URL among those opened in this process, or before a fork.

    If several are open, the result is the one opened last.
    """
    for each in reversed(_OPEN.get(url, [])):
        if (root := each()) is not None:
            return root
    return None


def is_url(path: object) -> bool:
    """Whether a path is the URL of a name in a pool."""
    return isinstance(path, str) and path.startswith(("outcore:/", "outcore+tls:/"))


def check_plain(path: str) -> str:
    """Return the text; refuse text that looks like an unknown URL.

    Raises
    ------
    InvalidError
        If the text is an unknown URL, if no file can have that name, or if a shell would have
        replaced it: it is empty, or begins with ``~/``.
    """
    if not path:
        raise InvalidError("need a path, have an empty text; '.' is the current directory")
    if path == "~" or path.startswith("~/"):
        raise InvalidError(
            f"{path!r} is not expanded to your home directory; do that by os.path.expanduser, or "
            f"write './{path}' for this very name"
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
    """Whether a file can have this name: UTF-8 without zero bytes."""
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
    """Split a URL into the prefix of its pool, in outcore's spelling, and the name.

    Raises
    ------
    InvalidError
        If it is not the URL of a pool.
    """
    if found := _EMBEDDED.fullmatch(url):
        return found[1], found[2]
    if found := _SERVED.fullmatch(url):
        return f"{found[1]}://{found[2]}/", found[3] or ""
    raise InvalidError(f"{url} is no name in a pool; {_FORMS}")


def named(url: str) -> PoolPath:
    """Return the name of a URL, in a pool that is open in this process.

    Raises
    ------
    InvalidError
        If it is not the URL of a pool, or the pool is not open.
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
