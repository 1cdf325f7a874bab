"""A model of transfers: whether disks or the network limit them, and the gain of more parts.

Each host moves data at the rate of its disks. A remote transfer also passes the channels of its
host, and all remote transfers together pass the network. `docs/how-to/balance.md` states the
formulas. Source: Sterling et al. 1996, whose experiments they describe.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Limit = Literal["disks", "network"]

FLAT = 0.95
"""A total is flat if it keeps this share of that of local transfers."""

_SHARED = 0.9
"""Share of the sum of all channels, below which their rate at once shows a shared medium."""


@dataclass(frozen=True)
class Host:
    """A host with its disks and channels.

    Attributes
    ----------
    name
        Name of the host.
    disks, channels
        Bytes per second of each disk, and of each channel to the other hosts.
    """

    name: str
    disks: tuple[float, ...]
    channels: tuple[float, ...] = ()

    @property
    def disk_bytes_s(self) -> float:
        """Bytes per second of all disks."""
        return sum(self.disks)

    @property
    def channel_bytes_s(self) -> float:
        """Bytes per second of all channels."""
        return sum(self.channels)


@dataclass(frozen=True)
class Cluster:
    """Hosts that transfer data, each at the same time.

    Attributes
    ----------
    hosts
        The hosts.
    shared_bytes_s
        Bytes per second of all hosts' channels together, if they share a medium, or the link of one
        client; infinite if each host has its own links to a switch.
    is_bound
        Whether the rates of disks are lower bounds, because the network hides them.
    """

    hosts: tuple[Host, ...]
    shared_bytes_s: float = math.inf
    is_bound: bool = False

    @property
    def has_network(self) -> bool:
        """Whether the channels of all hosts are known."""
        return all(host.channels for host in self.hosts)

    @property
    def disk_bytes_s(self) -> float:
        """Bytes per second of all disks: the total of local transfers."""
        return sum(host.disk_bytes_s for host in self.hosts)

    @property
    def network_bytes_s(self) -> float:
        """Bytes per second of all channels together."""
        return min(sum(host.channel_bytes_s for host in self.hosts), self.shared_bytes_s)

    @property
    def ratio(self) -> float:
        """The network's rate over that of the disks."""
        return self.network_bytes_s / self.disk_bytes_s

    def total(self, remote: float) -> float:
        """Return bytes per second of all transfers, if a share `remote` of them is remote."""
        shared = remote * self.disk_bytes_s - self.shared_bytes_s
        return self.disk_bytes_s - max(remote * self._slow_bytes_s, shared)

    @property
    def _slow_bytes_s(self) -> float:
        """Bytes per second by which the disks exceed the channels of their hosts."""
        if not self.has_network:
            return 0.0
        return sum(max(host.disk_bytes_s - host.channel_bytes_s, 0.0) for host in self.hosts)

    def limit(self, remote: float) -> Limit:
        """Return the part that limits the transfers, if a share `remote` of them is remote."""
        if self.is_bound and remote:
            return "network"
        return "disks" if self.total(remote) >= FLAT * self.disk_bytes_s else "network"

    @property
    def flat_share(self) -> float:
        """The largest share of remote transfers with which the total is flat."""
        allowed = (1 - FLAT) * self.disk_bytes_s
        by_links = allowed / slow if (slow := self._slow_bytes_s) else 1.0
        return min(1.0, by_links, (allowed + self.shared_bytes_s) / self.disk_bytes_s)

    def with_channel(self) -> "Cluster":
        """Return the cluster with one more channel in each host, like its others."""
        hosts = tuple(
            replace(host, channels=(*host.channels, statistics.mean(host.channels)))
            for host in self.hosts
        )
        most = max(len(host.channels) for host in self.hosts)
        return replace(self, hosts=hosts, shared_bytes_s=self.shared_bytes_s * (most + 1) / most)

    def with_disk(self) -> "Cluster":
        """Return the cluster with one more disk in each host, like its others."""
        hosts = tuple(
            replace(host, disks=(*host.disks, statistics.mean(host.disks))) for host in self.hosts
        )
        return replace(self, hosts=hosts)

    def with_host(self) -> "Cluster":
        """Return the cluster with one more host, like the mean of the others."""
        count = len(self.hosts)
        channels = (sum(host.channel_bytes_s for host in self.hosts) / count,)
        host = Host("another", (self.disk_bytes_s / count,), channels if self.has_network else ())
        return replace(self, hosts=(*self.hosts, host))


def shared_rate(hosts: Sequence[Host], together_bytes_s: float) -> float:
    """Return the rate of a shared medium: the measured rate of all channels at once.

    It is infinite if that is about the sum of the channels.
    """
    alone = sum(host.channel_bytes_s for host in hosts)
    return together_bytes_s if together_bytes_s < _SHARED * alone else math.inf


@dataclass(frozen=True)
class Gain:
    """Factors by which the totals grow with one more part.

    Attributes
    ----------
    part
        The part.
    local, mixed, remote
        The total with the part over the total without it, for local transfers, half remote ones,
        and remote ones; `None` if it is unknown, or there is no network.
    """

    part: Literal["channel", "disk", "host"]
    local: float | None
    mixed: float | None
    remote: float | None


def gains(cluster: Cluster) -> tuple[Gain, ...]:
    """Predict the gain of a channel and a disk in each host, and of another host.

    With lower bounds for the disks, a gain is unknown where it depends on their true rates.
    """
    grown = {"disk": cluster.with_disk(), "host": cluster.with_host()}
    if cluster.has_network:
        grown = {"channel": cluster.with_channel()} | grown

    def factor(part: str, remote: float) -> float | None:
        if remote and not cluster.has_network:
            return None
        is_hidden = (part == "channel" and remote > 0) or (part == "disk" and 0 < remote < 1)
        if cluster.is_bound and is_hidden:
            return None
        return grown[part].total(remote) / cluster.total(remote)

    return tuple(
        Gain(part, factor(part, 0.0), factor(part, 0.5), factor(part, 1.0))  # type: ignore[arg-type]
        for part in grown
    )
