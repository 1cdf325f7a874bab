"""Tall least squares from disk, against reading the rows or factoring them, whichever is longer.

The reading rate is that of fio on the same file (of a stream, without fio). The factoring speed is
that of LAPACK's ``geqrf`` in memory, with its best workspace and the best of several heights. All
alternate in one run.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks import fio
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_block
from benchmarks.rounds import alternate
from benchmarks.streaming import shard_file
from outcore.blas.lapack import kernels
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.machine import rates

SHAPES = {"full": (2_000_000, 512), "quick": (200_000, 512), "tiny": (8192, 64)}
MEMORY = {"full": 512 << 20, "quick": 512 << 20, "tiny": 16 << 20}
HEIGHTS = (4096, 16384, 65536)
ORDERS = ("C", "F")
DTYPE = "float64"
BOUND = 1.15


def measure(setting: Setting) -> Outcome:
    known = rates.measure(setting.scratch, 0.2 if setting.size == "tiny" else 4.0)
    figures = [figure for order in ORDERS for figure in compare(setting, known, order)]
    return Outcome(figures, {"read_bytes_s": known.read_bytes_s})


def compare(setting: Setting, known: rates.Rates, order: str) -> list[Figure]:
    (m, n), memory = SHAPES[setting.size], MEMORY[setting.size]
    path = setting.scratch / order
    A = oc.create_array(path, (m, n), DTYPE, order=order)
    b = fill(A)
    plan = oc.plan("lstsq", m=m, n=n, memory=memory, order=order, path=setting.scratch, rates=known)
    ours, reading, factoring = Ours(A, b, memory), Reading(A), Factoring(m, n)
    found = alternate(
        f"least squares, {m} x {n}, order {order}",
        {"outcore": ours.run, "reading": reading.run, "geqrf": factoring.run},
        rounds=1 if setting.size == "tiny" else 3,
    )
    A.close()
    clear(path)
    error = float(np.abs(ours.x - 1).max())
    if error > 1e-2:
        raise AssertionError(f"the solution is off by {error}")

    seconds = found.measures
    least = list(map(max, seconds["reading"], seconds["geqrf"]))
    speed = tsqr_flops(m, n, 1, np.dtype(DTYPE)) / found.median("outcore") / 1e9
    report = ours.report
    name = f"least squares {DTYPE}, {m} x {n}, order {order}, budget {memory >> 20} MiB"
    return [
        Figure(
            f"{name}: time against reading or geqrf, whichever is longer",
            [mine / rival for mine, rival in zip(seconds["outcore"], least, strict=True)],
            Target("≤", BOUND),
            ours=f"{found.median('outcore'):.2f} s, {speed:.0f} GFLOP/s",
            rival=f"reading {found.median('reading'):.2f} s, geqrf {found.median('geqrf'):.2f} s",
            peak=f"gemm {known.gemm_flops_s[DTYPE] / 1e9:.0f} GFLOP/s",
            details={**seconds, "report": report.to_dict(), "error": error},
        ),
        Figure(
            f"{name}: bytes read beyond the plan",
            [report.bytes_read - plan.bytes_read],
            Target("=", 0),
            ours=f"{report.bytes_read / 1e9:.2f} GB, the matrix has {A.nbytes / 1e9:.2f} GB",
        ),
        Figure(
            f"{name}: plan's time off by",
            [abs(plan.seconds / s - 1) * 100 for s in seconds["outcore"]],
            Target("≤", 25),
            unit="%",
            ours=f"planned {plan.seconds:.2f} s",
            details={"plan": plan.to_dict()},
        ),
    ]


def fill(A: oc.Array) -> npt.NDArray[Any]:
    """Write random rows; return b for a solution of ones, with some noise."""
    m, n = A.shape
    b = np.random.default_rng(2).standard_normal(m) / 100
    height = A.chunks[0] * max((32 << 20) // (A.chunks[0] * n * A.dtype.itemsize), 1)
    for first in range(0, m, height):
        rows = random_block((min(height, m - first), n), DTYPE, [first])
        A[first : first + len(rows)] = rows
        b[first : first + len(rows)] += rows.sum(axis=1)
    A.flush()
    return b


class Ours:
    """Our least squares of an array, within a budget."""

    def __init__(self, A: oc.Array, b: npt.NDArray[Any], memory: int) -> None:
        self.A, self.b, self.memory = A, b, memory

    def run(self) -> float:
        start = time.perf_counter()
        self.x, self.report = oc.linalg.lstsq(self.A, self.b, memory=self.memory, progress=False)
        return time.perf_counter() - start


class Reading:
    """All bytes of an array, at the rate of the disk."""

    def __init__(self, A: oc.Array) -> None:
        self.A, self.block_bytes = A, 4 << 20
        blocks = A.nbytes // (4 * self.block_bytes)
        self.fio = None
        if fio.is_installed() and blocks:
            nbytes = blocks * 4 * self.block_bytes
            self.fio = fio.Fio(shard_file(Path(A.path)), nbytes, self.block_bytes, 4, True)

    def run(self) -> float:
        """Return the seconds of a read of all bytes."""
        if self.fio is not None:
            return self.A.nbytes / self.fio.rate("read")
        start = time.perf_counter()
        for _ in self.A.stream():
            pass
        return time.perf_counter() - start


class Factoring:
    """``geqrf`` of all rows, extrapolated from a block of the best height."""

    def __init__(self, m: int, n: int) -> None:
        self.kernels, self.work = kernels(DTYPE), tsqr_flops(m, n, 0, np.dtype(DTYPE))
        self.n, heights = n, [height for height in HEIGHTS if height <= m] or [m]
        self.height = min(heights, key=self.seconds_at)

    def run(self) -> float:
        """Return the seconds for all rows."""
        return self.seconds_at(self.height)

    def seconds_at(self, height: int) -> float:
        """Return the time for all rows, at the speed of factoring a block of the given height."""
        block = np.asfortranarray(random_block((height, self.n), DTYPE, [1]))
        tau = np.empty(self.n)
        workspace = np.empty(self.kernels.geqrf_work(height, self.n))
        start = time.perf_counter()
        self.kernels.geqrf(block, tau, workspace)
        seconds = time.perf_counter() - start
        return seconds * self.work / tsqr_flops(height, self.n, 0, np.dtype(DTYPE))


if __name__ == "__main__":
    main("lstsq", measure)
