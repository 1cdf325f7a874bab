"""Out-of-core product against in-core ``gemm`` with the same kernels, and against its own plan.

Both matrices are in Fortran order with default chunks. Also two processes of one thread against
one of two, as in `lu_processes`.
"""

import functools
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.against import OURS, RIVAL, measure_cases, run_both
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.lu_processes import ONE, TWO, job
from benchmarks.matrices import random_array
from benchmarks.rounds import alternate
from outcore.machine import rates

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384, 1.08), ("complex128", 8192, 1.08)],
    "quick": [("float64", 8192, 1.08), ("complex128", 4096, 1.08)],
    "tiny": [("float64", 512, 1.08), ("complex128", 256, 1.08)],
}


def measure(setting: Setting) -> Outcome:
    found = measure_cases(setting, CASES[setting.size], compare)
    found.figures.append(two_processes(setting))
    return found


def two_processes(setting: Setting) -> Figure:
    """Compare two processes with one at the same memory and number of threads."""
    n, rounds = CASES[setting.size][0][1], 1 if setting.size == "tiny" else 3
    found: dict[str, dict[str, Any]] = {}
    whole = max(8 * n * n // BUDGET_SHARE, 2 << 20)

    def run(name: str, processes: int, threads: int) -> float:
        words = [setting.scratch / f"job-{processes}", n, whole // processes, threads]
        found[name] = job(setting, "multiply_processes", processes, words)
        return float(found[name]["seconds"])

    contenders = {
        ONE: functools.partial(run, ONE, 1, 2),
        TWO: functools.partial(run, TWO, 2, 1),
    }
    times = alternate(f"product, n={n}", contenders, rounds=rounds, warmups=0)
    ours, theirs = (np.array(found[side].pop("row")) for side in (TWO, ONE))
    if not np.allclose(ours, theirs, rtol=0, atol=1e-9 * np.abs(theirs).max()):
        raise AssertionError("the products differ")
    sent = sum(each["bytes_sent"] for each in found[TWO]["processes"])
    return Figure(
        f"product float64, n = {n}: {TWO} over {ONE}, 1/{BUDGET_SHARE} of a matrix for all",
        times.ratios(TWO, ONE),
        Target("≤", 1.12),
        ours=f"{times.median(TWO):.1f} s, {sent / 2**20:.0f} MiB sent",
        rival=f"{times.median(ONE):.1f} s",
        details={"reports": found},
    )


def compare(setting: Setting, known: rates.Rates, case: tuple[str, int, float]) -> list[Figure]:
    dtype, n, bound = case
    paths = []
    for name in "AB":
        with random_array(setting.scratch / f"{dtype}-{name}", n, dtype) as array:
            paths.append(array.path)
            memory = array.nbytes // BUDGET_SHARE
    plan = oc.plan("matmul", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    found = run_both(
        setting,
        f"product {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of a matrix",
        plan,
        known,
        ours=("matmul_outcore", *paths, setting.scratch / f"{dtype}-C", memory),
        rival=("matmul_in_core", *paths),
    )
    ours, theirs = (np.array(found.found[side][-1]["rows"]) for side in (OURS, RIVAL))
    if not np.allclose(ours, theirs, rtol=0, atol=1e-9 * np.abs(theirs).max()):
        raise AssertionError("the product differs from that of in-core gemm")
    return [
        found.time("in-core gemm", bound),
        found.plan_off(),
        found.beyond_plan(),
        found.words_over_bound(),
        found.hidden(),
    ]


if __name__ == "__main__":
    main("matmul", measure)
