"""Tables 1 and 3 of Womble et al. (1993) on this machine: budget against I/O, and I/O not hidden.

The paper cuts the matrix into column blocks as wide as memory allows, and halves the memory. Slabs
do the same, and are used here even if another method would be faster. The first budget is the least
with as many slabs as the paper's run had blocks, and the others are halves of it.
"""

from typing import Any

import numpy as np

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure
from benchmarks.matrices import random_array
from benchmarks.rounds import alternate
from outcore.errors import BudgetError
from outcore.linalg._geometry.factor_plan import lu_geometry

TABLES = {
    "full": [(10_000, 14, 2), (2_048, 2, 3)],
    "quick": [(2_048, 2, 3)],
    "tiny": [(512, 2, 2)],
}
"""Order of the matrix, blocks of the first run, and runs: 10,000 is Table 1, 2,048 Table 3."""


def measure(setting: Setting) -> Outcome:
    figures = []
    for n, first, runs in TABLES[setting.size]:
        with random_array(setting.scratch / f"{n}", n, "f8") as A:
            path, whole = A.path, A.nbytes
        for half in range(runs):
            memory = budget_for(n, first) >> half
            slabs = count(n, memory)
            found: dict[str, Any] = {}

            def run(path: Any = path, memory: int = memory, found: Any = found) -> float:
                arguments = [path, f"{path}.lu", memory, "slabs"]
                environment = setting.child_environment()
                ended = run_module("benchmarks.factor_outcore", arguments, environment=environment)
                found.update(ended.found)
                return ended.seconds

            rounds = 1 if setting.size == "tiny" else 3
            times = alternate(f"n={n}, {slabs} slabs", {"outcore": run}, rounds=rounds, warmups=0)
            moved = found["bytes_read"] + found["bytes_written"]
            figures.append(
                Figure(
                    f"n = {n}, {slabs} slabs",
                    times.measures["outcore"],
                    unit="s",
                    ours=f"budget {memory / 2**20:.1f} MiB ({memory / whole:.0%} of the matrix), "
                    f"total I/O {moved / 2**20:.0f} MiB, visible I/O {found['wait_seconds']:.2f} s",
                    details={"memory_bytes": memory, "report": found},
                )
            )
    return Outcome(figures)


def budget_for(n: int, slabs: int) -> int:
    """Return the least budget, to a part in 500, with at most the given number of slabs."""
    low, high = 1, 2 * n * n * 8 + (64 << 20)
    while high - low > high // 500:
        middle = (low + high) // 2
        if count(n, middle) > slabs:
            low = middle
        else:
            high = middle
    return high


def count(n: int, memory: int) -> float:
    """Return the number of slabs at a budget; infinite if none fits."""
    try:
        return len(lu_geometry(n, np.dtype("f8"), memory).slabs())
    except BudgetError:
        return float("inf")


if __name__ == "__main__":
    main("paper_lu", measure)
