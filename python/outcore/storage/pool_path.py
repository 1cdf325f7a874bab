"""Names in a pool, with the interface of `pathlib.Path`.

As text, a name in a pool embedded in ``/mnt/a`` (and other directories) is
``outcore:/mnt/a::sim/u``. A name in a served pool is ``outcore://host:port/sim/u``, or
``outcore+tls://host:port/sim/u`` if the connection is encrypted.
"""

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from outcore import _core
from outcore.errors import (
    InvalidError,
    LinkLoopError,
    NotFoundError,
)
from outcore.layout.hints import hints_of, mode_bits
from outcore.storage.pool_file import PoolFile
from outcore.storage.pool_root import PoolRoot, open_root
from outcore.storage.pool_stat import PoolStat, Silent

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_FORMS = (
    "write outcore:/DIRECTORY::NAME for an embedded pool, outcore://HOST:PORT/NAME for a served one"
)


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

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the name exists; for a symbolic link, by default, whether its target does."""
        if follow_symlinks:
            return not self._parts or self.root.volume.exists(self.inside)
        return self._record() is not None

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return not self._parts or self._is_directory() is True

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._parts) and self._is_directory() is False

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        found = self._record()
        return found is not None and found[-1] is not None

    def _is_directory(self) -> bool | None:
        found = self._record()
        if found is not None and found[-1] is not None:
            found = self.resolve()._record()
            if found is not None and found[-1] is not None:
                return None
        return None if found is None else found[0]

    def _record(self) -> Any:
        """Return the compiled module's status of the name itself; `None` if there is none."""
        try:
            return self.root.core.stat(self.inside)
        except (NotFoundError, LinkLoopError):
            return None

    def resolve(self, *, strict: bool = False) -> "PoolPath":
        """Return the path without symbolic links, which need not exist unless `strict` is set.

        Raises
        ------
        NotFoundError
            With `strict`: if the path does not exist, or a link leads outside of the pool.
        LinkLoopError
            With `strict`: if the path leads through more than 40 links.
        """
        try:
            found = PoolPath(self.root, self.root.core.follow(self.inside))
        except (NotFoundError, LinkLoopError):
            if strict:
                raise
            return self
        if strict:
            self.root.core.stat(found.inside)
        return found

    def written(self) -> "PoolPath":
        """Return the path that a write replaces: that behind a symbolic link.

        Raises
        ------
        NotFoundError, LinkLoopError
            If it is a link that leads outside of the pool, to a missing directory, or to itself.
        """
        try:
            return PoolPath(self.root, self.root.core.follow(self.inside))
        except (NotFoundError, LinkLoopError):
            if self.is_symlink():
                raise
            return self  # a write creates the directories above it

    def readlink(self) -> str:
        """Return the target of a symbolic link, as its creator wrote it: any text.

        Raises
        ------
        NotFoundError
            If the name does not exist.
        InvalidError
            If it is no symbolic link.
        """
        target = self.root.core.stat(self.inside)[-1]
        if target is None:
            raise InvalidError(f"need a symbolic link, have another thing at {self}; open it")
        return str(target)

    def symlink_to(self, target: "str | PurePosixPath | PoolPath") -> None:
        """Create a symbolic link in an existing directory.

        Parameters
        ----------
        target
            Text of at most 4095 bytes, stored as it is. Users of the link read it relative to the
            link's directory. A path in the same pool is converted to such a text. The target need
            not exist. Only mounts follow a target that leads outside of the pool.

        Raises
        ------
        ExistsError
            If the name exists.
        NotFoundError
            If its directory does not exist.
        InvalidError
            If no link can have the target.
        """
        if isinstance(target, PoolPath):
            if not target.root.is_alike(self.root):
                raise InvalidError(f"need a target in the same pool, have {target}; name one there")
            text = os.path.relpath(f"/{target.inside}", f"/{self.parent.inside}")
        else:
            text = os.fspath(target)
        self.root.core.make_link(self.inside, check_text(text))

    def iterdir(self) -> "Iterator[PoolPath]":
        """Yield the entries of a directory, sorted."""
        for name, _ in self.root.core.names(self.inside):
            yield self / name

    def lstat(self) -> PoolStat:
        """Return the attributes; of a symbolic link those of the link itself."""
        return self.stat(follow_symlinks=False)

    def stat(self, *, follow_symlinks: bool = True, silent: Silent | None = None) -> PoolStat:
        """Return the attributes; with `silent`, servers may be unreachable; see `PoolStat`.

        Servers that do not answer are added to `silent`, and not asked again. The attributes of a
        symbolic link are those of its target, unless `follow_symlinks` is false.

        Raises
        ------
        NotFoundError
            If the name, or the target of a link, does not exist.
        LinkLoopError
            If the path leads through more than 40 links.
        """
        core = self.root.core
        noted = None if silent is None else silent.of(core.id)
        status = core.stat(self.inside)
        if status[-1] is not None and follow_symlinks:
            return self.resolve(strict=True).stat(follow_symlinks=False, silent=silent)
        if status[0] or status[-1] is not None:
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
        """Length of a file, or of all files below a directory, without those behind links."""
        status = self.stat()
        if not status.is_directory:
            return status.nbytes
        files = [(path, one) for path, one in self.scandir() if not one.is_link]
        return sum(path.nbytes() if one.is_directory else one.nbytes for path, one in files)

    def read_bytes(self) -> bytes:
        """Return the content of a small file."""
        return self.root.volume.read_small(self.inside)

    def write_bytes(self, data: bytes) -> int:
        """Replace a small file, or that behind a symbolic link, atomically and durably."""
        self.root.volume.replace_small(self.written().inside, data)
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
        if kind[0] == "x":
            file, is_new = self.root.core.create(self.inside, bits, **layout), True
        else:
            file, is_new = self.root.core.open_or_create(self.inside, bits, **layout)
        appends = kind[0] == "a"
        opened = PoolFile(file, str(self), writable=True, appends=appends, mode=_mode(kind))
        if not is_new:
            opened.seek(0, 2) if appends else opened.truncate(0)
        return opened


def _mode(kind: str) -> str:
    """Return a mode in the spelling of Python's binary files: ``"rb+"``."""
    return kind.replace("+", "") + "b" + "+" * ("+" in kind)


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
    return _core.split_pool_url(check_text(url))


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
