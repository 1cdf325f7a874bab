"""Figures 3 to 9 of Seamons et al. (1995) on one machine: collectives of arrays of several sizes.

Eight processes as 2 x 2 x 2 use 1, 2 and 4 I/O servers, in natural and in traditional order. Each
server has a slow disk, like the paper's I/O nodes, or an infinitely fast one. The same run measures
the peaks: of a disk by one process that moves a file in large requests, of the transport by one TCP
connection.
"""

import functools
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import outcore as oc
from benchmarks import iperf3
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.collective import MESH, WORDS, on_disk
from benchmarks.collective_ranks import Ranks
from benchmarks.figures import Figure
from benchmarks.panda_page import Point, draw
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.rounds import alternate
from benchmarks.streaming import rate
from benchmarks.testbed import Disk, Testbed, why_not
from benchmarks.testbed.pool import BedPool

PROCESSES = 8
ORDERS = ("natural", "traditional")
CALLS = ("write", "read")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "panda.png"


@dataclass(frozen=True)
class Scale:
    """Extent of the measurement. `peak_mib`: size of the file that measures the peak of a disk."""

    servers: tuple[int, ...]
    sizes_mib: tuple[int, ...]
    rounds: int
    peak_mib: int


SCALES = {
    "full": Scale((1, 2, 4), (16, 32, 64, 128, 256, 512), 2, 256),
    "quick": Scale((1, 2, 4), (16, 64), 1, 64),
    "tiny": Scale((2,), (1, 2), 1, 1),
}


def measure(setting: Setting) -> Outcome:
    lacking = why_not() or (None if iperf3.is_installed() else "there is no iperf3")
    if lacking:
        return Outcome([Figure("collectives of the sizes that Panda's had", skipped=lacking)])
    scale = SCALES[setting.size]
    tcp = statistics.median(iperf3.rate("127.0.0.1", seconds=1) for _ in range(scale.rounds))
    points = [
        point for servers in scale.servers for point in with_servers(setting, scale, servers, tcp)
    ]
    draw(points, PICTURE if setting.size == "full" else setting.output / PICTURE.name)
    largest = [point for point in points if point.mib == max(scale.sizes_mib)]
    return Outcome([figure(point) for point in largest], {"points": [asdict(p) for p in points]})


def with_servers(setting: Setting, scale: Scale, servers: int, tcp: float) -> Iterator[Point]:
    """Measure arrays of all sizes on the given number of servers."""
    # Two arrays of the largest size, and one of the previous size that still exists.
    room = 3 * (max(scale.sizes_mib) << 20) // servers + (scale.peak_mib << 20) + SPARE_BYTES
    with Testbed(setting.scratch, disks=servers, disk_bytes=room, disk_bytes_s=DISK_BYTES_S) as bed:
        disk = disk_peaks(bed, bed.disks[0], scale.peak_mib)
        directories = [each.path / "data" for each in bed.disks]
        pool = BedPool(bed, setting.scratch / f"pool{servers}", directories)
        with (
            oc.connect(pool.url, key=pool.key_file) as there,
            Ranks(PROCESSES, pool.url, pool.key_file) as ranks,
        ):
            for mib in scale.sizes_mib:
                make(there, ranks, mib)
                found = rates_of(ranks, mib, scale.rounds, f"{servers} servers, {mib} MiB")
                for (call, order, has_disks), rates in found.items():
                    peak = servers * disk[call] if has_disks else tcp
                    yield Point(call, order, has_disks, servers, mib, rates, peak)


def make(there: oc.Pool, ranks: Ranks, mib: int) -> None:
    """Create an array of this size in each order, and let the processes allocate their parts."""
    elements_log2 = (mib << 20).bit_length() - 1 - 3
    shape = [1 << ((elements_log2 + more) // 3) for more in range(3)]
    for order in ORDERS:
        oc.create_array(there / order, shape, "f8", if_exists="overwrite", **on_disk(order)).close()
    ranks.seconds("hold", shape=[n // m for n, m in zip(shape, MESH, strict=True)])


def rates_of(
    ranks: Ranks, mib: int, rounds: int, title: str
) -> dict[tuple[str, str, bool], list[float]]:
    """Return bytes per second of every call and order, with and without disks, in rounds."""

    def run(call: str, order: str, has_disks: bool) -> float:
        seconds = ranks.seconds(call, name=order, schema=WORDS, mesh=MESH, skip_disk=not has_disks)
        return (mib << 20) / seconds

    ways = list(itertools.product(CALLS, ORDERS, (True, False)))
    runs = {
        f"{call} {order}{'' if has_disks else ' without disks'}": functools.partial(
            run, call, order, has_disks
        )
        for call, order, has_disks in ways
    }
    found = alternate(title, runs, rounds=rounds, warmups=0, show=rate)
    return dict(zip(ways, found.measures.values(), strict=True))


def disk_peaks(bed: Testbed, disk: Disk, mib: int) -> dict[str, float]:
    """Return bytes per second of one process that writes and reads a file by requests of 1 MiB."""
    file = disk.path / "peak"
    copy = ("dd", "bs=1M", f"count={mib}", "status=none")
    commands = {
        "write": (*copy, "if=/dev/zero", f"of={file}", "oflag=direct", "conv=fsync"),
        "read": (*copy, f"if={file}", "of=/dev/null", "iflag=direct"),
    }
    found = {}
    for call, command in commands.items():
        begin = time.monotonic()
        bed.run(command)
        found[call] = (mib << 20) / (time.monotonic() - begin)
    file.unlink()
    return found


def figure(point: Point) -> Figure:
    """Return a row of the table: the share of the peak."""
    servers = f"{point.servers} server" + "s" * (point.servers != 1)
    limit = "the disks' peak" if point.has_disks else "TCP's rate, without disks"
    return Figure(
        f"{point.call}_all of {point.mib} MiB, {point.order} order, {servers}: share of {limit}",
        point.shares,
        ours=rate(point.median),
        peak=rate(point.peak_bytes_s),
    )


if __name__ == "__main__":
    main("paper_panda", measure)
