"""Orders of chunks and ways to read, on 1 to 8 slow disks, and how often `advise` is right.

An array of three dimensions lies in a pool whose servers have a disk of 100 MB/s each. One process
reads planes, columns, boxes and points, one at a time, from each order of its chunks, and from the
layout that `advise` chooses for these reads. The rule of `advise` predicts the fastest of them. It
is right if no other layout is more than 5 % faster. Layouts of equal cost count as one prediction.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.pool_disks import DISK_BYTES_S, SPARE_BYTES
from benchmarks.scratch import drop_cached
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.pool import BedPool
from outcore._core import Arena, ArrayFile
from outcore._util import budget
from outcore._util.streams import Box
from outcore.array.access import patterns_of
from outcore.array.access_figures import Sample
from outcore.array.advise import MEMORY_BYTES

SIDE = {"full": 384, "quick": 192, "tiny": 64}
DISKS = {"full": (1, 4, 8), "quick": (1, 4), "tiny": (2,)}
ROUNDS = {"full": (0.7, 3), "quick": (0.4, 1), "tiny": (0.001, 1)}
"""Seconds of a round of reads, and the number of rounds. Short bursts do not feel a slow disk."""

MOST_READS = 512
"""Different reads of a word; then the first one follows again."""

COUNTED = 16
"""Reads for which the counters of the servers are asked."""

MESHES = {1: (1, 1, 1), 2: (2, 1, 1), 4: (2, 2, 1), 8: (2, 2, 2)}
ORDERS = ("row-major", "column-major", "hilbert", "z-order")
NEAR = 0.95
"""Rates above this share of the best are as good: two measurements differ by as much."""


@dataclass(frozen=True)
class Point:
    """Reads of one kind from one layout.

    Attributes
    ----------
    disks, access, layout
        Number of disks; word for the reads; order of chunks, ``"blocks"`` or ``"advised"``.
    chunks
        Shape of a chunk.
    rates
        Wanted bytes per second, one for each round.
    requests
        Messages to the servers for one read.
    imbalance
        Bytes that the busiest server of a read sent, over the mean of all servers.
    cost
        The cost that the rule of `advise` predicts.
    """

    disks: int
    access: str
    layout: str
    chunks: tuple[int, ...]
    rates: Sequence[float]
    requests: float
    imbalance: float
    cost: float

    @property
    def bytes_s(self) -> float:
        """The median of the rates."""
        return statistics.median(self.rates)


def words(side: int) -> list[str]:
    """Return the ways to read a cube."""
    boxes = ["x".join([str(side // part)] * 3) for part in (16, 8, 4)]
    return ["planes:0", "planes:2", "columns", *(f"boxes:{box}" for box in boxes), "points"]


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("orders of chunks on slow disks", skipped=lacking)])
    points: list[Point] = []
    for disks in DISKS[setting.size]:
        points += with_disks(setting, disks)
        setting.keep(outcome(points))
    return outcome(points)


def outcome(points: list[Point]) -> Outcome:
    """Return a figure for each way to read, and the share of right predictions."""
    figures = []
    for (disks, access), mine in cases(points).items():
        chosen, best = predicted(mine)[0], fastest(mine)
        figures.append(
            Figure(
                f"{access}, {disks} disks: rate of the predicted layout over the best one",
                [chosen.bytes_s / best.bytes_s],
                ours=f"{chosen.bytes_s / 1e6:.3g} MB/s, {chosen.layout}",
                rival=f"{best.bytes_s / 1e6:.3g} MB/s, {best.layout}",
            )
        )
    share = Figure(
        f"predictions within 5 % of the best layout, of {len(figures)}: share",
        [sum(figure.median >= NEAR for figure in figures) / len(figures)],
        Target("≥", 0.9),
    )
    return Outcome([*figures, share], {"points": [asdict(point) for point in points]})


def cases(points: Sequence[Point]) -> dict[tuple[int, str], list[Point]]:
    """Return the layouts of each number of disks and way to read."""
    found: dict[tuple[int, str], list[Point]] = {}
    for point in points:
        found.setdefault((point.disks, point.access), []).append(point)
    return found


def fastest(points: Sequence[Point]) -> Point:
    """Return the layout of the highest rate."""
    return max(points, key=lambda point: point.bytes_s)


def predicted(points: Sequence[Point]) -> list[Point]:
    """Return the layouts of the lowest cost, the fastest of them first."""
    least = min(point.cost for point in points)
    equal = [point for point in points if point.cost <= least * (1 + 1e-9)]
    return sorted(equal, key=lambda point: -point.bytes_s)


def with_disks(setting: Setting, disks: int) -> list[Point]:
    """Measure all layouts with a number of disks."""
    side = SIDE[setting.size]
    shape = (side,) * 3
    # The new array, the one that it replaces, and padding.
    disk_bytes = 3 * 8 * side**3 // disks + SPARE_BYTES
    with Testbed(
        setting.scratch, disks=disks, disk_bytes=disk_bytes, disk_bytes_s=DISK_BYTES_S
    ) as bed:
        directories = [disk.path / "data" for disk in bed.disks]
        served = BedPool(bed, setting.scratch / f"pool{disks}", directories)
        with oc.connect(served.url, key=served.key_file) as pool:
            every = words(side)
            points = []
            for layout, options in layouts(disks):
                A = made(pool, shape, options)
                points += [read(pool, A, layout, word, setting, directories) for word in every]
            for word in every:
                A = made(pool, shape, {"access": word})
                points.append(read(pool, A, "advised", word, setting, directories))
    return points


def layouts(disks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the layouts that do not depend on the reads, as options of `create_array`."""
    for order in ORDERS:
        yield order, {"chunk_order": order}
    yield "blocks", {"disk_schema": "block,block,block", "mesh": MESHES[disks]}


