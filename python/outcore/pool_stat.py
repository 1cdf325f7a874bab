"""What a pool knows of a name."""

from dataclasses import dataclass
from typing import Any

from outcore._core import SilentServers, Stripes


class Silent:
    """Servers that did not answer when they were asked, of each pool: none is asked again."""

    def __init__(self) -> None:
        self._of_pools: dict[str, SilentServers] = {}

    def of(self, pool: str) -> SilentServers:
        """Give those of a pool, by its id."""
        return self._of_pools.setdefault(pool, SilentServers())


@dataclass(frozen=True)
class PoolStat:
    """What a pool knows of a name.

    Attributes
    ----------
    is_directory
        Whether it is one; else it is a file.
    nbytes
        Length in bytes; of a directory 0.
    owner, group, mode
        User and group id, and permission bits, as POSIX has them.
    modified_ns, changed_ns
        Nanoseconds since 1970 of the last change of content, and of these attributes.
    stripe_unit_bytes, servers
        How a file is cut, and the numbers of the servers that its units go round.
    round_units
        How many units go round; what follows them lies on the last server. `None`: all do.
    unknown
        Why `nbytes` is not known, if servers cannot be reached and who asked goes without them.
    """

    is_directory: bool
    nbytes: int
    owner: int
    group: int
    mode: int
    modified_ns: int
    changed_ns: int
    stripe_unit_bytes: int
    servers: tuple[int, ...]
    unknown: str | None = None
    round_units: int | None = None

    @property
    def stripes(self) -> Stripes:
        """Where the bytes of a file lie."""
        return Stripes(self.stripe_unit_bytes, len(self.servers), self.round_units)

    @classmethod
    def of(cls, status: Any, nbytes: int, unknown: str | None = None) -> "PoolStat":
        """Read what the compiled part says."""
        is_directory, owner, group, mode, modified_ns, changed_ns, unit, units, servers = status
        return cls(
            is_directory, nbytes, owner, group, mode, modified_ns, changed_ns, unit, tuple(servers),
            unknown, units,
        )  # fmt: skip


@dataclass(frozen=True)
class ServerStatus:
    """What an I/O server says of itself: its number, free bytes, and what it did so far.

    It takes no writes, `is_writable` is false, while its disk is too full to note them, or was
    read-only when it started. If it cannot be reached, `error` says why, and the rest means
    nothing.
    """

    id: int
    free_bytes: int
    requests: int
    bytes_read: int
    bytes_written: int
    damaged_blocks: int
    is_writable: bool
    error: str | None = None
