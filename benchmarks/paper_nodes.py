"""Figure 10 of Cettei, Ligon & Ross (1997) on one machine: I/O servers and processes on hosts.

Sweeps of Gauss-Seidel over a complex matrix of the paper's order, for each number of I/O servers
and processes. Each server has a slow disk, and each host one link. The processes run on the hosts
of the servers, as in the figure (MDBI), or on hosts of their own (MDBI-S).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.jobs import VARIABLES, job_on
from benchmarks.testbed.pool import BedPool

BLOCKS = 64
LINK_BITS_S = 1_000_000_000
OF_MEMORY = 2.25
"""The matrix over the memory of four processes, as in the paper's table 1 at this order."""


@dataclass(frozen=True)
class Scale:
    """Order, sweeps, rounds, and numbers of servers and of processes."""

    n: int
    sweeps: int
    rounds: int
    counts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of the matrix."""
        return 16 * self.n**2


SCALES = {
    "full": Scale(6144, 3, 3, (1, 2, 4)),
    "quick": Scale(2048, 3, 1, (1, 2, 4)),
    "tiny": Scale(512, 2, 1, (1, 2)),
}


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("sweeps on hosts", skipped=lacking)])
    scale = SCALES[setting.size]
    figures: list[Figure] = []
    for servers in scale.counts:
        for is_separate in (False, True):
            figures += with_servers(setting, scale, servers, is_separate=is_separate)
            setting.keep(Outcome(figures))
    return Outcome(figures)


def with_servers(
    setting: Setting, scale: Scale, servers: int, *, is_separate: bool
) -> Iterator[Figure]:
    """Measure with servers on the hosts of processes, or on hosts of their own."""
    most = max(scale.counts)
    with Testbed(
        setting.scratch,
        disks=servers,
        disk_bytes=scale.nbytes // servers + SPARE_BYTES,
        disk_bytes_s=DISK_BYTES_S,
        hosts=2 * most,
        link_bits_s=LINK_BITS_S,
    ) as bed:
        theirs = bed.hosts[most:] if is_separate else bed.hosts
        pool = BedPool(
            bed,
            setting.scratch / f"pool{servers}{is_separate:d}",
            [disk.path / "data" for disk in bed.disks],
            host=theirs[0],
            hosts=theirs,
        )
        memory = max(int(scale.nbytes / OF_MEMORY / 4), 4 << 20)
        for processes in scale.counts:
            words = [pool.url, pool.key_file, scale.n, scale.n // BLOCKS, scale.sweeps, memory]
            hosts = bed.hosts[:processes]
            found = [run(bed, hosts, words) for _ in range(scale.rounds)]
            where = "hosts of their own" if is_separate else "the processes' hosts"
            yield Figure(
                f"{scale.sweeps} sweeps, n = {scale.n}, processes: {processes}, "
                f"servers on {where}: {servers}",
                [each["seconds"] for each in found],
                unit="s",
                ours=f"{found[0]['bytes_read'] / 2**20:.0f} MiB read by the first process",
                details={"servers": servers, "processes": processes, "is_separate": is_separate},
            )


def run(bed: Testbed, hosts: Sequence[Any], words: Sequence[object]) -> dict[str, Any]:
    """Run a job with a process on each host; return the figures that the first one prints."""
    environment = ["env", *(f"{name}={value}" for name, value in VARIABLES.items())]
    said = bed.run([*environment, *job_on(hosts, "benchmarks.sweep_processes", words)])
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    main("paper_nodes", measure)
