"""Rights, times and extended attributes, of plain files and of files in pools.

The extended attribute ``NAME`` in a pool corresponds to ``user.NAME`` of a plain file, the kind
that users may set. Attributes of other kinds are ignored.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from outcore.errors import DiskError, InvalidError, NotFoundError
from outcore.storage.file_status import cannot
from outcore.storage.pool_path import PoolPath, is_text
from outcore.storage.volumes import AnyPath

_USER = "user."

_LATEST_NS = 9_223_372_036 * 10**9
"""The latest time in a pool, 2262-04-11T23:47:16Z, in nanoseconds since 1970."""


def set_mode(path: AnyPath, mode: int) -> None:
    """Set the permission bits."""
    if isinstance(path, PoolPath):
        path.root.core.set_attributes(path.inside, mode=mode)
        return
    with _plain(path, "change the mode of"):
        os.chmod(path, mode)


def set_owner(path: AnyPath, owner: int | None, group: int | None) -> None:
    """Set user and group id; `None` keeps the id. For a link, this sets the link's own ids."""
    if isinstance(path, PoolPath):
        path.root.core.set_attributes(path.inside, owner=owner, group=group)
        return
    with _plain(path, "change the owner of"):
        ids = (-1 if number is None else number for number in (owner, group))
        os.chown(path, *ids, follow_symlinks=False)


def set_modified(path: AnyPath, modified_ns: int) -> None:
    """Set the time of the last change of content; a pool limits it to 1970 to 2262.

    For a link, this sets the link's own time.
    """
    if isinstance(path, PoolPath):
        kept_ns = min(max(modified_ns, 0), _LATEST_NS)
        path.root.core.set_attributes(path.inside, modified_ns=kept_ns)
        return
    with _plain(path, "set the time of"):
        ns = (os.lstat(path).st_atime_ns, modified_ns)
        os.utime(path, ns=ns, follow_symlinks=False)


def attribute_names(path: AnyPath) -> list[str]:
    """List the names of the extended attributes, sorted."""
    if isinstance(path, PoolPath):
        return path.root.core.extended_names(path.inside)
    with _plain(path, "read the extended attributes of"):
        try:
            names = os.listxattr(path)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                return []
            raise
    return sorted(name.removeprefix(_USER) for name in names if name.startswith(_USER))


def attribute(path: AnyPath, name: str) -> bytes:
    """Return an extended attribute.

    Raises
    ------
    NotFoundError
        If no attribute has this name.
    """
    if isinstance(path, PoolPath):
        return path.root.core.extended(path.inside, _text(name))
    with _plain(path, "read the extended attributes of"), _named(path, name):
        return os.getxattr(path, _USER + name)


def set_attribute(path: AnyPath, name: str, value: bytes) -> None:
    """Set an extended attribute; `attribute` returns it."""
    if isinstance(path, PoolPath):
        path.root.core.set_extended(path.inside, _text(name), value)
        return
    with _plain(path, "set extended attributes of"), _named(path, name):
        os.setxattr(path, _USER + name, value)


def remove_attribute(path: AnyPath, name: str) -> None:
    """Remove an extended attribute.

    Raises
    ------
    NotFoundError
        If no attribute has this name.
    """
    if isinstance(path, PoolPath):
        path.root.core.set_extended(path.inside, _text(name))
        return
    with _plain(path, "set extended attributes of"), _named(path, name):
        os.removexattr(path, _USER + name)


def _text(name: str) -> str:
    if not is_text(name):
        raise InvalidError(
            "an extended attribute in a pool has a name of UTF-8 without zero bytes, have "
            f"{name!r}; choose another"
        )
    return name


@contextmanager
def _plain(path: AnyPath, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot(f"{what} {path}", error) from None


@contextmanager
def _named(path: AnyPath, name: str) -> Iterator[None]:
    """Raise outcore's errors for extended attributes in place of the system's."""
    if not name or "\0" in name:
        raise InvalidError(f"an extended attribute has a name without zero bytes, have {name!r}")
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENODATA:
            raise NotFoundError(
                f"{path} has no extended attribute {name!r}; list their names"
            ) from None
        if error.errno == errno.ENOTSUP:
            raise DiskError(
                f"the file system of {path} keeps no extended attributes; use another"
            ) from None
        if error.errno in (errno.E2BIG, errno.ENOSPC, errno.ERANGE, errno.ENAMETOOLONG):
            raise InvalidError(
                f"the file system of {path} has no room for the extended attribute {name!r}: "
                f"{error.strerror}; keep it in a file"
            ) from None
        raise