def made(pool: oc.Pool, shape: tuple[int, ...], options: dict[str, Any]) -> oc.Array:
    """Create the array, and write all of it."""
    A = oc.create_array(pool / "A", shape, "f8", if_exists="overwrite", **options)
    for box in A.chunk_boxes():
        A[box] = np.ones([s.stop - s.start for s in box])
    A.flush()
    return A


def read(
    pool: oc.Pool, A: oc.Array, layout: str, word: str, setting: Setting, directories: list[Path]
) -> Point:
    """Read the boxes of a word, one after another, in some rounds."""
    [pattern] = patterns = patterns_of(word, A.shape, A.dtype.itemsize, MEMORY_BYTES // 8)
    servers = len(directories)
    cost = Sample(patterns, A.shape, MEMORY_BYTES, servers).counted(A.metadata).cost
    boxes = pattern.sample(A.shape, MOST_READS)
    file = A.open_file(Arena(MEMORY_BYTES), budget.INDEXING_BYTES)
    seconds, rounds = ROUNDS[setting.size]
    rates = []
    for _ in range(rounds):
        for directory in directories:
            drop_cached(directory)
        wanted, begun, busy_s = 0, time.perf_counter(), 0.0
        for box in itertools.cycle(boxes):
            wanted += fetched(A, file, box)
            busy_s = time.perf_counter() - begun
            if busy_s > seconds:
                break
        rates.append(wanted / busy_s)
    return Point(
        servers, word, layout, A.chunks, rates, *sent_by_servers(pool, A, file, boxes[:COUNTED]),
        cost,
    )  # fmt: skip


def fetched(A: oc.Array, file: ArrayFile, box: Box) -> int:
    """Read a box; return its bytes."""
    order: Any = A.order
    data = np.empty([s.stop - s.start for s in box], A.dtype, order=order)
    file.submit_read([s.start for s in box], [1] * A.ndim, data).wait()
    return data.nbytes


def sent_by_servers(
    pool: oc.Pool, A: oc.Array, file: ArrayFile, boxes: list[Box]
) -> tuple[float, float]:
    """Return the messages for a read, and the imbalance of the servers."""
    messages, busiest, sent = 0, 0, 0
    for box in boxes:
        before = pool.servers()
        fetched(A, file, box)
        pairs = list(zip(before, pool.servers(), strict=True))
        each = [after.bytes_read - earlier.bytes_read for earlier, after in pairs]
        # The second question for the counters is a request itself.
        messages += sum(after.requests - earlier.requests - 1 for earlier, after in pairs)
        busiest, sent = busiest + max(each), sent + sum(each)
    return messages / len(boxes), busiest * len(each) / sent


if __name__ == "__main__":
    main("distributions", measure)
