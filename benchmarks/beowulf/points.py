"""Measured points of the two experiments."""

from dataclasses import dataclass

from outcore.balance.model import Cluster, Host

PAYLOAD = 1448 / 1514
"""Share of TCP's payload in an Ethernet frame of full size."""


@dataclass(frozen=True)
class Tokens:
    """Pairs of hosts that exchange tokens of one size: bytes per second of all pairs."""

    channels: int
    pairs: int
    nbytes: int
    bytes_s: float


@dataclass(frozen=True)
class Copies:
    """Concurrent copies, some of them remote: bytes per second of all of them.

    Attributes
    ----------
    network
        ``"slow"`` or ``"fast"``.
    hosts, remote
        Number of copies, and of remote ones among them.
    disk_bytes_s, channel_bytes_s
        Limits of each disk, and of each channel that all hosts share.
    """

    network: str
    channels: int
    hosts: int
    remote: int
    bytes_s: float
    disk_bytes_s: float
    channel_bytes_s: float

    @property
    def ratio(self) -> float:
        """The network's rate over that of all disks."""
        return self.channels * self.channel_bytes_s / (self.hosts * self.disk_bytes_s)

    @property
    def model_bytes_s(self) -> float:
        """The total by the model of `outcore balance`, from the limits of the testbed."""
        shared = self.channels * self.channel_bytes_s * PAYLOAD
        host = Host("host", (self.disk_bytes_s,), (shared,))
        return Cluster((host,) * self.hosts, shared).total(self.remote / self.hosts)

    @property
    def share(self) -> float:
        """The total over the rate of all disks."""
        return self.bytes_s / (self.hosts * self.disk_bytes_s)
