"""Out-of-core product against in-core ``gemm`` with the same kernels, and against its own plan.

Both matrices are in Fortran order with default chunks.
"""

import numpy as np

import outcore as oc
from benchmarks.against import OURS, RIVAL, measure_cases, run_both
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure
from benchmarks.matrices import random_array
from outcore.machine import rates

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384, 1.08), ("complex128", 8192, 1.08)],
    "quick": [("float64", 8192, 1.08), ("complex128", 4096, 1.08)],
    "tiny": [("float64", 512, 1.08), ("complex128", 256, 1.08)],
}


def measure(setting: Setting) -> Outcome:
    return measure_cases(setting, CASES[setting.size], compare)


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
