"""Out-of-core Cholesky against in-core ``potrf`` with the same kernels, and its own plan."""

import numpy as np

import outcore as oc
from benchmarks.against import measure_cases, run_both
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_array
from outcore.machine import rates

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", 16384), ("complex128", 8192)],
    "quick": [("float64", 4096), ("complex128", 2048)],
    "tiny": [("float64", 512), ("complex128", 256)],
}
MOST_TIME = 1.1
MOST_WORDS = 1.1
ROUNDS = 15
"""Rounds differ by 7 % each way on a shared machine; medians of seven differ by 3 %."""


def measure(setting: Setting) -> Outcome:
    return measure_cases(setting, CASES[setting.size], compare)


def compare(setting: Setting, known: rates.Rates, case: tuple[str, int]) -> list[Figure]:
    dtype, n = case
    # Random elements, of at most 1/√2 in size, and n on the diagonal: positive definite.
    with random_array(setting.scratch / dtype, n, dtype, diagonal=n) as A:
        path, memory = A.path, A.nbytes // BUDGET_SHARE
    plan = oc.plan("cholesky", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known)
    found = run_both(
        setting,
        f"Cholesky {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix",
        plan,
        known,
        ours=("cholesky_case", "outcore", path, setting.scratch / f"{dtype}.cho", memory),
        rival=("cholesky_case", "in_core", path),
        rounds=ROUNDS,
    )
    samples = [run["sample"] for runs in found.found.values() for run in runs]
    if not np.allclose(samples, samples[0], rtol=1e-12, atol=0):
        raise AssertionError("the diagonal differs from that of in-core potrf")

    is_judged = (dtype, setting.size) == ("float64", "full")
    return [
        found.time("in-core potrf", MOST_TIME, diagonal="equal to 12 digits"),
        found.plan_off(),
        found.beyond_plan(),
        found.words_over(
            "n²(1/(12a) + 1) for a budget of a n²",  # a: the usual alpha
            n**2 * (BUDGET_SHARE / 12 + 1),
            Target("≤", MOST_WORDS) if is_judged else None,
        ),
        found.words_over_bound(),
        found.hidden(),
    ]


if __name__ == "__main__":
    main("cholesky", measure)
