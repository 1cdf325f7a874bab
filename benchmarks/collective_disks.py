"""Collectives in a Beowulf in a box: 8 processes and 1, 2 and 4 I/O servers with slow disks.

The limit is the sum of the disks' rates, which the testbed sets.
"""

import math

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.collective import MESH, WORDS
from benchmarks.collective_ranks import Ranks
from benchmarks.figures import Figure, Target
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.rounds import alternate
from benchmarks.streaming import rate
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool

SERVERS = (1, 2, 4)
SIDE = {"full": 320, "quick": 192, "tiny": 32}


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("collectives with slow disks", skipped=lacking)])
    most = 2 if setting.size == "tiny" else max(SERVERS)
    counts = [count for count in SERVERS if count <= most]
    return Outcome([figure for count in counts for figure in with_servers(setting, count)])


def with_servers(setting: Setting, servers: int) -> list[Figure]:
    """Measure with the given number of servers."""
    side = SIDE[setting.size]
    nbytes = 8 * side**3
    rounds = 1 if setting.size == "tiny" else 3
    with Testbed(
        setting.scratch, disks=servers, disk_bytes=nbytes + SPARE_BYTES, disk_bytes_s=DISK_BYTES_S
    ) as bed:
        directories = [disk.path / "data" for disk in bed.disks]
        pool = BedPool(bed, setting.scratch / f"pool{servers}", directories)
        with oc.connect(pool.url, key=pool.key_file) as there:
            oc.create_array(
                there / "u", (side,) * 3, "f8", disk_schema="natural", mesh=MESH
            ).close()
        with Ranks(math.prod(MESH), pool.url, pool.key_file) as ranks:
            ranks.seconds("hold", shape=[side // m for m in MESH])

            def run(direction: str) -> float:
                return nbytes / ranks.seconds(direction, name="u", schema=WORDS, mesh=MESH)

            runs = {"write": lambda: run("write"), "read": lambda: run("read")}
            found = alternate(f"{servers} servers", runs, rounds=rounds, show=rate)
    limit = servers * DISK_BYTES_S
    return [
        Figure(
            f"{direction}_all of {nbytes >> 20} MiB by {math.prod(MESH)} processes, "
            f"servers with 100 MB/s disks: {servers}; share of the sum",
            [value / limit for value in found.measures[direction]],
            Target("≥", 0.92),
            ours=rate(found.median(direction)),
            peak=rate(limit),
            details=dict(found.measures),
        )
        for direction in runs
    ]


if __name__ == "__main__":
    main("collective_disks", measure)
