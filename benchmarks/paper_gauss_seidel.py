"""Table 1 of Cettei, Ligon & Ross (1997) on one machine: sweeps over a growing matrix.

Complex double matrices of the paper's orders under one hard memory limit, with a fixed number of
sweeps. Virtual memory is ``numpy.memmap``. It is compared with the paper's algorithm on the block
interface, and with `oc.linalg.gauss_seidel`. As in the paper the matrix is 64 x 64 blocks.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended, run_module
from benchmarks.figures import Figure
from benchmarks.matrices import random_block
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.scratch import drop_cached

BLOCKS = 64
OVERHEAD_BYTES = 150 << 20
CAP_FACTOR = 30
"""Virtual memory is stopped after this many times the time of our slower method."""


@dataclass(frozen=True)
class Scale:
    """Orders, sweeps, limit, and runs at each order."""

    orders: tuple[int, ...]
    sweeps: int
    limit_bytes: int
    rounds: int


SCALES = {
    "full": Scale((1024, 2048, 3072, 4096, 5120, 6144, 8192), 20, 512 << 20, 3),
    "quick": Scale((1024, 2048, 4096), 10, 320 << 20, 1),
    "tiny": Scale((256, 512), 2, 256 << 20, 1),
}


def measure(setting: Setting) -> Outcome:
    scale = SCALES[setting.size]
    with memory_limit(scale.limit_bytes) as limit:
        if limit is None:
            return Outcome([Figure("sweeps", skipped="needs root and a memory control group")])
        return Outcome([_at(setting, scale, limit, n) for n in scale.orders])


def _at(setting: Setting, scale: Scale, limit: MemoryLimit, n: int) -> Figure:
    directory = setting.scratch / f"{n}"
    directory.mkdir()
    try:
        return _compare(_Sweeps(setting, scale, limit, n, directory), scale, n)
    finally:
        shutil.rmtree(directory)


def _compare(sweeps: "_Sweeps", scale: Scale, n: int) -> Figure:
    times: dict[str, list[float]] = {"gauss_seidel": [], "blocks": [], "memmap": []}
    sums: list[float] = []
    end = ""
    for _ in range(scale.rounds):
        for way in ("gauss_seidel", "blocks"):
            ended = sweeps.outcore(way)
            times[way].append(ended.seconds)
            sums.append(ended.found["sum"])
        cap_s = CAP_FACTOR * max(times["gauss_seidel"][-1], times["blocks"][-1]) + 10
        ended = sweeps.memmap(cap_s)
        if ended.is_out_of_memory or ended.is_out_of_time:
            end = "out of memory" if ended.is_out_of_memory else f"stopped after {cap_s:.0f} s"
            break
        times["memmap"].append(ended.seconds)
        sums.append(ended.found["sum"])
    if not np.allclose(sums, sums[0], rtol=1e-9):
        raise AssertionError(f"the solutions differ: {sums}")
    middle = {way: float(np.median(found)) if found else math.nan for way, found in times.items()}
    ours = f"gauss_seidel {middle['gauss_seidel']:.2f} s, blocks {middle['blocks']:.2f} s"
    return Figure(
        f"n = {n}, {scale.sweeps} sweeps, matrix / limit {16 * n * n / scale.limit_bytes:.2g}: "
        "seconds of gauss_seidel",
        times["gauss_seidel"],
        unit="s",
        ours=ours,
        rival=end or f"memmap {middle['memmap']:.2f} s",
        details={"times": times, "end": end},
    )


class _Sweeps:
    """The same sweeps over the same matrix, each method in a process of its own."""

    def __init__(
        self, setting: Setting, scale: Scale, limit: MemoryLimit, n: int, directory: Path
    ) -> None:
        self.setting, self.scale, self.limit, self.n = setting, scale, limit, n
        self.rows = n // BLOCKS
        self.flat, self.array = directory / "A.bin", directory / "A"
        chunks = (self.rows, min(n, max((4 << 20) // (16 * self.rows), 1)))
        with (
            self.flat.open("wb") as file,
            oc.create_array(self.array, (n, n), "c16", chunks=chunks) as A,
        ):
            for first in range(0, n, self.rows):
                strip = self.strip(first)
                strip.tofile(file)
                A[first : first + self.rows] = strip
            A.flush()

    def strip(self, first: int) -> npt.NDArray[Any]:
        """Return rows of a random matrix with a diagonal for which sweeps converge."""
        block = np.ascontiguousarray(random_block((self.rows, self.n), "c16", [first]))
        here = np.arange(self.rows)
        block[here, first + here] += 2 * math.sqrt(self.n)
        return block

    def outcore(self, way: str) -> Ended:
        memory = self.scale.limit_bytes - OVERHEAD_BYTES
        if way == "blocks":
            # The factored diagonal blocks need memory besides the buffers.
            memory -= 16 * self.n * self.rows
        arguments = [way, self.array, self.rows, self.scale.sweeps, memory]
        return self._run("benchmarks.sweeps_outcore", arguments, None)

    def memmap(self, cap_s: float) -> Ended:
        arguments = [self.flat, self.n, self.rows, self.scale.sweeps]
        return self._run("benchmarks.sweeps_memmap", arguments, cap_s)

    def _run(self, module: str, arguments: list[Any], timeout_s: float | None) -> Ended:
        # Pages that are cached now would not count against the limit.
        drop_cached(self.flat)
        return run_module(
            module, arguments, environment=self.setting.child_environment(),
            timeout_s=timeout_s, limit=self.limit,
        )  # fmt: skip


if __name__ == "__main__":
    main("paper_gauss_seidel", measure)
