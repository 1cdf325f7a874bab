"""Logical disks against striped files, each I/O server with a slow disk (Womble et al. 1993).

Four processes solve with the factors of one matrix for many right-hand sides. From striped files
each process reads all factors for its own columns. On logical disks each panel lies on one server,
and its owner reads it and broadcasts it to the others. A process and a server share each host.
"""

import functools
import json
from typing import Any

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.jobs import VARIABLES, job_on
from benchmarks.testbed.pool import BedPool

PROCESSES = 4
ORDER = {"full": 8_192, "quick": 4_096, "tiny": 512}
COLUMNS = 64
LINKS = {None: "links without a limit", 1_000_000_000: "links of 1 Gbit/s"}
"""Rates of the links in bits per second."""


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("logical disks against striped files", skipped=lacking)])
    links = list(LINKS)[: 1 if setting.size == "tiny" else None]
    return Outcome([with_links(setting, bits_s) for bits_s in links])


def with_links(setting: Setting, bits_s: int | None) -> Figure:
    """Measure both ways with links of a rate."""
    n, rounds = ORDER[setting.size], 1 if setting.size == "tiny" else 3
    with Testbed(
        setting.scratch,
        disks=PROCESSES,
        # The matrix, and its factors twice.
        disk_bytes=3 * 8 * n * n // PROCESSES + SPARE_BYTES,
        disk_bytes_s=DISK_BYTES_S,
        hosts=PROCESSES,
        link_bits_s=bits_s,
    ) as bed:
        directories = [disk.path / "data" for disk in bed.disks]
        pool = BedPool(
            bed, setting.scratch / f"pool{bits_s}", directories, host=bed.hosts[0], hosts=bed.hosts
        )
        words = [pool.url, pool.key_file, n, COLUMNS, rounds]
        command = ["env", *(f"{name}={value}" for name, value in VARIABLES.items())]
        job = job_on(bed.hosts, "benchmarks.solve_processes", words)
        found: dict[str, Any] = json.loads(bed.run([*command, *job]).splitlines()[-1])
    pairs = zip(found["striped"], found["logical"], strict=True)
    limit_s = 8 * n * n / (PROCESSES * DISK_BYTES_S)
    median = functools.partial(_median, found)
    return Figure(
        f"{PROCESSES} processes solve for {COLUMNS} columns with factors of n = {n}, a 100 MB/s "
        f"disk each, {LINKS[bits_s]}: striped files over logical disks",
        [striped / logical for striped, logical in pairs],
        Target("≥", 2) if bits_s is None else None,
        ours=f"{median('logical'):.2f} s",
        rival=f"{median('striped'):.2f} s",
        peak=f"{limit_s:.2f} s to read the factors once",
        details=found | {"link_bits_s": bits_s, "limit_s": limit_s},
    )


def _median(found: dict[str, list[float]], way: str) -> float:
    return sorted(found[way])[len(found[way]) // 2]


if __name__ == "__main__":
    main("logical_disks", measure)
