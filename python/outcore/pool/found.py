"""Results of a search."""

from dataclasses import dataclass
from typing import Any

from outcore.layout import description
from outcore.storage.pool_path import PoolPath
from outcore.storage.pool_root import PoolRoot
from outcore.storage.pool_stat import PoolStat


@dataclass(frozen=True)
class Found:
    """A file or directory that a search found.

    Attributes
    ----------
    path
        Its path.
    kind
        ``"array"``, ``"group"`` or ``"report"``; otherwise ``"file"``, ``"directory"`` or
        ``"link"``.
    nbytes
        Bytes of all elements of an array. Length of a file as far as the manager knows it: as when
        a writer last closed it.
    owner, group, mode
        User and group id, and permission bits, as in POSIX.
    modified_ns, changed_ns
        Nanoseconds since 1970 of the last change of content, and of the attributes.
    fields
        The description of an array, a group or a report, such as ``shape`` or ``residual``. It is
        empty for anything else, and for what the user may not read.
    """

    path: PoolPath
    kind: str
    nbytes: int
    owner: int
    group: int
    mode: int
    modified_ns: int
    changed_ns: int
    fields: dict[str, Any]

    @classmethod
    def of(cls, root: PoolRoot, path: str, status: Any, length: int, described: bytes) -> "Found":
        """Convert the result of the compiled module."""
        stat, fields = PoolStat.of(status, length), description.read(described)
        kind = "link" if stat.is_link else "directory" if stat.is_directory else "file"
        return cls(
            PoolPath(root, path), fields.get("kind", kind), fields.get("size", stat.nbytes),
            stat.owner, stat.group, stat.mode, stat.modified_ns, stat.changed_ns, fields,
        )  # fmt: skip
