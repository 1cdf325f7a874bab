"""An array written and read by MPI-IO through the preloaded library, by 8 processes together.

It is compared with outcore's own collectives on the same servers, and with plain MPI-IO on the same
disk. A memory type of many short runs is compared with contiguous memory.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi4py

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.collective import MESH, SIDE, WORDS, drop_from_memory
from benchmarks.collective_ranks import Ranks
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Rounds, alternate
from benchmarks.streaming import rate
from outcore._util import mpi_io
from outcore.pool import local_pool
from outcore.pool import state as pool_state

RUNS = {"full": 1_000_000, "quick": 1_000_000, "tiny": 1000}
PROCESSES = math.prod(MESH)
MPICC = str(Path(mpi4py.__file__).parents[4] / "bin" / "mpicc")


def measure(setting: Setting) -> Outcome:
    side, rounds = SIDE[setting.size], 1 if setting.size == "tiny" else 5
    directories = [setting.scratch / "a", setting.scratch / "b"]
    list(local_pool.start(directories, "127.0.0.1:0"))
    try:
        url = local_pool.url_of(directories[0])
        key = directories[0] / pool_state.STATE / pool_state.KEY
        library = mpi_io.library(MPICC)
        preloaded = {"LD_PRELOAD": str(library), "OUTCORE_KEY": str(key)}
        with oc.connect(url, key=key) as pool:
            oc.create_array(pool / "own", (side,) * 3, "f8", disk_schema="traditional").close()
        with Ranks(PROCESSES, url, key) as own, Ranks(PROCESSES, url, key, (), preloaded) as by_mpi:
            job = Job(setting, side, f"{url}/flat", own, by_mpi)
            runs = RUNS[setting.size]
            types = memory_type(by_mpi, f"{url}/runs", runs, rounds)
            return Outcome([*job.collectives(rounds), types])
    finally:
        local_pool.stop(directories[0])


class Job:
    """The work, and its figures."""

    def __init__(self, setting: Setting, side: int, flat: str, own: Ranks, by_mpi: Ranks) -> None:
        self.side, self.nbytes = side, 8 * side**3
        self.flat, self.plain = flat, setting.scratch / "plain.mpi"
        self.own, self.by_mpi = own, by_mpi
        for ranks in (own, by_mpi):
            ranks.seconds("hold", shape=[side // m for m in MESH])

    def collectives(self, rounds: int) -> list[Figure]:
        """Compare with outcore's own collectives, and with plain MPI-IO."""
        figures = []
        for direction in ("write", "read"):
            runs = {
                "preloaded": self.mpi(self.by_mpi, direction, self.flat),
                "own": self.run_own(direction),
                "plain": self.mpi(self.own, direction, str(self.plain)),
            }
            found = alternate(direction, runs, rounds=rounds, show=rate)
            for rival, target in (("own", Target("≥", 0.85)), ("plain", None)):
                whose = f"outcore's {direction}_all" if rival == "own" else "plain MPI-IO"
                what = f"MPI_File_{direction}_all: rate against {whose}"
                figures.append(self.figure(what, found, rival, target))
        return figures

    def run_own(self, direction: str) -> Callable[[], float]:
        """Return bytes per second of outcore's own collective."""
        return lambda: (
            self.nbytes / self.own.seconds(direction, name="own", schema=WORDS, mesh=MESH)
        )

    def mpi(self, ranks: Ranks, direction: str, path: str) -> Callable[[], float]:
        """Return bytes per second of MPI-IO. Reads of a plain file come from the disk."""
        view: dict[str, Any] = {"path": path, "shape": [self.side] * 3, "mesh": MESH}

        def run() -> float:
            if direction == "read" and path == str(self.plain):
                drop_from_memory(self.plain)
            return self.nbytes / ranks.seconds(f"mpi_{direction}", **view)

        return run

    def figure(self, what: str, found: Rounds, rival: str, target: Target | None) -> Figure:
        return Figure(
            f"{self.side}³ float64, {PROCESSES} processes, {what}",
            found.ratios("preloaded", rival),
            target,
            ours=rate(found.median("preloaded")),
            rival=rate(found.median(rival)),
            details=dict(found.measures),
        )


def memory_type(by_mpi: Ranks, name: str, count: int, rounds: int, where: str = "") -> Figure:
    """Measure the time that a memory type of many runs adds, over that of contiguous memory."""
    by_mpi.seconds("hold", shape=[2 * count])
    run = functools.partial(by_mpi.seconds, "mpi_runs", path=name, count=count)
    runs = {"runs": functools.partial(run, step=2), "contiguous": functools.partial(run, step=1)}
    found = alternate(f"memory types{where}", runs, rounds=rounds)
    return Figure(
        f"memory type of {count:,} runs in each of {PROCESSES} processes{where}: added time",
        [ratio - 1 for ratio in found.ratios("runs", "contiguous")],
        Target("≤", 0.1),
        ours=f"{found.median('runs'):.3f} s",
        rival=f"{found.median('contiguous'):.3f} s",
        details=dict(found.measures),
    )


if __name__ == "__main__":
    main("mpi_io", measure)
