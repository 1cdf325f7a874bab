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
    stat
        Its other attributes. In it, `nbytes` is the length of a file.
    fields
        The description of an array, a group or a report, such as ``shape`` or ``residual``. It is
        empty for anything else, and if the user may not read it.
    """

    path: PoolPath
    kind: str
    nbytes: int
    stat: PoolStat
    fields: dict[str, Any]

    @classmethod
    def of(cls, root: PoolRoot, path: str, status: Any, length: int, described: bytes) -> "Found":
        """Convert the result of the compiled module."""
        stat, fields = PoolStat.of(status, length), description.read(described)
        kind = "link" if stat.is_link else "directory" if stat.is_directory else "file"
        kind, nbytes = fields.get("kind", kind), fields.get("size", stat.nbytes)
        return cls(PoolPath(root, path), kind, nbytes, stat, fields)
