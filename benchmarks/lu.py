"""Out-of-core LU against in-core ``getrf`` with the same kernels, and against its own plan."""

import outcore as oc
from benchmarks.against import measure_cases, run_both
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure
from benchmarks.matrices import random_array
from outcore import rates

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384, 1.08), ("complex128", 8192, 1.1)],
    "quick": [("float64", 4096, 1.08), ("complex128", 2048, 1.1)],
    "tiny": [("float64", 512, 1.08), ("complex128", 256, 1.1)],
}


def measure(setting: Setting) -> Outcome:
    return measure_cases(setting, CASES[setting.size], compare)


def compare(setting: Setting, known: rates.Rates, dtype: str, n: int, bound: float) -> list[Figure]:
    with random_array(setting.scratch / dtype, n, dtype) as A:
        path, memory = A.path, A.nbytes // BUDGET_SHARE
    plan = oc.plan("lu", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    found = run_both(
        setting,
        f"LU {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix",
        plan,
        known,
        ours=("factor_outcore", path, setting.scratch / f"{dtype}.lu", memory),
        rival=("factor_in_core", path),
    )
    if len({run["piv"] for runs in found.found.values() for run in runs}) != 1:
        raise AssertionError("the pivots differ from those of in-core getrf")
    return [
        found.time("in-core getrf", bound, pivots="equal"),
        found.plan_off(),
        found.beyond_plan(),
        found.words_over_bound(),
        found.hidden(),
    ]


if __name__ == "__main__":
    main("lu", measure)
