"""Attributes of a name in a pool, and the status of a server."""

from dataclasses import dataclass
from typing import Any

from outcore._core import SilentServers, Stripes


class Silent:
    """Servers of each pool that did not answer a request: none is asked again."""

    def __init__(self) -> None:
        self._of_pools: dict[str, SilentServers] = {}

    def of(self, pool: str) -> SilentServers:
        """Return the silent servers of a pool, by its id."""
        return self._of_pools.setdefault(pool, SilentServers())


@dataclass(frozen=True)
class PoolStat:
    """Attributes of a name in a pool.

    Attributes
    ----------
    is_directory
        Whether the name is a directory; otherwise it is a file or a symbolic link.
    nbytes
        Length in bytes; 0 for a directory; for a link that of its target.
    owner, group, mode
        User and group id, and permission bits, as in POSIX.
    modified_ns, changed_ns
        Nanoseconds since 1970 of the last change of content, and of these attributes.
    stripe_unit_bytes, servers
        Stripe unit of a file, and the numbers of its servers in round-robin order.
    round_units
        Number of units that go round the servers; the rest lies on the last one. `None` for all.
    unknown
        Reason why `nbytes` is unknown, if servers cannot be reached and the caller allowed that.
    target
        Target of a symbolic link, as its creator wrote it; `None` for a file or directory.
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
    target: str | None = None

    @property
    def is_link(self) -> bool:
        """Whether the name is a symbolic link."""
        return self.target is not None

    @property
    def stripes(self) -> Stripes:
        """The distribution of the file's bytes over its servers."""
        return Stripes(self.stripe_unit_bytes, len(self.servers), self.round_units)

    @classmethod
    def of(cls, status: Any, nbytes: int, unknown: str | None = None) -> "PoolStat":
        """Convert the result of the compiled module."""
        is_directory, owner, group, mode, modified_ns, changed_ns, unit, units, servers, to = status
        nbytes = nbytes if to is None else len(to.encode())
        return cls(
            is_directory, nbytes, owner, group, mode, modified_ns, changed_ns, unit, tuple(servers),
            unknown, units, to,
        )  # fmt: skip


@dataclass(frozen=True)
class ServerStatus:
    """Status of an I/O server: its number, free bytes, and counters since its start.

    A server whose disk is too full to log writes, or was read-only at its start, accepts no writes:
    `is_writable` is false. If the server cannot be reached, `error` is the reason, and the other
    values mean nothing.
    """

    id: int
    free_bytes: int
    requests: int
    bytes_read: int
    bytes_written: int
    damaged_blocks: int
    is_writable: bool
    error: str | None = None
