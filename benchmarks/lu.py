"""Out-of-core LU against in-core ``getrf`` with the same kernels, and against its own plan."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_array
from benchmarks.rounds import alternate
from outcore import rates
from outcore.lapack import kernels
from outcore.linalg.lu_plan import flops

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384, 1.08), ("complex128", 8192, 1.1)],
    "quick": [("float64", 4096, 1.08), ("complex128", 2048, 1.1)],
    "tiny": [("float64", 512, 1.08), ("complex128", 256, 1.1)],
}


def measure(setting: Setting) -> Outcome:
    known = rates.measure(setting.scratch, 0.2 if setting.size == "tiny" else 4.0)
    figures = []
    for dtype, n, bound in CASES[setting.size]:
        figures += compare(setting, known, dtype, n, bound)
    details = {
        "read_bytes_s": known.read_bytes_s,
        "write_bytes_s": known.write_bytes_s,
        "gemm_flops_s": known.gemm_flops_s,
    }
    return Outcome(figures, details)


def compare(setting: Setting, known: rates.Rates, dtype: str, n: int, bound: float) -> list[Figure]:
    A = random_array(setting.scratch / dtype, n, dtype)
    memory = A.nbytes // BUDGET_SHARE
    plan = oc.plan("lu", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    ours, theirs = OutOfCore(A, memory, setting.scratch / f"{dtype}.lu"), InCore(A)
    found = alternate(
        f"LU {dtype} n={n}",
        {"outcore": ours.run, "in core": theirs.run},
        rounds=1 if setting.size == "tiny" else 3,
    )
    if not np.array_equal(ours.piv, theirs.piv):
        raise AssertionError("the pivots differ from those of in-core getrf")
    A.close()

    work = flops(n, np.dtype(dtype))
    seconds = found.measures["outcore"]
    peak = f"gemm {known.gemm_flops_s[dtype] / 1e9:.0f} GFLOP/s"
    name = f"LU {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix"
    report = ours.report
    moved = report.bytes_read + report.bytes_written
    planned = plan.bytes_read + plan.bytes_written
    least = plan.words_lower_bound or float("nan")
    blank = Figure(name, details={"plan": plan.to_dict(), "report": report.to_dict()})
    return [
        Figure(
            f"{name}: time against in-core getrf",
            found.ratios("outcore", "in core"),
            Target("≤", bound),
            ours=rated(found.median("outcore"), work),
            rival=rated(found.median("in core"), work),
            peak=peak,
            details={**found.measures, "pivots": "equal"},
        ),
        replace(
            blank,
            what=f"{name}: plan's time off by",
            values=[abs(plan.seconds / s - 1) * 100 for s in seconds],
            target=Target("≤", 25),
            unit="%",
            ours=f"planned {plan.seconds:.2f} s",
        ),
        Figure(
            f"{name}: words moved beyond the plan",
            [(moved - planned) // np.dtype(dtype).itemsize],
            Target("=", 0),
            ours=f"{moved / 1e9:.2f} GB",
        ),
        Figure(
            f"{name}: words moved over the lower bound",
            [report.words_moved() / least],
            ours=f"{report.words_moved() / n**2:.2f} n²",
            rival=f"{least / n**2:.2f} n²",
        ),
        Figure(
            f"{name}: I/O time hidden",
            [overlap * 100 for overlap in ours.overlaps[-len(seconds) :]],
            unit="%",
            ours=f"busy {report.io_seconds:.2f} s, waited {report.wait_seconds:.2f} s",
        ),
    ]


def rated(seconds: float, work: float) -> str:
    """Write a time and its rate."""
    return f"{seconds:.2f} s, {work / seconds / 1e9:.0f} GFLOP/s"


class OutOfCore:
    """Our LU of an array, within a budget."""

    def __init__(self, A: oc.Array, memory: int, out: Path) -> None:
        self.A, self.memory, self.out = A, memory, out
        self.overlaps: list[float] = []

    def run(self) -> float:
        clear(self.out)
        start = time.perf_counter()
        factor = oc.linalg.lu_factor(self.A, memory=self.memory, out=self.out, progress=False)
        seconds = time.perf_counter() - start
        if factor.report is None:
            raise AssertionError("a factorization reports")
        self.piv, self.report = factor.piv, factor.report
        self.overlaps.append(factor.report.overlap)
        return seconds


class InCore:
    """LAPACK's LU of the same array in memory, through the same BLAS; the reading is not timed."""

    def __init__(self, A: oc.Array) -> None:
        self.A = A
        self.kernels = kernels(A.dtype)
        self.piv = np.empty(A.shape[0], np.int32)

    def run(self) -> float:
        a: Any = self.A[...]
        start = time.perf_counter()
        self.kernels.getrf(a, self.piv)
        return time.perf_counter() - start


if __name__ == "__main__":
    main("lu", measure)
