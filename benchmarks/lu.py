"""Out-of-core LU against in-core ``getrf`` with the same kernels, and against its own plan."""

from dataclasses import replace
from typing import Any, NamedTuple

import outcore as oc
from benchmarks.against import measure_cases, run_both
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_array
from outcore.linalg._lu.choice import LuMethod
from outcore.machine import rates

SMALL: LuMethod = "block-columns"
"""The method for budgets that hold few columns: fewest words."""

ROUNDS = 7
"""One round of LU differs from the next by about 3 % each way, as much as the effects to measure.
"""


class Case(NamedTuple):
    """A matrix, the budget as a share of it, and the targets."""

    dtype: str
    n: int
    most_time: float | None
    budget_share: int = 8
    order: str = "F"
    most_words: float | None = None
    """Relative to the lower bound."""
    method: LuMethod = "auto"


CASES = {
    "full": [
        Case("float64", 16384, 1.08),
        Case("complex128", 8192, 1.1),
        Case("float64", 16384, 1.6, budget_share=32, order="C", most_words=1.8),
        Case("float64", 16384, None, budget_share=32, order="C", method="slabs"),
    ],
    "quick": [
        Case("float64", 4096, 1.08),
        Case("complex128", 2048, 1.1),
        Case("float64", 4096, 1.6, budget_share=32, order="C"),
        Case("float64", 4096, 1.6, budget_share=32, order="C", most_words=1.8, method=SMALL),
    ],
    "tiny": [
        Case("float64", 512, 1.08),
        Case("complex128", 256, 1.1),
        Case("float64", 1024, 1.6, budget_share=32, order="C"),
        Case("float64", 1024, 1.6, budget_share=32, order="C", most_words=1.8, method=SMALL),
    ],
}


def measure(setting: Setting) -> Outcome:
    return measure_cases(setting, CASES[setting.size], compare)


def compare(setting: Setting, known: rates.Rates, case: Case) -> list[Figure]:
    dtype, n, most_time, budget_share, order, most_words, method = case
    path = setting.scratch / f"{dtype}-{budget_share}-{method}"
    with random_array(path, n, dtype, order=order) as A:
        memory, chunks = A.nbytes // budget_share, A.chunks
    plan = oc.plan(
        "lu", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known, order=order,
        chunks=chunks, method=method,
    )  # fmt: skip
    matrix = f"{dtype}, n = {n}, budget 1/{budget_share} of the matrix"
    found = run_both(
        setting,
        f"LU, method {method}, {matrix}",
        plan,
        known,
        ours=("factor_outcore", path, path.with_suffix(".lu"), memory, method),
        rival=("factor_in_core", path),
        rounds=ROUNDS,
    )
    found = replace(found, name=f"LU by {method_of(found.report)}, {matrix}")
    if len({run["piv"] for runs in found.found.values() for run in runs}) != 1:
        raise AssertionError("the pivots differ from those of in-core getrf")
    return [
        found.time("in-core getrf", most_time, pivots="equal"),
        found.plan_off(),
        found.beyond_plan(),
        found.words_over_bound(Target("≤", most_words) if most_words else None),
        found.hidden(),
    ]


def method_of(report: dict[str, Any]) -> str:
    """Return the method of a run, which ``"auto"`` does not name."""
    name: str = report["method"].partition(" of ")[0]
    return name.replace("-", " ")


if __name__ == "__main__":
    main("lu", measure)
