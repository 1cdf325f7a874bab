"""The result of a measurement: rates, limits and gains, as figures and as rows of tables."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outcore.balance.disks import Disk
from outcore.balance.model import Cluster, Gain, Host, gains
from outcore.balance.processor_rates import ProcessorRates

SHARES = {"local": 0.0, "mixed": 0.5, "remote": 1.0}
"""Shares of remote transfers, by name."""

Row = tuple[str, ...]


@dataclass(frozen=True)
class MeasuredHost:
    """A host: its disks, and the rates of its memory and arithmetic if they were measured."""

    name: str
    disks: tuple[Disk, ...]
    processor: ProcessorRates | None = None

    def disk_rates(self, use: str) -> tuple[float, ...]:
        """Return bytes per second of each disk while all of them work."""
        found: dict[int, float] = {}
        for disk in self.disks:
            found[disk.device] = found.get(disk.device, 0.0) + getattr(disk.at_once, use)
        return tuple(found.values())

    def model(self, use: str, channels: Sequence[float] = ()) -> Host:
        """Return the host as the model describes it."""
        return Host(self.name, self.disk_rates(use), tuple(channels))


@dataclass(frozen=True)
class Link:
    """A measured way from one host to another, by one channel, in bytes per second."""

    source: str
    target: str
    channel: str
    bytes_s: float


@dataclass(frozen=True)
class Use:
    """One kind of transfer: the model, and the measured total of remote ones, if there is one.

    Attributes
    ----------
    name
        ``"read"``, ``"write"`` or ``"copy"``.
    cluster
        The model.
    measured_bytes_s
        Bytes per second of remote transfers at all hosts at once, measured.
    """

    name: str
    cluster: Cluster
    measured_bytes_s: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The shares of remote transfers that are possible."""
        return SHARES if self.cluster.has_network else {"local": 0.0}

    @property
    def gains(self) -> tuple[Gain, ...]:
        """The gain of another channel, disk and host."""
        return gains(self.cluster)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of the model."""
        cluster, has_network = self.cluster, self.cluster.has_network
        return {
            "use": self.name,
            "totals_bytes_s": {name: cluster.total(f) for name, f in self.shares.items()},
            "limits": {name: cluster.limit(f) for name, f in self.shares.items()},
            "disks_bytes_s": cluster.disk_bytes_s,
            "disks_are_lower_bounds": cluster.is_bound,
            "network_bytes_s": cluster.network_bytes_s if has_network else None,
            "shared_bytes_s": cluster.shared_bytes_s,
            "network_to_disks": cluster.ratio if has_network else None,
            "flat_share": cluster.flat_share if has_network and not cluster.is_bound else None,
            "measured_remote_bytes_s": self.measured_bytes_s,
            "gains": [asdict(gain) for gain in self.gains],
        }

    def findings(self) -> list[str]:
        """Say in sentences whether the disks or the network limit the transfers."""
        cluster = self.cluster
        if not cluster.has_network:
            return [f"{self.name}: {rate(cluster.disk_bytes_s)}, limited by the disks"]
        said = f"the network carries {cluster.ratio:.2f} of the disks' rate"
        if cluster.is_bound:
            said = "the network carries less than the disks"
        if cluster.flat_share == 1 and not cluster.is_bound:
            return [f"{self.name}: balanced, {said}: remote transfers are as fast as local ones"]
        best = max(self.gains, key=lambda gain: gain.remote or 0.0)
        found = [f"{self.name}: the network limits remote transfers; {said}"]
        if not cluster.is_bound:
            found[0] += f", enough for {cluster.flat_share:.0%} of the transfers"
        if best.remote is not None and best.remote > 1:
            found.append(f"{self.name}: another {best.part} speeds up remote transfers most")
        return found


@dataclass(frozen=True)
class Balance:
    """A measured machine, cluster or pool.

    Attributes
    ----------
    subject
        The measured object, in words.
    hosts
        The hosts with disks.
    links
        The measured ways between hosts.
    pairs, all_pairs
        Number of measured pairs of hosts, and of all of them.
    uses
        The model of each kind of transfer.
    notes
        Remarks about the measurement.
    """

    subject: str
    hosts: tuple[MeasuredHost, ...]
    links: tuple[Link, ...]
    pairs: int
    all_pairs: int
    uses: tuple[Use, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            "subject": self.subject,
            "hosts": [
                {
                    "name": host.name,
                    "disks": [disk.to_dict() for disk in host.disks],
                    "processor": asdict(host.processor) if host.processor else None,
                }
                for host in self.hosts
            ],
            "links": [asdict(link) for link in self.links],
            "pairs": self.pairs,
            "all_pairs": self.all_pairs,
            "uses": [use.to_dict() for use in self.uses],
            "notes": list(self.notes),
        }

    def disk_rows(self) -> list[Row]:
        """Return a table of the disks."""
        rows: list[Row] = [("disk", "read", "write", "copy", "all at once: read", "write", "copy")]
        for host in self.hosts:
            for disk in host.disks:
                cells = [rate(value) for value in (*disk.alone, *disk.at_once)]
                rows.append((f"{host.name} {disk.place}", *cells))
        return rows

    def link_rows(self) -> list[Row]:
        """Return a table of the ways between hosts."""
        rows = [(f"{a.source} to {a.target}", a.channel, rate(a.bytes_s)) for a in self.links]
        return [("from and to", "channel", "rate"), *rows] if rows else []

    def processor_rows(self) -> list[Row]:
        """Return a table of memory and arithmetic."""
        rows: list[Row] = [
            (host.name, rate(found.memory_bytes_s), f"{found.gemm_flops_s / 1e9:.3g} GFLOP/s")
            for host in self.hosts
            if (found := host.processor) is not None
        ]
        return [("host", "memory copies", "products in float64"), *rows] if rows else []

    def total_rows(self) -> list[Row]:
        """Return a table of totals and their limits."""
        rows: list[Row] = [("all hosts together", *SHARES)]
        for use in self.uses:
            bound = "at least " if use.cluster.is_bound else ""
            cells = [
                (bound if name != "remote" else "")
                + f"{rate(use.cluster.total(share))} ({use.cluster.limit(share)})"
                for name, share in use.shares.items()
            ]
            rows.append((use.name, *cells, *["-"] * (len(SHARES) - len(cells))))
            if use.measured_bytes_s is not None:
                rows.append((f"{use.name} by this client", "-", "-", rate(use.measured_bytes_s)))
        return rows

    def gain_rows(self) -> list[Row]:
        """Return a table of the gains."""
        rows: list[Row] = [("gain by", *SHARES)]
        for use in self.uses:
            for gain in use.gains:
                factors = (gain.local, gain.mixed, gain.remote)
                cells = ("?" if f is None else f"{f:.2f}" for f in factors[: len(use.shares)])
                padded = (*cells, *["-"] * (len(SHARES) - len(use.shares)))
                rows.append((f"another {gain.part}, {use.name}", *padded))
        return rows

    def tables(self) -> list[list[Row]]:
        """Return all tables, each with its head."""
        return [
            self.disk_rows(), self.link_rows(), self.processor_rows(), self.total_rows(),
            self.gain_rows(),
        ]  # fmt: skip

    def findings(self) -> list[str]:
        """Return the conclusions, one sentence each."""
        said = [sentence for use in self.uses for sentence in use.findings()]
        pairs = f"pairs of hosts measured: {self.pairs} of {self.all_pairs}"
        return [*said, pairs if self.all_pairs else "pairs: none, there is one host", *self.notes]


def rate(bytes_s: float | None) -> str:
    """Format bytes per second, in powers of ten as for disks and networks."""
    if bytes_s is None or not math.isfinite(bytes_s):
        return "-"
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_s >= size:
            return f"{bytes_s / size:.3g} {unit}"
    return f"{bytes_s:.0f} B/s"
