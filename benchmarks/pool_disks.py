"""A Beowulf in a box: one client and 1 to 8 I/O servers, each with a slow disk of its own.

The limit is the sum of the disks' rates, which the testbed sets (Sterling et al. 1995: parallel
disks and channels in balance). It also compares two clients on halves of a file with one on all of
it.
"""

import functools
from typing import Any

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_client import PoolClient, together
from benchmarks.rounds import alternate
from benchmarks.streaming import rate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool

DISK_BYTES_S = 100_000_000
SERVERS = (1, 2, 4, 8)
PER_SERVER_BYTES = {"full": 384 << 20, "quick": 96 << 20, "tiny": 4 << 20}
UNIT_BYTES = 1 << 20
SPARE_BYTES = 96 << 20
"""Disk space besides the share of the file: checksums, the log, the file system itself."""


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("servers with slow disks", skipped=lacking)])
    most = 2 if setting.size == "tiny" else max(SERVERS)
    figures = []
    for servers in (count for count in SERVERS if count <= most):
        figures += with_servers(setting, servers, compare_halves=servers == min(4, most))
    return Outcome(figures)


def with_servers(setting: Setting, servers: int, *, compare_halves: bool) -> list[Figure]:
    """Measure with the given number of servers."""
    share = PER_SERVER_BYTES[setting.size]
    nbytes = share * servers
    rounds = 1 if setting.size == "tiny" else 3
    with Testbed(
        setting.scratch, disks=servers, disk_bytes=share + SPARE_BYTES, disk_bytes_s=DISK_BYTES_S
    ) as bed:
        directories = [disk.path / "data" for disk in bed.disks]
        pool = BedPool(bed, setting.scratch / f"pool{servers}", directories)
        with (
            PoolClient(pool.url, pool.key_file) as one,
            PoolClient(pool.url, pool.key_file) as other,
        ):
            one.seconds("make", name="f", nbytes=nbytes, stripe_unit_bytes=UNIT_BYTES)
            figures = []
            for direction in ("write", "read"):
                whole = {"do": direction, "name": "f", "offset": 0, "nbytes": nbytes}
                halves = [
                    whole | {"offset": offset, "nbytes": nbytes // 2} for offset in (0, nbytes // 2)
                ]
                runs = {"one": functools.partial(transfer, nbytes, [one], [whole])}
                if compare_halves:
                    runs["two"] = functools.partial(transfer, nbytes, [one, other], halves)
                found = alternate(
                    f"{servers} servers, {direction}", runs, rounds=rounds, warmups=0, show=rate
                )
                limit = servers * DISK_BYTES_S
                values = [value / limit for value in found.measures["one"]]
                figures.append(
                    Figure(
                        f"{direction} by one client, {nbytes >> 20} MiB, "
                        f"servers with 100 MB/s disks: {servers}; share of the sum",
                        values,
                        Target("≥", 0.92),
                        ours=rate(found.median("one")),
                        peak=rate(limit),
                        details=dict(found.measures),
                    )
                )
                if compare_halves:
                    figures.append(
                        Figure(
                            f"{direction} by two clients, half the file each, against one; "
                            f"{servers} servers: rate",
                            found.ratios("two", "one"),
                            # "No slower", within the difference of two measurements of one rate.
                            Target("≥", 0.98),
                            ours=rate(found.median("two")),
                            rival=rate(found.median("one")),
                            details=dict(found.measures),
                        )
                    )
    return figures


def transfer(nbytes: int, clients: list[PoolClient], calls: list[dict[str, Any]]) -> float:
    """Return bytes per second that the clients move together."""
    return nbytes / together(clients, calls)


if __name__ == "__main__":
    main("pool_disks", measure)
