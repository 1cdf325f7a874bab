"""Out-of-core LU against in-core ``getrf`` with the same kernels, and against its own plan.

Each run is a process of its own, as a user's is: what one leaves in memory does not touch the next.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_array
from benchmarks.rounds import alternate
from outcore import rates
from outcore.linalg.lu.plan import flops

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
    with random_array(setting.scratch / dtype, n, dtype) as A:
        path, memory = A.path, A.nbytes // BUDGET_SHARE
    plan = oc.plan("lu", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    environment = setting.child_environment()
    runs: dict[str, list[dict[str, Any]]] = {"outcore": [], "in core": []}

    def contender(name: str, module: str, *arguments: object) -> Callable[[], float]:
        def run() -> float:
            ended = run_module(f"benchmarks.{module}", arguments, environment=environment)
            runs[name].append(ended.found)
            return ended.seconds

        return run

    out = setting.scratch / f"{dtype}.lu"
    found = alternate(
        f"LU {dtype} n={n}",
        {
            "outcore": contender("outcore", "factor_outcore", path, out, memory),
            "in core": contender("in core", "factor_in_core", path),
        },
        rounds=1 if setting.size == "tiny" else 3,
        warmups=0 if setting.size == "tiny" else 1,
    )
    if len({run["piv"] for name in runs for run in runs[name]}) != 1:
        raise AssertionError("the pivots differ from those of in-core getrf")

    work = flops(n, np.dtype(dtype))
    seconds = found.measures["outcore"]
    peak = f"gemm {known.gemm_flops_s[dtype] / 1e9:.0f} GFLOP/s"
    name = f"LU {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix"
    report = runs["outcore"][-1]
    moved = report["bytes_read"] + report["bytes_written"]
    planned = plan.bytes_read + plan.bytes_written
    least = plan.words_lower_bound or float("nan")
    blank = Figure(name, details={"plan": plan.to_dict(), "report": report})
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
            [moved / np.dtype(dtype).itemsize / least],
            ours=f"{moved / np.dtype(dtype).itemsize / n**2:.2f} n²",
            rival=f"{least / n**2:.2f} n²",
        ),
        Figure(
            f"{name}: I/O time hidden",
            [run["overlap"] * 100 for run in runs["outcore"][-len(seconds) :]],
            unit="%",
            ours=f"busy {report['io_seconds']:.2f} s, waited {report['wait_seconds']:.2f} s",
        ),
    ]


def rated(seconds: float, work: float) -> str:
    """Write a time and its rate."""
    return f"{seconds:.2f} s, {work / seconds / 1e9:.0f} GFLOP/s"


if __name__ == "__main__":
    main("lu", measure)
