"""Out-of-core Cholesky against in-core ``potrf`` with the same kernels, and against its own plan.

Each run is a process of its own, as a user's is: what one leaves in memory does not touch the next.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.lu import rated
from benchmarks.matrices import random_array
from benchmarks.rounds import alternate
from outcore import rates
from outcore.linalg.cholesky.plan import flops

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384), ("complex128", 8192)],
    "quick": [("float64", 4096), ("complex128", 2048)],
    "tiny": [("float64", 512), ("complex128", 256)],
}
MOST_TIME = 1.1
MOST_WORDS = 1.1


def measure(setting: Setting) -> Outcome:
    known = rates.measure(setting.scratch, 0.2 if setting.size == "tiny" else 4.0)
    figures = []
    for dtype, n in CASES[setting.size]:
        figures += compare(setting, known, dtype, n)
    details = {
        "read_bytes_s": known.read_bytes_s,
        "write_bytes_s": known.write_bytes_s,
        "gemm_flops_s": known.gemm_flops_s,
    }
    return Outcome(figures, details)


def compare(setting: Setting, known: rates.Rates, dtype: str, n: int) -> list[Figure]:
    # Random elements, of at most 1/√2 in size, and n on the diagonal: positive definite.
    with random_array(setting.scratch / dtype, n, dtype, diagonal=n) as A:
        path, memory = A.path, A.nbytes // BUDGET_SHARE
    plan = oc.plan("cholesky", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    environment = setting.child_environment()
    runs: dict[str, list[dict[str, Any]]] = {"outcore": [], "in core": []}

    def contender(name: str, *arguments: object) -> Callable[[], float]:
        def run() -> float:
            ended = run_module("benchmarks.cholesky_case", arguments, environment=environment)
            runs[name].append(ended.found)
            return ended.seconds

        return run

    out = setting.scratch / f"{dtype}.cho"
    found = alternate(
        f"Cholesky {dtype} n={n}",
        {
            "outcore": contender("outcore", "outcore", path, out, memory),
            "in core": contender("in core", "in_core", path),
        },
        rounds=1 if setting.size == "tiny" else 3,
        warmups=0 if setting.size == "tiny" else 1,
    )
    samples = [run["sample"] for name in runs for run in runs[name]]
    if not np.allclose(samples, samples[0], rtol=1e-12, atol=0):
        raise AssertionError("the diagonal differs from that of in-core potrf")

    work, itemsize = flops(n, np.dtype(dtype)), np.dtype(dtype).itemsize
    seconds = found.measures["outcore"]
    peak = f"gemm {known.gemm_flops_s[dtype] / 1e9:.0f} GFLOP/s"
    name = f"Cholesky {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix"
    report = runs["outcore"][-1]
    moved = report["bytes_read"] + report["bytes_written"]
    planned = plan.bytes_read + plan.bytes_written
    least = plan.words_lower_bound or math.nan
    model = n**2 * (BUDGET_SHARE / 12 + 1)
    in_words = f"{moved / itemsize / n**2:.2f} n²"
    blank = Figure(name, details={"plan": plan.to_dict(), "report": report})
    return [
        Figure(
            f"{name}: time against in-core potrf",
            found.ratios("outcore", "in core"),
            Target("≤", MOST_TIME),
            ours=rated(found.median("outcore"), work),
            rival=rated(found.median("in core"), work),
            peak=peak,
            details={**found.measures, "diagonal": "equal to 12 digits"},
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
            [(moved - planned) // itemsize],
            Target("=", 0),
            ours=f"{moved / 1e9:.2f} GB",
        ),
        Figure(
            f"{name}: words moved over n²(1/(12a) + 1) for a budget of a n²",  # a: the usual alpha
            [moved / itemsize / model],
            Target("≤", MOST_WORDS) if (dtype, setting.size) == ("float64", "full") else None,
            ours=in_words,
            rival=f"{model / n**2:.2f} n²",
        ),
        Figure(
            f"{name}: words moved over the lower bound",
            [moved / itemsize / least],
            ours=in_words,
            rival=f"{least / n**2:.2f} n²",
        ),
        Figure(
            f"{name}: I/O time hidden",
            [run["overlap"] * 100 for run in runs["outcore"][-len(seconds) :]],
            unit="%",
            ours=f"busy {report['io_seconds']:.2f} s, waited {report['wait_seconds']:.2f} s",
        ),
    ]


if __name__ == "__main__":
    main("cholesky", measure)
