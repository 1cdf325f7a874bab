"""Solving with factors in single precision and refinement, against our own solve in double."""

import time
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_array
from benchmarks.rounds import alternate
from outcore.machine import rates

BUDGET_SHARE = 8
CASES = {
    "full": [("float64", "f4", 32768)],
    "quick": [("float64", "f4", 4096), ("complex128", "c8", 2048)],
    "tiny": [("float64", "f4", 512), ("complex128", "c8", 256)],
}


def measure(setting: Setting) -> Outcome:
    known = rates.measure(setting.scratch, 0.2 if setting.size == "tiny" else 4.0)
    figures = []
    for dtype, low, n in CASES[setting.size]:
        figures += compare(setting, known, dtype, low, n)
    return Outcome(figures, {"gemm_flops_s": known.gemm_flops_s})


def compare(setting: Setting, known: rates.Rates, dtype: str, low: str, n: int) -> list[Figure]:
    A = random_array(setting.scratch / dtype, n, dtype)
    memory = A.nbytes // BUDGET_SHARE
    plan = oc.plan(
        "solve", n=n, dtype=dtype, memory=memory, path=setting.scratch, rates=known,
        factor_dtype=low,
    )  # fmt: skip
    b = np.random.default_rng(1).random(n) - 0.5
    contenders = {
        name: Solve(A, b, memory, setting.scratch / f"{dtype}.lu", factor_dtype)
        for name, factor_dtype in (("mixed", low), ("double", None))
    }
    found = alternate(
        f"solve {dtype} n={n}",
        {name: contender.run for name, contender in contenders.items()},
        rounds=1 if setting.size == "tiny" else 3,
        warmups=1 if setting.size == "quick" else 0,
    )
    A.close()
    clear(Path(A.path))
    mixed, double = (contenders[name].report for name in ("mixed", "double"))
    if "refinement" not in mixed.method:
        raise AssertionError(f"single precision did not suffice: {mixed.notes}")
    name = f"solve {dtype}, n = {n}, budget 1/{BUDGET_SHARE} of the matrix"
    planned = plan.bytes_read + plan.bytes_written
    return [
        Figure(
            f"{name}: time with {low} factors against {dtype}",
            found.ratios("mixed", "double"),
            Target("≤", 0.8),
            ours=f"{found.median('mixed'):.2f} s, {mixed.method}",
            rival=f"{found.median('double'):.2f} s",
            details={**found.measures, "plan": plan.to_dict(), "report": mixed.to_dict()},
        ),
        Figure(
            f"{name}: backward error over that in {dtype}",
            [_ratio(mixed.backward_error, double.backward_error)],
            Target("≤", 2),
            ours=f"{mixed.backward_error:.1e}",
            rival=f"{double.backward_error:.1e}",
        ),
        Figure(
            f"{name}: bytes moved over those planned",
            [(mixed.bytes_read + mixed.bytes_written) / planned],
            ours=f"{(mixed.bytes_read + mixed.bytes_written) / 1e9:.2f} GB",
            details={"assumed": plan.method},
        ),
        Figure(
            f"{name}: plan's time off by",
            [abs(plan.seconds / seconds - 1) * 100 for seconds in found.measures["mixed"]],
            unit="%",
            ours=f"planned {plan.seconds:.2f} s",
            details={"notes": plan.notes},
        ),
    ]


def _ratio(ours: float | None, rival: float | None) -> float:
    if ours is None or rival is None:
        raise AssertionError("both solutions have a backward error")
    return ours / rival


class Solve:
    """One method of solving, within a budget."""

    def __init__(
        self, A: oc.Array, b: Any, memory: int, factors: Path, factor_dtype: str | None
    ) -> None:
        self.A, self.b, self.memory, self.factors = A, b, memory, factors
        self.factor_dtype = factor_dtype

    def run(self) -> float:
        clear(self.factors)
        start = time.perf_counter()
        _, self.report = oc.linalg.solve(
            self.A, self.b, factor_dtype=self.factor_dtype, memory=self.memory,
            factors=self.factors, progress=False,
        )  # fmt: skip
        return time.perf_counter() - start


if __name__ == "__main__":
    main("mixed", measure)
