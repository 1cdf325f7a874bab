"""Out-of-core product against in-core ``gemm`` with the same kernels, and against its own plan.

Both matrices are in Fortran order with default chunks. Each run is a process of its own, as a
user's is: what one leaves in memory does not touch the next.
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
from outcore.linalg.products.matmul_plan import flops

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384, 1.08), ("complex128", 8192, 1.08)],
    "quick": [("float64", 8192, 1.08), ("complex128", 4096, 1.08)],
    "tiny": [("float64", 512, 1.08), ("complex128", 256, 1.08)],
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
    paths = []
    for name in "AB":
        with random_array(setting.scratch / f"{dtype}-{name}", n, dtype) as array:
            paths.append(array.path)
            memory = array.nbytes // BUDGET_SHARE
    plan = oc.plan("matmul", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    environment = setting.child_environment()
    runs: dict[str, list[dict[str, Any]]] = {"outcore": [], "in core": []}

    def contender(name: str, module: str, *arguments: object) -> Callable[[], float]:
        def run() -> float:
            ended = run_module(f"benchmarks.{module}", arguments, environment=environment)
            runs[name].append(ended.found)
            return ended.seconds

        return run

    out = setting.scratch / f"{dtype}-C"
    found = alternate(
        f"product {dtype} n={n}",
        {
            "outcore": contender("outcore", "matmul_outcore", *paths, out, memory),
            "in core": contender("in core", "matmul_in_core", *paths),
        },
        rounds=1 if setting.size == "tiny" else 3,
        warmups=0 if setting.size == "tiny" else 1,
    )
    ours, theirs = (np.array(runs[name][-1]["rows"]) for name in runs)
    if not np.allclose(ours, theirs, rtol=0, atol=1e-9 * np.abs(theirs).max()):
        raise AssertionError("the product differs from that of in-core gemm")

    work = flops(n, n, n, np.dtype(dtype))
    seconds = found.measures["outcore"]
    peak = f"gemm {known.gemm_flops_s[dtype] / 1e9:.0f} GFLOP/s"
    name = f"product {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of a matrix"
    report = runs["outcore"][-1]
    moved = report["bytes_read"] + report["bytes_written"]
    planned = plan.bytes_read + plan.bytes_written
    words, least = moved / np.dtype(dtype).itemsize, plan.words_lower_bound or float("nan")
    blank = Figure(name, details={"plan": plan.to_dict(), "report": report})
    return [
        Figure(
            f"{name}: time against in-core gemm",
            found.ratios("outcore", "in core"),
            Target("≤", bound),
            ours=rated(found.median("outcore"), work),
            rival=rated(found.median("in core"), work),
            peak=peak,
            details=found.measures,
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
            [words / least],
            ours=f"{words / n**2:.2f} n²",
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
    main("matmul", measure)
