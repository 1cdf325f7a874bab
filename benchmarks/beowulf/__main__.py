"""Sterling et al. 1996 on a testbed: tokens between pairs of hosts, and local and remote copies.

The hosts of a network share one medium, as they did in 1995. The predictions of `outcore balance`
are compared with measured gains.
"""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.beowulf import predictions
from benchmarks.beowulf.hosts import DISK_BYTES, Hosts, make_files
from benchmarks.beowulf.page import PAGE, PICTURE, draw, tables
from benchmarks.beowulf.points import Copies, Tokens
from benchmarks.figures import Figure, Target
from benchmarks.page_tables import put_into
from benchmarks.testbed import Testbed, why_not
from outcore.balance.balance import rate

DISK_BYTES_S = 2_000_000
NETWORKS = {"slow": 0.25, "fast": 1.0}
"""Rates of one channel over those of all disks."""


@dataclass(frozen=True)
class Scale:
    """Extent of the experiments; each number of `remote` copies is even, and not 1."""

    hosts: int
    remote: tuple[int, ...]
    copy_s: float
    sizes: tuple[int, ...]
    pairs: tuple[int, ...]
    token_s: float


SIZES = tuple(1 << n for n in range(8, 21, 2))
SCALES = {
    "full": Scale(16, (0, 2, 4, 8, 12, 16), 3.0, SIZES, (1, 2, 4, 8), 0.7),
    "quick": Scale(16, (0, 8, 16), 1.0, SIZES[::3], (1, 8), 0.3),
    "tiny": Scale(4, (0, 4), 0.3, (256, 65536), (1, 2), 0.1),
}


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("a Beowulf's tokens and copies", skipped=lacking)])
    scale = SCALES[setting.size]
    tokens, copies = [], []
    for network, ratio in NETWORKS.items():
        channel = int(ratio * scale.hosts * DISK_BYTES_S)
        with Testbed(
            setting.scratch, disks=scale.hosts, disk_bytes=DISK_BYTES, disk_bytes_s=DISK_BYTES_S,
            hosts=scale.hosts, networks=2, shared_bits_s=8 * channel,
        ) as bed:  # fmt: skip
            make_files([disk.path for disk in bed.disks])
            with Hosts(bed, [[disk.path] for disk in bed.disks]) as hosts:
                copies += list(copied(hosts, scale, network, channel))
                if network == "fast":
                    tokens = list(exchanged(hosts, scale))
    is_full = setting.size == "full"
    draw(tokens, copies, PICTURE if is_full else setting.output / PICTURE.name)
    checks = predictions.measure(setting)
    if is_full:
        put_into(PAGE, tables(tokens, copies, checks))
    figures = [*of_tokens(tokens), *of_copies(copies), *map(predictions.figure, checks)]
    details = {
        "tokens": [asdict(point) for point in tokens],
        "copies": [asdict(point) for point in copies],
        "checks": [asdict(check) for check in checks],
    }
    return Outcome(figures, details)


def copied(hosts: Hosts, scale: Scale, network: str, channel: int) -> Iterator[Copies]:
    """Measure copies on one network."""
    for channels in (1, 2):
        for remote in scale.remote:
            found = hosts.copies(remote, channels, scale.copy_s)
            yield Copies(network, channels, scale.hosts, remote, found, DISK_BYTES_S, channel)


def exchanged(hosts: Hosts, scale: Scale) -> Iterator[Tokens]:
    """Measure tokens of all sizes by all numbers of pairs."""
    for channels in (1, 2):
        for pairs in scale.pairs:
            for nbytes in scale.sizes:
                found = hosts.tokens(nbytes, pairs, channels, scale.token_s)
                yield Tokens(channels, pairs, nbytes, found)


def of_tokens(points: list[Tokens]) -> Iterator[Figure]:
    """Yield the gain of the second channel for the largest tokens and the most pairs."""
    most = max((point.pairs, point.nbytes) for point in points)
    one, two = (
        statistics.median(
            p.bytes_s for p in points if (p.pairs, p.nbytes) == most and p.channels == channels
        )
        for channels in (1, 2)
    )
    yield Figure(
        f"tokens of {most[1] >> 10} KiB, {most[0]} pairs: two channels against one",
        [two / one], ours=rate(two), rival=rate(one),
    )  # fmt: skip


def of_copies(points: list[Copies]) -> Iterator[Figure]:
    """Yield the share that stays when all copies are remote, and the model's error."""
    for point in points:
        if point.remote == point.hosts:
            local = next(
                p.bytes_s for p in points
                if (p.network, p.channels, p.remote) == (point.network, point.channels, 0)
            )  # fmt: skip
            yield Figure(
                f"{point.hosts} remote copies against local ones, network of {point.ratio:g} of "
                "the disks",
                [point.bytes_s / local], ours=rate(point.bytes_s), rival=rate(local),
            )  # fmt: skip
    yield Figure(
        "totals of copies: largest difference to the model",
        [max(abs(point.bytes_s / point.model_bytes_s - 1) for point in points)],
        Target("≤", 0.15),
    )


if __name__ == "__main__":
    main("beowulf", measure)
