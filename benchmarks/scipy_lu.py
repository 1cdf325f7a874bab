"""Out-of-core LU against ``scipy.linalg.lu_factor`` as installed, in memory.

Each contender is a separate process, and times its factorization alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.against import rated
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_array
from benchmarks.rounds import alternate
from outcore.linalg._geometry.factor_plan import flops

BUDGET_SHARE = 8
ORDERS = {"full": 16384, "quick": 4096, "tiny": 512}


def measure(setting: Setting) -> Outcome:
    n = ORDERS[setting.size]
    A = random_array(setting.scratch / "A", n, "f8")
    environment = setting.child_environment()
    found: dict[str, dict[str, Any]] = {}

    def ours() -> float:
        arguments = [A.path, setting.scratch / "A.lu", A.nbytes // BUDGET_SHARE]
        ended = run_module("benchmarks.factor_outcore", arguments, environment=environment)
        found["outcore"] = ended.found
        return ended.seconds

    def scipy(name: str, *how: str) -> Callable[[], float]:
        def run() -> float:
            ended = run_module("benchmarks.factor_scipy", [n, *how], environment=environment)
            found[name] = ended.found
            return ended.seconds

        return run

    rivals = {
        "lu_factor(a)": scipy("lu_factor(a)", "plain"),
        "lu_factor at its best": scipy("lu_factor at its best"),
    }

    rounds = alternate(
        f"LU float64 n={n}",
        {"outcore": ours, **rivals},
        rounds=1 if setting.size == "tiny" else 3,
        warmups=0 if setting.size == "tiny" else 1,
    )
    work = flops(n, np.dtype("f8"))

    def side(name: str) -> str:
        return f"{rated(rounds.median(name), work)}, {found[name]['kernels']}"

    return Outcome(
        [
            Figure(
                f"LU float64, n = {n}, budget 1/{BUDGET_SHARE} of the matrix: "
                f"time against scipy.linalg.{name} in memory{remark}",
                rounds.ratios("outcore", name),
                target,
                ours=side("outcore"),
                rival=side(name),
                details=dict(rounds.measures),
            )
            for name, remark, target in (
                ("lu_factor(a)", ", as installed", Target("<", 1)),
                (
                    "lu_factor at its best",
                    " (Fortran order, overwrite_a=True, check_finite=False)",
                    None,
                ),
            )
        ]
    )


if __name__ == "__main__":
    main("scipy_lu", measure)
