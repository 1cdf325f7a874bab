"""A sweep of Gauss-Seidel with half of the matrix in memory: its words, and the disk's rate.

The rivals are a stream over the same array in the same run, and fio reading the same file. The time
of a sweep is the difference of two calls with different numbers of sweeps, so that setup and checks
do not count.
"""

import mmap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks import fio
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_block
from benchmarks.rounds import Contender, alternate
from benchmarks.streaming import shard_file
from outcore.report.report import Report

ORDERS = {"full": 16384, "quick": 4096, "tiny": 512}
SWEEPS = (2, 22)
RING_TILES = 8


def measure(setting: Setting) -> Outcome:
    n = ORDERS[setting.size]
    with dominant_array(setting, n) as A:
        cases = {
            "a sweep": Sweeping(A, direction="forward"),
            "a half-sweep, symmetric": Sweeping(A, direction="symmetric"),
        }
        figures = []
        reading = fio_reading(A)
        for name, sweeping in cases.items():
            bound = 0.5 if name == "a sweep" else 0.27
            contenders: dict[str, Contender] = {
                "outcore": sweeping.rate,
                "stream": partial(stream_rate, A),
            }
            found = alternate(
                f"Gauss-Seidel n={n}, {name}",
                contenders | reading,
                rounds=1 if setting.size == "tiny" else 5,
                show=rated,
            )
            what = f"Gauss-Seidel float64, n = {n}, half of the matrix in memory, {name}"
            figures += [
                Figure(
                    f"{what}: words read over n²",
                    [sweeping.words / n**2],
                    Target("≤", bound),
                    details={"report": sweeping.report.to_dict()},
                ),
                Figure(
                    f"{what}: rate against a stream",
                    found.ratios("outcore", "stream"),
                    Target("≥", 0.9),
                    ours=rated(found.median("outcore")),
                    rival=rated(found.median("stream")),
                    details=dict(found.measures),
                ),
            ]
            against_fio = f"{what}: rate against fio"
            if not reading:
                figures.append(Figure(against_fio, skipped="fio is not installed"))
                continue
            figures.append(
                Figure(
                    against_fio,
                    found.ratios("outcore", "fio"),
                    ours=rated(found.median("outcore")),
                    rival=rated(found.median("fio")),
                )
            )
    return Outcome(figures)


def dominant_array(setting: Setting, n: int) -> oc.Array:
    """Create a random matrix with a diagonal for which sweeps converge."""

    def fill(rows: slice, cols: slice) -> npt.NDArray[Any]:
        shape = (rows.stop - rows.start, cols.stop - cols.start)
        block = random_block(shape, "f8", [rows.start, cols.start])
        here = np.arange(max(rows.start, cols.start), min(rows.stop, cols.stop))
        block[here - rows.start, here - cols.start] += 2 * np.sqrt(n)
        return block

    array = oc.create_array(
        setting.scratch / "A", (n, n), "f8", fill=fill, memory="128 MiB", progress=False
    )
    array.flush()
    return array


class Sweeping:
    """Sweeps over a matrix, half of which is in memory."""

    def __init__(self, A: oc.Array, **options: Any) -> None:
        slot_bytes = A.metadata.grid().slot_bytes
        self.sweep: Callable[..., tuple[Any, Report]] = partial(
            oc.linalg.gauss_seidel, A, np.ones(len(A)), pin=0.5, block=256, tol=None,
            memory=A.nbytes * 5 // 8 + 2 * RING_TILES * slot_bytes, progress=False, **options,
        )  # fmt: skip
        self.words = float("nan")
        self.report: Report

    def rate(self) -> float:
        """Return bytes per second that a sweep reads."""
        seconds, nbytes = [], []
        for sweeps in SWEEPS:
            start = time.perf_counter()
            _, self.report = self.sweep(max_sweeps=sweeps)
            seconds.append(time.perf_counter() - start)
            nbytes.append(self.report.bytes_read)
        read = nbytes[1] - nbytes[0]
        self.words = read / 8 / (SWEEPS[1] - SWEEPS[0])
        return read / (seconds[1] - seconds[0])


def stream_rate(A: oc.Array) -> float:
    """Return bytes per second of a stream with the same read-ahead."""
    start = time.perf_counter()
    for _ in A.stream(memory=RING_TILES * A.metadata.grid().slot_bytes):
        pass
    return A.nbytes / (time.perf_counter() - start)


def fio_reading(A: oc.Array) -> dict[str, Contender]:
    """Return fio's sequential reads of the array's file, the reference of least squares, too.

    The result is empty without fio.
    """
    if not fio.is_installed():
        return {}
    threads = 4
    block_bytes = min(4 << 20, A.nbytes // threads // mmap.PAGESIZE * mmap.PAGESIZE)
    nbytes = A.nbytes // (threads * block_bytes) * threads * block_bytes
    reading = fio.Fio(shard_file(Path(A.path)), nbytes, block_bytes, threads, True)
    return {"fio": partial(reading.rate, "read")}


def rated(value: float) -> str:
    """Format a rate."""
    return f"{value / 1e9:.2f} GB/s"


if __name__ == "__main__":
    main("gauss_seidel", measure)
